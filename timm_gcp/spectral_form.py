"""Spectral form of the pooling: one eigendecomposition of the smaller side, a scalar function, three large products.

With X = U-rotated features V = X U and the eigenvalues λ of XᵀX,

    f(X Xᵀ) = V diag(h(λ)) Vᵀ                                   (N×N side; h = f/λ)
    f(X Xᵀ) = U diag(f(λ)) Uᵀ, U and λ of X Xᵀ                  (D×D side).

Its gradient is Daleckii–Krein's, with the divided differences of the scalar function in place of the K mask of
Eq. (6), so that repeated and vanishing eigenvalues need no special case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .batched_eigh import batched_eigh
from .centring import centre, unit_scale
from .scalar_functions import NewtonSchulz, ScalarFunction
from .upper_triangle import product_triangle, twice_symmetric


def features_and_scale(x: Tensor, degree: float | None) -> tuple[Tensor, Tensor | float, Tensor | float]:
    """Features `X`, the factor κ of f(X Xᵀ) and κ/‖Xc‖, the factor of its gradient, for `x` `(B, D, N)`.

    For a homogeneous f of degree p: X has unit norm and κ = (‖Xc‖²/N)ᵖ. Otherwise X Xᵀ is the covariance and κ = 1.
    """
    positions = x.shape[-1]
    xc = centre(x)
    if degree is None:
        return xc * positions**-0.5, 1.0, positions**-0.5
    unit, norm = unit_scale(xc)
    if degree == 0.5:
        return unit, norm * positions**-0.5, positions**-0.5
    factor = (norm * positions**-0.5).pow(2 * degree)
    safe = torch.where(norm == 0, torch.ones_like(norm), norm)
    return unit, factor, torch.where(norm == 0, torch.zeros_like(norm), factor / safe)


class SpectralPool(torch.autograd.Function):
    """`(B, D, N)` -> `(B, D(D+1)/2)` for a scalar function, by the spectral form.

    Saved for backward: the input, the eigenvectors and eigenvalues of the smaller side; n² + n numbers beside the
    input, whatever the number of iterations. Products, with n = min(D, N): forward one eigendecomposition and, on the
    N×N side, XᵀX, X U (D·N² each) and V diag(h) Vᵀ (D²·N); backward X U again (cheaper than keeping V), S V (D²·N),
    Vᵀ(S V), V(·) and (·)Uᵀ (D·N² each). Neither the value nor the gradient can do with less than one D²·N product,
    since the output and the incoming gradient are full D×D matrices.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, fn: ScalarFunction, gram: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Value, and the eigenvalues and eigenvectors that backward needs."""
        unit, factor, _ = features_and_scale(x, fn.degree)
        lam, u = batched_eigh(torch.bmm(unit.mT, unit) if gram else torch.bmm(unit, unit.mT))
        weight = fn.quotient(lam) if gram else fn.quotient(lam) * lam
        v = torch.bmm(unit, u) if gram else u
        return product_triangle(v * (weight.unsqueeze(-2) * factor), v), lam, u

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the input and the decomposition."""
        x, ctx.fn, ctx.gram = inputs
        _, lam, u = output
        ctx.mark_non_differentiable(lam, u)
        ctx.save_for_backward(x, lam, u)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Gradient of the input."""
        if grad is None:
            return None, None, None
        x, lam, u = ctx.saved_tensors
        return SpectralPoolGradient.apply(grad, x, lam, u, ctx.fn, ctx.gram), None, None


def spectral_gradient(grad: Tensor, x: Tensor, lam: Tensor, u: Tensor, fn: ScalarFunction, gram: bool) -> Tensor:
    """Gradient `(B, D, N)` of the spectral form, from the incoming gradient `(B, D(D+1)/2)` and its saved tensors."""
    unit, _, factor = features_and_scale(x, fn.degree)
    sym = twice_symmetric(grad, x.shape[1])
    h, h_div = fn.quotient(lam), fn.quotient_divided(lam)
    if gram:
        v = torch.bmm(unit, u)
        q = torch.bmm(v.mT, sym).mT  # S V, in the layout that is the faster product
        inner = torch.bmm(v.mT, q)
        total = torch.baddbmm(q * h.unsqueeze(-2), v, h_div * inner)
        if fn.degree is not None:  # the derivative through the scale, by Euler's theorem for homogeneous functions
            value = (h * inner.diagonal(dim1=-2, dim2=-1)).sum(-1)
            slope = fn.degree * value - (total * v).sum((-2, -1))
            total = total + slope[:, None, None] * v
        return torch.bmm(total * factor, u.mT)
    inner = torch.bmm(torch.bmm(u.mT, sym), u)
    f_div = fn.divided(lam, h, h_div)
    weighted = f_div * inner
    if fn.degree is not None:
        diagonal = weighted.diagonal(dim1=-2, dim2=-1)
        value = (h * lam * inner.diagonal(dim1=-2, dim2=-1)).sum(-1)
        slope = fn.degree * value - (diagonal * lam).sum(-1)
        weighted = torch.diagonal_scatter(weighted, diagonal + slope[:, None], dim1=-2, dim2=-1)
    d_cov = torch.bmm(torch.bmm(u, weighted), u.mT)
    return torch.bmm(d_cov * factor, unit)


class SpectralPoolGradient(torch.autograd.Function):
    """`spectral_gradient` as a node of its own, so that second derivatives are right or refused, never wrong.

    Its saved eigenvectors are results, not variables; differentiating the formula through them as constants would be
    silently wrong. For Newton–Schulz the second derivative is taken of the product form, which computes the same
    polynomial from the input itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, lam: Tensor, u: Tensor, fn: ScalarFunction, gram: bool) -> Tensor:
        """First derivative."""
        return spectral_gradient(grad, x, lam, u, fn, gram)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the variables, not the decomposition."""
        grad, x, _, _, ctx.fn, ctx.gram = inputs
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivative, through the product form."""
        from .product_form import product_gradient_vjp

        if not isinstance(ctx.fn, NewtonSchulz):
            raise RuntimeError(
                "second derivatives are implemented for normalization 'newton_schulz' and 'none' only; "
                f"this layer uses {ctx.fn}. Use 'newton_schulz' with more steps for an approximate root."
            )
        grad, x = ctx.saved_tensors
        d_grad, d_x = product_gradient_vjp(cotangent, grad, x, ctx.fn.n_iter, ctx.gram)
        return d_grad, d_x, None, None, None, None
