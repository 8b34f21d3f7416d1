"""Checkpoints of detectors: one file that says how to build the detector, its categories and its training state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timm_gcp.common.files import replacing
from timm_gcp.common.messages import one_line
from timm_gcp.detection.description import checked_content
from timm_gcp.detection.models import build_detector
from timm_gcp.detection.weights import architecture_of
from timm_gcp.weights.checkpoint import read_checkpoint as read
from timm_gcp.weights.container import check_asked
from timm_gcp.weights.fit import load_whole

KEYS = ("detector", "categories", "model", "epoch", "history")


def describe_detector(detector: str, name: str, num_classes: int, model: nn.Module, **options: Any) -> dict[str, Any]:
    """What `build_detector` needs to build `model` again without its weights' source: plain values only.

    Args:
        detector: A name in `timm_gcp.detection.DETECTORS`.
        name: The timm model that it was built from.
        num_classes: Classes, background included.
        model: The detector, for the pixel statistics that it uses.
        **options: The other keywords that it was built with; the sources of weights are left out.
    """
    transform: Any = model.transform
    kept = {key: value for key, value in options.items() if key not in ("pretrained", "checkpoint")}
    return {
        "detector": detector,
        "name": architecture_of(name),
        "num_classes": num_classes,
        **kept,
        "image_mean": list(transform.image_mean),
        "image_std": list(transform.image_std),
    }


def save_checkpoint(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint (tensors and plain values under `KEYS`, and what else training needs); never half a file."""
    with replacing(path) as partial:
        torch.save(dict(content), partial)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint that `save_checkpoint` wrote, tensors on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It can't be read safely, or is not a detector checkpoint.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint file {str(path)!r}.")
    content = read(path)
    missing = [key for key in KEYS if key not in content]
    if missing:
        raise ValueError(
            f"{str(path)!r} is not a detector checkpoint: it lacks {', '.join(missing)}. "
            "Take a file that `timm-gcp detect train` wrote; a classifier's goes to its --checkpoint."
        )
    return checked_content(path, content)


def load_detector(path: str | Path, **overrides: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Build the detector of a checkpoint with its weights, in evaluation mode; returns it and the checkpoint.

    Args:
        path: The checkpoint.
        **overrides: Keywords to build it with instead of the stored ones (`box_score_thresh`, `min_size`, ...).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a detector checkpoint.
    """
    content = read_checkpoint(path)
    spec = {**content["detector"], **overrides}
    if spec.get("norm") == "sync_bn":
        spec["norm"] = "bn"  # the same parameters, and it runs anywhere
    try:
        with torch.device("meta"):
            asked = build_detector(**spec)
        check_asked(Path(path), sum(t.numel() * t.element_size() for t in asked.state_dict().values()), "the detector")
        model = build_detector(**spec)
    except (TypeError, AttributeError, KeyError, OverflowError, AssertionError, RuntimeError) as error:
        raise ValueError(
            f"{str(path)!r} describes a detector that can't be built: {one_line(error)}. Take a file that `timm-gcp "
            "detect train` wrote."
        ) from error
    load_whole(model, content["model"], path)
    return model.eval(), content
