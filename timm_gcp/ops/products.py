"""Product form of the pooling: Newton–Schulz by batched matrix products, on the D×D or the N×N side.

The form for devices where eigendecompositions are slow. Its backward uses that the Fréchet derivative of a matrix
function at a symmetric matrix is self-adjoint: the gradient with respect to the iterated matrix is the *tangent* of
the same recursion in the direction of the incoming gradient. Every tangent is symmetric, which leaves, with R the
residual and W the iterate (Z on the N×N side, Y on the D×D side),

    M = R Ṙ,   Ṙ⁺ = (3(M + Mᵀ) + V + Vᵀ)/4 with V = (M/2 + Mᵀ)R,   Ẇ⁺ = Ẇ + (Ẇ R⁺ + W Ṙ⁺)/2:

four products a step where reverse mode takes six, and in the order of the forward, so that the iterates W can be
rebuilt alongside (one product a step) instead of kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from timm_gcp.ops.centring import (
    fewer_columns,
    peak_scale,
    project_adjoint,
    recorded_peak_scale,
    recorded_square_norm,
    square_norm,
)
from timm_gcp.ops.constants import identity
from timm_gcp.ops.newton_schulz import add_product_, inverse_root, next_residual, product, root
from timm_gcp.ops.precision import autocast_off
from timm_gcp.ops.triangle import gather_triangle, product_triangle, twice_symmetric

# Numbers in a batch of features (83 images of 7×7 positions and 256 channels) up to which backward makes nothing again:
# some percent of the time are then worth more than a few megabytes.
KEEP_ALL = 2**20

Low = str | None  # how the factors of n×n products are rounded (`low_precision`), None for not at all


def _first_iterate(a: Tensor, residual: Tensor, gram: bool, low: Low) -> Tensor:
    return torch.add(identity(a), residual, alpha=0.5) if gram else product(a, residual, low, a, alpha=0.5)


def _recursion(
    a: Tensor, n_iter: int, gram: bool, low: Low = None, keep: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Residuals R₁ … R_{K−1} of the recursion in `newton_schulz` from the small side `a`, and its last iterate W_K.

    With `keep` the second list holds all iterates W₁ … W_K.
    """
    residual = identity(a) - a
    iterates = [_first_iterate(a, residual, gram, low)]
    residuals = []
    for _ in range(n_iter - 1):
        residual = next_residual(residual, low)
        residuals.append(residual)
        iterate = product(iterates[-1], residual, low, iterates[-1], alpha=0.5)
        iterates = [*iterates, iterate] if keep else [iterate]
    return residuals, iterates


