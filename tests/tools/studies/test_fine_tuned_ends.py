"""The second stage of a study on a few images: where it goes on, what it trains, its records, refusals."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file
from toy_images import image_folder

import timm_gcp

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")
FIRST = {
    "title": "toy",
    "data": {"pixels": 40, "train_per_class": 4, "held_out": 0.25, "exclude": []},
    "model": {"model_name": "test_efficientnet"},
    "input": {"size": 32, "mean": [0.5] * 3, "std": [0.5] * 3},
    "train": {"epochs": 1, "batch_size": 4, "warmup": 0.3, "smoothing": 0.1},
    "tune": {"lr": [0.1], "weight_decay": [1e-4]},
    "seeds": [0, 1],
    "heads": {"GAP": {"pool": "avg"}, "GCP": {"reduce_dim": 4}},
}
SECOND = {
    "title": "toy, fine-tuned",
    "frozen": "toy.yaml",
    "end": ["blocks.3", "blocks.4", "conv_head", "bn2"],
    "train": {"epochs": 1, "batch_size": 4, "warmup": 0.3, "smoothing": 0.1, "weight_decay": 1e-4, "head_rate": 0.1},
    "tune": {"lr": [0.01, 0.02]},
    "heads": ["GAP", "GCP"],
}


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = importlib.import_module("fine_tuned_ends")

    def create_model(model_name):  # as if from a file of weights: the same every time
        torch.manual_seed(0)
        return timm.create_model(model_name)

    for module in (tool, importlib.import_module("frozen_features")):
        monkeypatch.setattr(module, "create_model", create_model)
    return tool


def run(tool, monkeypatch, tmp_path, study, *more):
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(FIRST, sort_keys=False))
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    options = {
        "--data-dir": "images", "--cache": "cache", "--heads": "heads", "--record": "first/toy.json", "--docs": "docs",
        "--save": "nets",
    }  # fmt: skip
    given = [str(word) for key, value in options.items() for word in (key, tmp_path / value)]
    monkeypatch.setattr(sys, "argv", ["fine_tuned_ends.py", str(tmp_path / "tuned.yaml"), *given, *more])
    return tool.main()


@pytest.fixture
def first_stage(tool, tmp_path, monkeypatch):
    image_folder(tmp_path / "both", train=8, size=40)
    (tmp_path / "both" / "train").rename(tmp_path / "images")
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(FIRST, sort_keys=False))
    options = ["--data-dir", "images", "--cache", "cache", "--save", "heads", "--docs", "first"]
    given = [word if word.startswith("--") else str(tmp_path / word) for word in options]
    monkeypatch.setattr(sys, "argv", ["frozen_heads.py", str(tmp_path / "toy.yaml"), *given])
    assert importlib.import_module("frozen_heads").main() == 0


def test_a_study(tool, first_stage, tmp_path, monkeypatch, capsys):
    from image_tensors import packed

    assert run(tool, monkeypatch, tmp_path, SECOND, "--only", "GAP") == 0
    assert run(tool, monkeypatch, tmp_path, SECOND) == 0
    assert capsys.readouterr().out.count("GAP draw 0") == 1  # what is there is not trained again
    records = json.loads((tmp_path / "docs" / "tuned.json").read_text())
    assert list(records) == ["GAP", "GCP"] and len(records["GCP"]["trials"]) == 2
    assert {len(line) for line in records["GCP"]["right"].values()} == {8}
    assert "| GCP | lr 0.02 |" in (tmp_path / "docs" / "tuned.md").read_text()
    swapped = timm_gcp.swap_pooling(timm.create_model("test_efficientnet", num_classes=2), 4)
    swapped.load_state_dict(load_file(tmp_path / "nets" / "gcp.safetensors"))
    frozen = tool.read_study(str(tmp_path / "tuned.yaml"))["frozen"]
    images, targets = packed(tmp_path / "images", "", 40, tmp_path / "cache")
    _, others = tool.draw(frozen, targets, 0)
    crops = (images[others, :, 4:36, 4:36].float() / 255 - 0.5) / 0.5
    right = (swapped.eval()(crops).argmax(1) == targets[others]).tolist()
    assert "".join("01"[answer] for answer in right) == records["GCP"]["right"]["0"]


def test_stages_and_head_go_on_from_the_first_stage(tool, first_stage, tmp_path, monkeypatch):
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(SECOND, sort_keys=False))
    study = tool.read_study(str(tmp_path / "tuned.yaml"))
    study["train"]["epochs"] = 2
    model = tool.create_model("test_efficientnet")
    maps = tool.feature_maps(study["frozen"], str(tmp_path / "images"), tmp_path / "cache2", study["end"])
    assert maps.features.shape[2:] == model.blocks[:3](model.bn1(model.conv_stem(torch.zeros(1, 3, 32, 32)))).shape[1:]
    whole, both = (tool.feature_maps(study["frozen"], str(tmp_path / "images"), tmp_path / folder, end, last=True)
                   for folder, end in (("cache", ()), ("cache2", study["end"])))  # fmt: skip
    torch.testing.assert_close(both.features, whole.features, rtol=1e-2, atol=1e-2)
    file = tmp_path / "heads" / "gcp-0.safetensors"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    head = tool.start_head(study, maps, "GCP", file)
    assert all(torch.equal(value, load_file(file)[key]) for key, value in head.state_dict().items())
    net = tool.fine_tune(study, maps, torch.arange(8), model, head, (0.01, 0.1), 0)
    changed = {key.split(".")[0] for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {"blocks", "conv_head", "bn2"} and not net.training
    assert all(torch.equal(value, before[f"blocks.2.{key}"]) for key, value in model.blocks[2].state_dict().items())
    running = [key for key in before if "running" in key or "num_batches" in key]
    assert running and all(torch.equal(model.state_dict()[key], before[key]) for key in running)
    assert not torch.equal(head.fc.weight, load_file(file)["fc.weight"])


def test_refusals(tool, first_stage, tmp_path, monkeypatch, capsys):
    for changed, said in (
        ({"more": 1}, "must have the keys title, frozen, end"),
        ({"heads": ["GAP", "none"]}, "no head none in"),
        ({"end": ["blocks.9"]}, "has no module 'blocks.9'"),
        ({"end": ["blocks.3", "conv_head", "bn2"]}, "are not the rest of forward_features"),
    ):
        assert run(tool, monkeypatch, tmp_path, {**SECOND, **changed}) == 1
        assert said in capsys.readouterr().err
    assert run(tool, monkeypatch, tmp_path, SECOND, "--only", "other") == 1
    assert "other is not a head of both" in capsys.readouterr().err
    assert run(tool, monkeypatch, tmp_path, SECOND, "--heads", str(tmp_path / "no")) == 1
    assert "run frozen_heads.py with --save first" in capsys.readouterr().err
    assert run(tool, monkeypatch, tmp_path, SECOND, "--record", str(tmp_path / "no.json")) == 1
    assert "run frozen_heads.py first, and name its record" in capsys.readouterr().err
