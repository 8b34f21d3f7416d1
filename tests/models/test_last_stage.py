"""Last stages of timm's ResNets: each variant works in forward or is refused at once and left alone."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

from timm_gcp.models.last_stage import LAST_STAGES, set_last_stage

# Strided convolutions alone: basic and bottleneck blocks, grouped, with squeeze-and-excitation, selective kernels, 3×3
# short cuts, deep stems, group norm.
WORKS = [
    "resnet18",
    "resnet50",
    "resnet50_gn",
    "resnet50c",
    "resnext50_32x4d",
    "seresnet18",
    "seresnet50",
    "senet154",
    "skresnet18",
    "skresnext50_32x4d",
    "wide_resnet50_2",
    "legacy_seresnet18",
]
# And what else they down-sample by.
REFUSED = {
    "resnet18d": r"layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "resnet26t": r"layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "ecaresnet50d": r"layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "resnetrs50": r"layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "skresnet50d": r"layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "resnetaa50": r"layer4\.0\.aa \(AvgPool2d\)",
    "resnetblur18": r"layer4\.0\.aa \(BlurPool2d\)",
    "resnetblur50d": r"layer4\.0\.aa \(BlurPool2d\), layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "res2net50_26w_4s": r"layer4\.0\.pool \(AvgPool2d\)",
    "resnest14d": r"layer4\.0\.avd_last \(AvgPool2d\), layer4\.0\.downsample\.0 \(AvgPool2d\)",
    "resnest50d_4s2x40d": r"layer4\.0\.avd_first \(AvgPool2d\), layer4\.0\.downsample\.0 \(AvgPool2d\)",
}


def make(name: str, **kwargs) -> nn.Module:
    """Without memory: forward passes on the meta device are of shapes only."""
    with torch.device("meta"):
        return timm.create_model(name, **kwargs).eval()


def make_short(name: str) -> nn.Module:
    return make(name, layers=[1, 1, 1, 1])


def map_size(model: nn.Module, size: int = 128) -> torch.Size:
    return model.forward_features(torch.empty(1, 3, size, size, device="meta")).shape[-2:]


@pytest.mark.parametrize("name", WORKS)
def test_works(name):
    stock = make_short(name)
    for last_stage, size, odd in [("stride1", 8, 5), ("stride2", 4, 3), ("maxpool", 4, 2)]:
        model = copy.deepcopy(stock)
        assert set_last_stage(model, last_stage) is model
        assert map_size(model) == (size, size)
        assert map_size(model, 72) == (odd, odd)
        assert model.feature_info[-1]["reduction"] == 128 // size
        assert [p.shape for p in model.parameters()] == [p.shape for p in stock.parameters()]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model = make_short(name)
    layers, info, size = repr(model), copy.deepcopy(model.feature_info), map_size(model)
    for last_stage in ("stride1", "maxpool"):
        text = f"last_stage='{last_stage}' takes the stride out of convolutions, but this ResNet also down-samples by "
        with pytest.raises(ValueError, match=text + REFUSED[name] + "; use last_stage='stride2', or a ResNet without"):
            set_last_stage(model, last_stage)
    assert set_last_stage(model, "stride2") is model
    assert (repr(model), model.feature_info, map_size(model)) == (layers, info, size)


def test_every_resnet_of_timm():
    """One of each kind of first block that timm's ResNets have, whichever this release holds."""
    seen = set()
    for name in timm.list_models(module=["resnet", "res2net", "resnest", "sknet"]):
        model = make_short(name)
        kind = tuple((part, type(m), getattr(m, "stride", 1)) for part, m in model.layer4[0].named_modules())
        if kind in seen:
            continue
        seen.add(kind)
        try:
            set_last_stage(model, "stride1")
        except ValueError:
            continue
        assert map_size(model) == (8, 8), name
    assert len(seen) > 20


def test_registered_models_take_it_from_create_model():
    with pytest.raises(ValueError, match=r"also down-samples by layer4\.0\.downsample\.0 \(AvgPool2d\)"):
        timm.create_model("resnet18_gcp", device="meta", avg_down=True)
    model = timm.create_model("resnet18_gcp", device="meta", avg_down=True, last_stage="stride2").eval()
    assert map_size(model) == (4, 4)


def test_dilation_is_left_alone():
    for name in ("resnet18", "resnet18d"):
        model = make(name, output_stride=16)
        layers = repr(model)
        assert repr(set_last_stage(model, "stride1")) == layers


def test_twice():
    model = set_last_stage(make("resnet18"), "stride1")
    assert map_size(set_last_stage(model, "stride1")) == (8, 8)
    model = set_last_stage(make("resnet18"), "maxpool")
    with pytest.raises(ValueError, match=r"also down-samples by layer4\.0 \(MaxPool2d\); use"):
        set_last_stage(model, "stride1")


def test_other_models():
    with pytest.raises(ValueError, match=r"last_stage='stride1' is for timm ResNets, .*; EfficientNet has none"):
        set_last_stage(make("mobilenetv2_100"), "stride1")


def test_unknown():
    with pytest.raises(ValueError, match="last_stage is 'none'; choose one of 'stride1', 'stride2', 'maxpool'"):
        set_last_stage(make("resnet18"), "none")
    assert LAST_STAGES == ("stride1", "stride2", "maxpool")
