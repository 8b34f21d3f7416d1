"""Centred features at a scale of one: the input of every normalisation.

The covariance of Eq. (1) is Σ = Xc Xcᵀ / N with Xc the features less their mean over the N positions. Everything after
it is computed from features of about unit size, brought to a covariance of trace one, with the scale kept apart. No
square of an input value is formed at its own scale, so inputs of 1e-25 or 1e+15 neither underflow nor overflow in
float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from timm_gcp.ops.constants import constant


def centre(x: Tensor) -> Tensor:
    """Subtract the mean over positions: `(B, D, N)` -> `(B, D, N)`.

    The first position is subtracted before the mean is taken: a constant map then gives exact zeros, where a rounded
    mean would leave noise that the normalisation would blow up, and a large common offset costs no accuracy.
    """
    shifted = x - x[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def fewer_columns(positions: int) -> bool:
    """Whether N − 1 columns are multiplied faster than N: as a multiple of eight, which it is for odd square maps.

    A 7×7 map has 49 positions; rows of 48 numbers keep a processor's vectors full.
    """
    return positions > 1 and positions % 8 == 1


def project(x: Tensor) -> Tensor:
    """Centred features in N − 1 columns, `(B, D, N)` -> `(B, D, N − 1)`, with the same covariance.

    Centred rows are orthogonal to the vector of ones. A Householder reflection that takes 1/√N to the first axis
    therefore leaves the first column zero, and the others are

        t_j = s_j − Σ s / (√N(√N − 1)),   s_j = x_j − x_0,

    which inherits the accuracy of `centre`: differences first.
    """
    shifted = x[..., 1:] - x[..., :1]
    return shifted - shifted.sum(-1, keepdim=True) * _reflection(x.shape[-1])


def project_adjoint(grad: Tensor, positions: int) -> Tensor:
    """Adjoint of `project`: `(B, D, N − 1)` -> `(B, D, N)` with N = `positions`; every row sums to zero.

    It acts on rows, so that of a product of matrices it may be applied to the last, smaller factor.
    """
    return torch.matmul(grad, constant(_reflected_axes, grad, positions))


def _reflected_axes(positions: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows 1 … N − 1 of the reflection, `(N − 1, N)`: an orthonormal basis of what is orthogonal to the ones."""
    first = torch.full((positions - 1, 1), positions**-0.5, dtype=torch.float64)
    rest = torch.eye(positions - 1, dtype=torch.float64) - _reflection(positions)
    return torch.cat((first, rest), 1).to(device, dtype)


def _reflection(positions: int) -> float:
    return 1 / (positions - positions**0.5)


def peak_scale(x: Tensor, fewer: bool, peak: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Centred features divided by their largest shifted value, and that value `(B, 1, 1)`, in few passes over memory.

    For code that autograd does not record. The shift puts a zero beside the largest value, so the result has a norm
    of at least √½ per sample, or is zero where a sample is constant.

    Args:
        x: Features `(B, D, N)`.
        fewer: Take `project` for `centre`.
        peak: The second result of an earlier call, which spares looking for it.
    """
    shifted = x[..., 1:] - x[..., :1] if fewer else x - x[..., :1]
    if peak is None:
        peak = torch.maximum(shifted.amax(dim=(1, 2), keepdim=True), -shifted.amin(dim=(1, 2), keepdim=True))
    tiny = torch.finfo(peak.dtype).tiny  # a constant sample stays zero
    shifted.mul_(peak.clamp_min(tiny).reciprocal_())
    if fewer:
        return shifted.sub_(shifted.sum(-1, keepdim=True), alpha=_reflection(x.shape[-1])), peak
    return shifted.sub_(shifted.mean(-1, keepdim=True)), peak


def recorded_peak_scale(x: Tensor, fewer: bool) -> tuple[Tensor, Tensor]:
    """`peak_scale` in operations that autograd and graph captures record; the peak takes no gradient."""
    xc = project(x) if fewer else centre(x)
    peak = xc.detach().abs().amax(dim=(1, 2), keepdim=True)
    return xc / torch.where(peak == 0, torch.full_like(peak, float("inf")), peak), peak


def square_norm(side: Tensor) -> Tensor:
    """‖X‖² `(B, 1, 1)` of scaled features X from their XᵀX or X Xᵀ; tiny, not zero, for a constant sample.

    For code that autograd does not record.
    """
    return side.diagonal(dim1=-2, dim2=-1).sum(-1).view(-1, 1, 1).clamp_min(torch.finfo(side.dtype).tiny)


def recorded_square_norm(side: Tensor, peak: Tensor) -> Tensor:
    """`square_norm` for code that is differentiated: one for a constant sample, whose peak is zero."""
    trace = side.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    return torch.where(peak == 0, torch.ones_like(trace), trace)
