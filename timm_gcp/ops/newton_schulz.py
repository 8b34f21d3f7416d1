"""Newton–Schulz iteration for the matrix square root, as matrix products and as scalar recursion.

The coupled iteration of iSQRT-COV from Y₀ = A (trace one), Z₀ = I,

    T = (3I − Z Y)/2,   Y ← Y T,   Z ← T Z,

keeps Y = A Z, and all matrices are polynomials in A. With the residual R = I − Y Z it reads

    R ← R²(3I + R)/4,   Z ← Z(I + R/2),   Y ← Y(I + R/2)      (R₀ = I − A),

three products a step, and Y and Z need not both be carried. On eigenvalues it is the same recursion on numbers.
Five steps are the trained definition of the paper's networks, not a converged root.
"""

from __future__ import annotations

import torch
from torch import Tensor

from timm_gcp.ops.low_precision import low_product


def add_identity_(a: Tensor, value: float) -> Tensor:
    """Add `value·I` to `(..., n, n)` in place, without a dense identity in memory; `a` must be the caller's own."""
    if torch.compiler.is_compiling():  # a write into a diagonal has no ONNX form
        return a + value * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    a.diagonal(dim1=-2, dim2=-1).add_(value)
    return a


def product(
    a: Tensor,
    b: Tensor,
    low: str | None = None,
    add: Tensor | None = None,
    beta: float = 1.0,
    alpha: float = 1.0,
) -> Tensor:
    """`beta·add + alpha·(a b)` for batches; factors rounded as `low` says, sums in the type of `a`."""
    if torch.jit.is_scripting() or low is None:
        return torch.bmm(a, b) if add is None else torch.baddbmm(add, a, b, beta=beta, alpha=alpha)
    value = low_product(a, b, low)
    return value if add is None else torch.add(beta * add, value, alpha=alpha)


def add_product_(
    total: Tensor, a: Tensor, b: Tensor, low: str | None = None, beta: float = 1.0, alpha: float = 1.0
) -> Tensor:
    """`beta·total + alpha·(a b)`, as `product` rounds, written into `total`, which must be the caller's own."""
    if low is not None:
        return total.mul_(beta).add_(low_product(a, b, low), alpha=alpha)
    return total.baddbmm_(a, b, beta=beta, alpha=alpha)


def next_residual(r: Tensor, low: str | None = None) -> Tensor:
    """R²(3I + R)/4."""
    square = product(r, r, low)
    return product(square, r, low, square, beta=0.75, alpha=0.25)


def root(a: Tensor, n_iter: int, low: str | None = None) -> Tensor:
    """Y after `n_iter` steps from `a` `(B, n, n)` of unit trace: approximates a^½. 3·n_iter − 2 products."""
    residual = add_identity_(-a, 1.0)
    y = product(a, residual, low, a, alpha=0.5)
    for _ in range(n_iter - 1):
        residual = next_residual(residual, low)
        y = product(y, residual, low, y, alpha=0.5)
    return y


def inverse_root(a: Tensor, n_iter: int, low: str | None = None) -> Tensor:
    """Z after `n_iter` steps from `a` `(B, n, n)` of unit trace: approximates a^-½. 3·n_iter − 3 products."""
    residual = add_identity_(-a, 1.0)
    z = add_identity_(0.5 * residual, 1.0)
    for _ in range(n_iter - 1):
        residual = next_residual(residual, low)
        z = product(z, residual, low, z, alpha=0.5)
    return z


def scalar_inverse_root(lam: Tensor, n_iter: int) -> Tensor:
    """z(λ), the iteration's inverse root of eigenvalues `lam` in [0, 1]; any shape."""
    residual = 1 - lam
    z = 1 + 0.5 * residual
    for _ in range(n_iter - 1):
        residual = residual.square() * (3 + residual) * 0.25
        z = z * (1 + 0.5 * residual)
    return z


def scalar_inverse_root_divided(lam: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """z(λ) as `scalar_inverse_root`, and its divided differences z[λᵢ, λⱼ]: `(..., n)` -> `(..., n)`, `(..., n, n)`.

    The recursion gives them without a division, by the chain and product rules of divided differences, so that equal
    eigenvalues, where z[λᵢ, λᵢ] is the derivative, need no special case (Daleckii–Krein theorem).
    """
    return _divided_recursion(lam, 1.5 - 0.5 * lam, torch.full_like(lam, -0.25), n_iter)


def scalar_root_divided(lam: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """y = λ·z(λ), the iteration's root, and y[λᵢ, λⱼ], as `scalar_inverse_root_divided`."""
    return _divided_recursion(lam, lam * (1.5 - 0.5 * lam), 0.75 - 0.5 * lam, n_iter)


def _divided_recursion(lam: Tensor, w: Tensor, half: Tensor, n_iter: int) -> tuple[Tensor, Tensor]:
    """Last iterate and its divided differences, from the iterate `w` after one step, where they are halfᵢ + halfⱼ.

    One step multiplies the residual's differences by c = ¾(rᵢ + rⱼ) + ¼(rᵢ² + rᵢrⱼ + rⱼ²) and takes those of w to
    w[λᵢ, λⱼ]·gⱼ + ½wᵢ·r[λᵢ, λⱼ] with g = 1 + r/2. The sum over the steps is nested from the last one inwards.
    """
    residual = 1 - lam
    steps = []
    for _ in range(n_iter - 1):
        slope = residual * (0.75 + 0.25 * residual)
        growth = 1 + 0.5 * residual * slope
        steps.append((residual, slope, 0.5 * w, growth))
        residual, w = residual * slope, w * growth
    after = torch.ones_like(lam)  # product of the later g
    nested: Tensor | None = None
    for residual, slope, half_w, growth in reversed(steps):
        left, right = half_w.unsqueeze(-1), after.unsqueeze(-2)
        nested = left * right if nested is None else nested.addcmul_(left, right)
        chain = slope.unsqueeze(-1) + slope.unsqueeze(-2)
        nested.mul_(chain.addcmul_(residual.unsqueeze(-1), residual.unsqueeze(-2), value=0.25))
        after = after * growth
    first = (half * after).unsqueeze(-2)
    if nested is None:
        return w, half.unsqueeze(-1) + first
    return w, nested.neg_().addcmul_(half.unsqueeze(-1), after.unsqueeze(-2)).add_(first)
