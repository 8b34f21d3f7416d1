"""From two networks of the fine-tuning study to the package's pair: folders, rows, and what is refused."""

from __future__ import annotations

import json
import sys

import bundle_caltech as tool
import pytest
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from timm_gcp.weights.bundled import Bundled, BundledPair

CLASSES = ["Ants", "bees", "crabs", "dolphin", "emu", "ferry"]
START = {"start": "mobilenetv2_100.quant_in1k", "pad_type": "same"}
FIRST = {
    "title": "toy",
    "data": {"pixels": 80, "train_per_class": 2, "held_out": 0.5, "exclude": ["BACKGROUND"]},
    "model": {"model_name": tool.TRAINED, "global_pool": "avg", **START},
    "input": {"size": 64, "mean": [0.5] * 3, "std": [0.5] * 3},
    "train": {"epochs": 12, "batch_size": 4, "warmup": 0.3, "smoothing": 0.1, "weight_decay": 1e-4},
    "tune": {"lr": [0.1]},
    "seeds": [0],
    "heads": {"GAP": {"pool": "avg"}, "GCP, D = 128": {"reduce_dim": 128}},
}
SECOND = {"title": "toy", "frozen": "first.yaml", "end": ["conv_head", "bn2"], "train": {"epochs": 2},
          "tune": {"lr": [0.01]}, "heads": ["GAP", "GCP, D = 128"]}  # fmt: skip
TOLD = {"seed": "0", "lr": "0.01", "head_lr": "0.05"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder of images, a study of them, and two untrained networks of it."""
    folder = tmp_path_factory.mktemp("study")
    for number, name in enumerate(["BACKGROUND", *CLASSES]):
        (folder / "data" / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (80, 80), (40 * number, 60 * index, 0)).save(folder / "data" / name / f"{index}.png")
    (folder / "first.yaml").write_text(yaml.safe_dump(FIRST))
    (folder / "second.yaml").write_text(yaml.safe_dump(SECOND))
    (folder / "nets").mkdir()
    torch.manual_seed(0)
    for head, keys in (("GAP", {"global_pool": "avg"}), ("GCP, D = 128", {"reduce_dim": 128})):
        model = timm.create_model("mobilenetv2_100_gcp", num_classes=6, pad_type="same", **keys)
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = 1.0
        model.train()(torch.rand(8, 3, 64, 64))  # statistics under which features keep their size
        save_file(model.state_dict(), folder / "nets" / f"{tool.slug(head)}.safetensors", {**TOLD, "head": head})
    return folder


def run_tool(study, monkeypatch, *options):
    given = ["--data-dir", str(study / "data"), "--config", str(study / "second.yaml"), *options]
    monkeypatch.setattr(sys, "argv", ["bundle_caltech.py", *given])
    return tool.main()


def test_folders_and_rows(study, tmp_path, monkeypatch, capsys):
    record = ["--record", str(tmp_path / "photos.json")]
    assert run_tool(study, monkeypatch, "--nets", str(study / "nets"), "--to", str(tmp_path), *record) == 0
    rows = capsys.readouterr().out.rpartition("    ),")[0] + ")"
    gcp, gap, pair = eval(f"({rows})", {"Bundled": Bundled, "BundledPair": BundledPair})
    assert (gcp.name, gap.name) == (pair.first, pair.second)
    assert (gcp.images, pair.images, gcp.epochs, gcp.start) == (12, 12, 2, START["start"])
    assert gcp.stages == (
        "the head for 12 epochs, then conv_head, bn2 and the head with lr 0.01 for the stages, 0.05 for the head"
    )
    assert 100 * (pair.only_first - pair.only_second) / 12 == pytest.approx(gcp.top1 - gap.top1, abs=0.02)
    assert gcp.mean_per_class == pytest.approx(gcp.top1)  # as many images in each class
    photos = json.loads((tmp_path / "photos.json").read_text())
    assert list(photos) == [gcp.name, gap.name] and set(photos[gap.name]["coffee.jpg"]) < set(CLASSES)
    config = json.loads((tmp_path / gap.name / "config.json").read_text())
    assert config["label_names"] == CLASSES and config["model_args"]["pad_type"] == "same"
    shown = config["pretrained_cfg"]
    assert [shown[key] for key in ("input_size", "crop_pct", "mean")] == [[3, 64, 64], 0.8, [0.5] * 3]
    trained = timm.create_model("mobilenetv2_100_gcp", num_classes=6, global_pool="avg", pad_type="same")
    trained.load_state_dict(load_file(study / "nets" / "gap.safetensors"))
    bundled = timm.create_model(f"local-dir:{tmp_path / gap.name}", pretrained=True).eval()
    image = torch.rand(1, 3, 64, 64)
    torch.testing.assert_close(bundled(image), trained.eval()(image), rtol=0, atol=2e-2)
    assert run_tool(study, monkeypatch, "--to", str(tmp_path)) == 0
    measured = capsys.readouterr().out
    assert f"{gcp.name} top1 {gcp.top1:.2f}, top5 {gcp.top5:.2f}, mean_per_class {gcp.mean_per_class:.2f}" in measured
    assert f"of 12 images right by the first alone {pair.only_first}, by the second {pair.only_second}" in measured


def test_weights_that_take_too_much_change_nothing(study, tmp_path, monkeypatch, capsys):
    report = {"models": [{"top1": 1.0}] * 2, "only_first": 0, "only_second": 0, "images": 12}
    monkeypatch.setattr(tool, "pair_report", lambda *_: report)
    monkeypatch.setattr("bundling.LIMIT", 1e6)
    options = ["--nets", str(study / "nets"), "--to", str(tmp_path / "to"), "--dtype", "float32"]
    assert run_tool(study, monkeypatch, *options) == 1
    error = capsys.readouterr().err
    assert "caltech101 is left out: " in error and error.endswith("1 at most. Store both in --dtype float16.\n")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": "1"}, "were trained on different draws: give those of one"),
        ({"head": "GCP, D = 64"}, "does not say that it has the head 'GAP': let fine_tuned_ends.py write it again"),
    ],
)
def test_networks_that_are_no_pair(study, tmp_path, monkeypatch, capsys, change, text):
    (tmp_path / "gcp_d_128.safetensors").symlink_to(study / "nets" / "gcp_d_128.safetensors")
    state = load_file(study / "nets" / "gap.safetensors")
    save_file(state, tmp_path / "gap.safetensors", {**TOLD, "head": "GAP", **change})
    assert run_tool(study, monkeypatch, "--nets", str(tmp_path), "--to", str(tmp_path / "to")) == 1
    assert text in capsys.readouterr().err and not (tmp_path / "to").exists()


def test_no_networks_no_images_and_another_study(study, tmp_path, monkeypatch, capsys):
    assert run_tool(study, monkeypatch, "--nets", str(tmp_path)) == 1
    assert "give the folder of tools/studies/fine_tuned_ends.py's networks with --nets" in capsys.readouterr().err
    assert run_tool(study, monkeypatch, "--data-dir", str(tmp_path / "none")) == 1
    assert "none': give the data set's folder with --data-dir" in capsys.readouterr().err
    (tmp_path / "first.yaml").write_text(yaml.safe_dump({**FIRST, "model": {"model_name": "resnet18"}}))
    (tmp_path / "second.yaml").write_text(yaml.safe_dump(SECOND))
    assert run_tool(study, monkeypatch, "--config", str(tmp_path / "second.yaml")) == 1
    assert f"second.yaml trained resnet18; give one of {tool.TRAINED}" in capsys.readouterr().err
