"""Heads on frozen features: a whole study on a few images, its records, refusals."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from toy_images import image_folder

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")
STUDY = {
    "title": "toy",
    "data": {"pixels": 40, "train_per_class": 4, "held_out": 0.25, "exclude": []},
    "model": {"model_name": "test_resnet"},
    "input": {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3},
    "train": {"epochs": 2, "batch_size": 4, "warmup": 0.2, "smoothing": 0.1},
    "tune": {"lr": [0.01, 0.1], "weight_decay": [1e-4]},
    "seeds": [0, 1],
    "heads": {"GAP": {"pool": "avg"}, "GCP": {"reduce_dim": 4, "principal": True, "linear": True}},
}


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("frozen_heads")


def run(tool, monkeypatch, tmp_path, study, *more):
    config = tmp_path / "toy.yaml"
    config.write_text(yaml.safe_dump(study, sort_keys=False))
    options = ["--data-dir", tmp_path / "images", "--cache", tmp_path / "cache", "--docs", tmp_path / "docs", *more]
    monkeypatch.setattr(sys, "argv", ["frozen_heads.py", str(config), *map(str, options)])
    return tool.main()


def test_a_study(tool, tmp_path, monkeypatch, capsys):
    image_folder(tmp_path / "both", train=8, size=40)
    (tmp_path / "both" / "train").rename(tmp_path / "images")
    assert run(tool, monkeypatch, tmp_path, STUDY, "--heads", "GCP") == 0  # before the head that it is compared with
    assert "| GCP |" in (tmp_path / "docs" / "toy.md").read_text()
    (tmp_path / "docs" / "toy.json").unlink()
    assert run(tool, monkeypatch, tmp_path, STUDY, "--heads", "GAP") == 0
    assert run(tool, monkeypatch, tmp_path, STUDY, "--save", tmp_path / "heads") == 0
    assert {"fc.weight", "fc.bias"} <= set(load_file(tmp_path / "heads" / "gcp-0.safetensors"))
    assert capsys.readouterr().out.count("GAP draw 0") == 1  # what is there is not trained again
    kept = tmp_path / "heads" / "gcp-trial.safetensors"
    first = load_file(kept)
    kept.unlink()
    assert run(tool, monkeypatch, tmp_path, STUDY, "--save", tmp_path / "heads") == 0  # but a head that is gone is
    again = load_file(kept)
    assert all(torch.equal(again[key], value) for key, value in first.items())
    assert {path.stem for path in kept.parent.iterdir()} == {
        f"{h}-{p}" for h in ("gap", "gcp") for p in ("0", "1", "trial")
    }
    records = json.loads((tmp_path / "docs" / "toy.json").read_text())
    assert list(records) == ["GAP", "GCP"] and len(records["GCP"]["trials"]) == 2
    assert {len(line) for line in records["GCP"]["right"].values()} == {8}
    page = (tmp_path / "docs" / "toy.md").read_text()
    assert "| GCP |" in page and page.count("| GAP | lr 0.01") == 1


def test_features_are_those_of_the_crop_and_its_mirror(tool, tmp_path, monkeypatch):
    import timm
    from image_tensors import packed

    torch.manual_seed(0)
    model = timm.create_model("test_resnet").eval()
    monkeypatch.setattr(importlib.import_module("frozen_features"), "create_model", lambda **_: model)
    folder = image_folder(tmp_path / "images", train=3, size=40) / "train"
    maps = tool.feature_maps({**STUDY, "file": "x.yaml"}, str(folder), tmp_path / "cache")
    images, _ = packed(folder, "", 40, tmp_path / "cache")
    crop = (images[:1, :, 4:36, 4:36].float() / 255 - 0.5) / 0.5
    with torch.inference_mode():
        for side, shown in enumerate((crop, crop.flip(3))):
            expected = model.forward_features(shown)
            torch.testing.assert_close(maps.features[:1, side].float(), expected, rtol=1e-2, atol=1e-2)


def test_a_head_from_principal_components(tool):
    maps = tool.Maps(torch.randn(8, 2, 6, 3, 3).half(), torch.zeros(8, dtype=torch.int64))
    heads = [tool.Head(6, 2, {"reduce_dim": 4, **more}) for more in ({}, {"principal": True, "linear": True})]
    for head in heads:
        head.start(maps, torch.arange(8))
    gram = [
        head.pool.reduction[0].conv.weight.flatten(1) @ head.pool.reduction[0].conv.weight.flatten(1).T
        for head in heads
    ]
    assert [torch.allclose(g, torch.eye(4), atol=1e-4) for g in gram] == [False, True]
    assert [type(head.pool.reduction[0].act).__name__ for head in heads] == ["ReLU6", "Identity"]


def test_refusals(tool, tmp_path, monkeypatch, capsys):
    assert run(tool, monkeypatch, tmp_path, {**STUDY, "more": 1}) == 1
    assert "must have the keys title, data, model" in capsys.readouterr().err
    assert run(tool, monkeypatch, tmp_path, STUDY, "--heads", "none") == 1
    assert "no head none in" in capsys.readouterr().err
    assert run(tool, monkeypatch, tmp_path, STUDY) == 1
    assert "no folder" in capsys.readouterr().err
