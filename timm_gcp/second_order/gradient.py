"""The gradient of covariance pooling with the exact square root, and its trimmed form (Section 3.3, Appendix II).

Features are `(..., N, D)` as in the paper: N positions, D channels. `grad_z` is ∂L/∂Z, `(..., D, D)`, with Z = Σ^½ and
every entry of Z counted as a variable of its own; it need not be symmetric (`from_triangle` makes it from the gradient
of the pooled vector).

Conventions where the formulas divide by zero:

- K has zeros where two eigenvalues are equal (and on its diagonal). In Eq. (6) the entries (i, j) and (j, i) are then
  replaced by what their symmetrised sum is for all pairs, 1/(√λᵢ + √λⱼ). So the gradient has no jump at equal
  eigenvalues and does not depend on which eigenvectors the solver returned.
- λ^(−½) = 0 for an eigenvalue that is zero up to rounding, and a pair of zero eigenvalues contributes nothing. Such a
  direction has JXu = 0, so this is 0·∞ := 0. With N − 1 < D, where Σ is always singular, it is the true gradient as
  long as the centred features have rank N − 1; below that rank the root has a kink, and it is the central difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MASKS = ("literal", "columns")
BASES = ("printed", "eigen")


@dataclass(frozen=True)
class Spectrum:
    """Σ = XᵀJX = U Λ Uᵀ: `values` (..., D) ascending, zeros exact; `vectors` (..., D, D); `jx` = JX (..., N, D)."""

    values: Tensor
    vectors: Tensor
    jx: Tensor

    @property
    def roots(self) -> Tensor:
        """Λ^½ as a vector."""
        return self.values.sqrt()

    @property
    def inverse_roots(self) -> Tensor:
        """Λ^(−½) as a vector, zero where λ is zero."""
        live = self.values > 0
        return torch.where(live, self.values, 1).rsqrt() * live


def _check(x: Tensor, grad_z: Tensor | None = None) -> None:
    if x.dim() < 2 or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"x must be float32 or float64 features (..., N, D); got {x.dtype} of shape {tuple(x.shape)}. "
            "Bring feature maps (B, D, H, W) into this form by x.flatten(2).mT."
        )
    wanted = (*x.shape[:-2], x.shape[-1], x.shape[-1])
    if grad_z is not None and tuple(grad_z.shape) != wanted:
        raise ValueError(
            f"grad_z must be (..., D, D) = {wanted} for x of shape {tuple(x.shape)}; got "
            f"{tuple(grad_z.shape)}. Use from_triangle for the gradient of a pooled vector."
        )


def spectrum(x: Tensor) -> Spectrum:
    """Covariance of Eq. (1) and its eigendecomposition, Eq. (2).

    Raises:
        ValueError: `x` is neither float32 nor float64, or has fewer than two dimensions.
    """
    _check(x)
    positions, channels = x.shape[-2:]
    centred = x - x.mean(dim=-2, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / positions)
    floor = max(positions, channels) * torch.finfo(x.dtype).eps * values[..., -1:]
    return Spectrum(torch.where(values > floor, values, 0), vectors, centred / positions)


def mask_k(values: Tensor, tolerance: float = 0.0) -> Tensor:
    """K of Eq. (6): Kᵢⱼ = 1/(λᵢ − λⱼ), and 0 where |λᵢ − λⱼ| is at most `tolerance` times the largest eigenvalue."""
    gaps = values.unsqueeze(-1) - values.unsqueeze(-2)
    equal = gaps.abs() <= tolerance * values[..., -1:].unsqueeze(-1)
    return torch.where(equal, 1, gaps).reciprocal() * ~equal


def _symmetric(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


def exact_gradient(x: Tensor, grad_z: Tensor) -> Tensor:
    """Eq. (6): ∂L/∂X through Z = (XᵀJX)^½, as `(..., N, D)`.

    Raises:
        ValueError: Features or gradients of another type or shape.
    """
    _check(x, grad_z)
    eigen = spectrum(x)
    u, roots = eigen.vectors, eigen.roots
    # Beyond this gap 1/(λᵢ − λⱼ) costs at most a third of the digits; below it the pair's own limit costs none.
    k = mask_k(eigen.values, torch.finfo(x.dtype).eps ** (1 / 3))
    inner = k.mT * (u.mT @ (2 * _symmetric(grad_z)) @ u * roots.unsqueeze(-2))
    diagonal = 0.5 * eigen.inverse_roots * (u.mT @ grad_z @ u).diagonal(dim1=-2, dim2=-1)
    sums = roots.unsqueeze(-1) + roots.unsqueeze(-2)
    limit = (k == 0) & (sums > 0) & ~torch.eye(x.shape[-1], dtype=torch.bool, device=x.device)
    inner = inner + torch.where(limit, u.mT @ _symmetric(grad_z) @ u / torch.where(limit, sums, 1), 0)
    return 2 * eigen.jx @ _symmetric(u @ (inner + torch.diag_embed(diagonal)) @ u.mT)


def trimmed_factor(eigen: Spectrum, mask: str = "literal", basis: str = "printed") -> Tensor:
    """The D×D factor 2Kᵀ∘Λ^½ + ½Λ^(−½) of Eq. (7).

    Args:
        eigen: of the features.
        mask: `"literal"` reads ∘ as printed. K has a zero diagonal and Λ^½ nothing else, so the first term is the zero
            matrix. `"columns"` reads Kᵀ∘Λ^½ as in Eq. (6), where Λ^½ scales the columns under the mask: Kᵢⱼᵀ√λⱼ.
        basis: `"printed"` uses the factor as it stands in Eq. (7), though its indices count eigenvectors and it is
            multiplied with channels (the step of Appendix II that lets Λ and U commute). `"eigen"` undoes that step:
            U(…)Uᵀ.

    Raises:
        ValueError: Another mask or basis.
    """
    if mask not in MASKS:
        raise ValueError(f"mask must be one of {', '.join(MASKS)}; got {mask!r}.")
    if basis not in BASES:
        raise ValueError(f"basis must be one of {', '.join(BASES)}; got {basis!r}.")
    factor = torch.diag_embed(0.5 * eigen.inverse_roots)
    if mask == "columns":
        equal = eigen.values.shape[-1] * torch.finfo(eigen.values.dtype).eps  # equal up to rounding
        factor = factor + 2 * mask_k(eigen.values, equal).mT * eigen.roots.unsqueeze(-2)
    return factor if basis == "printed" else eigen.vectors @ factor @ eigen.vectors.mT


def trimmed_gradient(x: Tensor, grad_z: Tensor, mask: str = "literal", basis: str = "printed") -> Tensor:
    """Eq. (7): 2JX(2Kᵀ∘Λ^½ + ½Λ^(−½)) ∂L/∂Z, as `(..., N, D)`. `mask` and `basis` as in `trimmed_factor`.

    Raises:
        ValueError: Features or gradients of another type or shape, or another mask or basis.
    """
    _check(x, grad_z)
    return preconditioner(x, 1.0, mask, basis) @ grad_z


def preconditioner(x: Tensor, rate: float, mask: str = "literal", basis: str = "printed") -> Tensor:
    """F⁻¹ = η2JX(2Kᵀ∘Λ^½ + ½Λ^(−½)) of Eq. (8) for learning rate η, as `(..., N, D)`.

    With the literal mask in the eigenbasis it is ηJXΣ^(−½), whose non-zero singular values are all η/√N: it whitens.

    Raises:
        ValueError: Features of another type or shape, or another mask or basis.
    """
    eigen = spectrum(x)
    return 2 * rate * eigen.jx @ trimmed_factor(eigen, mask, basis)


def from_triangle(grad: Tensor, channels: int) -> Tensor:
    """∂L/∂Z from the gradient `(..., D(D+1)/2)` of the pooled vector: the row-major upper triangle, zeros below.

    Raises:
        ValueError: The length is not D(D+1)/2.
    """
    if grad.shape[-1] != channels * (channels + 1) // 2:
        raise ValueError(f"{channels} channels give vectors of {channels * (channels + 1) // 2}; got {grad.shape[-1]}.")
    rows, columns = torch.triu_indices(channels, channels, device=grad.device)
    full = grad.new_zeros(*grad.shape[:-1], channels, channels)
    full[..., rows, columns] = grad
    return full


def agreement(estimate: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine of the angle and ratio of the norms, estimate to truth, per sample: two tensors `(...)`.

    Zero where the truth is zero.
    """
    a, b = estimate.flatten(-2), truth.flatten(-2)
    norm_a, norm_b = a.norm(dim=-1), b.norm(dim=-1)
    product = norm_a * norm_b
    cosine = torch.where(product > 0, (a * b).sum(-1) / torch.where(product > 0, product, 1), 0)
    return cosine, torch.where(norm_b > 0, norm_a / torch.where(norm_b > 0, norm_b, 1), 0)
