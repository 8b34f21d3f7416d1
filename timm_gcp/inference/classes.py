"""Whether a loaded classifier is the one that was asked for: its number of classes and their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm_gcp.common.messages import listed
from timm_gcp.inference.model import Loaded


def check_num_classes(num_classes: int | None) -> None:
    """Check an option `--num-classes`.

    Raises:
        ValueError: Under 1, which would leave a model without a classifier.
    """
    if num_classes is not None and num_classes < 1:
        raise ValueError(f"--num-classes must be at least 1, got {num_classes}: leave it out for the model's own.")


def check_classifier(loaded: Loaded, checkpoint: Any = None) -> None:
    """Check that a model's classifier was loaded with its weights.

    timm starts a classifier at random where the weights have another number of classes.

    Args:
        loaded: Model with pretrained weights.
        checkpoint: The file of its weights, where they come from one: those have been checked key by key.

    Raises:
        ValueError: The weights have another number of classes than the model.
    """
    stored = (getattr(loaded.model, "pretrained_cfg", None) or {}).get("num_classes")
    count = int(getattr(loaded.model, "num_classes", 0))
    if checkpoint is None and stored is not None and stored > 0 and stored != count:
        raise ValueError(
            f"--num-classes {count}, but the weights of {loaded.name} have {stored} classes: a classifier of another "
            "size would be measured with random weights. Leave --num-classes out, or train one and give --checkpoint."
        )


def check_order(class_map: Mapping[str, int] | None, names: tuple[str, ...] | None) -> None:
    """Check the class map that a command was given against the names that the weights carry.

    Other names are taken for other words for the same classes; the same names in another order are a mistake.

    Raises:
        ValueError: The map has the weights' own names in another order.
    """
    if class_map is None or names is None or set(class_map) != set(names):
        return
    for index, name in enumerate(names):
        if class_map[name] != index:
            raise ValueError(
                f"--class-map has {name!r} as class {class_map[name]}, but the weights were trained with it as class "
                f"{index}: leave --class-map out, or give the classes in the order {listed(names, 5)}."
            )


def own_names(loaded: Loaded, checkpoint: Any = None) -> tuple[str, ...] | None:
    """Class names by index that the weights themselves carry, None where they carry none for each class.

    Those of a checkpoint are what it states; the pretrained weights that its run started from may have had others.
    """
    if checkpoint is not None:
        return loaded.stated_names
    names = (getattr(loaded.model, "pretrained_cfg", None) or {}).get("label_names")
    names = list(names.values()) if isinstance(names, dict) else names
    return tuple(map(str, names)) if names and len(names) == loaded.model.num_classes else None
