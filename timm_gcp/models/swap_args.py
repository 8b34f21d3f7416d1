"""What makes a swapped model again, as plain values: the backbone's name and the options of `swap_pooling`.

timm notes on a model the arguments that it was made with, and writes them when it saves the model. The swap adds its
own, so that timm makes the same model of them through the entry point `gcp_swap` (`timm_gcp.models.swapped`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm.layers import get_act_layer

from timm_gcp.common.messages import check_choice
from timm_gcp.ops.normalization import registered_name

ENTRY_POINT = "gcp_swap"
BACKBONE = "backbone"
LAST_STAGE = "last_stage"
BACKBONE_POOL = "backbone_pool"  # `global_pool` of the backbone, which decides where its last norm is
PRETRAINED_BACKBONE = "pretrained_backbone"
# Option of swap_pooling: keyword of gcp_swap, another one where backbones have a keyword of that name.
OPTIONS = {
    "reduce_dim": "reduce_dim",
    "normalization": "normalization",
    "n_iter": "n_iter",
    "exponent": "exponent",
    "eps": "eps",
    "iteration_dtype": "iteration_dtype",
    "init": "init",
    "pool_kwargs": "pool_kwargs",
    "act_layer": "head_act_layer",
    "channels": "head_channels",
    "tokens": "head_tokens",
    "class_token": "head_class_token",
}
HEAD_KEYWORDS = frozenset(OPTIONS.values())
NO_REDUCTION = "none"  # timm drops arguments that are None


def note_swap(model: Any, pool_options: Mapping[str, Any], channels: int, classifier: str | tuple[str, ...]) -> None:
    """Let timm save a swapped model as one of `gcp_swap`; a model that timm's factory did not make is left alone.

    An option that is not a plain value (a function, a layer of your own) is noted as it is: timm names it when it
    can't write it, and takes a plain one in its place.

    Args:
        model: The model with its new head.
        pool_options: Options of its pooling.
        channels: Channels of the map that is pooled.
        classifier: Where its classifier is, or its classifiers.
    """
    cfg = getattr(model, "pretrained_cfg", None)
    if not isinstance(cfg, dict) or not cfg.get("architecture"):
        return
    options = {**pool_options, "channels": channels, "normalization": registered_name(pool_options["normalization"])}
    options["act_layer"] = _act_name(options["act_layer"])
    if options["reduce_dim"] is None:
        options["reduce_dim"] = NO_REDUCTION
    noted = {OPTIONS[name]: value for name, value in options.items() if value is not None}
    noted[BACKBONE] = cfg["architecture"]
    asked = dict(getattr(model, "_model_args", {}))
    if "global_pool" in asked:
        noted[BACKBONE_POOL] = asked.pop("global_pool")
    if hasattr(model, "_gcp_last_stage"):
        noted[LAST_STAGE] = model._gcp_last_stage
    model._model_args = {**asked, **noted}
    model.pretrained_cfg = model.default_cfg = {**cfg, "architecture": ENTRY_POINT, "classifier": classifier}


def note_last_stage(model: Any, last_stage: str) -> None:
    """Remember how the last stage of a ResNet was set, for a swap to come or on a model that has had it."""
    model._gcp_last_stage = last_stage
    if BACKBONE in getattr(model, "_model_args", {}):
        model._model_args = {**model._model_args, LAST_STAGE: last_stage}


def take_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `swap_pooling` out of the arguments of a model.

    Raises:
        ValueError: An activation that timm does not know, a text as `reduce_dim`, or an option under its other name.
    """
    options = {name: arguments.pop(key) for name, key in OPTIONS.items() if key in arguments}
    if isinstance(options.get("reduce_dim"), str):
        check_choice("reduce_dim", options["reduce_dim"], (NO_REDUCTION,))
        options["reduce_dim"] = None
    for own in ("tokens", "class_token"):  # a backbone's class_token is true or false
        if isinstance(arguments.get(own), str):
            raise ValueError(f"{own} is {arguments[own]!r}: as an option of {ENTRY_POINT} it is called {OPTIONS[own]}")
    name = options.get("act_layer")
    if isinstance(name, str):
        options["act_layer"] = _act_layer(name)
        if options["act_layer"] is None:
            raise ValueError(f"head_act_layer is {name!r}, which timm does not know; give relu, relu6, silu or gelu")
    return options


def _act_layer(name: str) -> Any:
    try:
        return get_act_layer(name) if name else None
    except (KeyError, AssertionError):
        return None


def _act_name(layer: Any) -> Any:
    """timm's name of an activation, or the layer itself where timm has none."""
    own = getattr(layer, "__name__", "")
    for name in (own.lower(), own.replace("ReLU", "_relu").lower()):
        if getattr(_act_layer(name), "__name__", None) == own and own:
            return name
    return layer
