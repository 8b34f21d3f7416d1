"""The start of the fine-tuning studies: which weights are taken over, and what fresh."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")


@pytest.fixture
def started(monkeypatch, tmp_path: Path):
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setenv("STUDY_WEIGHTS", str(tmp_path))
    return importlib.import_module("started")


def test_mobilenet_starts_from_the_folder_of_its_gap_twin(started, tmp_path: Path) -> None:
    source = timm.create_model("mobilenetv2_100", num_classes=7)
    (tmp_path / "twin").mkdir()
    save_file(source.state_dict(), tmp_path / "twin" / "model.safetensors")
    for keywords in ({"reduce_dim": 16}, {"global_pool": "avg"}):
        model = timm.create_model("started_mobilenetv2_gcp", start="twin", num_classes=3, **keywords)
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
        assert torch.equal(model.conv_head.weight, source.conv_head.weight)
    with pytest.raises(ValueError, match="is not of this backbone: its tensors have other shapes"):
        started.load_start(timm.create_model("resnet18_gcp"), tmp_path / "twin" / "model.safetensors")
    save_file({"conv_stem.weight": source.conv_stem.weight.detach()}, tmp_path / "stem.safetensors")
    with pytest.raises(ValueError, match=r"is not of this backbone: bn1\.weight does not match"):
        started.load_start(model, tmp_path / "stem.safetensors")


def test_efficientnet_lite_is_read_in_order_of_its_tensors(started, tmp_path: Path) -> None:
    source = timm.create_model("tf_efficientnet_lite0")
    renamed = {f"_{number}": tensor for number, tensor in enumerate(source.state_dict().values())}
    torch.save(renamed, tmp_path / "lite0.pth")
    gap = timm.create_model("started_efficientnet_lite0", start="lite0.pth", num_classes=3)
    gcp = timm.create_model("started_efficientnet_lite0", start="lite0.pth", num_classes=3, reduce_dim=16)
    assert gcp.classifier.in_features == 16 * 17 // 2
    linear = {"reduce_dim": 16, "head_act_layer": "identity"}
    linear_gcp = timm.create_model("started_efficientnet_lite0", start="lite0.pth", num_classes=3, **linear)
    acts = [type(model.global_pool.reduction[0].act).__name__ for model in (gcp, linear_gcp)]
    assert acts == ["ReLU6", "Identity"]
    for model in (gap, gcp):
        assert model.classifier.out_features == 3
        for name, tensor in source.state_dict().items():
            assert name.startswith("classifier") or torch.equal(model.state_dict()[name], tensor), name
    torch.save(dict(list(renamed.items())[1:]), tmp_path / "lite0.pth")
    with pytest.raises(ValueError, match=r"does not hold EfficientNet's .* tensors in their order"):
        started.read_in_order(tmp_path / "lite0.pth", source)


def test_start_weights_must_be_there(started, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(FileNotFoundError, match="--weights must name the folder that holds none"):
        started.start_file("none")
    monkeypatch.delenv("STUDY_WEIGHTS")
    with pytest.raises(ValueError, match="starts from the weights 'none': name the folder that holds them"):
        started.start_file("none")
