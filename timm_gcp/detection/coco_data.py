"""COCO-format data sets for detectors, checked whole before training starts.

One json file with `images`, `annotations` and `categories`, and one folder of images. Categories become the labels 1 to
K in the order of their ids (0 is the background); crowd regions and empty images are handled as detectors are commonly
trained on COCO: crowds teach nothing and are ignored in evaluation, empty images are left out of training.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from timm_gcp.detection.coco_check import is_box, read_coco, where
from timm_gcp.detection.coco_masks import check_segmentation, decode_segmentation
from timm_gcp.inference.images import MODES, open_image

BAD_BOXES = ("error", "drop")
MIN_SIDE = 0.01  # pixels: thinner boxes can lose their area to float32 once the image is resized


@dataclass(frozen=True)
class CocoFiles:
    """Where one split lies: the annotation file and the folder of its images."""

    annotations: Path
    images: Path


def find_split(data_dir: str | Path, split: str) -> CocoFiles:
    """Find `annotations/instances_{split}.json` and the folder `{split}`; `train` also stands for `train2017`.

    Raises:
        FileNotFoundError: There is none; says what was looked for.
    """
    root = Path(data_dir)
    tried = []
    for name in (split, f"{split}2017"):
        files = CocoFiles(root / "annotations" / f"instances_{name}.json", root / name)
        if files.annotations.is_file() and files.images.is_dir():
            return files
        tried.append(f"annotations/instances_{name}.json with {name}/")
    raise FileNotFoundError(
        f"{str(root)!r} has neither {' nor '.join(tried)}. Name the files themselves, "
        "e.g. --train-json and --train-images."
    )


class CocoDataset(Dataset):
    """Images and targets of a COCO-format split, as torchvision's detectors take them.

    An item is an image `(C, H, W)`, float32 in [0, 1], and a target: `boxes` `(N, 4)` in pixels as x1, y1, x2, y2,
    `labels` `(N,)` from 1, `image_id`, and with `masks=True` also `masks` `(N, H, W)`, uint8.

    Attributes:
        categories: Category id -> name, in the order of the ids.
        label_of: Category id -> label.
        category_of: Label -> category id.
        dropped: What was left out, and how often: `crowd`, `bad boxes`, `empty images`.
    """

    def __init__(
        self,
        annotations: str | Path,
        images: str | Path,
        *,
        masks: bool = False,
        in_chans: int = 3,
        hflip: float = 0.0,
        keep_empty: bool = True,
        bad_boxes: str = "error",
        segmentations: bool = False,
    ) -> None:
        """Read the annotation file and check it against the image folder.

        Args:
            annotations: The json file.
            images: Folder that the `file_name` entries are relative to.
            masks: Whether items carry masks.
            in_chans: 3 for colour, 1 for grey.
            hflip: Probability of mirroring an item left to right.
            keep_empty: Whether images without a usable box stay (evaluation) or go (training).
            bad_boxes: `'error'` refuses boxes without area inside their image; `'drop'` leaves them out. COCO's own
                train2017 has such boxes.
            segmentations: Check the segmentations although items carry no masks, for evaluation by them.

        Raises:
            FileNotFoundError: The json file, the folder or images are missing.
            ValueError: Anything inconsistent, naming the annotation.
        """
        if in_chans not in MODES:
            raise ValueError(f"in_chans must be one of {', '.join(map(str, MODES))}. Got {in_chans}.")
        if not 0 <= hflip <= 1:
            raise ValueError(f"hflip is a probability in [0, 1]. Got {hflip}.")
        if bad_boxes not in BAD_BOXES:
            raise ValueError(f"bad_boxes must be one of {', '.join(BAD_BOXES)}. Got {bad_boxes!r}.")
        self.annotation_file, self.image_dir = Path(annotations), Path(images)
        self.masks, self.in_chans, self.hflip = masks, in_chans, hflip
        content = read_coco(self.annotation_file)
        self.segmentations = masks or segmentations
        self.categories: dict[int, str] = {
            entry["id"]: str(entry.get("name", entry["id"]))
            for entry in sorted(content["categories"], key=lambda entry: entry["id"])
        }
        self.label_of = {category: label for label, category in enumerate(self.categories, start=1)}
        self.category_of = {label: category for category, label in self.label_of.items()}
        entries = {entry["id"]: entry for entry in content["images"]}
        self._check_images(content["images"])
        self.dropped = {"crowd": 0, "bad boxes": 0, "empty images": 0}
        self._targets = self._collect(content["annotations"], entries, bad_boxes)
        self.images = [entry for entry in content["images"] if keep_empty or self._targets.get(entry["id"])]
        self.dropped["empty images"] = len(entries) - len(self.images)
        if not self.images:
            raise ValueError(f"{str(self.annotation_file)!r} has no image {'' if keep_empty else 'with a usable box'}.")

    @property
    def num_classes(self) -> int:
        """Classes of a detector for this data: the categories and the background."""
        return len(self.categories) + 1

    def image_path(self, index: int) -> Path:
        """Path of an item's image."""
        return self.image_dir / self.images[index]["file_name"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Any]]:
        entry = self.images[index]
        height, width = entry["height"], entry["width"]
        image = read_image(self.image_path(index), self.in_chans, (width, height))
        if tuple(image.shape[1:]) != (height, width):
            raise ValueError(
                f"{str(self.image_path(index))!r} is {image.shape[2]}×{image.shape[1]} pixels, "
                f"{self.annotation_file.name} says {width}×{height}."
            )
        rows = self._targets.get(entry["id"], [])
        boxes = torch.tensor([row["box"] for row in rows], dtype=torch.float32).reshape(-1, 4)
        target: dict[str, Any] = {
            "boxes": boxes,
            "labels": torch.tensor([row["label"] for row in rows], dtype=torch.int64),
            "image_id": entry["id"],
        }
        if self.masks:
            drawn = [decode_segmentation(row["segmentation"], height, width, row["where"]) for row in rows]
            target["masks"] = torch.from_numpy(np.stack(drawn) if drawn else np.zeros((0, height, width), np.uint8))
        if self.hflip and torch.rand(()) < self.hflip:
            image = image.flip(-1)
            target["boxes"] = torch.stack(
                [width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], dim=1
            )  # fmt: skip
            if self.masks:
                target["masks"] = target["masks"].flip(-1)
        return image, target

    def _check_images(self, entries: list[dict[str, Any]]) -> None:
        if not self.image_dir.is_dir():
            raise FileNotFoundError(f"no image folder {str(self.image_dir)!r}.")
        missing = [entry["file_name"] for entry in entries if not _is_file(self.image_dir / entry["file_name"])]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of {len(entries)} images of {self.annotation_file.name} are not in "
                f"{str(self.image_dir)!r}, the first: {missing[0]!r}."
            )

    def _collect(
        self, annotations: list[dict[str, Any]], entries: dict[int, dict[str, Any]], bad_boxes: str
    ) -> dict[int, list[dict[str, Any]]]:
        """Boxes, labels and segmentations to train on, by image id."""
        targets: dict[int, list[dict[str, Any]]] = defaultdict(list)
        bad: list[str] = []
        for annotation in annotations:
            what = where(annotation)
            if annotation["image_id"] not in entries:
                raise ValueError(f"{what}: {self.annotation_file.name} lists no image of that id.")
            if annotation["category_id"] not in self.label_of:
                raise ValueError(
                    f"{what}: category {annotation['category_id']} is not among the categories "
                    f"{', '.join(map(str, self.categories))}."
                )
            entry = entries[annotation["image_id"]]
            if self.segmentations and annotation.get("segmentation"):
                check_segmentation(annotation["segmentation"], entry["height"], entry["width"], what)
            if annotation.get("iscrowd", 0):
                self.dropped["crowd"] += 1
                continue
            box = _clip(annotation["bbox"], entry["height"], entry["width"])
            if box is None:
                bad.append(f"{what} has bbox {annotation['bbox']}")
                continue
            if self.segmentations and not annotation.get("segmentation"):
                raise ValueError(f"{what} has no segmentation, which masks need. Train a detector of boxes instead.")
            row = {"box": box, "label": self.label_of[annotation["category_id"]], "where": what}
            if self.masks:
                row["segmentation"] = annotation["segmentation"]
            targets[annotation["image_id"]].append(row)
        if bad and bad_boxes == "error":
            raise ValueError(
                f"{len(bad)} boxes of {self.annotation_file.name} have no area inside their image, the first: {bad[0]} "
                "(x, y, width, height). Correct them, or leave them out with bad_boxes='drop' (--bad-boxes drop)."
            )
        self.dropped["bad boxes"] = len(bad)
        return targets


