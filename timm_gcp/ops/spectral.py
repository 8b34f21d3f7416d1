"""Spectral form of the pooling: one eigendecomposition of the smaller side, a scalar function, three large products.

With the eigenvectors U and eigenvalues λ of XᵀX, and V = X U,

    f(X Xᵀ) = V diag(h(λ)) Vᵀ                                   (N×N side; h = f/λ)
    f(X Xᵀ) = U diag(f(λ)) Uᵀ, U and λ of X Xᵀ                  (D×D side).

Its gradient is Daleckii–Krein's, with the divided differences of the scalar function in place of the K mask of
Eq. (6), so that repeated and vanishing eigenvalues need no special case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from timm_gcp.ops.centring import peak_scale, square_norm
from timm_gcp.ops.eigh import batched_eigh
from timm_gcp.ops.precision import autocast_off
from timm_gcp.ops.products import product_gradient_vjp
from timm_gcp.ops.scalar_functions import NewtonSchulz, ScalarFunction
from timm_gcp.ops.triangle import product_triangle, twice_symmetric


def _scales(peak: Tensor, trace: Tensor, positions: int, degree: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """Three factors `(B, 1, 1)` for X, the scaled features of `peak_scale`, and `trace` = ‖X‖².

    The first turns X Xᵀ into the matrix that f is taken of: of trace one for a homogeneous f, else the covariance. The
    second is what f of it lacks to the value, the third what the product of its gradient with X lacks to the gradient.
    """
    if degree is None:
        to_covariance = (peak * positions**-0.5).square()
        return to_covariance, torch.ones_like(peak), peak / positions
    unit = trace.reciprocal()
    deviation = peak * (trace / positions).sqrt()  # ‖Xc‖/√N
    if degree == 0.5:
        return unit, deviation, (trace * positions).rsqrt()
    safe = torch.where(peak == 0, torch.ones_like(peak), peak)
    value = deviation.pow(2 * degree)
    return unit, value, torch.where(peak == 0, torch.zeros_like(peak), value / (safe * trace))


class SpectralPool(torch.autograd.Function):
    """`(B, D, N)` -> `(B, D(D+1)/2)` for a scalar function, by the spectral form.

    Saved for backward: the input, the eigenvectors and eigenvalues of the smaller side, and V or, on the D×D side, the
    scaled features: D·N + n² + n numbers beside the input, whatever the number of iterations.

    Products on the N×N side: forward one eigendecomposition, XᵀX, X U (D·N² each) and V diag(h) Vᵀ (D²·N); backward S V
    (D²·N), Vᵀ(S V), V(·) and (·)Uᵀ (D·N² each). On the D×D side: X Xᵀ (D²·N) and U diag(f) Uᵀ; UᵀS, (·)U, U(·), (·)Uᵀ
    (D³ each) and (·)X (D²·N). No product is made twice; value and gradient each need at least one D²·N product, since
    the output and the incoming gradient are full D×D matrices.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, fn: ScalarFunction, gram: bool) -> tuple[Tensor, ...]:
        """Value, and what backward needs: peak, trace, eigenvalues, eigenvectors, and V or, on the D×D side, X."""
        scaled, peak = peak_scale(x, fewer=False)
        side = torch.bmm(scaled.mT, scaled) if gram else torch.bmm(scaled, scaled.mT)
        trace = square_norm(side)
        unit, factor, _ = _scales(peak, trace, x.shape[-1], fn.degree)
        lam, u = batched_eigh(side)
        lam = lam * unit.flatten(1)
        weight = fn.quotient(lam).unsqueeze(-2) * factor
        v = torch.bmm(scaled, u) if gram else u
        weight = weight * unit if gram else weight * lam.unsqueeze(-2)
        value = product_triangle(v * weight, v)
        return value, peak, trace, lam, u, v if gram else scaled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the input and the decomposition."""
        x, ctx.fn, ctx.gram = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Gradient of the input."""
        if grad is None:
            return None, None, None
        with autocast_off(grad.device):  # a backward may run inside the caller's autocast region
            return SpectralPoolGradient.apply(grad, *ctx.saved_tensors, ctx.fn, ctx.gram), None, None


