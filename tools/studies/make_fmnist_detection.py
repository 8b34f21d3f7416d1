"""Make a COCO-format detection set from Fashion-MNIST: items at random scale and place, with exact masks.

    python tools/studies/make_fmnist_detection.py --data-dir FASHION_MNIST --output DETECTION_SET

FASHION_MNIST holds the four idx files, zipped or not. Every image is a pure function of (seed, split, index, canvas).
Items of the training split come from Fashion-MNIST's training images, the validation split's from its test images.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from coco_split import CocoSplit
from PIL import Image, ImageDraw
from tqdm import tqdm

from timm_gcp.detection.coco_masks import encode_mask
from timm_gcp.detection.draw import save_png

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MOST_ITEMS = 5
SCALE = (0.15, 0.5)  # side of an item before cropping, as a share of the canvas
LEAST_VISIBLE = 0.6  # of every item; a place that would hide more is tried again elsewhere
PLACES_TRIED = 30
DARKEST = 24  # of 255: darker pixels around an item are specks of the photographs' black background
SPLITS = {"train": "train", "val": "t10k"}  # split -> prefix of Fashion-MNIST's files


def read_idx(folder: Path, name: str) -> np.ndarray:
    """One of Fashion-MNIST's idx files, `name` or `name.gz`, as unsigned bytes.

    Raises:
        FileNotFoundError: Neither is there.
    """
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.is_file():
            with opener(path, "rb") as file:
                content = file.read()
            sides = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
            return np.frombuffer(content, np.uint8, offset=4 + 4 * len(sides)).reshape(sides)
    raise FileNotFoundError(f"neither {name} nor {name}.gz in {str(folder)!r}.")


def silhouette(item: np.ndarray) -> np.ndarray:
    """Where an item `(28, 28)` is: all that the black around it does not reach, dark parts inside included."""
    padded = Image.fromarray(np.pad((item > DARKEST).astype(np.uint8), 1)).copy()  # floodfill needs pixels of its own
    ImageDraw.floodfill(padded, (0, 0), 2)
    return np.asarray(padded)[1:-1, 1:-1] != 2


def compose(
    items: np.ndarray, labels: np.ndarray, canvas: int, rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """One image `(canvas, canvas)` and its objects as (class, visible mask), back to front."""
    ramp = np.linspace(-1, 1, canvas)
    direction = rng.uniform(0, 2 * np.pi)
    shade = rng.uniform(10, 60) + 15 * (np.cos(direction) * ramp[None, :] + np.sin(direction) * ramp[:, None])
    picture = np.clip(shade + rng.normal(0, 6, (canvas, canvas)), 0, 255).astype(np.uint8)
    objects: list[tuple[int, np.ndarray, int]] = []  # class, visible mask, pixels of the whole item
    for _ in range(rng.integers(1, MOST_ITEMS + 1)):
        index = rng.integers(len(items))
        side = int(canvas * np.exp(rng.uniform(*np.log(SCALE))))
        pixels = np.asarray(Image.fromarray(items[index]).resize((side, side), Image.Resampling.BILINEAR))
        shape = np.asarray(Image.fromarray(silhouette(items[index])).resize((side, side), Image.Resampling.NEAREST))
        for _ in range(PLACES_TRIED):
            top, left = rng.integers(0, canvas - side + 1, 2)
            mask = np.zeros((canvas, canvas), bool)
            mask[top : top + side, left : left + side] = shape
            behind = [(label, seen & ~mask, whole) for label, seen, whole in objects]
            if all(seen.sum() >= LEAST_VISIBLE * whole for _, seen, whole in behind):
                picture[top : top + side, left : left + side][shape] = pixels[shape]
                objects = [*behind, (int(labels[index]), mask, int(mask.sum()))]
                break
    return picture, [(label, seen) for label, seen, _ in objects]


def annotate(mask: np.ndarray) -> dict[str, Any]:
    """COCO's entries for a visible mask: tight box (x, y, width, height), area in pixels and run-length code."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    left, top = int(columns[0]), int(rows[0])
    box = [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top]
    return {"bbox": box, "area": int(mask.sum()), "segmentation": encode_mask(mask)}


def build(data_dir: Path, output: Path, sizes: dict[str, int], canvas: int = 256, seed: int = 0) -> None:
    """Write `annotations/instances_{split}.json` and the folders `{split}` for every split in `sizes`.

    Raises:
        FileNotFoundError: Fashion-MNIST's files are not in `data_dir`.
        ValueError: The canvas is too small to show an item.
    """
    if canvas < 32:
        raise ValueError(f"canvas must be at least 32 pixels. Got {canvas}.")
    for number, (split, prefix) in enumerate(SPLITS.items()):
        items = read_idx(data_dir, f"{prefix}-images-idx3-ubyte")
        labels = read_idx(data_dir, f"{prefix}-labels-idx1-ubyte")
        made = CocoSplit(output, split, CLASSES)
        for index in tqdm(range(sizes[split]), desc=f"compose {split}", leave=False):
            rng = np.random.default_rng([seed, number, index])
            picture, objects = compose(items, labels, canvas, rng)
            name = f"{index:06d}.png"
            save_png(Image.fromarray(picture), made.folder / name)
            made.add_image(name, canvas, canvas)
            for label, mask in objects:
                made.add_object(label, annotate(mask))
        made.write()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of Fashion-MNIST's idx files")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the set to")
    parser.add_argument("--canvas", type=int, default=256, help="side of the pictures in pixels (default: 256)")
    parser.add_argument("--train", type=int, default=1000, help="training images (default: 1000)")
    parser.add_argument("--val", type=int, default=200, help="validation images (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default: 0)")
    args = parser.parse_args()
    build(args.data_dir, args.output, {"train": args.train, "val": args.val}, args.canvas, args.seed)
