"""The classes of a data set: the index of each, and their names in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def classes_of(dataset: Any) -> dict[str, int]:
    """Index of each class of a data set of timm's or torchvision's; empty where it doesn't say."""
    for holder in (getattr(dataset, "reader", None), dataset):
        found = getattr(holder, "class_to_idx", None)
        if isinstance(found, Mapping) and found:
            return {str(name): int(index) for name, index in found.items()}
    return {}


def names_in_order(class_map: Mapping[str, int], num_classes: int) -> tuple[str, ...] | None:
    """Class names by index, `class 7` where the map has none for 7; None where it doesn't name them one by one."""
    by_index = {index: name for name, index in class_map.items()}
    if not by_index or len(by_index) != len(class_map) or not all(0 <= index < num_classes for index in by_index):
        return None
    return tuple(by_index.get(index, f"class {index}") for index in range(num_classes))
