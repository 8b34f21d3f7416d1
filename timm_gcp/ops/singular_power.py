"""Power of the singular values of a matrix that is not symmetric: exact, and SoT's approximation by power iteration.

    svPN(Q) = U diag(sᵅ) Vᵀ,   Q = U diag(s) Vᵀ,   0 < α ≤ 2      (Xie et al., SoT, arXiv:2104.10935, Section 3)

For a symmetric positive Q this is the matrix power of MPN-COV. The exact form works on the smallest of the matrix's
rows, columns and rank: Q = X Yᵀ from features of N columns needs the decomposition of an N×N matrix only.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from timm_gcp.ops.precision import autocast_off
from timm_gcp.ops.scalar_functions import Power


class SingularPower(torch.autograd.Function):
    """`(B, C1, n)`, `(B, C2, n)` -> svPN(X Yᵀ), `(B, C1, C2)`.

    The gradient is that of the odd function f(s) = sign(s)|s|ᵅ of the symmetric matrix [[0, Q], [Qᵀ, 0]], whose
    eigenvalues are ±s (Daleckii–Krein): with M = Uᵀ G V for the incoming gradient G,

        U (½(M + Mᵀ)∘f[sᵢ, sⱼ] + ½(M − Mᵀ)∘f[sᵢ, −sⱼ]) Vᵀ + (I − U Uᵀ) G V diag(f/s) Vᵀ + U diag(f/s) Uᵀ G (I − V Vᵀ),

    so that equal singular values need no special case. Singular values that vanish to rounding have value and gradient
    zero: for features of fewer columns than channels this is exact, as no change of the features reaches them.
    """

    @staticmethod
    def forward(x: Tensor, y: Tensor, power: Power) -> tuple[Tensor, ...]:
        """Value, and U, s, V."""
        if x.shape[2] < min(x.shape[1], y.shape[1]):
            left, left_side = torch.linalg.qr(x)
            right, right_side = torch.linalg.qr(y)
            u, s, vh = torch.linalg.svd(torch.bmm(left_side, right_side.mT), full_matrices=False)
            u, v = torch.bmm(left, u), torch.bmm(right, vh.mT)
        else:
            u, s, vh = torch.linalg.svd(torch.bmm(x, y.mT), full_matrices=False)
            v = vh.mT
        value = torch.bmm(u * (power.quotient(s) * s).unsqueeze(-2), v.mT)
        return value, u, s, v

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep features and decomposition."""
        x, y, ctx.power = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, y, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of both features."""
        if grad is None:
            return None, None, None
        x, y, u, s, v = ctx.saved_tensors
        with autocast_off(grad.device):
            q_grad = _product_gradient(grad, u, s, v, ctx.power)
            return torch.bmm(q_grad, y), torch.bmm(q_grad.mT, x), None


def _product_gradient(grad: Tensor, u: Tensor, s: Tensor, v: Tensor, power: Power) -> Tensor:
    f, minus = power.divided(s)
    h = power.quotient(s).unsqueeze(-2)
    total = s.unsqueeze(-1) + s.unsqueeze(-2)
    dead = (h.mT == 0) & (h == 0)
    plus = torch.where(
        dead, torch.zeros_like(total), (f.unsqueeze(-1) + f.unsqueeze(-2)) / torch.where(dead, 1.0, total)
    )
    left, right = torch.bmm(grad, v), torch.bmm(grad.mT, u)  # G V, Gᵀ U
    inner = torch.bmm(u.mT, left)
    core = 0.5 * ((inner + inner.mT) * minus + (inner - inner.mT) * plus)
    outer_left = (left - torch.bmm(u, inner)) * h
    outer_right = (right - torch.bmm(v, inner.mT)) * h
    return torch.bmm(torch.bmm(u, core) + outer_left, v.mT) + torch.bmm(u, outer_right.mT)


def power_iteration(q: Tensor, start: Tensor, exponent: float, singular_values: int, n_iter: int) -> Tensor:
    """SoT's fast svPN of `(B, C1, C2)`: the r largest singular values to the power, the rest by the r-th's scale.

        Σ over i < r of λᵢᵅ uᵢ vᵢᵀ + (Q − Σ over i < r of λᵢ uᵢ vᵢᵀ) / λᵣ¹⁻ᵅ

    Each triple is found by `n_iter` rounds of u ← Q v/‖·‖, v ← Qᵀu/‖·‖ from `start` `(C2,)` on what the earlier ones
    leave; λ = uᵀQ v. All of it is differentiated. With r = 1 the matrix is divided by λ₁¹⁻ᵅ. A zero matrix gives zeros.

    The i-th search starts from `start` times the i-th cosine wave (the first is constant): after one round from a
    vector, what is left of Q maps that very vector to zero. Singular values that vanish beside the first are zero.
    """
    value = torch.zeros_like(q)
    place = (torch.arange(q.shape[2], dtype=q.dtype, device=q.device) + 0.5) * (math.pi / q.shape[2])
    noise = torch.zeros_like(q[:, :1, :1])  # what a singular value has to exceed
    count = min(singular_values, *q.shape[1:])
    for i in range(count):
        begin = start.to(q.dtype) * (i * place).cos()
        v = begin.expand(q.shape[0], -1).unsqueeze(-1)
        for _ in range(n_iter):
            u = _unit(torch.bmm(q, v))
            v = _unit(torch.bmm(q.mT, u))
        size = torch.bmm(torch.bmm(u.mT, q), v)  # (B, 1, 1), not negative
        live = size > noise
        safe = torch.where(live, size, torch.ones_like(size))
        if i == 0:
            noise = size.detach() * (max(q.shape[1:]) * torch.finfo(q.dtype).eps)
        if i == count - 1:
            return value + q * torch.where(live, safe.pow(exponent - 1), torch.zeros_like(size))
        pair = torch.bmm(u, v.mT)
        value = value + pair * torch.where(live, safe.pow(exponent), torch.zeros_like(size))
        q = q - pair * size
    return value


def _unit(a: Tensor) -> Tensor:
    """`(B, n, 1)` of length one; zeros, with a zero gradient, stay zeros."""
    square = a.square().sum(1, keepdim=True)
    live = square > 0
    return a * torch.where(live, torch.where(live, square, torch.ones_like(square)).rsqrt(), torch.zeros_like(square))
