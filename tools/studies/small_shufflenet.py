"""A small ShuffleNetV2 for images of 32 px: fewer strides, so that its last maps are 8×8 and not 1×1."""

from __future__ import annotations

from typing import Any

import timm
from timm.models import register_model
from torch import nn

import timm_gcp


@register_model
def small_shufflenet(pretrained: bool = False, features: int = 1024, **kwargs: Any) -> nn.Module:
    """ShuffleNetV2 ×0.5 of half the depth, no max pooling, stride 1 in stages 3 and 4: maps of 16 and 8 at 32 px.

    `features` are the channels of its last maps.
    """
    if pretrained:
        raise ValueError("small_shufflenet has no pretrained weights.")
    channels = (24, 48, 96, 192, features)
    model: Any = timm.create_model("shufflenet_v2_x1_0", repeats=(2, 4, 2), channels=channels, **kwargs)
    model.maxpool = nn.Identity()
    for module in [*model.stage3[0].modules(), *model.stage4[0].modules()]:
        if isinstance(module, nn.Conv2d):
            module.stride = (1, 1)
    return model


@register_model
def small_shufflenet_gcp(pretrained: bool = False, reduce_dim: int = 128, **kwargs: Any) -> nn.Module:
    """The same with the head that the paper's ShuffleNetV2 has, D = 128 unless told."""
    backbone = small_shufflenet(pretrained, **kwargs)
    return timm_gcp.swap_pooling(backbone, reduce_dim=reduce_dim, act_layer=nn.ReLU6, init="torch")
