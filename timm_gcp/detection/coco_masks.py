"""Segmentations of COCO annotations: polygons and run-length codes to binary masks, and masks back to codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from timm_gcp.detection.coco_check import is_finite, is_whole, short


def mask_api() -> Any:
    """Mask functions of the evaluator's package (imported here, since only detection needs it).

    Raises:
        ImportError: Faster-coco-eval is not installed.
    """
    try:
        from faster_coco_eval.core import mask
    except ImportError as error:
        raise ImportError("COCO masks need faster-coco-eval: pip install timm-gcp[detection]") from error
    return mask


def check_segmentation(segmentation: Any, height: int, width: int, where: str) -> None:
    """Check a segmentation in any of COCO's three forms, see `decode_segmentation`.

    Raises:
        ValueError: It has none of these forms, a polygon lies far from the image, or the code is for another image
            size.
    """
    if isinstance(segmentation, list):
        if not segmentation or not all(_is_polygon(polygon) for polygon in segmentation):
            raise ValueError(f"{where}: a polygon is a list of at least 3 x, y pairs. Got {short(segmentation)}.")
        for polygon in segmentation:
            _check_place(polygon, height, width, where)
        return
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            f"{where}: a segmentation is a list of polygons or a run-length code with size and counts. "
            f"Got {short(segmentation)}."
        )
    size, counts = segmentation["size"], segmentation["counts"]
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        shown = list(size) if isinstance(size, list | tuple) else short(size)
        raise ValueError(f"{where}: the run-length code is {shown} (height, width), the image {[height, width]}.")
    runs = _runs(counts) if isinstance(counts, str | bytes) else counts
    if not isinstance(runs, list) or not all(is_whole(run) and run >= 0 for run in runs):
        raise ValueError(
            f"{where}: the counts of a run-length code are whole numbers from 0 up, or COCO's compressed text. "
            f"Got {short(counts)}."
        )
    if sum(runs) != height * width:
        raise ValueError(f"{where}: the run-length code covers {sum(runs)} pixels, the image has {height * width}.")


def decode_segmentation(segmentation: Any, height: int, width: int, where: str) -> np.ndarray:
    """Binary mask `(height, width)`, uint8, of a segmentation in any of COCO's three forms.

    Args:
        segmentation: A list of polygons `[x1, y1, x2, y2, ...]` in pixels, or a run-length code
            `{"size": [height, width], "counts": ...}` with counts as a list of numbers (crowd annotations) or as COCO's
            compressed text.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        where: What to call this annotation in an error.

    Raises:
        ValueError: It has none of these forms, a polygon lies far from the image, or the code is for another image
            size.
    """
    check_segmentation(segmentation, height, width, where)
    api = mask_api()
    if isinstance(segmentation, list):
        codes = api.frPyObjects([[float(value) for value in polygon] for polygon in segmentation], height, width)
        return np.asarray(api.decode(api.merge(codes)), dtype=np.uint8)
    code = segmentation
    if isinstance(segmentation["counts"], list):
        code = api.frPyObjects(segmentation, height, width)
    return np.asarray(api.decode(code), dtype=np.uint8)


def encode_mask(mask: np.ndarray) -> dict[str, Any]:
    """Compressed run-length code of a binary mask `(H, W)`, with its counts as text so that JSON can hold it."""
    code = mask_api().encode(np.asfortranarray(mask.astype(np.uint8)))
    counts = code["counts"]
    return {
        "size": [int(side) for side in code["size"]],
        "counts": counts.decode("ascii") if isinstance(counts, bytes) else str(counts),
    }


def _is_polygon(polygon: Any) -> bool:
    return (
        isinstance(polygon, list)
        and len(polygon) >= 6
        and len(polygon) % 2 == 0
        and all(type(value) in (int, float) for value in polygon)
    )


def _check_place(polygon: list[float], height: int, width: int, where: str) -> None:
    """Polygons may reach beyond the image by its own size: drawing takes memory by their length in pixels."""
    for name, values, side in (("x", polygon[0::2], width), ("y", polygon[1::2], height)):
        least, most = min(values), max(values)
        if not (all(map(is_finite, values)) and -side <= least and most <= 2 * side):
            far = next(value for value in values if not (is_finite(value) and -side <= value <= 2 * side))
            raise ValueError(
                f"{where}: a polygon has {name} = {short(far)}, far outside the image of {width}×{height} pixels. "
                "Correct it, or train a detector of boxes."
            )


def _runs(text: str | bytes) -> list[int] | None:
    """Run lengths in COCO's compressed text, None where it is cut short or has other signs.

    Each sign holds 6 bits, counted from '0': five of the number, lowest first, and one that says whether more follow;
    the last of a number's bits is its sign. From the fourth run on, the difference from the run before last is stored.
    """
    signs = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    runs: list[int] = []
    value = shift = 0
    for sign in signs:
        bits = sign - 48
        if not 0 <= bits < 64 or shift > 35:  # no image has runs that long
            return None
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    return None if shift else runs
