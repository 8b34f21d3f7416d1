"""Centred features at unit scale: the input of every normalisation.

The covariance of Eq. (1) is Σ = Xc Xcᵀ / N with Xc the features less their mean over the N positions. Everything after
it is computed from X = Xc / ‖Xc‖, whose covariance has trace one, and the scale ‖Xc‖ kept apart. No square of an input
value is formed at its own scale, so inputs of 1e-25 or 1e+15 neither underflow nor overflow in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def centre(x: Tensor) -> Tensor:
    """Subtract the mean over positions: `(B, D, N)` -> `(B, D, N)`.

    The first position is subtracted before the mean is taken: a constant map then gives exact zeros, where a rounded
    mean would leave noise that the normalisation would blow up, and a large common offset costs no accuracy.
    """
    shifted = x - x[..., :1]
    return shifted - shifted.mean(-1, keepdim=True)


def unit_scale(xc: Tensor) -> tuple[Tensor, Tensor]:
    """Split centred features `(B, D, N)` into `X` with ‖X‖ = 1 per sample, and ‖Xc‖ as `(B, 1, 1)`.

    A sample of zeros stays zero, with scale zero, and has zero derivatives of every order: its peak counts as infinite
    where it divides. NaN and Inf make their own sample NaN.
    """
    # The peak only conditions the norm; the quotient does not depend on it, so it takes no gradient.
    peak = xc.detach().abs().amax(dim=(1, 2), keepdim=True)
    dead = peak == 0
    scaled = xc / torch.where(dead, torch.full_like(peak, float("inf")), peak)
    square = (scaled * scaled).sum(dim=(1, 2), keepdim=True)
    norm = torch.where(dead, torch.ones_like(square), square).sqrt()
    return scaled / norm, peak * norm


def unit_features(x: Tensor) -> tuple[Tensor, Tensor]:
    """`unit_scale(centre(x))` in fewer passes over memory, for code that autograd does not record."""
    shifted = x - x[..., :1]
    # The shift puts a zero beside the largest value: that value is at most √2 times the norm of the centred features.
    peak = torch.maximum(shifted.amax(dim=(1, 2), keepdim=True), -shifted.amin(dim=(1, 2), keepdim=True))
    dead = peak == 0
    shifted.mul_(1 / torch.where(dead, torch.full_like(peak, float("inf")), peak))
    shifted.sub_(shifted.mean(-1, keepdim=True))
    square = (shifted * shifted).sum(dim=(1, 2), keepdim=True)
    norm = torch.where(dead, torch.ones_like(square), square).sqrt()
    return shifted.mul_(1 / norm), peak * norm
