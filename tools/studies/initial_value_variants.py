"""MobileNetV2 with timm's initial values in place of the authors', to measure what these do."""

from __future__ import annotations

from typing import Any

import timm
from timm.models._registry import register_model
from torch import nn

import timm_gcp


@register_model
def mobilenetv2_timm_init_gcp(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """`mobilenetv2_100_gcp` with timm's initial values in the backbone and torch's in the classifier."""
    if pretrained:
        raise ValueError("mobilenetv2_timm_init_gcp has no pretrained weights.")
    backbone = timm.create_model("mobilenetv2_100", **kwargs)
    return timm_gcp.swap_pooling(backbone, act_layer=nn.ReLU6, init="fan_out")


def _swapped(base: str, pretrained: bool, init: str, act_layer: type[nn.Module], kwargs: dict[str, Any]) -> nn.Module:
    if pretrained:
        raise ValueError(f"{base} with a covariance head has no pretrained weights.")
    return timm_gcp.swap_pooling(timm.create_model(base, **kwargs), act_layer=act_layer, init=init)


@register_model
def regnetx_002_swapped(pretrained: bool = False, init: str = "fan_out", **kwargs: Any) -> nn.Module:
    """RegNetX-200MF with the covariance head that `swap_pooling` gives it."""
    return _swapped("regnetx_002", pretrained, init, nn.ReLU, kwargs)


@register_model
def efficientnet_lite0_swapped(pretrained: bool = False, init: str = "fan_out", **kwargs: Any) -> nn.Module:
    """EfficientNet-Lite0 with the covariance head that `swap_pooling` gives it."""
    return _swapped("efficientnet_lite0", pretrained, init, nn.ReLU6, kwargs)
