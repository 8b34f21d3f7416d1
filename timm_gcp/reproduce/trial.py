"""`--limit N`: the same plan on a handful of images, to see that everything runs. Its figures mean nothing.

Each data set is cut to N images per split, as links in a folder of its own; training runs take two epochs (detectors
one) at a small image size; the landscape is probed at five step sizes before every update; robustness is measured on
two images, made on the fly and not normalised; times are of one step of two images.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

from timm_gcp.reproduce.setup import TRAIN, VAL, Setup, split_folder

IMAGE_SIZE = 64  # pixels: the last map of a network with a stride of 32 has 2x2 positions
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
PROBED_STEPS = 5  # step sizes of the landscape
CORRUPTED_IMAGES = 2  # of the robustness benchmarks, which make 75 images and 10 sequences of each
TIMED_IMAGES, TIMED_STEPS = 2, 1  # of the cost per image
# A detector of a few proposals on small images, in steps of two. All of its layers learn and normalise by the batch:
# the running statistics of a classifier after two updates are still those of its start, and activations explode.
DETECTOR = {
    "epochs": 1,
    "batch_size": 2,
    "min_size": 64,
    "max_size": 96,
    "rpn_proposals": 50,
    "rois_per_image": 16,
    "norm": "bn",
    "trainable_layers": 5,
}


def train_keys(batch_size: int, limit: int, gpus: int = 1) -> dict[str, Any]:
    """Keys of train.py that make a trial of a training run with this batch size."""
    workers = 0 if gpus == 1 else 1  # train.py cannot do without
    return {"epochs": 2, "batch_size": min(batch_size, limit), "img_size": IMAGE_SIZE, "workers": workers}


def prepare(setup: Setup, data: Iterable[str]) -> None:
    """Lay out the trial's images, where they are not there yet.

    Args:
        setup: With a limit.
        data: `imagenet`, `coco`; others are taken as they are.

    Raises:
        FileNotFoundError: A split has no images.
    """
    for name in data:
        if name == "imagenet" and setup.data_dir is not None:
            _appear(setup.imagenet, lambda folder: _cut_imagenet(setup, folder))
        elif name == "coco":
            _appear(setup.coco, lambda folder: _cut_coco(setup, folder))


def _appear(target: Path, fill: Callable[[Path], None]) -> None:
    """Create `target` whole or not at all."""
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fill(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.symlink(source.resolve(), target)
    except OSError:  # where links need a privilege
        shutil.copyfile(source, target)


def _cut_imagenet(setup: Setup, folder: Path) -> None:
    """The first images of each class in turn, N in a split and at least one of every class."""
    for names in (TRAIN, VAL):
        split = split_folder(setup.imagenet_source, names)
        classes = []
        for name in setup.class_names or []:
            images = sorted(path for path in (split / name).iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
            if not images:
                raise FileNotFoundError(f"no image ({', '.join(IMAGE_SUFFIXES)}) in {str(split / name)!r}.")
            classes.append(images)
        in_turn = [path for row in zip_longest(*classes) for path in row if path is not None]
        for path in in_turn[: setup.limit]:
            _link(path, folder / names[0] / path.parent.name / path.name)


def _cut_coco(setup: Setup, folder: Path) -> None:
    """The first N images that have objects, with their annotations."""
    from timm_gcp.detection.coco_data import find_split

    for split in ("train", "val"):
        files = find_split(setup.coco_source, split)
        content = json.loads(files.annotations.read_text(encoding="utf-8"))
        seen = {annotation["image_id"] for annotation in content["annotations"]}
        images = [image for image in content["images"] if image["id"] in seen][: setup.limit]
        kept = {image["id"] for image in images}
        few = {
            "images": images,
            "annotations": [a for a in content["annotations"] if a["image_id"] in kept],
            "categories": content["categories"],
        }
        for image in images:
            _link(files.images / image["file_name"], folder / split / image["file_name"])
        target = folder / "annotations" / f"instances_{split}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(few), encoding="utf-8")
