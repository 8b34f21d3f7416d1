"""`timm-gcp robustness` from the command line, on trees made here."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import timm
import torch
from commands import status_of
from PIL import Image

pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")

from robustness_sets import SIZE, classifier, pixels, write_clip, write_fashion_mnist

import timm_gcp  # noqa: F401 - registers the models
from timm_gcp.cli import main
from timm_gcp.common.files import file_sha256
from timm_gcp.robustness import figures
from timm_gcp.robustness import run as command
from timm_gcp.robustness.corruptions import SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import TEST_PERTURBATIONS
from timm_gcp.robustness.sources import Framing

COMMON = ["--device", "cpu", "--workers", "0", "--num-classes", "2"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> list[str]:
    """A pair of tiny untrained models."""
    files = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = timm.create_model("test_resnet", num_classes=2)
        files.append(str(tmp_path_factory.mktemp("weights") / f"{seed}.pth"))
        torch.save({"state_dict": model.state_dict()}, files[-1])
    return files


@pytest.fixture
def pair(weights) -> list[str]:
    return ["--model", "test_resnet", "test_resnet", "--checkpoint", *weights, "--label", "GAP", "GCP", *COMMON]


@pytest.fixture
def no_figures(monkeypatch):
    """Leave out the drawing, which takes longer than the measurement of a fake tree."""
    monkeypatch.setattr(figures, "draw_c", lambda results, path: None)
    monkeypatch.setattr(figures, "draw_p", lambda results, path: None)


def literal_errors(weight_file: str, folder) -> float:
    model = timm.create_model("test_resnet", num_classes=2).eval()
    model.load_state_dict(torch.load(weight_file, weights_only=True)["state_dict"])
    config = timm.data.resolve_model_data_config(model)
    mean, std = (np.array(config[key]) for key in ("mean", "std"))
    wrong = []
    for label, name in enumerate(("ant", "bee")):
        for path in sorted((folder / name).iterdir()):
            x = torch.from_numpy((np.asarray(Image.open(path)) / 255 - mean) / std).float().permute(2, 0, 1)[None]
            with torch.inference_mode():
                wrong.append(int(model(x).argmax()) != label)
    return float(np.mean(wrong))


def test_imagenet_c_from_disk(pair, weights, c_tree, clean_tree, tmp_path, capsys, monkeypatch):
    run = ["robustness", "c", *pair, "--data-dir", str(c_tree), "--output", str(tmp_path), "--baseline", "alexnet"]
    assert main([*run, "--clean-dir", str(clean_tree)]) == 0
    printed = capsys.readouterr().out
    assert "mCE" in printed and "unnormalised" in printed and "images/s" in printed

    content = json.loads((tmp_path / "robustness_c.json").read_text())
    alexnet = json.loads((figures.Path(figures.__file__).parent / "alexnet_imagenet_c.json").read_text())
    for model, file in zip(content["models"], weights, strict=True):
        ratios = []
        for name in TEST_CORRUPTIONS:
            errors = [model["corruption_error"][name][str(s)] for s in SEVERITIES]
            if name in ("snow", "jpeg_compression"):
                assert errors == [literal_errors(file, c_tree / name / str(s)) for s in SEVERITIES]
            ratios.append(sum(errors) / (5 * alexnet["corruption_error"][name]))
        assert model["scores"]["mCE"] == pytest.approx(100 * np.mean(ratios), rel=1e-12)
        assert model["scores"]["relative_mCE"] is not None and model["clean_error"] is not None
    assert (tmp_path / "robustness_c.md").read_text().strip() in printed
    assert len((tmp_path / "robustness_c.csv").read_text().splitlines()) == 1 + 2 * 76
    assert Image.open(tmp_path / "robustness_c.png").width > 800
    assert content["speed"]["images"] == 75 * 4 + 6

    monkeypatch.setattr(figures, "draw_c", lambda results, path: None)
    # Again: nothing is measured, the scores are the same; and the GAP twin's file serves as a baseline.
    assert main([*run, "--clean-dir", str(clean_tree), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["speed"]["images"] == 0 and again["models"] == content["models"]
    run[-1] = str(tmp_path / "GAP_c.json")
    assert main([*run, "--clean-dir", str(clean_tree)]) == 0
    gap = json.loads((tmp_path / "robustness_c.json").read_text())
    assert gap["baseline"] == "GAP" and gap["models"][0]["scores"]["mCE"] == 100.0


def test_missing_parts_stop_the_run_before_it_starts(pair, c_tree, tmp_path, capsys, no_figures):
    root = tmp_path / "tree"
    shutil.copytree(c_tree, root)
    shutil.rmtree(root / "fog")
    shutil.rmtree(root / "snow" / "2")
    run = ["robustness", "c", *pair, "--data-dir", str(root), "--output", str(tmp_path / "out")]
    assert main(run) == 1
    assert "lacks snow/2, fog/1, fog/2, fog/3, fog/4, fog/5" in capsys.readouterr().err
    assert main([*run, "--partial", "--baseline", "alexnet"]) == 0
    printed = capsys.readouterr().out
    assert "mCE" not in printed and "in part" in printed and "mean CE of what was measured" in printed


def test_an_interrupted_run_goes_on(pair, c_tree, tmp_path, capsys, monkeypatch, no_figures):
    run = ["robustness", "c", *pair, "--data-dir", str(c_tree), "--output", str(tmp_path)]
    real, calls = command.save_result, []

    def interrupt(path, result):
        real(path, result)
        calls.append(path)
        if len(calls) == 6:
            raise RuntimeError("power cut")

    monkeypatch.setattr(command, "save_result", interrupt)
    assert main(run) == 1
    assert "power cut" in capsys.readouterr().err
    assert main([*run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speed"]["images"] == (75 - 3) * 4
    assert main([*run, "--limit", "2"]) == 1
    assert "holds results of another run (limit was None, now 2)" in capsys.readouterr().err
    assert main([*run, "--limit", "2", "--restart"]) == 0


def test_imagenet_c_on_the_fly_from_fashion_mnist(tmp_path, capsys, no_figures):
    torch.manual_seed(0)
    model = timm.create_model("shufflenet_v2_x1_0_gcp", num_classes=10, in_chans=1, reduce_dim=16)
    torch.save({"state_dict": model.state_dict()}, tmp_path / "w.pth")
    rng = np.random.RandomState(0)
    write_fashion_mnist(tmp_path / "data", rng.randint(0, 256, size=(12, 28, 28)), rng.randint(0, 10, size=12))
    run = ["robustness", "c", "--on-the-fly", "--dataset", "torch/fashion_mnist", "--data-dir", str(tmp_path / "data")]
    run += ["--model", "shufflenet_v2_x1_0_gcp", "--checkpoint", str(tmp_path / "w.pth"), "--num-classes", "10"]
    run += ["--in-chans", "1", "--img-size", "32", "--crop-pct", "1", "--mean", "0.286", "--std", "0.353"]
    run += ["--model-kwargs", "reduce_dim=16", "--device", "cpu", "--limit", "4", "--partial", "--json"]
    run += ["--corruptions", "gaussian_noise", "glass_blur", "spatter", "--severities", "1", "5"]
    errors = []
    for workers, batch_size in ((0, 4), (2, 3)):
        folder = tmp_path / f"out{workers}"
        words = ["--workers", str(workers), "--batch-size", str(batch_size), "--output", str(folder)]
        assert main([*run, *words]) == 0
        content = json.loads(capsys.readouterr().out)
        errors.append((content["models"][0]["clean_error"], content["models"][0]["corruption_error"]))
        assert content["baseline"] is None  # AlexNet's figures say nothing about other data
    assert errors[0] == errors[1]
    assert set(errors[0][1]) == {"gaussian_noise", "glass_blur", "spatter"}


@pytest.fixture
def p_tree(tmp_path):
    root = tmp_path / "imagenet-p"
    for i, name in enumerate(TEST_PERTURBATIONS):
        for label in ("ant", "bee"):
            frames = np.stack([pixels(50 * i + t + (label == "bee")) for t in range(4)])
            write_clip(root / name / label / "c.mp4", frames)
    return root


def test_imagenet_p_from_disk_with_a_baseline_made_here(pair, p_tree, tmp_path, capsys):
    from torchvision import models

    torch.manual_seed(0)
    torch.save(models.squeezenet1_1(num_classes=2).state_dict(), tmp_path / "base.pth")
    data = ["--data-dir", str(p_tree), "--output", str(tmp_path)]
    base = ["--model", "torchvision:squeezenet1_1", "--checkpoint", str(tmp_path / "base.pth"), *COMMON]
    assert main(["robustness", "p", *base, *data]) == 0
    printed = capsys.readouterr().out
    assert "mFR" not in printed and "unnormalised" in printed and "No baseline" in printed
    baseline = json.loads((tmp_path / "squeezenet1_1_p.json").read_text())
    for key in ("flip_probability", "top5_distance"):  # an untrained net may never change its mind
        baseline[key] = {name: value or 0.5 for name, value in baseline[key].items()}
    (tmp_path / "base_p.json").write_text(json.dumps(baseline))

    assert main(["robustness", "p", *pair, *data, "--baseline", str(tmp_path / "base_p.json")]) == 0
    assert "mFR" in capsys.readouterr().out
    content = json.loads((tmp_path / "robustness_p.json").read_text())
    for model in content["models"]:
        expected = np.mean([model["flip_probability"][n] / baseline["flip_probability"][n] for n in TEST_PERTURBATIONS])
        assert model["scores"]["mFR"] == pytest.approx(100 * expected)
    assert Image.open(tmp_path / "robustness_p.png").width > 800
    assert len((tmp_path / "robustness_p.csv").read_text().splitlines()) == 1 + 20

    assert main(["robustness", "p", *pair, *data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speed"]["images"] == 0
    shutil.rmtree(p_tree / "tilt")
    assert main(["robustness", "p", *pair, *data]) == 1
    assert "lacks tilt" in capsys.readouterr().err


def test_imagenet_p_on_the_fly(pair, clean_tree, tmp_path, capsys, no_figures):
    run = ["robustness", "p", "--on-the-fly", *pair, "--data-dir", str(clean_tree), "--img-size", str(SIZE)]
    run += ["--limit", "2", "--output", str(tmp_path), "--json"]
    assert main(run) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["models"][0]["scores"]["complete"] and content["models"][0]["images"]["tilt"] == 2
    assert content["speed"]["images"] == 2 * (9 * 31 + 41)


@pytest.mark.parametrize(
    ("benchmark", "words", "message"),
    [
        ("c", ["--corruptions", "snow"], "gaussian_noise, shot_noise, .* left out: add --partial"),
        ("c", ["--severities", "1", "2"], "severity 3, severity 4, severity 5 left out: add --partial"),
        ("c", ["--corruptions", "rain"], "unknown corruption 'rain'"),
        ("c", ["--seed", "-1"], "--seed: must be at least 0, got -1"),
        ("c", ["--dataset", "mnist"], "--dataset must be torch/fashion_mnist"),
        (
            "c",
            ["--on-the-fly", "--dataset", "torch/fashion_mnist", "--class-map", "m.txt"],
            "--class-map is for image folders",
        ),
        ("p", ["--on-the-fly", "--class-map", "none.txt"], "no class map at 'none.txt'"),
        ("c", ["--dataset", "torch/fashion_mnist"], "holds clean images: add --on-the-fly"),
        ("p", ["--perturbations", "tilt"], "gaussian_noise, .* left out: add --partial"),
        ("p", ["--perturbations", "shear", "--on-the-fly"], "unknown perturbation 'shear'"),
        ("p", ["--difficulty", "7"], "--difficulty must be one of 1, 2, 3; got 7"),
        ("p", ["--on-the-fly", "--label", "a b", "a/b"], r"two labels lead to one file \(a_b_p.json, a_b_p.json\)"),
        ("p", ["--baseline", "alexnet"], "AlexNet's figures on ImageNet-P are measured"),
        ("c", ["--on-the-fly", "--img-size", "24"], "corruptions need 32 px or more; the models take 24"),
    ],
)
def test_bad_options(pair, clean_tree, capsys, tmp_path, benchmark, words, message):
    run = ["robustness", benchmark, *pair, "--data-dir", str(clean_tree), "--output", str(tmp_path), *words]
    assert status_of(*run) in (1, 2)
    assert re.search(message, capsys.readouterr().err)


def test_models_of_one_run_must_fit_together():
    small, large = classifier("small"), classifier("large", num_classes=5)
    with pytest.raises(ValueError, match="same classes; got small: 2, large: 5"):
        command._shared_classes([small, large])
    small.names = ("ant", "bee")
    assert command._shared_names([small, large]) == ("ant", "bee")
    large.names = ("bee", "ant")
    with pytest.raises(ValueError, match="same classes; got small: ant, bee; large: bee, ant"):
        command._shared_names([small, large])
    large.loaded.data_config["crop_pct"] = 0.5
    with pytest.raises(ValueError, match=r"small: 48 px of 53, bilinear; large: 48 px of 96.*set --img-size"):
        command._framing([small, large])
    assert command._framing([small]) == Framing(48, 53)


def test_checkpoints_are_told_apart_by_content(weights):
    assert file_sha256(weights[0]) != file_sha256(weights[1])
