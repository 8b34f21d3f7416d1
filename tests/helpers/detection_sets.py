"""A small COCO-format set for tests: bright squares (category 3) and dark discs (category 7) with exact masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from timm_gcp.detection.coco_masks import encode_mask

CATEGORIES = [{"id": 7, "name": "disc"}, {"id": 3, "name": "square"}]  # neither sorted nor from 1


def make_content(folder: Path, count: int, seed: int = 0, side: int = 64) -> dict[str, Any]:
    """Write `count` images to `folder` and return their annotations."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    rows, columns = np.mgrid[:side, :side]
    for image_id in range(10, 10 + count):
        pixels = rng.integers(90, 130, (side, side, 3), dtype=np.uint8)
        for half in (0, side // 2):  # one object in each half: no overlap
            size = int(rng.integers(12, side // 2 - 4))
            left, top = half + int(rng.integers(0, side // 2 - size)), int(rng.integers(0, side - size))
            square = bool(rng.integers(2))
            mask = (rows >= top) & (rows < top + size) & (columns >= left) & (columns < left + size)
            if not square:
                middle = np.array([top, left]) + (size - 1) / 2
                mask &= (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 <= (size / 2) ** 2
            pixels[mask] = 240 if square else 10
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": 3 if square else 7,
                    "bbox": [left, top, size, size],
                    "area": int(mask.sum()),
                    "iscrowd": 0,
                    "segmentation": encode_mask(mask),
                }
            )
        Image.fromarray(pixels).save(folder / f"{image_id}.png")
        images.append({"id": image_id, "file_name": f"{image_id}.png", "height": side, "width": side})
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def make_set(root: Path, train: int = 4, val: int = 3) -> Path:
    """Both splits in COCO's layout under `root`."""
    for seed, (split, count) in enumerate((("train2017", train), ("val2017", val))):
        write_json(root / "annotations" / f"instances_{split}.json", make_content(root / split, count, seed))
    return root
