"""`gcp_swap`: any timm CNN with its pooling swapped, as one registered model.

    timm.create_model("gcp_swap", backbone="convnext_tiny", reduce_dim=128, num_classes=10)

This is how timm makes a model of `swap_pooling` again from what it saved (`local-dir:`, `hf-hub:`). The options of
`swap_pooling` keep their names, but for `head_act_layer` and `head_channels`; what is left goes to the backbone.
"""

from __future__ import annotations

import re
from typing import Any

import timm
from timm.models import build_model_with_cfg
from torch import nn

from timm_gcp.common.messages import did_you_mean
from timm_gcp.models.gcp import register
from timm_gcp.models.head import swap_pooling
from timm_gcp.models.last_stage import set_last_stage
from timm_gcp.models.swap_args import BACKBONE, ENTRY_POINT, LAST_STAGE, take_options
from timm_gcp.weights.resolve import weight_source

DEFAULT_BACKBONE = "resnet18"

default_cfgs = timm.models.generate_default_cfgs(
    {ENTRY_POINT: {"pool_size": (7, 7), "first_conv": "conv1", "classifier": "fc"}}  # of the default backbone
)


@register
def gcp_swap(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Any timm CNN with global covariance pooling, by default a ResNet-18 with D = 256.

    Args:
        pretrained: Load the weights of the saved model; the backbone's own are loaded by
            `swap_pooling(timm.create_model(backbone, pretrained=True))`.
        **kwargs: `backbone`, a timm name; the options of `swap_pooling`, `act_layer` and `channels` under the names
            `head_act_layer` and `head_channels`; `last_stage` as in `set_last_stage`; and what the backbone takes.

    Raises:
        ValueError: A backbone that timm does not know or that can't be swapped, or options out of range.
        FileNotFoundError: `pretrained=True` where there are no weights.
    """
    with weight_source(ENTRY_POINT, pretrained, kwargs) as found:
        kwargs = dict(found)
        if not kwargs.get("pretrained_cfg"):
            kwargs["pretrained_cfg"] = _cfg_of(_backbone(kwargs))
        if kwargs.get("features_only"):
            kwargs.setdefault("feature_cls", "getter")
        return build_model_with_cfg(_build, ENTRY_POINT, pretrained, feature_cfg={"out_indices": None}, **kwargs)


def _build(global_pool: str = "gcp", **arguments: Any) -> nn.Module:
    name, last_stage = _backbone(arguments), arguments.pop(LAST_STAGE, None)
    arguments.pop(BACKBONE, None)
    options = take_options(arguments)
    model: Any = timm.create_model(name, pretrained=False, **arguments)
    if last_stage is not None:
        set_last_stage(model, last_stage)
    model = swap_pooling(model, **options)
    if global_pool != "gcp":
        model.reset_classifier(model.num_classes, global_pool)
    return model  # type: ignore[no-any-return]


def _cfg_of(backbone: str) -> dict[str, Any]:
    """timm's description of a backbone's images and layers, without its weights."""
    cfg = timm.get_pretrained_cfg(backbone)
    kept = {} if cfg is None else cfg.to_dict(remove_source=True)
    return {**kept, "architecture": ENTRY_POINT}


def _backbone(arguments: dict[str, Any]) -> str:
    """The backbone's name among the arguments.

    Raises:
        ValueError: Not the name of a model that timm knows, or one that has a covariance head.
    """
    name = arguments.get(BACKBONE, DEFAULT_BACKBONE)
    if not isinstance(name, str) or re.fullmatch(r"\w+", name) is None or not timm.is_model(name):
        near = did_you_mean(name, timm.list_models()) if isinstance(name, str) else ""
        raise ValueError(
            f"{BACKBONE} is {name!r}, which is not a model that timm knows.{near} Name one of `timm.list_models()`, "
            "without a tag; one of your own is known once the module that registers it is imported."
        )
    if name == ENTRY_POINT:
        raise ValueError(f"{BACKBONE} is {name!r} itself: name a timm CNN")
    return name
