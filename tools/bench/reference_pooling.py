"""The reference algorithm of iSQRT-COV, re-stated: what the paper's authors ran, kept as a baseline for benchmarks.

Same steps and same costs as their implementation: an N×N centring matrix per sample, the coupled Newton–Schulz
iteration on the D×D side with every Y and Z kept, a hand-written backward that ends in a loop over the batch, and an
upper triangle picked by an index from `nonzero`. `tests/test_reference_pooling.py` holds it against the golden file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def centring_matrix(positions: int, dtype: torch.dtype) -> Tensor:
    """(I − 11ᵀ/N)/N; the reference forms it in float32 whatever the type of the features."""
    spread = torch.full((positions, positions), -1.0 / positions / positions)
    return (spread + torch.eye(positions) * (1.0 / positions)).to(dtype)


class ReferenceCovariance(torch.autograd.Function):
    """X J Xᵀ with J repeated over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """`(B, D, N)` -> `(B, D, D)`."""
        j = centring_matrix(x.shape[2], x.dtype).to(x.device).expand(x.shape[0], -1, -1).contiguous()
        ctx.save_for_backward(x, j)
        return torch.bmm(torch.bmm(x, j), x.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """(G + Gᵀ) X J."""
        x, j = ctx.saved_tensors
        return torch.bmm(torch.bmm(grad + grad.mT, x), j)


class ReferenceSqrt(torch.autograd.Function):
    """Coupled Newton–Schulz with `n_iter` (at least 2) steps; all iterates kept for the backward recursion."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, n_iter: int) -> Tensor:
        """`(B, D, D)` -> `(B, D, D)`."""
        batch, dim, _ = a.shape
        three = 3.0 * torch.eye(dim, dtype=a.dtype, device=a.device).repeat(batch, 1, 1)
        trace = (a * three).sum((1, 2)) / 3.0
        unit = a / trace[:, None, None]
        ys = torch.zeros(batch, n_iter, dim, dim, dtype=a.dtype, device=a.device)
        zs = torch.eye(dim, dtype=a.dtype, device=a.device).repeat(batch, n_iter, 1, 1)
        zs[:, 0] = 0.5 * (three - unit)
        ys[:, 0] = torch.bmm(unit, zs[:, 0])
        for k in range(1, n_iter - 1):
            t = 0.5 * (three - torch.bmm(zs[:, k - 1], ys[:, k - 1]))
            ys[:, k] = torch.bmm(ys[:, k - 1], t)
            zs[:, k] = torch.bmm(t, zs[:, k - 1])
        y, z = ys[:, n_iter - 2], zs[:, n_iter - 2]
        last = 0.5 * torch.bmm(y, three - torch.bmm(z, y))
        ctx.save_for_backward(a, unit, last, trace, ys, zs)
        return last * trace.sqrt()[:, None, None]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Reverse recursion through the iterates."""
        a, unit, last, trace, ys, zs = ctx.saved_tensors
        batch, n_iter, dim, _ = ys.shape
        three = 3.0 * torch.eye(dim, dtype=a.dtype, device=a.device).repeat(batch, 1, 1)
        root = trace.sqrt()
        post = grad * root[:, None, None]
        d_root = (grad * last).sum((1, 2)) / (2 * root)
        y, z = ys[:, n_iter - 2], zs[:, n_iter - 2]
        dy = 0.5 * (torch.bmm(post, three - torch.bmm(y, z)) - torch.bmm(torch.bmm(z, y), post))
        dz = -0.5 * torch.bmm(torch.bmm(y, post), y)
        for k in range(n_iter - 3, -1, -1):
            y, z = ys[:, k], zs[:, k]
            yz = three - torch.bmm(y, z)
            zy = torch.bmm(z, y)
            dy_next = 0.5 * (torch.bmm(dy, yz) - torch.bmm(torch.bmm(z, dz), z) - torch.bmm(zy, dy))
            dz_next = 0.5 * (torch.bmm(yz, dz) - torch.bmm(torch.bmm(y, dy), y) - torch.bmm(dz, zy))
            dy, dz = dy_next, dz_next
        d_unit = 0.5 * (torch.bmm(dy, three - unit) - dz - torch.bmm(unit, dy)).mT
        d_trace = (d_unit * a).sum((1, 2))
        d_a = d_unit / trace[:, None, None]
        for i in range(batch):
            correction = d_root[i] - d_trace[i] / (trace[i] * trace[i])
            d_a[i] += correction * torch.ones(dim, dtype=a.dtype, device=a.device).diag()
        return d_a, None


class ReferenceTriangle(torch.autograd.Function):
    """Upper triangle by an index found with `nonzero`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        """`(B, D, D)` -> `(B, D(D+1)/2)`."""
        batch, dim, _ = a.shape
        index = torch.ones(dim, dim).triu().reshape(-1).nonzero()[:, 0].to(a.device)
        ctx.save_for_backward(a, index)
        return a.reshape(batch, -1)[:, index]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Scatter into zeros."""
        a, index = ctx.saved_tensors
        full = torch.zeros_like(a).reshape(a.shape[0], -1)
        full[:, index] = grad
        return full.reshape(a.shape)


def reference_pool(x: Tensor, n_iter: int = 5) -> Tensor:
    """`(B, D, H, W)` or `(B, D, N)` -> `(B, D(D+1)/2)`."""
    return ReferenceTriangle.apply(ReferenceSqrt.apply(ReferenceCovariance.apply(x.flatten(2)), n_iter))
