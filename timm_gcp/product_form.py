"""Product form of the pooling: Newton–Schulz by batched matrix products, on the D×D or the N×N side.

The form for devices where eigendecompositions are slow. Its backward uses that the Fréchet derivative of a matrix
function at a symmetric matrix is self-adjoint: the gradient with respect to the iterated matrix is the *tangent* of
the same recursion in the direction of the incoming gradient. Every tangent is symmetric, which leaves, with R the
residual and W the iterate (Z on the N×N side, Y on the D×D side),

    M = R Ṙ,   Ṙ⁺ = (3(M + Mᵀ) + V + Vᵀ)/4 with V = (M/2 + Mᵀ)R,   Ẇ⁺ = Ẇ + (Ẇ R⁺ + W Ṙ⁺)/2:

four products a step where reverse mode takes six.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .centring import centre, unit_scale
from .newton_schulz import add_identity, inverse_root, root
from .upper_triangle import gather_triangle, scatter_symmetric


def _iterates(a: Tensor, n_iter: int, gram: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Residuals R₀ … R_{K−1} and iterates W₁ … W_K of the recursion in `newton_schulz`."""
    residuals = [add_identity(-a, 1.0)]
    iterates = [add_identity(0.5 * residuals[0], 1.0)] if gram else [torch.baddbmm(a, a, residuals[0], alpha=0.5)]
    for _ in range(n_iter - 1):
        r, w = residuals[-1], iterates[-1]
        square = torch.bmm(r, r)
        residuals.append(torch.baddbmm(square, square, r, beta=0.75, alpha=0.25))
        iterates.append(torch.baddbmm(w, w, residuals[-1], alpha=0.5))
    return residuals, iterates


def _tangent(direction: Tensor, a: Tensor, residuals: list[Tensor], iterates: list[Tensor], gram: bool) -> Tensor:
    """Derivative of W_K in the symmetric `direction` of `a`; also the adjoint applied to `direction`."""
    r_dot = -direction
    if gram:
        w_dot = 0.5 * r_dot
    else:
        cross = torch.bmm(a, direction)
        w_dot = 1.5 * direction - 0.5 * (cross + cross.mT)
    for r, r_next, w in zip(residuals[:-1], residuals[1:], iterates[:-1], strict=True):
        m = torch.bmm(r, r_dot)
        v = torch.baddbmm(1.5 * m, 0.5 * m + m.mT, r, beta=1.0, alpha=0.5)
        # v + vᵀ holds 3(M + Mᵀ)/2 + (V + Vᵀ)/2; halved it is the new tangent
        r_dot = 0.5 * (v + v.mT)
        step = torch.baddbmm(torch.bmm(w_dot, r_next), w, r_dot)
        w_dot = w_dot + 0.25 * (step + step.mT)
    return w_dot


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    unit, norm = unit_scale(centre(x))
    return unit, norm * x.shape[-1] ** -0.5


def _small_side(unit: Tensor, gram: bool) -> Tensor:
    return torch.bmm(unit.mT, unit) if gram else torch.bmm(unit, unit.mT)


def compose(x: Tensor, n_iter: int, gram: bool) -> Tensor:
    """`(B, D, N)` -> `(B, D(D+1)/2)` with autograd's own backward: the form for export and for transforms."""
    unit, factor = _unit(x)
    side = _small_side(unit, gram)
    value = torch.bmm(torch.bmm(unit, inverse_root(side, n_iter)), unit.mT) if gram else root(side, n_iter)
    return gather_triangle(value) * factor.flatten(1)


def _gradient(
    grad: Tensor, unit: Tensor, residuals: list[Tensor], iterates: list[Tensor], side: Tensor, gram: bool
) -> Tensor:
    sym = scatter_symmetric(grad, unit.shape[1])
    if gram:
        p = torch.bmm(sym, unit)
        direct = torch.bmm(p, iterates[-1])
        value = (direct * unit).sum((-2, -1))
        inner = torch.bmm(unit.mT, p)
        d_side = _tangent(0.5 * (inner + inner.mT), side, residuals, iterates, gram)
        total = torch.baddbmm(direct, unit, d_side)
        slope = 0.5 * value - (total * unit).sum((-2, -1))
        total = total + slope[:, None, None] * unit
    else:
        value = (sym * iterates[-1]).sum((-2, -1))
        d_side = _tangent(sym, side, residuals, iterates, gram)
        slope = 0.5 * value - (d_side * side).sum((-2, -1))
        diagonal = torch.diagonal(d_side, dim1=-2, dim2=-1) + slope[:, None]
        total = torch.bmm(torch.diagonal_scatter(d_side, diagonal, dim1=-2, dim2=-1), unit)
    return total * (2 * unit.shape[-1] ** -0.5)


def product_gradient(grad: Tensor, x: Tensor, n_iter: int, gram: bool) -> Tensor:
    """Gradient `(B, D, N)` computed from the variables alone by differentiable products."""
    unit, _ = _unit(x)
    side = _small_side(unit, gram)
    residuals, iterates = _iterates(side, n_iter, gram)
    return _gradient(grad, unit, residuals, iterates, side, gram)


def product_gradient_vjp(cotangent: Tensor, grad: Tensor, x: Tensor, n_iter: int, gram: bool) -> tuple[Tensor, Tensor]:
    """Vector-Jacobian product of `product_gradient` with respect to `grad` and `x`."""
    _, vjp = torch.func.vjp(lambda g, y: product_gradient(g, y, n_iter, gram), grad, x)
    return vjp(cotangent)


class ProductPool(torch.autograd.Function):
    """`(B, D, N)` -> `(B, D(D+1)/2)` by products, with the tangent recursion as its backward.

    For K steps on the n×n side: forward 3K − 3 products of n×n (1 for K = 1 on the D×D side, 0 on the N×N side), and
    the products with the features; backward 4K − 4, one more on the D×D side. A step's tangent needs Ṙ⁺ and Ẇ⁺; each
    is the symmetric part of products of two different factor pairs, hence four. Saved: the input, K residuals and K
    iterates of n². No product of the forward is repeated.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, n_iter: int, gram: bool) -> tuple[Tensor, ...]:
        """Value, then residuals and iterates for backward."""
        unit, factor = _unit(x)
        residuals, iterates = _iterates(_small_side(unit, gram), n_iter, gram)
        value = torch.bmm(torch.bmm(unit, iterates[-1]), unit.mT) if gram else iterates[-1]
        return (gather_triangle(value) * factor.flatten(1), *residuals, *iterates)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the input and the recursion."""
        x, ctx.n_iter, ctx.gram = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Gradient of the input."""
        if grad is None:
            return None, None, None
        return ProductPoolGradient.apply(grad, *ctx.saved_tensors, ctx.n_iter, ctx.gram), None, None


class ProductPoolGradient(torch.autograd.Function):
    """First derivative from the saved recursion; its own derivative is taken of `product_gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
        """Gradient from the saved residuals and iterates."""
        *saved, n_iter, gram = rest
        unit, _ = _unit(x)
        return _gradient(grad, unit, saved[:n_iter], saved[n_iter:], _side_of(saved[0]), gram)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the variables only."""
        grad, x, *_, ctx.n_iter, ctx.gram = inputs
        ctx.n_inputs = len(inputs)
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivative."""
        grad, x = ctx.saved_tensors
        d_grad, d_x = product_gradient_vjp(cotangent, grad, x, ctx.n_iter, ctx.gram)
        return (d_grad, d_x) + (None,) * (ctx.n_inputs - 2)


def _side_of(first_residual: Tensor) -> Tensor:
    return add_identity(-first_residual, 1.0)
