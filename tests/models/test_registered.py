"""Names for swaps: `timm_gcp.register`, the eleven that are there on import, and what their arguments mean."""

from __future__ import annotations

import logging

import pytest
import timm
import torch
from timm.models import _registry

import timm_gcp
from timm_gcp.models.registered import READY, base_of, default_cfgs

BASE = "test_convnext.r160_in1k"


@pytest.fixture
def name():
    """A registered swap of a tiny network, gone after the test."""
    yield timm_gcp.register(BASE, reduce_dim=8)
    forget("test_convnext_gcp")


def forget(name: str) -> None:
    """Take a name out of timm's registry, for the tests that list what is registered on import."""
    _registry._clear_model_entries(name)
    _registry._model_entrypoints.pop(name)
    _registry._module_to_models["registered"].discard(name)
    del default_cfgs[name]


def test_registered(name):
    model = timm.create_model(name, num_classes=3).eval()
    assert name in timm.list_models("*_gcp*") and name not in timm.list_pretrained("*_gcp*")
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 3)
    cfg, base = timm.get_pretrained_cfg(name), timm.get_pretrained_cfg(BASE)
    assert (cfg.mean, cfg.input_size, cfg.crop_pct) == (base.mean, base.input_size, base.crop_pct)
    assert not cfg.has_weights and cfg.architecture == name and cfg.classifier == "head.fc"
    assert model.pretrained_cfg["architecture"] == name
    assert model.head.global_pool.dim == 8
    assert timm.create_model(name, reduce_dim=4).head.global_pool.dim == 4
    assert base_of(name) == (BASE, {"reduce_dim": 8}) and base_of("resnet50_gcp") is None
    assert timm_gcp.register(BASE, name=name, reduce_dim=8) == name  # again


def test_backbone_weights(name, tmp_path, monkeypatch, caplog):
    """They are the base's, the head is new, and the model made again does not ask for them."""
    torch.manual_seed(3)
    trained = timm.create_model("test_convnext")
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    with_file = timm.get_pretrained_cfg(BASE)
    with_file.hf_hub_id, with_file.file = None, str(tmp_path / "weights.pth")
    monkeypatch.setitem(_registry._model_pretrained_cfgs, BASE, with_file)
    with caplog.at_level(logging.WARNING):
        model = timm.create_model(name, pretrained_backbone=True, num_classes=3)
    lines = [record.getMessage() for record in caplog.records if "covariance head" in record.getMessage()]
    assert lines == [f"{BASE} starts from timm's weights; its covariance head is new and has to be trained."]
    own, theirs = model.state_dict(), trained.state_dict()
    body = [key for key in theirs if not key.startswith("head.")]
    assert body and all(torch.equal(own[key], theirs[key]) for key in body)
    assert "pretrained_backbone" not in model._model_args
    with pytest.raises(
        ValueError, match="pretrained=True loads a whole model and pretrained_backbone=True its backbone"
    ):
        timm.create_model(name, pretrained=True, pretrained_backbone=True)


def test_no_weights():
    with pytest.raises(FileNotFoundError, match=r"No weights are called convnext_tiny_gcp\..*pretrained_backbone=True"):
        timm.create_model("convnext_tiny_gcp", pretrained=True)
    with pytest.raises(ValueError, match="timm has no pretrained weights for the backbone eca_vovnet39b"):
        timm.create_model("gcp_swap", backbone="eca_vovnet39b", pretrained_backbone=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("resnet_26",), "backbone is 'resnet_26', which is not a model that timm knows"),
        (("resnet26.zzz",), "backbone is 'resnet26.zzz', a tag that timm does not have; it has resnet26.bt_in1k"),
        (("resnet18",), "'resnet18_gcp' is a model already; give another name="),
        (("resnet26", "a b"), "name is 'a b'; give a plain word"),
        (("pit_ti_224",), "gives .*, class tokens without the patches"),
    ],
)
def test_refusals(arguments, text):
    with pytest.raises(ValueError, match=text):
        timm_gcp.register(*arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nonsense": 3}, "test_resnet can't be built with .*nonsense"),
        ({"reduce_dim": 0}, "reduce_dim is 0"),
        ({"pretrained": True}, "pretrained is no default of a registered name"),
        ({"class_token": "add"}, "class_token is 'add': as an option of gcp_swap it is called head_class_token"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        timm_gcp.register("test_resnet", **options)
    assert not timm.is_model("test_resnet_gcp")


@pytest.mark.parametrize("base", READY)
def test_ready_names(base):
    """What is said of them without building them is true."""
    with torch.device("meta"):
        model = timm.create_model(f"{base}_gcp", num_classes=5)
    cfg = timm.get_pretrained_cfg(f"{base}_gcp")
    assert model.get_submodule(cfg.classifier).out_features == 5
    assert model.pretrained_cfg["classifier"] == cfg.classifier
    assert cfg.input_size == timm.get_pretrained_cfg(base).input_size and not cfg.has_weights
    assert type(model).__name__.endswith("Gcp")
