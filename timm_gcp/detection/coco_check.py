"""Reads a COCO annotation file and checks all of it, so that whatever is wrong is said by its id before training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from timm_gcp.common.messages import counted
from timm_gcp.common.ranges import Range

_KEYS = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id",),
}
_ID = Range(-(2**53), 2**53)  # as far as every reader of JSON takes whole numbers apart
_SIDE = Range(1, 10**6)
_FINITE = Range()


def read_coco(path: Path) -> dict[str, Any]:
    """Parse an annotation file; what it returns has COCO's form, though ids may point nowhere and boxes lie anywhere.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not JSON or not in COCO's form; names the entry.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no annotation file {str(path)!r}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not a JSON file: {error}.") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _KEYS):
        raise ValueError(f"{str(path)!r} is not in COCO's format: it needs the lists {', '.join(_KEYS)}.")
    for name, keys in _KEYS.items():
        _check_entries(path, name, content[name], keys)
    if not content["categories"]:
        raise ValueError(f"{path.name} lists no categories.")
    for entry in content["categories"]:
        name = entry.get("name")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"{path.name}: the name of category {entry['id']} must be text, got {short(name)}.")
    for entry in content["images"]:
        _check_image(path, entry)
    for entry in content["annotations"]:
        _check_annotation(path, entry)
    return content


def where(annotation: Mapping[str, Any]) -> str:
    """What to call an annotation in an error."""
    return f"annotation {annotation['id']} of image {short(annotation['image_id'])}"


def is_whole(value: Any) -> bool:
    """Whether a value of JSON is a whole number, not a truth value."""
    return type(value) is int


def is_finite(value: Any) -> bool:
    """Whether a value of JSON is a finite number that float64 holds."""
    return type(value) in (int, float) and value in _FINITE and abs(value) < 1e308


def is_box(value: Any) -> bool:
    """Whether a value of JSON is COCO's x, y, width, height, all finite."""
    return isinstance(value, list) and len(value) == 4 and all(map(is_finite, value))


def short(value: Any, limit: int = 60) -> str:
    """A value as it is shown in an error."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _check_entries(path: Path, name: str, entries: list[Any], keys: tuple[str, ...]) -> None:
    """Objects with all keys, and an id of its own for each."""
    seen = set()
    for position, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{path.name}: entry {position} of {name} must be an object, got {short(entry)}.")
        if absent := sorted(set(keys) - set(entry)):
            raise ValueError(f"{path.name}: entry {position} of {name} lacks {', '.join(absent)}.")
        number = entry["id"]
        if not is_whole(number) or number not in _ID:
            raise ValueError(
                f"{path.name}: the id of entry {position} of {name} must be a whole number, got {short(number)}."
            )
        if number in seen:
            raise ValueError(f"{path.name}: two entries of {name} have the id {number}.")
        seen.add(number)


def _check_image(path: Path, entry: dict[str, Any]) -> None:
    what = f"{path.name}: image {entry['id']}"
    name = entry["file_name"]
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{what} must have a file_name of text, got {short(name)}.")
    for side in ("height", "width"):
        value = entry[side]
        if not is_finite(value) or value != int(value) or value not in _SIDE:
            raise ValueError(f"{what} must have a {side} in whole pixels, from 1 up, got {short(value)}.")
        entry[side] = int(value)
    limit = 2 * (Image.MAX_IMAGE_PIXELS or 10**12)  # Pillow opens no larger image
    if entry["height"] * entry["width"] > limit:
        size = counted(entry["height"] * entry["width"], "pixel")
        raise ValueError(f"{what} has {size}, more than the {limit} that an image may have: check height and width.")


def _check_annotation(path: Path, entry: Mapping[str, Any]) -> None:
    what = f"{path.name}: {where(entry)}"
    for key in ("image_id", "category_id"):
        if not is_whole(entry[key]):
            raise ValueError(f"{what}: {key} must be a whole number, got {short(entry[key])}.")
    box = entry["bbox"]
    if not isinstance(box, list) or not all(type(value) in (int, float) for value in box):
        raise ValueError(f"{what}: bbox must be four numbers, x, y, width and height, got {short(box)}.")
    if entry.get("iscrowd") not in (None, 0, 1):
        raise ValueError(f"{what}: iscrowd must be 0 or 1, got {short(entry['iscrowd'])}.")
    if "area" in entry and not (is_finite(entry["area"]) and entry["area"] >= 0):
        raise ValueError(
            f"{what}: area must be a number from 0 up, got {short(entry['area'])}; leave it out if unknown."
        )
