"""iSICE: sparse inverse covariance by iterations, end to end (Rahman et al., CVPR 2023, Algorithm 2).

The entries of an inverse covariance are partial correlations: what two channels share beyond what all others explain.
The estimate is the graphical lasso's,

    min over P ≻ 0 of  −log det P + tr(P C) + λ‖P‖₁,   C = Σ / tr Σ,

solved by a few steps of projected gradient descent on the positive and the negative part of P.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from timm_gcp.ops.centring import recorded_peak_scale, recorded_square_norm
from timm_gcp.ops.newton_schulz import inverse_root
from timm_gcp.ops.triangle import gather_triangle


@dataclass(frozen=True)
class Isice:
    """Options of `normalization='isice'`; the defaults are those that the authors' training script calls the paper's.

    Attributes:
        sparsity: λ, at least 0; larger values give more zeros.
        learning_rate: Rate of the first step, above 0; it falls linearly to zero at the last step.
        steps: Steps of the projected gradient descent, at least 1. With two or more the last has rate zero.
        inverse_iter: Newton–Schulz steps of each inverse, at least 1. They bound the inverse of a singular covariance:
            seven steps give at most 1.5¹⁴ ≈ 292 times the inverse trace.
        ridge: Added to the diagonal of every matrix of about unit trace before it is inverted, at least 0.
    """

    sparsity: float = 0.01
    learning_rate: float = 1.0
    steps: int = 5
    inverse_iter: int = 7
    ridge: float = 1e-9

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: One is out of range.
        """
        for name in ("sparsity", "learning_rate", "ridge"):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
            if not number or (name == "learning_rate" and value == 0):
                least = "above 0" if name == "learning_rate" else "of at least 0"
                raise ValueError(f"{name} is {value!r}; give a number {least} (default: {type(self).__dict__[name]:g})")
        for name in ("steps", "inverse_iter"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= 1000:
                default = type(self).__dict__[name]
                raise ValueError(f"{name} is {value!r}; give a whole number from 1 to 1000 (default: {default})")


def sparse_inverse(x: Tensor, options: Isice) -> Tensor:
    """Sparse inverse covariance, `(B, D, N)` -> `(B, D(D+1)/2)`.

    With C = Σ / tr Σ, P₀ = inv(C), step i of K at rate η = learning_rate·(1 − i/(K−1)), gradient G = C − inv(P),

        P⁺ ← relu(relu(P) − η(G + λ)),   P⁻ ← relu(relu(−P) − η(λ − G)),   P ← P⁺ − P⁻, made symmetric;

    the result is P / √tr P. inv is Z² of the trace-normalised Newton–Schulz iteration on its argument + ridge·I,
    divided by its trace. Scaling the features changes nothing. At a large rate P may cease to be positive definite, and
    the iteration then diverges to NaN: take a smaller rate.

    The soft threshold acts on the entries of the D×D matrix, so that there is no N×N form. About 3·steps·inverse_iter
    products of D³ forward for every sample, three times as many backward. Each step is recomputed in the backward pass
    rather than kept: one matrix a step is kept, and those of one step while it is differentiated. In a graph capture
    and under torch.func everything is kept.

    The authors' code adds random numbers up to 1e-9 to the diagonal; here they are the constant `ridge`, so that
    results reproduce.

    Args:
        x: Features in float32 or float64.
        options: See `Isice`.
    """
    scaled, peak = recorded_peak_scale(x, fewer=False)
    product = torch.bmm(scaled, scaled.mT)
    trace = recorded_square_norm(product, peak)
    usable = torch.isfinite(trace) & (peak > 0)
    even = torch.eye(x.shape[1], dtype=x.dtype, device=x.device) / x.shape[1]
    covariance = torch.where(usable, product / trace, even)
    recompute = _may_recompute(x)
    estimate = _call(recompute, _inverse, covariance, options)
    for i in range(options.steps):
        rate = options.learning_rate * (1 - i / max(options.steps - 1, 1))
        if rate == 0:  # the last of several steps leaves P as it is
            break
        estimate = _call(recompute, _step, estimate, covariance, rate, options)
    total = estimate.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    value = estimate / total.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
    rest = torch.where(peak == 0, torch.zeros_like(peak), torch.full_like(peak, math.nan))
    return gather_triangle(torch.where(usable, value, rest))


def _call(recompute: bool, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """`function(*args)`, recomputed in the backward pass rather than kept if `recompute`."""
    if recompute:
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
    return function(*args)


def _step(estimate: Tensor, covariance: Tensor, rate: float, options: Isice) -> Tensor:
    """One step of the projected gradient descent."""
    gradient = covariance - _inverse(estimate, options)
    positive = (estimate.relu() - rate * (gradient + options.sparsity)).relu()
    negative = ((-estimate).relu() - rate * (options.sparsity - gradient)).relu()
    new = positive - negative
    return 0.5 * (new + new.mT)


def _inverse(a: Tensor, options: Isice) -> Tensor:
    """Z² / trace, for `(B, D, D)`."""
    if options.ridge:
        a = a + options.ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)  # ONNX writes no diagonal
    trace = a.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    z = inverse_root(a / trace, options.inverse_iter)
    return torch.bmm(z, z) / trace


def _may_recompute(x: Tensor) -> bool:
    """Whether autograd records in plain eager code: graph captures and torch.func take no hooks on what is saved."""
    captured = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return torch.is_grad_enabled() and x.requires_grad and not captured
