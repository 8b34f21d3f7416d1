"""Write the likeliest classes on a copy of an image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.common.files import replacing
from timm_gcp.inference.images import open_image

_LEAST_SIDE, _MOST_SIDE = 320, 1024  # pixels of the shown image: small ones enlarged, large ones reduced
_LINE, _MARGIN = 22, 6  # pixels of a line of text, and around it


def annotated_names(images: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Where the copy of each image goes: a PNG of its name under `folder`, in the subfolders that tell them apart."""
    absolute = {path: Path(os.path.abspath(path)) for path in images}
    root = os.path.commonpath([path.parent for path in absolute.values()])
    names: dict[Path, Path] = {}
    for path, whole in absolute.items():
        target = (folder / whole.relative_to(root)).with_suffix(".png")
        if target in names.values():  # cat.jpg beside cat.png
            target = target.with_name(f"{whole.name}.png")
        names[path] = target
    return names


def annotate(path: Path, top: Sequence[dict[str, Any]], target: Path) -> None:
    """Write a copy of an image with its classes below it, the likeliest first, each with a bar of its probability.

    Args:
        path: The image.
        top: Entries of `timm_gcp.inference.predict.predict`: `name`, `probability` in [0, 1].
        target: PNG to write.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = open_image(path, 3)
    side = min(image.size)
    scale = max(_LEAST_SIDE / side, 1.0) if side < _LEAST_SIDE else min(_MOST_SIDE / max(image.size), 1.0)
    size = tuple(max(1, round(length * scale)) for length in image.size)
    image = image.resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BICUBIC)
    font = ImageFont.load_default(_LINE - 6)
    texts = [f"{entry['probability']:6.1%}  {entry['name']}" for entry in top]
    widest = max((font.getlength(text) for text in texts), default=0)
    width = max(image.width, round(widest) + 2 * _MARGIN)
    page = Image.new("RGB", (width, image.height + _LINE * len(texts) + 2 * _MARGIN), "white")
    page.paste(image, ((width - image.width) // 2, 0))
    draw = ImageDraw.Draw(page)
    for line, (entry, text) in enumerate(zip(top, texts, strict=True)):
        y = image.height + _MARGIN + line * _LINE
        end = _MARGIN + round(entry["probability"] * (width - 2 * _MARGIN))
        draw.rectangle((_MARGIN, y + 1, end, y + _LINE - 2), fill="#b8d8ea")
        draw.text((_MARGIN + 2, y + 1), text, fill="black", font=font)
    with replacing(target) as partial:
        page.save(partial, format="PNG")
