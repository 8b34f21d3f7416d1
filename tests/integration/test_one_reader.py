"""One image, one layout, every command: the same pixels, the same classes, the same refusals."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import timm
import torch
from commands import status_of
from PIL import Image
from toy_images import TINY

import timm_gcp  # noqa: F401 - registers the models
from timm_gcp import cli
from timm_gcp.inference import model as loading

PLACES = ("commands.validate", "commands.predict", "robustness.inference")
SIDE = 32
COUNT = 12  # classes: enough that text order and natural order differ


class Corner(torch.nn.Module):
    """Class by the mean level of the upper left corner, one of 12 equal steps of grey."""

    def __init__(self) -> None:
        super().__init__()
        self.num_classes, self.pretrained_cfg = COUNT, {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        level = x[:, 0, : SIDE // 4, : SIDE // 4].mean(dim=(1, 2)) * 255
        return -(level[:, None] - level_of(torch.arange(COUNT))).abs()


def level_of(label):
    return 20 * label + 10


def write(path, label: int, orientation: int = 1) -> None:
    """An image of one level in its upper left quarter and white elsewhere: 16 bits deep, or turned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((SIDE, SIDE), 255, dtype="uint8")
    pixels[: SIDE // 2, : SIDE // 2] = level_of(label)
    if orientation == 1:
        Image.fromarray(pixels.astype("uint16") * 257).save(path)
        return
    exif = Image.Exif()
    exif[0x0112] = orientation  # upright once it is turned by 180 degrees
    Image.fromarray(pixels[::-1, ::-1].copy()).save(path, exif=exif)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for split in ("train", "validation"):
        for label in range(COUNT):
            write(root / split / str(label) / "deep.png", label)
            write(root / split / str(label) / "turned.png", label, orientation=3)
    return root


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    run = argparse.Namespace(model=TINY, num_classes=COUNT, img_size=SIDE, crop_pct=1.0, mean=[0.0] * 3, std=[1.0] * 3)
    path = tmp_path_factory.mktemp("weights") / "last.pth.tar"
    torch.save({"state_dict": timm.create_model(TINY, num_classes=COUNT).state_dict(), "args": run, "epoch": 0}, path)
    return path


@pytest.fixture(autouse=True)
def by_corner(monkeypatch):
    """Every command's model is `Corner`, with the data configuration of the checkpoint."""
    modules = [import_module(f"timm_gcp.{place}") for place in PLACES]  # all imported before any is changed
    real = loading.load_model

    def load(args, pretrained):
        return replace(real(args, pretrained), model=Corner().eval(), label_names=None)

    for module in modules:
        monkeypatch.setattr(module, "load_model", load)


def common(checkpoint):
    return ["--checkpoint", str(checkpoint), "--device", "cpu"]


def test_validate_counts_every_image_right(data, checkpoint, capsys):
    assert cli.main(["validate", "--data-dir", str(data), "--workers", "0", "--json", *common(checkpoint)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["top1"] == 100 and report["images"] == 2 * COUNT and report["unreadable"] == 0
    assert [row["name"] for row in report["per_class"]] == [str(label) for label in range(COUNT)]


def test_predict_and_its_names(data, checkpoint, tmp_path, capsys):
    (tmp_path / "map.txt").write_text("\n".join(f"level {label}" for label in range(COUNT)))
    given = ["predict", str(data / "validation"), "--json", "--class-map", str(tmp_path / "map.txt")]
    assert cli.main([*given, *common(checkpoint)]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert len(entries) == 2 * COUNT
    for entry in entries:
        assert entry["top"][0]["name"] == f"level {entry['image'].split('/')[-2]}"


def test_robustness_has_no_clean_error(data, checkpoint, tmp_path, capsys, monkeypatch):
    pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")
    from timm_gcp.robustness import figures

    monkeypatch.setattr(figures, "draw_c", lambda results, path: None)
    given = ["robustness", "c", "--on-the-fly", "--model", TINY, "--data-dir", str(data / "validation"), "--partial"]
    given += ["--corruptions", "gaussian_noise", "--severities", "1", "--workers", "0", "--json", *common(checkpoint)]
    given += ["--output", str(tmp_path / "out")]
    assert cli.main(given) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["clean_error"] == 0
    (tmp_path / "map.txt").write_text("\n".join(str(label) for label in range(COUNT)))
    assert cli.main([*given, "--class-map", str(tmp_path / "map.txt")]) == 0  # the same classes, said otherwise
    (tmp_path / "map.txt").write_text("\n".join(str(label) for label in reversed(range(COUNT))))
    capsys.readouterr()
    assert cli.main([*given, "--class-map", str(tmp_path / "map.txt")]) == 1
    assert "holds results of another run (classes was" in capsys.readouterr().err


def test_training_reads_the_same_pixels(data):
    from timm_gcp.train import build
    from timm_gcp.train.options import resolve_args

    keys = {"data_dir": str(data), "batch_size": 2 * COUNT, "workers": 0, "no_prefetcher": True, "num_classes": COUNT}
    config = {"input_size": (3, SIDE, SIDE), "mean": [0.0] * 3, "std": [1.0] * 3, "crop_pct": 1.0}
    args = resolve_args(None, {**keys, "no_aug": True, "interpolation": "bilinear"})
    loaders = build.build_loaders(args, {**config, "interpolation": "bilinear"}, torch.device("cpu"))
    for loader in (loaders.train, loaders.val):
        images, targets = next(iter(loader))
        assert Corner()(images).argmax(1).tolist() == targets.tolist()


def test_detection_reads_the_same_pixels(data):
    from timm_gcp.detection.coco_data import read_image

    for name in ("deep.png", "turned.png"):
        for label in (0, 7, 11):
            image = read_image(data / "validation" / str(label) / name, 3)
            assert image[:, 0, 0].mul(255).round().tolist() == [level_of(label)] * 3 and image[0, -1, -1] == 1


def test_unreadable_images_are_named_and_counted(data, checkpoint, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(data, root)
    (root / "validation" / "3" / "deep.png").write_bytes(b"broken")
    given = ["validate", "--data-dir", str(root), "--workers", "0", "--json", "--batch-size", "5", *common(checkpoint)]
    assert cli.main(given) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["top1"] == 100 and report["images"] == 2 * COUNT - 1 and report["unreadable"] == 1
    assert report["per_class"][3]["images"] == 1  # no neighbour in its place
    assert "validation/3/deep.png' can't be read as an image" in captured.err
    assert "1 image of " in captured.err and "--allow-unreadable" in captured.err
    assert cli.main([*given, "--allow-unreadable"]) == 0
    for path in (root / "validation").glob("*/*.png"):
        path.write_bytes(b"broken")
    capsys.readouterr()
    assert cli.main([*given, "--allow-unreadable"]) == 1
    assert "none of 24 images can be read, the first: " in capsys.readouterr().err


LAYOUTS = {
    "misspelt": (lambda root: (root / "validation").rename(root / "tset"), r"tset"),
    "missing class": (lambda root: shutil.rmtree(root / "validation" / "7"), "11 class"),
    "empty class": (lambda root: [p.unlink() for p in (root / "validation" / "7").iterdir()], "'7' (empty)"),
    "extra class": (lambda root: write(root / "validation" / "12" / "a.png", 0), "13 class"),
    "flat": (lambda root: flatten(root / "validation"), "is flat, 24 images"),
    "skipped": (
        lambda root: [p.rename(p.with_suffix(".webp")) for p in (root / "validation" / "7").iterdir()],
        "'7' (2 .webp)",
    ),
}


def flatten(folder) -> None:
    for index, path in enumerate(sorted(folder.glob("*/*.png"))):
        path.rename(folder / f"{index}.png")
    for path in list(folder.iterdir()):
        if path.is_dir():
            path.rmdir()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("command", ["validate", "robustness", "train"])
def test_one_sentence_on_the_layout(data, checkpoint, tmp_path, capsys, command, layout):
    root = tmp_path / "data"
    shutil.copytree(data, root)
    break_it, message = LAYOUTS[layout]
    break_it(root)
    if command == "robustness":
        pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")
        given = ["robustness", "c", "--on-the-fly", "--model", TINY, "--data-dir", str(root / "validation")]
        given += ["--output", str(tmp_path / "out"), *common(checkpoint)]
        message = message if layout != "misspelt" else "no folder"
    elif command == "validate":
        given = ["validate", "--data-dir", str(root), "--workers", "0", *common(checkpoint)]
    else:
        given = [
            "train",
            "--data-dir",
            str(root),
            "--model",
            TINY,
            "--output",
            str(tmp_path / "out"),
            "--device",
            "cpu",
        ]
        message = {"missing class": "without 7 (2 training images)", "extra class": "with 12 (1 image)"}.get(
            layout, message
        )
    assert cli.main(given) == 1
    lines = capsys.readouterr().err.strip().splitlines()  # the first may say what was taken from the checkpoint
    assert message in lines[-1] and len(lines) <= 1 + (given[0] != "train")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["validate", "predict", "robustness"])
@pytest.mark.parametrize(("number", "message"), [("0", "--num-classes: must be at least 1, got 0"), ("-3", "got -3")])
def test_a_model_has_classes(data, checkpoint, capsys, command, number, message):
    given = {
        "validate": ["validate", "--data-dir", str(data)],
        "predict": ["predict", str(data)],
        "robustness": ["robustness", "c", "--on-the-fly", "--model", TINY, "--data-dir", str(data / "validation")],
    }[command]
    if command == "robustness":
        pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")
    assert status_of(*given, "--num-classes", number, *common(checkpoint)) == 2
    assert message in capsys.readouterr().err
