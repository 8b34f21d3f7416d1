"""`gcp_swap`: any timm model with its pooling swapped, as one registered model.

    timm.create_model("gcp_swap", backbone="convnext_tiny", reduce_dim=128, num_classes=10)

This is how timm makes a model of `swap_pooling` again from what it saved (`local-dir:`, `hf-hub:`). The options of
`swap_pooling` keep their names, but for `head_act_layer`, `head_channels`, `head_tokens` and `head_class_token`; what
is left goes to the backbone. A swap with a name of its own is registered by `timm_gcp.models.registered`.
"""

from __future__ import annotations

import re
from typing import Any

import timm
from timm.models import build_model_with_cfg, split_model_name_tag
from torch import nn

from timm_gcp.common.messages import did_you_mean
from timm_gcp.models.gcp import register
from timm_gcp.models.head import swap_pooling
from timm_gcp.models.last_stage import set_last_stage
from timm_gcp.models.swap_args import (
    BACKBONE,
    BACKBONE_POOL,
    ENTRY_POINT,
    LAST_STAGE,
    PRETRAINED_BACKBONE,
    take_options,
)
from timm_gcp.weights.backbone_weights import backbone_weights
from timm_gcp.weights.resolve import weight_source

DEFAULT_BACKBONE = "resnet18"

default_cfgs = timm.models.generate_default_cfgs(
    {ENTRY_POINT: {"pool_size": (7, 7), "first_conv": "conv1", "classifier": "fc"}}  # of the default backbone
)


@register
def gcp_swap(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Any timm model with global covariance pooling, by default a ResNet-18 with D = 256.

    Args:
        pretrained: Load the weights of the saved model, head included.
        **kwargs: `backbone`, a timm name, with the tag of its weights if wanted; `pretrained_backbone=True` to start
            it from its timm weights; `backbone_pool`, its `global_pool` before the swap; the options of
            `swap_pooling`, `act_layer`, `channels`, `tokens` and `class_token` under names that begin with `head_`;
            `last_stage` as in `set_last_stage`; and what the backbone takes.

    Raises:
        ValueError: A backbone that timm does not know or that can't be swapped, or options out of range.
        FileNotFoundError: `pretrained=True` where there are no weights.
    """
    return build_swap(ENTRY_POINT, pretrained, kwargs)


def build_swap(variant: str, pretrained: bool, kwargs: dict[str, Any]) -> Any:
    """timm's builder for a swapped model.

    Args:
        variant: Its registered name.
        pretrained: As for `gcp_swap`.
        kwargs: As for `gcp_swap`.

    Raises:
        ValueError: As for `gcp_swap`, and two sources of weights.
        FileNotFoundError: As for `gcp_swap`.
    """
    if pretrained and kwargs.get(PRETRAINED_BACKBONE):
        raise ValueError(
            f"pretrained=True loads a whole model and {PRETRAINED_BACKBONE}=True its backbone only: give one of them"
        )
    with weight_source(variant, pretrained, kwargs) as found:
        kwargs = dict(found)
        if not kwargs.get("pretrained_cfg"):
            kwargs["pretrained_cfg"] = cfg_of(backbone_name(kwargs), variant)
        if kwargs.get("features_only"):
            kwargs.setdefault("feature_cls", "getter")
        model = build_model_with_cfg(_build, variant, pretrained, feature_cfg={"out_indices": None}, **kwargs)
    if isinstance(model.pretrained_cfg, dict) and hasattr(model, "_gcp_classifier"):
        model.pretrained_cfg["classifier"] = model._gcp_classifier
    return model


def _build(global_pool: str = "gcp", **arguments: Any) -> nn.Module:
    name, last_stage = backbone_name(arguments), arguments.pop(LAST_STAGE, None)
    arguments.pop(BACKBONE, None)
    start = bool(arguments.pop(PRETRAINED_BACKBONE, False))
    options = take_options(arguments)
    if BACKBONE_POOL in arguments:
        arguments["global_pool"] = arguments.pop(BACKBONE_POOL)
    with backbone_weights(name, start):
        model: Any = timm.create_model(name, pretrained=start, **arguments)
    if last_stage is not None:
        set_last_stage(model, last_stage)
    model = swap_pooling(model, **options)
    model._gcp_classifier = model.pretrained_cfg["classifier"]
    if global_pool != "gcp":
        model.reset_classifier(model.num_classes, global_pool)
    return model  # type: ignore[no-any-return]


def cfg_of(backbone: str, variant: str) -> dict[str, Any]:
    """timm's description of a backbone's images and layers, without its weights, as one of `variant`."""
    cfg = timm.get_pretrained_cfg(backbone)
    kept = {} if cfg is None else cfg.to_dict(remove_source=True)
    return {**kept, "architecture": variant, "tag": None}


def backbone_name(arguments: dict[str, Any]) -> str:
    """The backbone's name among the arguments.

    Raises:
        ValueError: Not the name of a model that timm knows, a tag that it does not have, or a model that has a
            covariance head.
    """
    name = arguments.get(BACKBONE, DEFAULT_BACKBONE)
    bare, tag = split_model_name_tag(name) if isinstance(name, str) else ("", "")
    if re.fullmatch(r"\w+", bare) is None or not timm.is_model(bare):
        near = did_you_mean(name, timm.list_models()) if isinstance(name, str) else ""
        raise ValueError(
            f"{BACKBONE} is {name!r}, which is not a model that timm knows.{near} Name one of `timm.list_models()`; "
            "one of your own is known once the module that registers it is imported."
        )
    if tag and name not in timm.list_models(f"{bare}.*", include_tags=True):
        tags = ", ".join(timm.list_models(f"{bare}.*", include_tags=True)) or "none"
        raise ValueError(f"{BACKBONE} is {name!r}, a tag that timm does not have; it has {tags}")
    if bare == ENTRY_POINT:
        raise ValueError(f"{BACKBONE} is {name!r} itself: name a timm model")
    return str(name)
