"""Models of the fine-tuning studies: a registered GCP model whose backbone starts from a weight folder of its GAP twin.

`$STUDY_WEIGHTS` is the folder of weight folders (`compare.py --weights DIR`). Reduction and classifier start afresh.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import load_file
from timm.models import register_model

import timm_gcp  # noqa: F401  (registers the GCP models)

VARIABLE = "STUDY_WEIGHTS"


def start_file(name: str) -> Path:
    """File of the start weights of that name.

    Raises:
        ValueError: No folder of weights was named.
        FileNotFoundError: It does not hold them.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise ValueError(f"this study starts from the weights {name!r}: name the folder that holds them by --weights.")
    path = Path(folder) / name / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: --weights names a folder with the weight folder {name}.")
    return path


def load_start(model: Any, path: Path) -> Any:
    """Load all of a model but its pooling and classifier.

    Raises:
        ValueError: The file lacks something of the backbone, or holds something else besides the old classifier.
    """
    classifier = model.pretrained_cfg["classifier"]
    state = {key: value for key, value in load_file(path).items() if not key.startswith(f"{classifier}.")}
    found = model.load_state_dict(state, strict=False)
    fresh = (f"{classifier}.", "global_pool.")
    missing = [key for key in found.missing_keys if not key.startswith(fresh)]
    if missing or found.unexpected_keys:
        raise ValueError(f"{path} is not of this backbone: {(missing or found.unexpected_keys)[0]} does not match.")
    return model


@register_model
def started_mobilenetv2_gcp(pretrained: bool = False, start: str = "mobilenetv2_100.quant_in1k", **kwargs: Any) -> Any:
    """`mobilenetv2_100_gcp`, or with `global_pool="avg"` its twin, from ImageNet weights of the backbone."""
    path = start_file(start)
    return load_start(timm.create_model("mobilenetv2_100_gcp", **kwargs), path)
