"""Detector backbones out of swapped models: found by name, filled from their weights, refused in a sentence."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models import save_for_hf

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.backbone import STRIDES, gcp_backbone, groups_of
from timm_gcp.detection.swaps import swap_behind
from timm_gcp.detection.weights import architecture_of

NAME = "gcp:test_convnext"


def swap(**keywords) -> torch.nn.Module:
    torch.manual_seed(1)
    return timm.create_model("gcp_swap", backbone="test_convnext", reduce_dim=4, num_classes=3, **keywords)


def test_backbone_from_a_checkpoint(tmp_path):
    model = swap()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "c.pth")
    backbone = gcp_backbone(NAME, checkpoint=tmp_path / "c.pth", fpn_channels=8, trainable_layers=1)
    assert backbone.strides == STRIDES
    own, theirs = model.state_dict(), backbone.body.model.state_dict()
    assert theirs and all(torch.equal(own[key], tensor) for key, tensor in theirs.items())
    assert not any(key.startswith("head") for key in theirs)
    groups = groups_of(backbone.body)
    assert sum(map(len, groups)) == len(list(backbone.body.parameters()))
    assert [all(p.requires_grad for p in group) for group in groups] == [False, False, False, False, True]
    assert len(backbone(torch.zeros(1, 3, 64, 64))) == 5


def test_backbone_from_a_folder(tmp_path):
    model = swap()
    save_for_hf(model, tmp_path, safe_serialization=True)
    name = f"local-dir:{tmp_path}"
    backbone = gcp_backbone(name, pretrained=True, fpn_channels=8)
    assert torch.equal(backbone.body.model.stem[0].weight, model.stem[0].weight)
    assert architecture_of(name) == NAME  # what a detector's checkpoint says of it


@pytest.mark.parametrize(
    ("name", "backbone"),
    [("gcp:resnet18", "resnet18"), ("convnext_tiny_gcp", "convnext_tiny"), ("resnet50d_gcp", "resnet50d")],
)
def test_names(name, backbone):
    assert swap_behind(name).backbone == backbone and architecture_of(name) == f"gcp:{backbone}"


def test_other_names():
    assert swap_behind("resnet50_gcp") is None and swap_behind("resnet50.a1_in1k") is None
    assert architecture_of("resnet50_gcp") == "resnet50_gcp"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gcp:nothing", "gcp:nothing swaps the pooling of 'nothing', which timm does not know"),
        ("vit_small_patch16_224_gcp", "takes images of 224×224 only, and a detector images of any size"),
        ("gcp:swin_tiny_patch4_window7_224", "takes images of 224×224 only"),
        ("gcp:naflexvit_base_patch16_gap", "gives maps at strides|does not give four feature maps"),
    ],
)
def test_refusals(name, text):
    with pytest.raises(ValueError, match=text):
        gcp_backbone(name)


def test_weights_that_are_not_there(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="gcp:test_convnext has no weights with a covariance head: give checkpoi"
    ):
        gcp_backbone(NAME, pretrained=True)
    save_for_hf(swap(depths=(1, 1, 1, 1)), tmp_path, safe_serialization=True)
    with pytest.raises(
        ValueError, match=r"has a backbone built with depths=\[1, 1, 1, 1\]; a detector takes test_convnext"
    ):
        gcp_backbone(f"local-dir:{tmp_path}", pretrained=True)
