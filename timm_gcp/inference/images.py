"""Find image files and read them, for every command alike: any mode, as 8-bit grey or RGB, upright."""

from __future__ import annotations

import contextlib
import glob
import logging
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from timm.utils.misc import natural_key

from timm_gcp.datasets.folders import UNREAD_IMAGES

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB"}  # by number of channels
_QUARTER_TURNS = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112  # EXIF tag

_logger = logging.getLogger(__name__)


def find_images(patterns: Sequence[str]) -> list[Path]:
    """The image files that paths, folders (searched in depth) and glob patterns name, in order, each once.

    Images of other kinds in a folder are logged.

    Raises:
        FileNotFoundError: A pattern names nothing.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        if not pattern:  # which would be the folder that one is in
            raise FileNotFoundError("an empty name was given: name image files, folders or glob patterns.")
        if path.is_dir():
            inside = sorted(
                (item for item in path.rglob("*") if item.is_file()), key=lambda item: natural_key(str(item))
            )
            matches = [item for item in inside if item.suffix.lower() in SUFFIXES]
            others = Counter(
                item.suffix.lower() for item in inside if item.suffix.lower() in UNREAD_IMAGES - {*SUFFIXES}
            )
            if others:
                told = ", ".join(f"{count} {ending}" for ending, count in sorted(others.items()))
                _logger.warning("%r: %s not read (only %s are).", pattern, told, ", ".join(SUFFIXES))
        elif path.exists():
            matches = [path]
        else:
            matches = sorted(Path(item) for item in glob.glob(pattern, recursive=True) if Path(item).is_file())
        if not matches:
            what = f"has no images ({', '.join(SUFFIXES)})" if path.is_dir() else "names no file"
            raise FileNotFoundError(f"{pattern!r} {what}.")
        found.update(dict.fromkeys(matches))
    return list(found)


def open_image(
    source: str | Path | IO[bytes], channels: int, name: str = "", size: tuple[int, int] | None = None
) -> Any:
    """Read an image in any mode as 8-bit grey (1 channel) or RGB (3), upright by its EXIF tag.

    16-bit grey keeps its upper 8 bits; transparency is laid over black.

    Args:
        source: File, by its path or open, or an image of Pillow.
        channels: 1 or 3.
        name: What messages call an open file.
        size: Width and height that the image is said to have. An image that has them only as it is stored, with its
            EXIF tag left aside, is read as it is stored: then its boxes are, too.

    Raises:
        ValueError: Not an image that Pillow reads, pixels of unknown scale, or another number of channels; names the
            file.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if channels not in MODES:
        raise ValueError(f"images have 1 or 3 channels, the model takes {channels}.")
    name = name or str(source)
    try:
        with contextlib.nullcontext(source) if isinstance(source, Image.Image) else Image.open(source) as opened:
            opened.load()
            image: Any = opened
            turn = _orientation(image)
    except UnidentifiedImageError as error:
        raise ValueError(f"{name!r} can't be read as an image: no format that Pillow knows.") from error
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name!r} can't be read as an image: {error}") from error
    if turn != 1 and not (turn in _QUARTER_TURNS and image.size == size and image.width != image.height):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = _upper_bits(image, name)
    elif image.mode == "F":
        raise ValueError(f"{name!r} holds floating-point pixels of unknown scale: convert it to 8 or 16 bits.")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image)
    return image.convert(MODES[channels])


def _orientation(image: Any) -> int:
    """The EXIF orientation, 1 (upright) where there is none or it can't be read."""
    try:
        turn = image.getexif().get(_ORIENTATION, 1)
    except (SyntaxError, ValueError, KeyError, IndexError, TypeError, OSError, struct.error):
        return 1
    return turn if turn in range(1, 9) else 1


def _upper_bits(image: Any, name: str) -> Any:
    """The upper 8 of 16 bits, as an image in mode L."""
    image = image.convert("I")
    low, high = image.getextrema()
    if low < 0 or high > 0xFFFF:
        raise ValueError(f"{name!r} holds values from {low} to {high}, more than 16 bits: convert it to 8 or 16 bits.")
    return image.point(lambda value: value * (1 / 256)).convert("L")
