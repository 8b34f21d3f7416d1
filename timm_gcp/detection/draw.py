"""Detections drawn on images: boxes, names, scores and masks."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import draw_segmentation_masks

from timm_gcp.common.files import replacing

GOLDEN_RATIO = 0.618034  # steps of this much around the colour circle never come close to an earlier one
MASK_ALPHA = 0.45
FONT_SIZE = 14
LINE_WIDTH = 2  # pixels


def label_color(label: int) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, of a label: bright, and far from those of its neighbours."""
    red, green, blue = colorsys.hsv_to_rgb((label * GOLDEN_RATIO) % 1.0, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_detections(
    image: Tensor,
    target: Mapping[str, Tensor],
    names: Mapping[int, str] | None = None,
    *,
    score_threshold: float = 0.5,
    shortest_side: int = 480,
) -> Image.Image:
    """Draw detections, or a ground-truth target, on an image.

    Args:
        image: `(1 or 3, H, W)` in [0, 1].
        target: `boxes` `(N, 4)` in pixels, `labels` `(N,)`; `scores` `(N,)` and `masks` `(N, 1, H, W)` or `(N, H, W)`
            where there are any.
        names: Label -> name; the label's number when left out.
        score_threshold: Draw detections from this score up.
        shortest_side: Smaller images are enlarged to this, so that the text can be read.

    Raises:
        ValueError: If `score_threshold` is outside [0, 1].
    """
    if not 0 <= score_threshold <= 1:
        raise ValueError(f"score_threshold must be in [0, 1]. Got {score_threshold}.")
    boxes, labels = target["boxes"].detach().float().cpu(), target["labels"].detach().cpu()
    scores = target["scores"].detach().float().cpu() if "scores" in target else None
    kept = torch.arange(len(boxes)) if scores is None else torch.nonzero(scores >= score_threshold).flatten()
    pixels = (image.detach().float().cpu().clamp(0, 1) * 255).round().byte()
    if pixels.shape[0] == 1:
        pixels = pixels.expand(3, -1, -1)
    scale = max(1, -(-shortest_side // min(pixels.shape[1:])))
    pixels = _enlarge(pixels, scale)
    if not len(kept):
        return to_pil_image(pixels)
    colors = [label_color(int(label)) for label in labels[kept]]
    if "masks" in target:
        masks = target["masks"].detach().float().cpu().reshape(-1, *image.shape[1:])[kept] > 0.5
        pixels = draw_segmentation_masks(pixels, _enlarge(masks.byte(), scale).bool(), MASK_ALPHA, colors)
    texts = [
        str((names or {}).get(int(labels[i]), int(labels[i]))) + ("" if scores is None else f" {float(scores[i]):.2f}")
        for i in kept
    ]
    picture = to_pil_image(pixels)
    for box, text, color in zip((boxes[kept] * scale).tolist(), texts, colors, strict=True):
        _draw_box(ImageDraw.Draw(picture), box, text, color)
    return picture


def _draw_box(draw: ImageDraw.ImageDraw, box: list[float], text: str, color: tuple[int, int, int]) -> None:
    """A frame, and the text on a strip of its colour inside the top edge."""
    font = ImageFont.load_default(FONT_SIZE)
    x1, y1, x2, y2 = box
    draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=color, width=LINE_WIDTH)
    _, _, right, bottom = draw.textbbox((x1 + LINE_WIDTH, y1), text, font=font)
    draw.rectangle((x1, y1, right + LINE_WIDTH, bottom + LINE_WIDTH), fill=color)
    draw.text((x1 + LINE_WIDTH, y1), text, fill="black", font=font)


def _enlarge(pixels: Tensor, scale: int) -> Tensor:
    """Repeat each pixel `scale` times in both directions."""
    return pixels.repeat_interleave(scale, -1).repeat_interleave(scale, -2)


def save_png(image: Image.Image, path: str | Path) -> None:
    """Write a PNG through a temporary file."""
    with replacing(path) as partial:
        image.save(partial, format="PNG")


def side_by_side(images: Sequence[Image.Image], gap: int = 8) -> Image.Image:
    """Images of one height in a row on white.

    Raises:
        ValueError: If there is none.
    """
    if not images:
        raise ValueError("side_by_side needs at least one image.")
    width = sum(image.width for image in images) + gap * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(image.height for image in images)), "white")
    left = 0
    for image in images:
        sheet.paste(image, (left, 0))
        left += image.width + gap
    return sheet
