"""A study of two trainings of a few updates, for `compare.py` and for what goes on from its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from toy_images import TINY

STUDY: dict[str, Any] = {
    "title": "toy",
    "data": {"pixels": 32, "held_out": 0.25},
    "recipe": "shufflenetv2_adju",
    "keys": {
        "model": TINY,
        "batch_size": 8,
        "epochs": 2,
        "sched": "gcp_shufflenetv2_adju:stretch",
        "lr": 0.05,
        "img_size": 32,
        "color_jitter": None,
        "device": "cpu",
    },
    "tune": {"lr": [0.01, 0.05], "epochs": 1},
    "runs": {"one": {}, "two": {"keys": {"momentum": 0.5}, "against": "one", "label": "Two"}},
}


def write_study(path: Path, **changes: object) -> Path:
    """Write the study, with other values for some of its keys."""
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return path
