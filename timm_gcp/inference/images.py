"""Find image files and read them: any mode, as 8-bit grey or RGB, upright."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def find_images(patterns: Sequence[str]) -> list[Path]:
    """The image files that paths, folders (searched in depth) and glob patterns name, in order, each once.

    Raises:
        FileNotFoundError: A pattern names nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if path.is_dir():
            matches = sorted(item for item in path.rglob("*") if item.suffix.lower() in SUFFIXES)
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(Path(item) for item in glob.glob(pattern, recursive=True) if Path(item).is_file())
        if not matches:
            what = f"has no images ({', '.join(SUFFIXES)})" if path.is_dir() else "names no file"
            raise FileNotFoundError(f"{pattern!r} {what}.")
        found.update(dict.fromkeys(matches))
    return list(found)


def open_image(path: Path, channels: int) -> Any:
    """Read an image in any mode as 8-bit grey (1 channel) or RGB (3), upright by its EXIF tag.

    16-bit grey keeps its upper 8 bits; transparency is laid over black.

    Raises:
        ValueError: Not an image that Pillow reads, or another number of channels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if channels not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels, the model takes {channels}.")
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened)
            image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{str(path)!r} can't be read as an image: {error}") from error
    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    elif image.mode == "F":
        raise ValueError(f"{str(path)!r} holds floating-point pixels of unknown scale: convert it to 8 or 16 bits.")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert("RGB" if channels == 3 else "L")
