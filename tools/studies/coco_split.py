"""One split of a detection set, gathered image by image and written in COCO's layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.common.files import write_text


class CocoSplit:
    """Images and objects of a split; ids count from 1.

    Args:
        output: Folder of the set, whose folder `name` holds the split's images.
        name: Name of the split.
        classes: Names of the classes, in the order of their numbers.
    """

    def __init__(self, output: Path, name: str, classes: Sequence[str]) -> None:
        self.output, self.name, self.classes = output, name, classes
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    @property
    def folder(self) -> Path:
        """Folder of the images."""
        return self.output / self.name

    def add_image(self, file_name: str, width: int, height: int) -> None:
        """Begin the next image; the sides are in pixels."""
        entry = {"id": len(self.images) + 1, "file_name": file_name, "height": height, "width": width}
        self.images.append(entry)

    def add_object(self, label: int, entries: dict[str, Any]) -> None:
        """Add an object of class number `label`, from 0, to the last image; `entries` has its box and area."""
        ids = {"id": len(self.annotations) + 1, "image_id": len(self.images), "category_id": label + 1}
        self.annotations.append({**ids, **entries, "iscrowd": 0})

    def write(self) -> None:
        """Write `annotations/instances_NAME.json` and say what it holds."""
        categories = [{"id": number, "name": name} for number, name in enumerate(self.classes, start=1)]
        content = {"images": self.images, "annotations": self.annotations, "categories": categories}
        write_text(self.output / "annotations" / f"instances_{self.name}.json", json.dumps(content))
        print(f"{self.name}: {len(self.images)} images, {len(self.annotations)} objects")
