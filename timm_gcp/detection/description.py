"""What a detector checkpoint says of its detector, checked: it may come from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm

from timm_gcp.common.messages import one_line
from timm_gcp.weights.allowed import is_number
from timm_gcp.weights.layouts import unwrap
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.swap_names import PREFIX

_NEVER = {"pretrained", "checkpoint", "weights", "weights_backbone"}  # sources of weights, in which it has no say
_LARGEST = 8192  # pixels, channels, proposals
_NUMBERS = {"image_mean": (-1e4, 1e4), "image_std": (1e-6, 1e4)}  # all others: 0 to `_LARGEST`


def checked_content(path: str | Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a detector checkpoint: its description, categories, weights and epoch are what they should be.

    Raises:
        ValueError: It is not one; names the file and what is wrong.
    """

    def refuse(what: str) -> ValueError:
        return ValueError(
            f"{str(path)!r} is not a detector checkpoint: {what}. Take a file that `timm-gcp detect train` wrote."
        )

    spec, categories, epoch = content["detector"], content["categories"], content["epoch"]
    if not isinstance(spec, Mapping) or not {"detector", "name", "num_classes"} <= set(spec):
        raise refuse("its description names no detector, model and number of classes")
    if not isinstance(spec["name"], str) or not timm.is_model(spec["name"].removeprefix(PREFIX).split(".")[0]):
        raise refuse(f"its model is {one_line(spec['name'], 80)!r}, which timm doesn't know")
    for key, value in spec.items():
        if key in _NEVER or not _is_plain(value, *_NUMBERS.get(key, (0, _LARGEST))):
            raise refuse(f"its {one_line(key, 80)} is {one_line(value, 80)!r}")
    if not isinstance(categories, Mapping) or not all(
        type(number) is int and isinstance(name, str) for number, name in categories.items()
    ):
        raise refuse("its categories are not names by number")
    if spec["num_classes"] != len(categories) + 1:
        raise refuse(f"it has {len(categories)} categories for {spec['num_classes']} classes, background included")
    if type(epoch) is not int or not 0 <= epoch < 10**9 or not isinstance(content["history"], list):
        raise refuse(f"its epoch is {one_line(epoch, 80)!r}")
    if not isinstance(content["model"], Mapping):
        raise refuse("it holds no weights")
    try:
        tensors = unwrap(content["model"])
        check_values(tensors, positive=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return {**content, "model": tensors}


def _is_plain(value: Any, low: float, high: float) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 64 and all(_is_plain(item, low, high) for item in value)
    return value is None or isinstance(value, bool) or (
        len(value) <= 100 if isinstance(value, str) else is_number(value, low, high)
    )  # fmt: skip