def _tangent(
    direction: Tensor,
    a: Tensor,
    residuals: Sequence[Tensor],
    gram: bool,
    low: Low = None,
    iterates: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """Twice the derivative of W_K in the symmetric `direction` of R₀ = I − a (also its adjoint, applied), and W_K.

    Twice, and R₀ in place of `a`, so that W₁ = I + R₀/2 needs no operation. The iterates W₁ … W_K are made again where
    they are not given.
    """
    r, r_dot = identity(a) - a, direction
    w = iterates[0] if iterates else _first_iterate(a, r, gram, low)
    if gram:
        twice_w_dot = direction
    else:
        cross = product(a, direction, low)
        twice_w_dot = (cross + cross.mT).sub_(direction, alpha=3)
    for k, r_next in enumerate(residuals, 1):
        m = product(r, r_dot, low)
        v = add_product_(m, torch.add(m.mT, m, alpha=0.5), r, low, beta=0.75, alpha=0.25)
        r_dot = v + v.mT
        # The tangent of a product of two functions of one matrix is symmetric as it stands.
        twice_w_dot = add_product_(product(twice_w_dot, r_next, low, twice_w_dot, alpha=0.5), w, r_dot, low)
        w = iterates[k] if iterates else product(w, r_next, low, w, alpha=0.5)
        r = r_next
    return twice_w_dot, w


def _fewer(x: Tensor, gram: bool) -> bool:
    return gram and not torch.compiler.is_compiling() and fewer_columns(x.shape[-1])


def _keeps_features(x: Tensor, n_iter: int) -> bool:
    """Whether the scaled features `(D, n)` are kept for backward: where the K − 1 residuals `(n, n)` take more."""
    return x.shape[1] <= (n_iter - 1) * x.shape[2]


def _small_side(scaled: Tensor, gram: bool) -> Tensor:
    return torch.bmm(scaled.mT, scaled) if gram else torch.bmm(scaled, scaled.mT)


def _unit_trace(scaled: Tensor, gram: bool) -> tuple[Tensor, Tensor]:
    """The smaller side divided by its trace, and the trace `(B, 1, 1)`."""
    side = _small_side(scaled, gram)
    trace = square_norm(side)
    return side.div_(trace), trace


def _recorded_unit_trace(scaled: Tensor, peak: Tensor, gram: bool) -> tuple[Tensor, Tensor]:
    """`_unit_trace` for code that is differentiated."""
    side = _small_side(scaled, gram)
    trace = recorded_square_norm(side, peak)
    return side / trace, trace


def _inverse_norm(trace: Tensor, positions: int) -> Tensor:
    """1/(√N·√trace), the factor of the gradient."""
    return (trace * positions).rsqrt()


def _value_scale(peak: Tensor, trace: Tensor, inverse_norm: Tensor, gram: bool) -> Tensor:
    """Factor of `scaled·Z·scaledᵀ` or of Y in the result: ‖Xc‖/√N with ‖Xc‖ = peak·√trace, less what Z lacks."""
    scale = peak * inverse_norm
    return scale if gram else scale * trace


def compose(x: Tensor, n_iter: int, gram: bool, low: str | None = None) -> Tensor:
    """`(B, D, N)` -> `(B, D(D+1)/2)` with autograd's own backward: the form for export and for TorchScript."""
    scaled, peak = recorded_peak_scale(x, fewer=False)
    side, trace = _recorded_unit_trace(scaled, peak, gram)
    factor = _value_scale(peak, trace, _inverse_norm(trace, x.shape[-1]), gram)
    if gram:
        return gather_triangle(torch.bmm(torch.bmm(scaled, inverse_root(side, n_iter, low) * factor), scaled.mT))
    return gather_triangle(root(side, n_iter, low)) * factor.flatten(1)


def _gradient(
    grad: Tensor,
    scaled: Tensor,
    side: Tensor,
    trace: Tensor,
    inverse_norm: Tensor,
    residuals: Sequence[Tensor],
    positions: int,
    gram: bool,
    low: Low = None,
    iterates: Sequence[Tensor] = (),
) -> Tensor:
    """Gradient `(B, D, N)`; every scale, and the way back from N − 1 columns, is applied on the smaller side."""
    sym = twice_symmetric(grad, scaled.shape[1])
    if gram:
        p = torch.bmm(scaled.mT, sym).mT  # S X, in the layout that is the faster product
        inner = torch.bmm(scaled.mT, p).div_(trace)
        twice_d_side, last = _tangent(inner, side, residuals, gram, low, iterates)
        right = _with_slope(twice_d_side, side, inner * last, 1.0) * inverse_norm
        left = last * inverse_norm
        if scaled.shape[-1] < positions:
            right, left = project_adjoint(right, positions), project_adjoint(left, positions)
        return add_product_(torch.bmm(p, left), scaled, right, alpha=-0.5)
    twice_d_side, last = _tangent(sym, side, residuals, gram, low)
    return torch.bmm(_with_slope(twice_d_side, side, sym * last, -1.0) * (-0.5 * inverse_norm), scaled)


def _with_slope(d_side: Tensor, side: Tensor, terms: Tensor, alpha: float) -> Tensor:
    """`d_side` plus the derivative through the trace, (alpha·Σ terms − Σ d_side·side) per sample, on its diagonal.

    `terms` is overwritten.
    """
    slope = terms.addcmul_(d_side, side, value=-1 / alpha).sum((-2, -1), keepdim=True)
    return torch.addcmul(d_side, identity(d_side), slope, value=alpha)


def product_gradient(grad: Tensor, x: Tensor, n_iter: int, gram: bool) -> Tensor:
    """Gradient `(B, D, N)` computed from the variables alone by differentiable products."""
    scaled, peak = recorded_peak_scale(x, _fewer(x, gram))
    side, trace = _recorded_unit_trace(scaled, peak, gram)
    residuals, _ = _recursion(side, n_iter, gram)
    inverse_norm = _inverse_norm(trace, x.shape[-1])
    return _gradient(grad, scaled, side, trace, inverse_norm, residuals, x.shape[-1], gram)


def product_gradient_vjp(cotangent: Tensor, grad: Tensor, x: Tensor, n_iter: int, gram: bool) -> tuple[Tensor, Tensor]:
    """Vector-Jacobian product of `product_gradient` with respect to `grad` and `x`."""
    pulled_back: Any = torch.func.vjp(lambda g, y: product_gradient(g, y, n_iter, gram), grad, x)[1]
    return pulled_back(cotangent)


def product_value(x: Tensor, n_iter: int, gram: bool, low: Low = None) -> Tensor:
    """`(B, D, N)` -> `(B, D(D+1)/2)`, keeping nothing: the form for inference."""
    scaled, peak = peak_scale(x, _fewer(x, gram))
    side, trace = _unit_trace(scaled, gram)
    last = inverse_root(side, n_iter, low) if gram else root(side, n_iter, low)
    return _value(scaled, last, _value_scale(peak, trace, _inverse_norm(trace, x.shape[-1]), gram), gram)


def _value(scaled: Tensor, last: Tensor, factor: Tensor, gram: bool) -> Tensor:
    """The value from scaled features and the last iterate of their smaller side."""
    if gram:
        return product_triangle(torch.bmm(scaled, last * factor), scaled)
    return gather_triangle(last) * factor.flatten(1)


def _forward(x: Tensor, n_iter: int, gram: bool, low: Low) -> tuple[Tensor, ...]:
    """Value, peak, trace, its inverse norm, the residuals, and what else `ProductPool` keeps: see its docstring."""
    scaled, peak = peak_scale(x, _fewer(x, gram))
    side, trace = _unit_trace(scaled, gram)
    all_kept = gram and x.numel() <= KEEP_ALL
    residuals, iterates = _recursion(side, n_iter, gram, low, keep=all_kept)
    inverse_norm = _inverse_norm(trace, x.shape[-1])
    value = _value(scaled, iterates[-1], _value_scale(peak, trace, inverse_norm, gram), gram)
    kept = (value, peak, trace, inverse_norm, *residuals)
    if not gram:
        return (*kept, side)
    if all_kept:
        return (*kept, scaled, side, *iterates)
    return (*kept, scaled) if _keeps_features(x, n_iter) else kept


class ProductPool(torch.autograd.Function):
    """`(B, D, N)` -> `(B, D(D+1)/2)` by products, with the tangent recursion as its backward.

    Products of n×n for K steps on the N×N side: 3(K − 1) forward; backward 4(K − 1) for the tangents, each of Ṙ⁺ and
    Ẇ⁺ being the symmetric part of two products of different factors, and K − 1 to rebuild the iterates W. On the D×D
    side one more forward and two more backward. Products with the features, N×N side: XᵀX and X Z (D·N²), (X Z)Xᵀ
    (D²·N, lower blocks skipped) forward; S X (D²·N), Xᵀ(S X), (S X)Z and X·Ġ (D·N²), each with an operand first known
    in backward, and XᵀX again. Rebuilding W and XᵀX costs K of about 8K products and saves half of what is kept.

    On the N×N side n is N − 1 where `fewer_columns` says so: centred features have rank N − 1 at most.

    Saved: the input, its peak, trace and inverse norm, and the residuals R₁ … R_{K−1}; on the N×N side the scaled
    features where they are no larger than the residuals; on the D×D side the covariance, which is expensive to rebuild.
    Of a batch of no more than `KEEP_ALL` numbers, on the N×N side, the scaled features, XᵀX and all iterates: nothing
    is made again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, n_iter: int, gram: bool, low: Low) -> tuple[Tensor, ...]:
        """Value, then what backward needs."""
        return _forward(x, n_iter, gram, low)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the input and the recursion."""
        x, ctx.n_iter, ctx.gram, ctx.low = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None, None]:
        """Gradient of the input."""
        if grad is None:
            return None, None, None, None
        with autocast_off(grad.device):  # a backward may run inside the caller's autocast region
            once = not torch.is_grad_enabled()  # no derivative of it is asked for, which spares a node
            gradient = ProductPoolGradient.forward if once else ProductPoolGradient.apply
            return gradient(grad, *ctx.saved_tensors, ctx.n_iter, ctx.gram, ctx.low), None, None, None


class ProductPoolGradient(torch.autograd.Function):
    """First derivative from the saved recursion; its own derivative is taken of `product_gradient`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
        """Gradient from the saved residuals."""
        peak, trace, inverse_norm, *saved, n_iter, gram, low = rest
        residuals, kept = saved[: n_iter - 1], saved[n_iter - 1 :]
        if not gram:
            scaled, side = peak_scale(x, False, peak)[0], kept[0]
        else:
            scaled = kept[0] if kept else peak_scale(x, _fewer(x, gram), peak)[0]
            side = kept[1] if len(kept) > 1 else _small_side(scaled, gram).div_(trace)
        return _gradient(grad, scaled, side, trace, inverse_norm, residuals, x.shape[-1], gram, low, kept[2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the variables only."""
        grad, x, *_, ctx.n_iter, ctx.gram, _ = inputs
        ctx.n_inputs = len(inputs)
        ctx.save_for_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        """Second derivative."""
        grad, x = ctx.saved_tensors
        d_grad, d_x = product_gradient_vjp(cotangent, grad, x, ctx.n_iter, ctx.gram)
        return (d_grad, d_x) + (None,) * (ctx.n_inputs - 2)
