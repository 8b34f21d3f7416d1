"""The registered models: six backbones with global covariance pooling, and ShuffleNetV2 with average pooling.

Importing this module registers them with timm. Model keywords beyond timm's own:

- `reduce_dim`: width D of the covariance, or the widths of several reduction steps
- `last_stage` (ResNets): `'stride1'` without down-sampling in the last stage, as the paper trains; `'stride2'` as in
  the stock ResNet (the paper's GCP_D); `'maxpool'` with a 2×2 max-pool in front of it (GCP_M)
- `normalization`, `n_iter`: see `timm_gcp.functional.global_cov_pool`
- `pool_kwargs`: options of the pooling alone by name, see `GlobalCovPool2d`
- `init`: how the head starts, see `timm_gcp.models.initial_values`; left out, the whole model starts as the authors'
- `bn_momentum`, `bn_eps`: of every batch-norm layer, the head's included; what train.py's options of that name set
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from timm.models._builder import build_model_with_cfg, pretrained_cfg_for_features
from timm.models._efficientnet_builder import decode_arch_def
from timm.models._registry import is_model, model_entrypoint, register_model
from timm.models.efficientnet import EfficientNet, EfficientNetFeatures
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import nn

from timm_gcp.common.data_config import for_channels
from timm_gcp.models.head import swap_pooling
from timm_gcp.models.initial_values import init_model
from timm_gcp.models.last_stage import LAST_STAGES as LAST_STAGES
from timm_gcp.models.last_stage import set_last_stage
from timm_gcp.models.shufflenetv2 import ShuffleNetV2
from timm_gcp.weights.layouts import checkpoint_filter_fn
from timm_gcp.weights.resolve import weight_source
from timm_gcp.weights.store import stored_folders
from timm_gcp.weights.timm_cfgs import default_cfgs as _default_cfgs

_BATCH_NORM = {"bn_momentum": "momentum", "bn_eps": "eps"}  # keyword: attribute of a layer
_HEAD_KEYWORDS = ("reduce_dim", "normalization", "n_iter", "exponent", "eps", "iteration_dtype", "init", "pool_kwargs")

default_cfgs = _default_cfgs(stored_folders())

# MobileNetV2 of Sandler et al. 2018, Table 2: repeats, stride, expansion, channels.
_MOBILENETV2 = [
    ["ds_r1_k3_s1_c16"],
    ["ir_r2_k3_s2_e6_c24"],
    ["ir_r3_k3_s2_e6_c32"],
    ["ir_r4_k3_s2_e6_c64"],
    ["ir_r3_k3_s1_e6_c96"],
    ["ir_r3_k3_s2_e6_c160"],
    ["ir_r1_k3_s1_e6_c320"],
]
_MOBILENETV2_INIT = "fan_out_normal"


def _take_batch_norm(kwargs: dict[str, Any]) -> dict[str, float]:
    """Take what is asked of batch-norm out of `kwargs`, as attributes of its layers; None leaves timm's."""
    given = {name: kwargs.pop(name, None) for name in _BATCH_NORM}
    for name, value in given.items():
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value!r}")
    return {_BATCH_NORM[name]: value for name, value in given.items() if value is not None}


def _set_batch_norm(model: nn.Module, settings: dict[str, float]) -> nn.Module:
    """Give every batch-norm layer these attributes, in place."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, value in settings.items():
                setattr(module, name, value)
    return model


def _with_head(backbone: Any, global_pool: str, head: dict[str, Any]) -> nn.Module:
    model = swap_pooling(backbone, channels=backbone.num_features, **head)
    if global_pool != "gcp":
        model.reset_classifier(model.num_classes, global_pool)
    return model


def _build_resnet(last_stage: str = "stride1", global_pool: str = "gcp", head: Any = None, **kwargs: Any) -> nn.Module:
    return _with_head(
        set_last_stage(ResNet(**kwargs), last_stage), global_pool, {"act_layer": nn.ReLU, "init": "fan_out", **head}
    )


def _build_shufflenet(global_pool: str = "gcp", head: Any = None, **kwargs: Any) -> nn.Module:
    return _with_head(ShuffleNetV2(**kwargs), global_pool, {"act_layer": nn.ReLU6, "init": "torch", **head})


def _build_mobilenet(global_pool: str = "gcp", head: Any = None, **kwargs: Any) -> nn.Module:
    backbone = init_model(EfficientNet(**kwargs), _MOBILENETV2_INIT)
    return _with_head(backbone, global_pool, {"act_layer": nn.ReLU6, "init": _MOBILENETV2_INIT, **head})


def _build_mobilenet_features(**kwargs: Any) -> nn.Module:
    return init_model(EfficientNetFeatures(**kwargs), _MOBILENETV2_INIT)


def _build_with_cfg(build: Callable[..., nn.Module], variant: str, pretrained: bool, **kwargs: Any) -> Any:
    settings = _take_batch_norm(kwargs)
    model = build_model_with_cfg(build, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **kwargs)
    return _describe_input(_set_batch_norm(model, settings), kwargs.get("in_chans"))


def _describe_input(model: Any, in_chans: int | None) -> Any:
    """Let the model's configuration tell the channels that it takes, where its weights were trained on others."""
    cfg = getattr(model, "pretrained_cfg", None)
    if in_chans and isinstance(cfg, dict) and cfg.get("input_size") and cfg["input_size"][0] != in_chans:
        cfg.update(for_channels({key: cfg[key] for key in ("input_size", "mean", "std")}, in_chans))
    return model


