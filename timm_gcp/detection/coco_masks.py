"""Segmentations of COCO annotations: polygons and run-length codes to binary masks, and masks back to codes."""

from __future__ import annotations

from typing import Any

import numpy as np


def mask_api() -> Any:
    """Mask functions of the evaluator's package (imported here, since only detection needs it).

    Raises:
        ImportError: If faster-coco-eval is not installed.
    """
    try:
        from faster_coco_eval.core import mask
    except ImportError as error:
        raise ImportError("COCO masks need faster-coco-eval: pip install timm-gcp[detection]") from error
    return mask


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
        ValueError: If it has none of these forms, or the code is for another image size.
    """
    api = mask_api()
    if isinstance(segmentation, list):
        if not segmentation or not all(_is_polygon(polygon) for polygon in segmentation):
            raise ValueError(f"{where}: a polygon is a list of at least 3 x, y pairs. Got {_short(segmentation)}.")
        codes = api.frPyObjects([[float(value) for value in polygon] for polygon in segmentation], height, width)
        return np.asarray(api.decode(api.merge(codes)), dtype=np.uint8)
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= set(segmentation):
        raise ValueError(
            f"{where}: a segmentation is a list of polygons or a run-length code with size and counts. "
            f"Got {_short(segmentation)}."
        )
    if list(segmentation["size"]) != [height, width]:
        raise ValueError(
            f"{where}: the run-length code is {list(segmentation['size'])} (height, width), the image "
            f"{[height, width]}."
        )
    code = segmentation
    if isinstance(segmentation["counts"], list):
        if sum(segmentation["counts"]) != height * width:
            raise ValueError(
                f"{where}: the run-length code covers {sum(segmentation['counts'])} pixels, "
                f"the image has {height * width}."
            )
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
        and all(isinstance(value, (int, float)) for value in polygon)
    )


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
