"""Layouts of features: how they are told, and the map that each becomes."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from timm_gcp.models.arrange import Arrangement, FirstToken, ToMap, arrangement_of, prefix_tokens


class Gives(nn.Module):
    """A model whose features are what it is told."""

    def __init__(self, features, **attributes) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 1)
        self.features = features
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward_features(self, x):
        return self.features


@pytest.mark.parametrize(
    ("shape", "attributes", "wanted"),
    [
        ((1, 5, 2, 2), {}, Arrangement("NCHW", 5)),
        ((1, 2, 2, 5), {"output_fmt": "NHWC"}, Arrangement("NHWC", 5)),
        ((1, 2, 2, 5), {"num_features": 5}, Arrangement("NHWC", 5)),
        ((1, 5, 2, 2), {"num_features": 5}, Arrangement("NCHW", 5)),
        ((1, 9, 5), {}, Arrangement("NLC", 5, 0)),
        ((1, 9, 5), {"num_prefix_tokens": 3}, Arrangement("NLC", 5, 3)),
        ((1, 9, 5), {"cls_token": torch.zeros(1, 2, 5)}, Arrangement("NLC", 5, 2)),
    ],
)
def test_layouts(shape, attributes, wanted):
    assert arrangement_of(Gives(torch.zeros(shape), **attributes)) == wanted


@pytest.mark.parametrize(
    ("features", "attributes", "text"),
    [
        ([torch.zeros(1, 2, 3)], {}, r"Gives.forward_features gives a list, not one map \(B, C, H, W\)"),
        (torch.zeros(1, 8), {}, r"gives \(1, 8\), not one map"),
        (torch.zeros(1, 1, 8), {"num_prefix_tokens": 1}, r"gives \(1, 1, 8\), class tokens without the patches"),
    ],
)
def test_refusals(features, attributes, text):
    with pytest.raises(ValueError, match=text):
        arrangement_of(Gives(features, **attributes))


def test_no_timm_model():
    with pytest.raises(ValueError, match="Sequential has no forward_features; swap_pooling takes timm classifiers"):
        arrangement_of(nn.Sequential(nn.Linear(1, 1)))


def test_features_that_can_not_be_probed():
    model = Gives(None)
    model.forward_features = lambda x: 1 / 0
    with pytest.raises(ValueError, match=r"forward_features fails for images of 64×64 \(division .*give the channels"):
        arrangement_of(model)


def test_maps():
    x = torch.randn(2, 3, 4, 5)
    assert torch.equal(ToMap("NCHW")(x), x)
    assert torch.equal(ToMap("NHWC")(x.permute(0, 2, 3, 1)), x)
    assert torch.equal(ToMap("NLC", 3)(x.flatten(2).transpose(1, 2))[..., 0], x.flatten(2)[..., 3:])
    assert torch.equal(FirstToken()(x), x[:, 0])
    assert "layout=NLC, skip=3" in repr(ToMap("NLC", 3))


def test_prefix_of_timm_models():
    with torch.device("meta"):
        found = [
            prefix_tokens(timm.create_model(name))
            for name in ("deit_tiny_distilled_patch16_224", "volo_d1_224", "coat_lite_tiny")
        ]
    assert found == [2, 1, 1]
