"""Detections drawn on images: boxes, names, scores and masks.

torchvision draws boxes and masks. Labels are placed here, where they cover neither each other nor, if there is room,
the object; torchvision's overlap, and have no ground of their own in its older releases.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision.transforms.functional import to_pil_image
from torchvision.utils import draw_bounding_boxes, draw_segmentation_masks

from timm_gcp.common.files import replacing

GOLDEN_RATIO = 0.618034  # steps of this much around the colour circle never come close to an earlier one
MASK_ALPHA = 0.45
FONT_SIZE = 14
LINE_WIDTH = 2  # pixels

Area = tuple[float, float, float, float]  # left, top, right, bottom


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
        ValueError: `score_threshold` is outside [0, 1].
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
    scaled = boxes[kept] * scale
    frames = torch.cat([scaled[:, :2], torch.maximum(scaled[:, :2], scaled[:, 2:] - 1)], dim=1)  # of the last pixels
    picture = to_pil_image(draw_bounding_boxes(pixels, frames, colors=colors, width=LINE_WIDTH))
    draw = ImageDraw.Draw(picture)
    placed: list[Area] = []
    font = ImageFont.load_default(max(FONT_SIZE, min(picture.size) // 36))
    for box, text, color in zip(
        scaled.tolist(), texts, colors, strict=True
    ):  # after all frames, which would cross them
        _, _, width, height = font.getbbox(text)
        area = label_area(box, width + 2 * LINE_WIDTH, height + 2 * LINE_WIDTH, picture.size, placed)
        placed.append(area)
        draw.rectangle(area, fill=color)
        ink = "black" if 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] > 128 else "white"
        draw.text((area[0] + LINE_WIDTH, area[1] + LINE_WIDTH // 2), text, fill=ink, font=font)
    return picture


def label_area(box: Sequence[float], width: float, height: float, size: tuple[int, int], taken: Sequence[Area]) -> Area:
    """Where the label of a box goes: outside it, inside the image and beside other labels, if there is such a place.

    Args:
        box: Left, top, right and bottom in pixels.
        width: Of the label.
        height: Of the label.
        size: Width and height of the image.
        taken: Areas of the labels drawn already.

    Returns:
        Left, top, right and bottom: the first of above, below, and inside at the top and the bottom of the box that
        meets no other label; above, or where that is outside the image inside, if all do.
    """
    x1, y1, _, y2 = box
    left = max(0.0, min(x1, size[0] - width))
    tops = [top for top in (y1 - height, y2, y1, y2 - height) if 0 <= top <= size[1] - height]
    areas = [(left, top, left + width, top + height) for top in tops or [max(0.0, min(y1, size[1] - height))]]
    free = [area for area in areas if not any(_meet(area, other) for other in taken)]
    return (free or areas)[0]


def _meet(a: Area, b: Area) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


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
        ValueError: There is none.
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
