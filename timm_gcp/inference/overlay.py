"""A map of contributions over the image that it was computed from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def shown_image(tensor: Tensor, mean: Any, std: Any) -> Tensor:
    """The pixels that a normalised image `(C, H, W)` stands for, `(3, H, W)` in [0, 1]."""
    mean, std = (torch.tensor(values, dtype=tensor.dtype).view(-1, 1, 1) for values in (mean, std))
    return (tensor.cpu() * std + mean).clamp(0, 1).expand(3, -1, -1)


def overlay(pixels: Tensor, contributions: Tensor, strength: float = 0.6) -> Any:
    """Lay a map over an image: red where a position speaks for the class, blue where it speaks against it.

    Args:
        pixels: `(3, H, W)` in [0, 1].
        contributions: `(h, w)`; the largest magnitude is drawn strongest, zero leaves the image as it is.
        strength: Share of the colour at the largest magnitude, in [0, 1].

    Returns:
        An RGB image of Pillow, H × W.

    Raises:
        ValueError: `strength` is outside [0, 1].
    """
    from PIL import Image

    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in [0, 1], got {strength}.")
    drawn = interpolate(contributions[None, None].float(), size=pixels.shape[-2:], mode="bilinear")[0, 0].cpu()
    scaled = drawn / drawn.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
    colour = torch.where(
        scaled[None] >= 0,
        torch.tensor([0.84, 0.19, 0.15])[:, None, None],
        torch.tensor([0.13, 0.4, 0.67])[:, None, None],
    )
    share = strength * scaled.abs()
    grey = pixels.mean(dim=0, keepdim=True).expand(3, -1, -1)
    mixed = grey * (1 - share) + colour * share
    return Image.fromarray((mixed * 255).round().byte().permute(1, 2, 0).contiguous().numpy())
