"""DropCov: adaptive channel dropout in front of the plain covariance (Wang et al., NeurIPS 2022).

In training every channel of the features is scaled by its importance and dropped with a probability ρ that the features
themselves decide; at evaluation nothing is done, and the pooling is the covariance itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from timm_gcp.ops.centring import recorded_peak_scale

PAPER_BETA = 10.0


@dataclass(frozen=True)
class DropCov:
    """Options of `normalization='dropcov'`.

    Attributes:
        beta: β of the dropout probability, at least 0; 10 in the authors' code, where 0 drops every channel.
        training: Whether channels are dropped; a layer gives its own mode.
        generator: Random numbers; None takes torch's own, so that `torch.manual_seed` reproduces them.
        channel_filter: Weights of the 1-D convolution over channels that the importance is taken from, `(k,)` with an
            odd k (ECA-Net, Wang et al. 2020); None takes the channel means as they are.
    """

    beta: float = PAPER_BETA
    training: bool = False
    generator: torch.Generator | None = None
    channel_filter: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: `beta` is negative or not finite, or `channel_filter` has another shape.
        """
        if isinstance(self.beta, bool) or not isinstance(self.beta, (int, float)) or not 0 <= self.beta < math.inf:
            raise ValueError(f"beta is {self.beta!r}; give a number of at least 0 (the authors': {PAPER_BETA:g})")
        weights = self.channel_filter
        if weights is not None and (weights.ndim != 1 or weights.shape[0] % 2 == 0):
            raise ValueError(f"channel_filter has shape {tuple(weights.shape)}; give an odd number of weights, (k,)")


def drop_channels(x: Tensor, options: DropCov) -> Tensor:
    """Adaptive channel dropout, `(B, D, N)` -> `(B, D, N)`; the features themselves at evaluation.

    With the importance ω = softmax(conv(mean of each channel over positions)) and the features X′ = X·(1 + ω),

        ρ = 1 − β / log₂ D · mean over the batch of cos(ω, π),   π = Σ 1 (row sums of the covariance Σ of X′),

    clamped to [0, 1]. A channel is zero with probability ρ, the others are divided by 1 − ρ; channels are drawn one by
    one for each sample. ρ is a number, not differentiated; the importance takes its gradient through X′. The more the
    channels that matter are those that correlate, the fewer are dropped. Costs O(D·N): the row sums need no D×D matrix.

    Samples that are not finite do not count in the mean; one without variance counts with cos = 0. At D = 1 the
    logarithm is taken of 2.

    Source: DropCov; formula, constants and batch mean as in the authors' code
    (`ResNet_ACD.py`, `eca_layer.py` of mingzeG/DropCov).

    Args:
        x: Features in float32 or float64.
        options: See `DropCov`.
    """
    if not options.training:
        return x
    importance = _importance(x, options.channel_filter)
    x = x * (1 + importance[:, :, None])
    keep = 1 - drop_probability(x.detach(), importance.detach(), options.beta)
    drawn = torch.rand(x.shape[:2], generator=options.generator, dtype=x.dtype, device=x.device)
    mask = torch.where(drawn < keep, keep.reciprocal(), torch.zeros_like(drawn))
    return x * mask[:, :, None]


def _importance(x: Tensor, channel_filter: Tensor | None) -> Tensor:
    """ω, `(B, D)`."""
    mean = x.mean(-1)
    if channel_filter is not None:
        weights = channel_filter.to(x.dtype).view(1, 1, -1)
        mean = torch.nn.functional.conv1d(mean[:, None], weights, padding=channel_filter.shape[0] // 2)[:, 0]
    return mean.softmax(-1)


def drop_probability(x: Tensor, importance: Tensor, beta: float) -> Tensor:
    """ρ of the batch, a scalar tensor, from features `(B, D, N)` and their importance `(B, D)`."""
    scaled, _ = recorded_peak_scale(x, fewer=False)  # a cosine does not see the scale
    rows = torch.bmm(scaled, scaled.sum(1)[:, :, None])[:, :, 0]
    length = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(importance, dim=1)
    cosine = (rows * importance).sum(1) / torch.where(length == 0, torch.ones_like(length), length)
    counts = cosine.isfinite()
    mean = torch.where(counts, cosine, torch.zeros_like(cosine)).sum() / counts.sum().clamp_min(1)
    return (1 - beta / math.log2(max(x.shape[1], 2)) * mean).clamp(0, 1)
