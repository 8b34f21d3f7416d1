"""The MMDetection configs, without MMDetection: their keys against our models, and the files they build on by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.backbone import STRIDES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "recipes" / "mmdet"
CONFIGS = sorted(FOLDER.glob("*.py"))
# Keywords of mmpretrain 1.2's TIMMBackbone itself; all others go to timm.create_model.
WRAPPER = {
    "type",
    "_delete_",
    "model_name",
    "features_only",
    "pretrained",
    "checkpoint_path",
    "in_channels",
    "init_cfg",
}
BASES = {  # files of mmdet 3.3 that a config may build on
    "mmdet::_base_/models/faster-rcnn_r50_fpn.py",
    "mmdet::_base_/models/mask-rcnn_r50_fpn.py",
    "mmdet::_base_/datasets/coco_detection.py",
    "mmdet::_base_/datasets/coco_instance.py",
    "mmdet::_base_/schedules/schedule_1x.py",
    "mmdet::_base_/default_runtime.py",
}


def merge(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        merged[key] = (
            merge(merged[key], value) if isinstance(value, dict) and isinstance(merged.get(key), dict) else value
        )
    return merged


def read(path: Path) -> dict[str, Any]:
    """A config over those of our own files that it names, as mmengine merges them."""
    config: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), {}, config)
    bases = config.pop("_base_")
    merged: dict[str, Any] = {"bases": set()}
    for base in [bases] if isinstance(bases, str) else bases:
        if base.startswith("mmdet::"):
            merged["bases"].add(base)
        else:
            merged = merge(merged, read(path.parent / base))
    return merge(merged, config)


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def config(request):
    return read(request.param)


def test_configs_are_there():
    assert len(CONFIGS) == 3


def test_bases_are_files_of_mmdet(config):
    assert config["bases"] <= BASES and len(config["bases"]) == 4


def test_imports_register_the_wrapper_and_the_models(config):
    assert config["custom_imports"] == {"imports": ["mmpretrain.models", "timm_gcp"], "allow_failed_imports": False}


def test_the_backbone_is_what_the_neck_expects(config):
    backbone = config["model"]["backbone"]
    assert backbone["type"] == "mmpretrain.TIMMBackbone" and backbone["_delete_"] and backbone["features_only"]
    options = {key: value for key, value in backbone.items() if key not in WRAPPER}
    module, _, name = options.pop("norm_layer").rpartition(".")
    norm = getattr(importlib.import_module(module), name)
    # the wrapper hands timm a function, not the class
    body = timm.create_model(
        backbone["model_name"], features_only=True, norm_layer=lambda *args, **kwargs: norm(*args, **kwargs), **options
    ).train()
    assert body.feature_info.channels() == config["model"]["neck"]["in_channels"]
    assert tuple(body.feature_info.reduction()) == STRIDES
    assert isinstance(body.bn1, norm) and not body.bn1.training  # statistics stay, as with MMDetection's norm_eval
    assert [tuple(level.shape[2:]) for level in body(torch.zeros(1, 3, 64, 64))] == [(64 // s,) * 2 for s in STRIDES]
    prefix = "backbone.timm_model."  # the wrapper's name for the network
    names = {prefix + name for name, _ in body.named_parameters()}
    for key in config["optim_wrapper"]["paramwise_cfg"]["custom_keys"]:
        assert any(key in name for name in names), key


def test_the_first_stage_is_frozen_and_nothing_else(config):
    keys = config["optim_wrapper"]["paramwise_cfg"]["custom_keys"]
    assert {key.removeprefix("backbone.timm_model.") for key in keys} == {"conv1", "bn1", "layer1"}
    assert all(value == {"lr_mult": 0.0, "decay_mult": 0.0} for value in keys.values())
    body = timm.create_model("resnet18_gcp", features_only=True)
    hit = {name for name, _ in body.named_parameters() for key in keys if key in f"backbone.timm_model.{name}"}
    assert {name.split(".")[0] for name in hit} == {"conv1", "bn1", "layer1"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_settings_are_those_of_our_own_recipe(path):
    config = read(path)
    detector, method = path.stem.split("_")[:2]
    backbone, letter = method.split("-gcp-")
    recipe = yaml.safe_load(
        (ROOT / "recipes" / "detection" / f"{detector.replace('-', '')}_{backbone}_gcp_{letter}.yaml").read_text()
    )
    optimizer = config["optim_wrapper"]["optimizer"]
    assert optimizer == {"type": "SGD", **{key: recipe[key] for key in ("lr", "momentum", "weight_decay")}}
    assert config["model"]["backbone"]["model_name"] == recipe["model"]
    assert config["model"]["backbone"]["last_stage"] == recipe["last_stage"]
    assert (
        config["auto_scale_lr"]["base_batch_size"]
        == 4 * config["train_dataloader"]["batch_size"]
        == recipe["batch_size"]
    )
