"""What `normalization=` accepts: a name, or something of your own, which is tried out before it can go wrong.

Your own is a `ScalarFunction`, computed on the smaller side, or any callable that maps covariances `(B, D, D)` to
matrices `(B, D, D)`. A registered name stands for either where a callable can't be written: in a recipe, on the command
line, in a config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from timm_gcp.ops.centring import centre
from timm_gcp.ops.scalar_check import check_scalar_function
from timm_gcp.ops.scalar_functions import ScalarFunction
from timm_gcp.ops.triangle import gather_triangle

Normalization = str | ScalarFunction | Callable[[Tensor], Tensor]

NORMALIZATIONS = ("newton_schulz", "eigh", "power", "log", "none", "signed_sqrt_l2", "dropcov", "isice")

_registered: dict[str, ScalarFunction | Callable[[Tensor], Tensor]] = {}


class Held(nn.Module):
    """A function or `ScalarFunction` as a submodule of the layer that uses it.

    torch.fx takes a submodule as the argument of a node, which it does not take a function for.
    """

    def __init__(self, function: ScalarFunction | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return describe_normalization(self.function)


def register_normalization(name: str, normalization: ScalarFunction | Callable[[Tensor], Tensor]) -> None:
    """Let `name` stand for a normalisation of your own wherever `normalization=` is given.

    Args:
        name: A Python identifier that no normalisation has; the same definition may be registered again.
        normalization: A `ScalarFunction`, or a callable `(B, D, D) -> (B, D, D)`.

    Raises:
        ValueError: A name that is taken or not an identifier, or something that is not a normalisation.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a normalization is registered under an identifier such as 'my_root', got {name!r}")
    known = _registered.get(name)
    if name in NORMALIZATIONS or (known is not None and _origin(known) != _origin(normalization)):
        raise ValueError(f"the name {name!r} stands for another normalization; choose one beside {_names()}")
    if isinstance(normalization, str):
        raise ValueError(f"{name!r} must stand for a ScalarFunction or a callable, got the name {normalization!r}")
    resolve_normalization(normalization)
    _registered[name] = normalization


def resolve_normalization(normalization: Any) -> Any:
    """The built-in name, the `ScalarFunction` or the callable that `normalization` stands for.

    Raises:
        ValueError: None of these; the names are listed.
    """
    if isinstance(normalization, str):
        if normalization in NORMALIZATIONS:
            return normalization
        if normalization in _registered:
            return _registered[normalization]
    elif isinstance(normalization, type):
        raise ValueError(
            f"normalization is the class {normalization.__name__}; give an instance, {normalization.__name__}(…)"
        )
    elif isinstance(normalization, Held):
        return normalization.function
    elif callable(normalization) or isinstance(normalization, ScalarFunction):
        return normalization
    given = " ".join(repr(normalization).split())
    raise ValueError(
        f"normalization is {given}; choose one of {_names()}, or give a ScalarFunction or a callable "
        "(B, D, D) -> (B, D, D)"
    )


def registered_name(normalization: Any) -> Any:
    """The name that a normalisation is registered under, if it is; else `normalization` itself."""
    for name, known in _registered.items():
        if known is normalization:
            return name
    return normalization


def describe_normalization(normalization: Any) -> str:
    """How a normalisation is printed: a name quoted, a function by its own name, a module by its class."""
    if isinstance(normalization, nn.Module):
        return type(normalization).__name__
    return getattr(normalization, "__qualname__", None) or repr(normalization)


def callable_pool(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """`(B, D, N)` -> `(B, D(D+1)/2)`: the upper triangle of `function` of the covariance.

    `function` sees the identity in place of a covariance that is zero or not finite, and what it makes of that is
    dropped: such a sample gives zeros, or NaN, and no gradient.

    Raises:
        TypeError: `function` returns something other than a floating-point tensor.
        ValueError: It returns another shape.
    """
    xc = centre(x)
    covariance = torch.bmm(xc, xc.mT) * (1.0 / xc.shape[-1])
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    usable = torch.isfinite(trace) & (trace > 0)
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    value = _checked(function(torch.where(usable, covariance, identity)), covariance, function)
    rest = torch.where(trace == 0, torch.zeros_like(trace), torch.full_like(trace, math.nan)).to(value.dtype)
    return gather_triangle(torch.where(usable, value, rest))


def try_normalization(normalization: Any, dim: int, dtype: torch.dtype = torch.float32) -> None:
    """Try a normalisation of your own out, in the shapes that it will see; names that come with the package pass.

    Args:
        normalization: As `global_cov_pool` takes it.
        dim: D.
        dtype: Type of the covariances to try a callable with.

    Raises:
        TypeError: It returns something other than floating-point tensors.
        ValueError: It fails, returns another shape, NaN or Inf, a matrix that its upper triangle does not hold, or
            divided differences that are not those of its value.
    """
    found = resolve_normalization(normalization)
    if isinstance(found, ScalarFunction):
        check_scalar_function(found)
    elif not isinstance(found, str):
        _try_callable(found, dim, dtype)


def _try_callable(function: Callable[[Tensor], Tensor], dim: int, dtype: torch.dtype) -> None:
    """Two well-conditioned covariances with distinct eigenvalues, 0.6^|i−j| and 0.6^2|i−j|, go through `function`."""
    device = next((parameter.device for parameter in _tensors(function)), torch.device("cpu"))
    if "meta" in (device.type, torch.empty(0).device.type):
        return  # shapes only, no numbers to look at
    index = torch.arange(dim, device=device)
    lag = (index[:, None] - index).abs().to(dtype)
    examples = torch.stack((0.6**lag, 0.6 ** (2 * lag)))
    name = describe_normalization(function)
    modes = [(module, module.training) for module in _modules(function)]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            value = function(examples.clone())
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(f"normalization {name} fails for covariances {tuple(examples.shape)}: {reason}") from error
    finally:
        for module, training in modes:
            module.training = training
    value = _checked(value, examples, function)
    if not value.isfinite().all():
        raise ValueError(f"normalization {name} gives NaN or Inf for a well-conditioned covariance 0.6^|i-j|")
    lower, upper = value.tril(-1), value.triu(1)
    if lower.abs().max() > 0 and (lower - upper.mT).abs().max() > 1e-3 * value.abs().max():
        raise ValueError(
            f"normalization {name} returns a matrix that is not symmetric; the upper triangle alone is kept, so return "
            "a symmetric or an upper triangular matrix"
        )


def _checked(value: Any, like: Tensor, function: Any) -> Tensor:
    """`value`, if it is a floating-point tensor of the shape of `like`."""
    error: type[Exception] = TypeError
    if not isinstance(value, Tensor):
        found: object = type(value).__name__
    elif not value.is_floating_point():
        found = value.dtype
    elif value.shape != like.shape:
        error, found = ValueError, tuple(value.shape)
    else:
        return value
    raise error(
        f"normalization {describe_normalization(function)} must return a floating-point tensor of the covariance's "
        f"shape {tuple(like.shape)}, not {found}"
    )


def _modules(function: Any) -> list[nn.Module]:
    return list(function.modules()) if isinstance(function, nn.Module) else []


def _tensors(function: Any) -> list[Tensor]:
    return [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []


def _names() -> str:
    return ", ".join(map(repr, (*NORMALIZATIONS, *_registered)))


def _origin(normalization: Any) -> tuple[str, str]:
    """Where a normalisation is defined, the same when its module is imported anew."""
    definition = normalization if hasattr(normalization, "__qualname__") else type(normalization)
    return definition.__module__, definition.__qualname__ + ("" if definition is normalization else repr(normalization))
