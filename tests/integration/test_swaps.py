"""Every command on a swapped model named `gcp:NAME` or registered: what holds for the nine models holds for these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from commands import status_of
from PIL import Image

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.commands import robustness as robustness_options
from timm_gcp.landscape.records import read_records
from timm_gcp.weights.source import read_source

MODEL = ["--model", "gcp:test_resnet", "--model-kwargs", "reduce_dim=4"]
SMALL = ["--img-size", "64", "--device", "cpu", "--workers", "0"]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder, noise = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("one", "two"):
            (folder / split / name).mkdir(parents=True)
            for index in range(2):
                pixels = noise.integers(0, 255, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def run(images, tmp_path_factory) -> Path:
    """The folder of a training run."""
    output = tmp_path_factory.mktemp("output")
    training = [
        "--epochs",
        "2",
        "--lr",
        "0.1",
        "--batch-size",
        "4",
        "--num-classes",
        "2",
        "--output",
        output,
        "--experiment",
        "run",
    ]
    assert status_of("train", *MODEL, *SMALL, "--data-dir", images, *training) == 0
    return output / "run"


def test_a_checkpoint_says_which_model_it_is_of(run):
    record = read_source(str(run)).record
    assert record.architecture == "gcp_swap" and record.model_args["backbone"] == "test_resnet"


def test_validate_and_predict(run, images, capsys):
    assert status_of("validate", "--checkpoint", run, "--data-dir", images, "--device", "cpu", "--workers", "0") == 0
    assert "top-1" in capsys.readouterr().out
    assert status_of("validate", *MODEL[:2], "--checkpoint", run, "--data-dir", images, "--workers", "0") == 0
    assert "in place of" not in capsys.readouterr().err
    assert status_of("predict", images / "val" / "one" / "0.png", "--checkpoint", run) == 0
    assert "one" in capsys.readouterr().out


def test_cost(run, capsys):
    assert status_of("cost", *MODEL, "--no-time", "--img-size", "32", "--json") == 0
    plain, ours = json.loads(capsys.readouterr().out)
    assert (plain["model"], ours["model"]) == ("test_resnet", "gcp:test_resnet")
    assert ours["parameters"] != plain["parameters"] and ours["macs"] != plain["macs"]
    assert status_of("cost", "--checkpoint", run, "--no-time", "--img-size", "32") == 0
    assert status_of("cost", "--model", "gcp:nothing", "--no-time") == 1
    assert "'gcp:nothing' is" in capsys.readouterr().err


def test_import_store_and_load(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path))
    assert status_of("weights", "import", run, "--as", "gcp_swap.mine") == 0
    model = timm.create_model("gcp_swap.mine", pretrained=True).eval()
    trained = read_source(str(run)).state_dict
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())


def test_onnx(run, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert status_of("export", "--checkpoint", run, "--onnx", tmp_path / "a.onnx", "--batch-sizes", "1", "2") == 0
    assert (tmp_path / "a.onnx").stat().st_size > 0


def test_landscape(run, images, tmp_path):
    words = ["--high", "0.2", "--lr", "0.1", "--points", "2", "--output", tmp_path / "a.csv"]
    common = ["--data-dir", images, "--img-size", "32", "--device", "cpu"]
    assert status_of("landscape", "probe", "--checkpoint", run / "model_best.pth.tar", *words, *common) == 0
    assert len(read_records(str(tmp_path / "a.csv"))) == 1
    raw = ["--batch-size", "4", "--num-classes", "2", "--low", "0.1", "--high", "0.2", "--points", "2"]
    assert status_of("landscape", "probe", *MODEL, *raw, *common, "--output", tmp_path / "b.csv") == 0


def test_robustness(run):
    import argparse

    from timm_gcp.robustness.inference import load_classifiers

    parser = argparse.ArgumentParser()
    robustness_options.add_arguments(parser)
    words = ["c", "--data-dir", "d", "--device", "cpu", "--model", "gcp:test_resnet", "--checkpoint", str(run)]
    (loaded,) = load_classifiers(parser.parse_args(words))
    assert loaded.logits(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).shape == (1, 2)


def test_names_that_are_none(capsys):
    assert status_of("validate", "--model", "gcp:", "--pretrained", "--data-dir", ".") == 1
    assert "'gcp:' names no model: give gcp:NAME" in capsys.readouterr().err
    assert status_of("validate", "--model", "gcp:test_resnet", "--pretrained", "--data-dir", ".") == 1
    assert "pretrained_backbone=True starts the backbone" in capsys.readouterr().err
