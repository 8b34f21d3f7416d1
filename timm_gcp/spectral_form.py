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
from .centring import centre, unit_features
from .newton_schulz import add_to_diagonal
from .precision import autocast_off
from .scalar_functions import NewtonSchulz, ScalarFunction
from .upper_triangle import product_triangle, twice_symmetric


def features_and_scale(x: Tensor, degree: float | None) -> tuple[Tensor, Tensor | float, Tensor | float]:
    """Features `X`, the factor κ of f(X Xᵀ) and κ/‖Xc‖, the factor of its gradient, for `x` `(B, D, N)`.

    For a homogeneous f of degree p: X has unit norm and κ = (‖Xc‖²/N)ᵖ. Otherwise X Xᵀ is the covariance and κ = 1.
    """
    positions = x.shape[-1]
    if degree is None:
        return centre(x) * positions**-0.5, 1.0, positions**-0.5
    unit, norm = unit_features(x)
    if degree == 0.5:
        return unit, norm * positions**-0.5, positions**-0.5
    factor = (norm * positions**-0.5).pow(2 * degree)
    safe = torch.where(norm == 0, torch.ones_like(norm), norm)
    return unit, factor, torch.where(norm == 0, torch.zeros_like(norm), factor / safe)


class SpectralPool(torch.autograd.Function):
    """`(B, D, N)` -> `(B, D(D+1)/2)` for a scalar function, by the spectral form.

    Saved for backward: the input, the eigenvectors and eigenvalues of the smaller side, and on the N×N side V: at most
    D·N + n² + n numbers beside the input, whatever the number of iterations. Products on the N×N side: forward one
    eigendecomposition, XᵀX, X U (D·N² each) and V diag(h) Vᵀ (D²·N); backward S V (D²·N), Vᵀ(S V), V(·) and (·)Uᵀ
    (D·N² each). On the D×D side: X Xᵀ (D²·N) and U diag(f) Uᵀ; UᵀS, (·)U, U(·), (·)Uᵀ (D³ each) and (·)X (D²·N).
    No product is made twice; value and gradient each need at least one D²·N product, since the output and the incoming
    gradient are full D×D matrices.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, fn: ScalarFunction, gram: bool) -> tuple[Tensor, ...]:
        """Value, and what backward needs: eigenvalues, eigenvectors and, on the N×N side, V."""
        unit, factor, _ = features_and_scale(x, fn.degree)
        lam, u = batched_eigh(torch.bmm(unit.mT, unit) if gram else torch.bmm(unit, unit.mT))
        weight = fn.quotient(lam) if gram else fn.quotient(lam) * lam
        v = torch.bmm(unit, u) if gram else u
        value = product_triangle(v * (weight.unsqueeze(-2) * factor), v)
        return (value, lam, u, v) if gram else (value, lam, u)

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


def _gram_gradient(grad: Tensor, x: Tensor, lam: Tensor, u: Tensor, v: Tensor, fn: ScalarFunction) -> Tensor:
    """Gradient `(B, D, N)` on the N×N side, from the incoming gradient `(B, D(D+1)/2)`."""
    sym = twice_symmetric(grad, x.shape[1])
    h, h_div = fn.quotient(lam), fn.quotient_divided(lam)
    q = torch.bmm(v.mT, sym).mT  # S V, in the layout that is the faster product
    inner = torch.bmm(v.mT, q)
    total = torch.baddbmm(q * h.unsqueeze(-2), v, h_div * inner)
    if fn.degree is not None:  # the derivative through the scale, by Euler's theorem for homogeneous functions
        value = (h * inner.diagonal(dim1=-2, dim2=-1)).sum(-1)
        slope = fn.degree * value - (total * v).sum((-2, -1))
        total = total + slope[:, None, None] * v
    return torch.bmm(total, u.mT) * _gradient_scale(x, fn.degree)


def _gradient_scale(x: Tensor, degree: float | None) -> Tensor | float:
    """κ/‖Xc‖; for the square root and for functions without a degree it does not depend on the features."""
    return x.shape[-1] ** -0.5 if degree in (None, 0.5) else features_and_scale(x, degree)[2]


def _covariance_gradient(grad: Tensor, x: Tensor, lam: Tensor, u: Tensor, fn: ScalarFunction) -> Tensor:
    """Gradient `(B, D, N)` on the D×D side, from the incoming gradient `(B, D(D+1)/2)`."""
    unit, _, factor = features_and_scale(x, fn.degree)
    sym = twice_symmetric(grad, x.shape[1])
    h = fn.quotient(lam)
    inner = torch.bmm(torch.bmm(u.mT, sym), u)
    weighted = fn.divided(lam, h, fn.quotient_divided(lam)) * inner
    if fn.degree is not None:
        diagonal = weighted.diagonal(dim1=-2, dim2=-1)
        value = (h * lam * inner.diagonal(dim1=-2, dim2=-1)).sum(-1)
        slope = fn.degree * value - (diagonal * lam).sum(-1)
        weighted = add_to_diagonal(weighted, slope)
    d_cov = torch.bmm(torch.bmm(u, weighted), u.mT)
    return torch.bmm(d_cov * factor, unit)


class SpectralPoolGradient(torch.autograd.Function):
    """The first derivative as a node of its own, so that second derivatives are right or refused, never wrong.

    Its saved eigenvectors are results, not variables; differentiating the formula through them as constants would be
    silently wrong. For Newton–Schulz the second derivative is taken of the product form, which computes the same
    polynomial from the input itself.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
        """First derivative."""
        *saved_and_function, gram = rest
        gradient = _gram_gradient if gram else _covariance_gradient
        return gradient(grad, x, *saved_and_function)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the variables, not the decomposition."""
        grad, x, *_, ctx.fn, ctx.gram = inputs
        ctx.n_inputs = len(inputs)
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivative, through the product form."""
        from .product_form import product_gradient_vjp

        if not isinstance(ctx.fn, NewtonSchulz):
            raise RuntimeError(
                "second derivatives are implemented for normalization 'newton_schulz', 'none' and 'signed_sqrt_l2'; "
                f"this layer uses {ctx.fn}. Use 'newton_schulz' with more steps for an approximate root."
            )
        grad, x = ctx.saved_tensors
        d_grad, d_x = product_gradient_vjp(cotangent, grad, x, ctx.fn.n_iter, ctx.gram)
        return (d_grad, d_x) + (None,) * (ctx.n_inputs - 2)
