"""Whether a `ScalarFunction` keeps its promises: f(0) = 0, finite, and divided differences that are those of f."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from timm_gcp.ops.scalar_functions import ScalarFunction

# Distinct, equal and vanishing eigenvalues that add up to one, as those of a covariance of trace one do.
EIGENVALUES = (0.55, 0.0, 0.07, 0.31, 0.07)
_NEAR_ZERO = 1e-300
_STEP = 1e-5


def check_scalar_function(fn: ScalarFunction) -> None:
    """Compare f, f/λ and their divided differences with each other in float64.

    Raises:
        TypeError: A method returns something other than floating-point tensors.
        ValueError: A method fails, returns another shape, NaN or Inf, f(0) is not zero, `degree` is not a number of at
            least 0, or a divided difference is not that of the function.
    """
    degree = fn.degree
    numeric = isinstance(degree, (int, float)) and not isinstance(degree, bool)
    if degree is not None and not (numeric and 0 <= degree < math.inf):
        raise ValueError(f"the degree of {fn!r} is {degree!r}; give None or a number of at least 0")
    lam = torch.tensor([EIGENVALUES], dtype=torch.float64, device="cpu")
    live = lam > 0
    safe = torch.where(live, lam, 1.0)

    def value(x: Tensor) -> Tensor:
        return _called(fn, "value", x)[0]

    def quotient(x: Tensor) -> Tensor:
        return value(x) / x

    f_wanted, h_wanted, near_zero = value(safe), quotient(safe), value(torch.full_like(lam, _NEAR_ZERO))
    if near_zero.abs().max() > 1e-3 * f_wanted.abs().max():
        raise ValueError(
            f"f(0) of {fn!r} is {near_zero[0, 0]:.4g}, where a normalization on the smaller side needs f(0) = 0; "
            "return f(λ) − f(0), which adds a constant multiple of the identity to the matrix"
        )
    (h,), (f, f_div), (h_again, h_div) = (
        _called(fn, name, lam) for name in ("quotient", "divided", "quotient_divided")
    )
    for name, found, wanted in (
        ("quotient", h, h_wanted),
        ("divided", f, f_wanted),
        ("quotient_divided", h_again, h_wanted),
    ):
        _compare(f"{name} of {fn!r}", found[live], wanted[live], lam[live])
    _compare_divided(f"divided of {fn!r}", f_div[0], lam[0], value)
    _compare_divided(f"quotient_divided of {fn!r}", h_div[0], lam[0], quotient)


def _called(fn: ScalarFunction, method: str, lam: Tensor) -> tuple[Tensor, ...]:
    """What a method gives for `lam` `(1, n)`, as a tuple of finite tensors of the right shapes."""
    name = f"{method} of {fn!r}"
    try:
        with torch.no_grad():
            found: Any = getattr(fn, method)(lam.clone())
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"{name} fails for eigenvalues of shape {tuple(lam.shape)}: {reason}") from error
    shapes = [tuple(lam.shape)]
    if method in ("divided", "quotient_divided"):
        shapes.append((*lam.shape, lam.shape[-1]))
    wanted = f"floating-point tensors of shape {' and '.join(map(str, shapes))}"
    parts = found if len(shapes) > 1 else (found,)
    if not isinstance(parts, tuple) or not all(isinstance(p, Tensor) and p.is_floating_point() for p in parts):
        raise TypeError(f"{name} must return {wanted}, not {type(found)}")
    if [tuple(p.shape) for p in parts] != shapes:
        raise ValueError(f"{name} must return {wanted}, not {' and '.join(str(tuple(p.shape)) for p in parts)}")
    if not all(p.isfinite().all() for p in parts):
        raise ValueError(f"{name} gives NaN or Inf for the eigenvalues {lam.flatten().tolist()}")
    return parts


def _compare(name: str, found: Tensor, wanted: Tensor, lam: Tensor) -> None:
    error = (found - wanted).abs()
    if error.max() > 1e-6 * wanted.abs().max():
        at = int(error.argmax())
        raise ValueError(
            f"{name} gives {found[at]:.6g} at the eigenvalue {lam[at]:.4g}; by value it is {wanted[at]:.6g}"
        )


def _compare_divided(name: str, found: Tensor, lam: Tensor, function: Callable[[Tensor], Tensor]) -> None:
    """Pairs of eigenvalues that don't vanish: the difference quotient; for equal ones a central difference."""
    live = lam > 0
    x = lam[live]
    values, up, down = function(x[None])[0], function(x[None] * (1 + _STEP))[0], function(x[None] * (1 - _STEP))[0]
    gap = x[:, None] - x
    quotient = (values[:, None] - values) / torch.where(gap == 0, 1.0, gap)
    wanted = torch.where(gap == 0, ((up - down) / (2 * _STEP * x))[:, None], quotient)
    error = (found[live][:, live] - wanted).abs() / torch.maximum(wanted.abs(), (values / x).abs()[:, None])
    if error.max() > 1e-4:
        i, j = divmod(int(error.argmax()), len(x))
        raise ValueError(
            f"{name} gives {found[live][:, live][i, j]:.6g} for the eigenvalues {x[i]:.4g} and {x[j]:.4g}, where the "
            f"difference quotient is {wanted[i, j]:.6g}; check the derivative or the divided differences"
        )