def read_image(path: Path, in_chans: int, size: tuple[int, int] | None = None) -> Tensor:
    """An image file as `(in_chans, H, W)`, float32 in [0, 1], upright by its EXIF tag.

    Args:
        path: The file.
        in_chans: 3 for colour, 1 for grey.
        size: Width and height in the annotation file. Where only the pixels as stored have them, the boxes lie on
            these, and so the image is read as stored.

    Raises:
        ValueError: The file is not an image that can be read.
    """
    pixels = np.array(open_image(path, in_chans, size=size))
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], in_chans).permute(2, 0, 1).float() / 255


def collate(batch: Iterable[tuple[Tensor, dict[str, Any]]]) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Batch of images of different sizes: two lists."""
    images, targets = zip(*batch, strict=True)
    return list(images), list(targets)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have
        return False


def _clip(bbox: list[float], height: int, width: int) -> list[float] | None:
    """COCO's x, y, width, height as corners inside the image; None if nothing is left."""
    if not is_box(bbox) or min(bbox[2:]) <= 0:
        return None
    x1, y1 = max(0.0, float(bbox[0])), max(0.0, float(bbox[1]))
    x2, y2 = min(float(width), float(bbox[0] + bbox[2])), min(float(height), float(bbox[1] + bbox[3]))
    return [x1, y1, x2, y2] if min(x2 - x1, y2 - y1) >= MIN_SIDE else None