def _build(model_cls: Callable[..., nn.Module], variant: str, pretrained: bool, **kwargs: Any) -> Any:
    """timm's builder, with our weights: where they come from, and under which names."""
    with weight_source(variant, pretrained, kwargs) as found:
        return _remember(_build_with_cfg(model_cls, variant, pretrained, **found), kwargs, found)


def _remember(model: Any, asked: dict[str, Any], found: dict[str, Any]) -> Any:
    """Note on the model the arguments that came with its weights, as timm notes those of the call."""
    model._model_args = {
        key: value for key, value in found.items() if key not in asked and not key.startswith("pretrained_cfg")
    }
    return model


def _create(build: Callable[..., nn.Module], variant: str, pretrained: bool, **kwargs: Any) -> Any:
    with weight_source(variant, pretrained, kwargs) as found:
        asked, kwargs = kwargs, dict(found)
        head = {name: kwargs.pop(name) for name in _HEAD_KEYWORDS if name in kwargs}
        if kwargs.get("features_only"):  # a feature extractor has no head to build or to load
            kwargs.update(num_classes=0, global_pool="")
            head |= {"reduce_dim": None, "normalization": "none", "pool_kwargs": {"max_dim": None}}
        if kwargs.get("global_pool") not in (None, "", "gcp"):
            warnings.warn(
                f"{variant} with global_pool={kwargs['global_pool']!r} pools as timm does and has no covariance head.",
                stacklevel=2,
            )
        model = _build_with_cfg(partial(build, head=head), variant, pretrained, **kwargs)
        return _remember(model, asked, found)


def _resnet_gcp(variant: str, pretrained: bool, block: type, layers: tuple[int, ...], **kwargs: Any) -> Any:
    model_args = {"block": block, "layers": layers, "zero_init_last": False}  # the authors' initialisation
    return _create(_build_resnet, variant, pretrained, **{**model_args, **kwargs})


def _shufflenet_gcp(variant: str, pretrained: bool, **kwargs: Any) -> Any:
    return _create(_build_shufflenet, variant, pretrained, **kwargs)


def _mobilenet_gcp(variant: str, pretrained: bool, **kwargs: Any) -> Any:
    model_args = {"block_args": decode_arch_def(_MOBILENETV2), "act_layer": nn.ReLU6, **kwargs}
    if model_args.pop("features_only", False) and "feature_cls" not in model_args:
        model = _build(
            _build_mobilenet_features,
            variant,
            pretrained,
            pretrained_strict=False,
            kwargs_filter=("num_classes", "num_features", "global_pool", *_HEAD_KEYWORDS),
            **model_args,
        )
        model.pretrained_cfg = model.default_cfg = pretrained_cfg_for_features(model.pretrained_cfg)
        return model
    if "feature_cls" in model_args:
        model_args["features_only"] = True
    return _create(_build_mobilenet, variant, pretrained, **model_args)


def register(entrypoint: Callable[..., Any]) -> Callable[..., Any]:
    """Register with timm, which warns of a name that it knows: not of our own when this module is reloaded."""
    name = entrypoint.__name__
    with warnings.catch_warnings():
        if is_model(name) and model_entrypoint(name).__module__ == entrypoint.__module__:
            warnings.simplefilter("ignore")
        return register_model(entrypoint)


@register
def resnet18_gcp(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-18 with global covariance pooling, D = 256."""
    return _resnet_gcp("resnet18_gcp", pretrained, BasicBlock, (2, 2, 2, 2), **kwargs)


@register
def resnet34_gcp(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-34 with global covariance pooling, D = 256."""
    return _resnet_gcp("resnet34_gcp", pretrained, BasicBlock, (3, 4, 6, 3), **kwargs)


@register
def resnet50_gcp(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-50 with global covariance pooling, D = 256."""
    return _resnet_gcp("resnet50_gcp", pretrained, Bottleneck, (3, 4, 6, 3), **kwargs)


@register
def resnet50_gcp_d128(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-50 with global covariance pooling, D = 128 (Table 5)."""
    return _resnet_gcp("resnet50_gcp_d128", pretrained, Bottleneck, (3, 4, 6, 3), **{"reduce_dim": 128, **kwargs})


@register
def resnet101_gcp(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-101 with global covariance pooling, D = 256."""
    return _resnet_gcp("resnet101_gcp", pretrained, Bottleneck, (3, 4, 23, 3), **kwargs)


@register
def mobilenetv2_100_gcp(pretrained: bool = False, **kwargs: Any) -> EfficientNet:
    """MobileNetV2 ×1.0 with global covariance pooling, D = 256."""
    return _mobilenet_gcp("mobilenetv2_100_gcp", pretrained, **kwargs)


@register
def mobilenetv2_100_gcp_d128(pretrained: bool = False, **kwargs: Any) -> EfficientNet:
    """MobileNetV2 ×1.0 with global covariance pooling, D = 128 (Table 5)."""
    return _mobilenet_gcp("mobilenetv2_100_gcp_d128", pretrained, **{"reduce_dim": 128, **kwargs})


@register
def shufflenet_v2_x1_0_gcp(pretrained: bool = False, **kwargs: Any) -> ShuffleNetV2:
    """ShuffleNetV2 ×1.0 with global covariance pooling, D = 256."""
    return _shufflenet_gcp("shufflenet_v2_x1_0_gcp", pretrained, **kwargs)


@register
def shufflenet_v2_x1_0(pretrained: bool = False, **kwargs: Any) -> ShuffleNetV2:
    """ShuffleNetV2 ×1.0 with global average pooling."""
    return _build(ShuffleNetV2, "shufflenet_v2_x1_0", pretrained, **kwargs)
