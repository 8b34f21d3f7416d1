"""From two runs of the Caltech-101 study to the package's pair: folders, rows, and what is refused."""

from __future__ import annotations

import json
import sys

import bundle_caltech as tool
import pytest
import timm
import torch
import yaml
from PIL import Image

from timm_gcp.weights.bundled import Bundled, BundledPair

CLASSES = ["Ants", "bees", "crabs", "dolphin", "emu", "ferry"]
KEYS = {"model": tool.TRAINED, "num_classes": 6, "img_size": 64, "crop_pct": 1.0, "interpolation": "bilinear",
        "mean": [0.5] * 3, "std": [0.5] * 3, "epochs": 1, "seed": 0, "sched": "cosine", "lr": 0.5}  # fmt: skip
START = {"start": "mobilenetv2_100.quant_in1k", "pad_type": "same"}
POOLS = {"gcp": {"gp": None, "model_kwargs": {**START, "reduce_dim": 128}}, "gap": {"gp": "avg", "model_kwargs": START}}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder of images, a study of them, and two untrained runs of it."""
    folder = tmp_path_factory.mktemp("study")
    for number, name in enumerate(["BACKGROUND", *CLASSES]):
        (folder / "data" / name).mkdir(parents=True)
        for index in range(4):
            Image.new("RGB", (40, 40), (40 * number, 60 * index, 0)).save(folder / "data" / name / f"{index}.png")
    text = {
        "data": {"pixels": 64, "held_out": 0.5, "train_per_class": 2, "exclude": ["BACKGROUND"]},
        "recipe": "finetune",
        "keys": {"model": tool.TRAINED, "epochs": 1},
        "runs": {"gcp": {"tune": {"lr": [0.5], "epochs": 1}}, "gap": {}},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    torch.manual_seed(0)
    for kind, keys in POOLS.items():
        run = folder / "runs" / f"{kind}-seed0"
        run.mkdir(parents=True)
        keywords = {key: value for key, value in keys["model_kwargs"].items() if key != "start"}
        pool = {"global_pool": "avg"} if keys["gp"] else {}
        model = timm.create_model("mobilenetv2_100_gcp", num_classes=6, **keywords, **pool)
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.momentum = 1.0
        model.train()(torch.rand(8, 3, 64, 64))  # statistics under which features keep their size
        torch.save({"state_dict": model.state_dict()}, run / "last.pth.tar")
        (run / "args.yaml").write_text(yaml.safe_dump({**KEYS, **keys}))
        (run / "summary.csv").write_text("epoch,eval_top1,eval_top5\n0,50,90\n")
        (run / "test.json").write_text("{}")
    return folder


def run_tool(study, monkeypatch, *options):
    given = ["--data-dir", str(study / "data"), "--config", str(study / "study.yaml"), "--gcp", "gcp-seed0"]
    monkeypatch.setattr(sys, "argv", ["bundle_caltech.py", *given, "--gap", "gap-seed0", *options])
    return tool.main()


def test_folders_and_rows(study, tmp_path, monkeypatch, capsys):
    record = ["--record", str(tmp_path / "photos.json")]
    assert run_tool(study, monkeypatch, "--runs", str(study / "runs"), "--to", str(tmp_path), *record) == 0
    rows = capsys.readouterr().out.rpartition("    ),")[0] + ")"
    gcp, gap, pair = eval(f"({rows})", {"Bundled": Bundled, "BundledPair": BundledPair})
    assert (gcp.name, gap.name) == (pair.first, pair.second)
    assert (gcp.images, pair.images, gcp.keys, gap.keys, gcp.start) == (6, 12, "lr: 0.5", "", START["start"])
    assert gcp.study.endswith("--weights DIR --runs gcp") and gcp.recipe == "finetune.yaml"
    assert 100 * (pair.only_first - pair.only_second) / 12 == pytest.approx(gcp.top1 - gap.top1, abs=0.02)
    assert gcp.mean_per_class == pytest.approx(gcp.top1)  # as many images in each class
    photos = json.loads((tmp_path / "photos.json").read_text())
    assert list(photos) == [gcp.name, gap.name] and set(photos[gap.name]["coffee.jpg"]) < set(CLASSES)
    config = json.loads((tmp_path / gap.name / "config.json").read_text())
    assert config["label_names"] == CLASSES and config["model_args"]["pad_type"] == "same"
    assert config["pretrained_cfg"]["input_size"] == [3, 64, 64] and config["pretrained_cfg"]["mean"] == [0.5] * 3
    state = torch.load(study / "runs" / "gap-seed0" / "last.pth.tar", weights_only=True)["state_dict"]
    trained = timm.create_model("mobilenetv2_100_gcp", num_classes=6, global_pool="avg", pad_type="same")
    trained.load_state_dict(state)
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
    options = ["--runs", str(study / "runs"), "--to", str(tmp_path / "to"), "--dtype", "float32"]
    assert run_tool(study, monkeypatch, *options) == 1
    error = capsys.readouterr().err
    assert "caltech101 is left out: " in error and error.endswith("1 at most. Store both in --dtype float16.\n")
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 1}, "gcp-seed0 and gap-seed0 drew other training images: give runs of one seed"),
        ({"epochs": 2}, "gap-seed0 is not complete: let tools/studies/compare.py finish it"),
        ({"gp": None}, "gap-seed0 trained started_mobilenetv2_gcp, pooling gcp, D = 256; --gap takes a run of "),
        (
            {"model": "resnet18"},
            "gap-seed0 trained resnet18, pooling gap; --gap takes a run of started_mobilenetv2_gcp",
        ),
    ],
)
def test_runs_that_are_no_pair(study, tmp_path, monkeypatch, capsys, change, text):
    for kind, keys in POOLS.items():
        run = tmp_path / f"{kind}-seed0"
        run.mkdir()
        for name in ("last.pth.tar", "summary.csv", "test.json"):
            (run / name).symlink_to(study / "runs" / run.name / name)
        (run / "args.yaml").write_text(yaml.safe_dump({**KEYS, **keys, **(change if kind == "gap" else {})}))
    assert run_tool(study, monkeypatch, "--runs", str(tmp_path), "--to", str(tmp_path / "to")) == 1
    assert text in capsys.readouterr().err and not (tmp_path / "to").exists()


def test_no_runs_and_a_study_without_a_draw(study, tmp_path, monkeypatch, capsys):
    assert run_tool(study, monkeypatch, "--runs", str(tmp_path)) == 1
    assert "args.yaml: give the folder of tools/studies/compare.py's runs with --runs" in capsys.readouterr().err
    assert run_tool(study, monkeypatch, "--data-dir", str(tmp_path / "none")) == 1
    assert "none': give the data set's folder with --data-dir" in capsys.readouterr().err
    text = yaml.safe_load((study / "study.yaml").read_text())
    del text["data"]["train_per_class"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(text))
    assert run_tool(study, monkeypatch, "--config", str(tmp_path / "study.yaml")) == 1
    assert "draws no training images (data.train_per_class): give Caltech-101's" in capsys.readouterr().err