def _gram_gradient(
    grad: Tensor, x: Tensor, peak: Tensor, trace: Tensor, lam: Tensor, u: Tensor, v: Tensor, fn: ScalarFunction
) -> Tensor:
    """Gradient `(B, D, N)` on the N×N side, from the incoming gradient `(B, D(D+1)/2)`."""
    unit, _, factor = _scales(peak, trace, x.shape[-1], fn.degree)
    h, h_div = fn.quotient_divided(lam)
    q = torch.bmm(v.mT, twice_symmetric(grad, x.shape[1]))  # (S V)ᵀ
    inner = torch.bmm(q, v).mul_(unit)
    value = h * inner.diagonal(dim1=-2, dim2=-1)
    weighted = inner.mul_(h_div)
    if fn.degree is not None:  # f[λ, λ] = h + λ·h[λ, λ]
        _add_scale_slope_(weighted, (fn.degree - 1) * value, lam)
    total = q.mul_(h.unsqueeze(-1) * factor).baddbmm_(weighted.mul_(factor), v.mT)
    return torch.bmm(total.mT, u.mT)


def _covariance_gradient(
    grad: Tensor, x: Tensor, peak: Tensor, trace: Tensor, lam: Tensor, u: Tensor, scaled: Tensor, fn: ScalarFunction
) -> Tensor:
    """Gradient `(B, D, N)` on the D×D side, from the incoming gradient `(B, D(D+1)/2)`."""
    _, _, factor = _scales(peak, trace, x.shape[-1], fn.degree)
    f, f_div = fn.divided(lam)
    inner = torch.bmm(torch.bmm(u.mT, twice_symmetric(grad, x.shape[1])), u)
    value = f * inner.diagonal(dim1=-2, dim2=-1)
    weighted = inner.mul_(f_div)
    if fn.degree is not None:
        _add_scale_slope_(weighted, fn.degree * value, lam)
    d_cov = torch.bmm(torch.bmm(u, weighted.mul_(factor)), u.mT)
    return torch.bmm(d_cov, scaled)


def _add_scale_slope_(weighted: Tensor, value: Tensor, lam: Tensor) -> None:
    """Add the derivative through the scale, Σ value − Σ λ·weighted per sample, to the diagonal of `weighted`.

    By Euler's theorem for homogeneous functions; `value` holds its summands, `(B, n)`.
    """
    diagonal = weighted.diagonal(dim1=-2, dim2=-1)
    diagonal.add_((value - diagonal * lam).sum(-1, keepdim=True))


class SpectralPoolGradient(torch.autograd.Function):
    """The first derivative as a node of its own, so that second derivatives are right or refused, never wrong.

    Its saved eigenvectors are results, not variables; differentiating the formula through them as constants would be
    silently wrong. For Newton–Schulz the second derivative is taken of the product form, which computes the same
    polynomial from the input itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        grad: Tensor,
        x: Tensor,
        peak: Tensor,
        trace: Tensor,
        lam: Tensor,
        u: Tensor,
        kept: Tensor,
        fn: ScalarFunction,
        gram: bool,
    ) -> Tensor:
        """First derivative."""
        gradient = _gram_gradient if gram else _covariance_gradient
        return gradient(grad, x, peak, trace, lam, u, kept, fn)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the variables, not the decomposition."""
        grad, x, *_, ctx.fn, ctx.gram = inputs
        ctx.n_inputs = len(inputs)
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivative, through the product form."""

        if not isinstance(ctx.fn, NewtonSchulz):
            raise RuntimeError(
                "second derivatives are implemented for normalization 'newton_schulz', 'none' and 'signed_sqrt_l2'; "
                f"this layer uses {ctx.fn}. Use 'newton_schulz' with more steps for an approximate root."
            )
        grad, x = ctx.saved_tensors
        d_grad, d_x = product_gradient_vjp(cotangent, grad, x, ctx.fn.n_iter, ctx.gram)
        return (d_grad, d_x) + (None,) * (ctx.n_inputs - 2)
