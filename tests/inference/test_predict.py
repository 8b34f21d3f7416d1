"""Prediction from the command line: what counts as an image, how each mode is read, and the answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from commands import status_of
from PIL import Image
from safetensors.torch import save_file
from toy_images import TINY

from timm_gcp import cli
from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES
from timm_gcp.inference import model as loading
from timm_gcp.inference import predict
from timm_gcp.inference.images import find_images, open_image
from timm_gcp.inference.options import add_model_arguments
from timm_gcp.weights.source import read_source

SAMPLES = Path(__file__).parents[2] / "samples" / "fashion_mnist"
GREY = np.arange(64, dtype="uint8").reshape(8, 8) * 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A grey ten-class model as a training checkpoint, as of a Fashion-MNIST run."""
    import argparse

    torch.manual_seed(0)
    model = timm.create_model(TINY, num_classes=10, in_chans=1)
    run = argparse.Namespace(
        model=TINY,
        num_classes=10,
        in_chans=1,
        img_size=32,
        mean=[0.286],
        std=[0.353],
        dataset="torch/fashion_mnist",
        crop_pct=1.0,
        interpolation="bilinear",
    )
    path = tmp_path_factory.mktemp("weights") / "last.pth.tar"
    torch.save({"state_dict": model.state_dict(), "args": run, "epoch": 0}, path)
    return path


def test_find_images(tmp_path):
    for name in ("b.png", "a.JPG", "notes.txt", "deep/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_images([str(tmp_path / "*.png"), str(tmp_path)])
    assert [path.name for path in found] == ["b.png", "a.JPG", "c.webp"]  # each once
    with pytest.raises(FileNotFoundError, match=r"nothing\*' names no file"):
        find_images([str(tmp_path / "nothing*")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty' has no images \(\.png, "):
        find_images([str(tmp_path / "empty")])


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "HSV", "LAB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_read(tmp_path, mode, channels):
    image = Image.fromarray(GREY).convert("RGB")
    image = image.convert(mode) if mode != "LAB" else Image.merge("LAB", [image.getchannel(0)] * 3)
    path = tmp_path / ("x.tif" if mode in ("CMYK", "YCbCr", "LAB") else "x.png")
    if mode == "HSV":
        image = image.convert("RGB")
    # Pillow before 13 can't read back a small YCbCr TIFF that it wrote uncompressed.
    image.save(path, **({"compression": "tiff_lzw"} if mode == "YCbCr" else {}))
    read = open_image(path, channels)
    assert (read.mode, read.size) == ("L" if channels == 1 else "RGB", (8, 8))
    if mode in ("L", "RGB", "RGBA", "LA", "HSV"):
        assert np.abs(np.asarray(read.convert("L")).astype(int) - GREY).max() <= 1


def test_sixteen_bits_transparency_and_orientation(tmp_path):
    Image.fromarray(GREY.astype("uint16") * 256).save(tmp_path / "deep.png")
    assert np.array_equal(np.asarray(open_image(tmp_path / "deep.png", 1)), GREY)
    clear = Image.new("RGBA", (4, 4), (255, 255, 255, 0))
    clear.save(tmp_path / "clear.png")
    assert np.asarray(open_image(tmp_path / "clear.png", 3)).max() == 0
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(GREY[:4]).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(np.asarray(open_image(tmp_path / "turned.png", 1)), np.rot90(GREY[:4], -1))


def test_what_is_no_image(tmp_path):
    (tmp_path / "page.png").write_text("<html>")
    with pytest.raises(ValueError, match=r"page\.png' can't be read as an image"):
        open_image(tmp_path / "page.png", 3)
    (tmp_path / "cut.png").write_bytes((SAMPLES / "bag_0018.png").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cut\.png' can't be read as an image"):
        open_image(tmp_path / "cut.png", 3)
    Image.fromarray(GREY.astype("float32")).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match="floating-point pixels of unknown scale"):
        open_image(tmp_path / "float.tif", 1)
    with pytest.raises(ValueError, match="1 or 3 channels, the model takes 4"):
        open_image(tmp_path / "float.tif", 4)


def test_six_samples(checkpoint, capsys):
    assert len(list(SAMPLES.glob("*.png"))) == 6
    for path in SAMPLES.glob("*.png"):
        assert open_image(path, 1).size == (28, 28)
    assert cli.main(["predict", str(SAMPLES), "--checkpoint", str(checkpoint), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["image", "1.", "2.", "3.", "4.", "5."] and len(lines) == 7
    assert any(name in lines[1] for name in FASHION_MNIST_CLASSES)


def test_json_agrees_with_the_model(checkpoint, capsys):
    path = SAMPLES / "bag_0018.png"
    arguments = ["predict", str(path), "--checkpoint", str(checkpoint), "--device", "cpu", "--json", "--topk", "10"]
    assert cli.main(arguments) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    model = timm.create_model(TINY, num_classes=10, in_chans=1).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=False)["state_dict"])
    pixels = np.asarray(Image.open(path).resize((32, 32), Image.BILINEAR)).astype("float32") / 255
    with torch.no_grad():
        expected = model(((torch.tensor(pixels) - 0.286) / 0.353)[None, None]).softmax(1)[0]
    assert entry["image"] == str(path) and len(entry["top"]) == 10
    assert sum(item["probability"] for item in entry["top"]) == pytest.approx(1, abs=1e-5)
    for item in entry["top"]:
        assert item["probability"] == pytest.approx(expected[item["class"]].item(), abs=1e-4)
        assert item["name"] == FASHION_MNIST_CLASSES[item["class"]]


def test_table_and_annotated_images(checkpoint, tmp_path, capsys):
    (tmp_path / "bad.png").write_text("no image")
    output = tmp_path / "out"
    arguments = [str(SAMPLES / "bag_0018.png"), str(tmp_path / "bad.png"), "--topk", "20", "--device", "cpu"]
    arguments += ["--csv", str(output / "t.csv"), "--annotate", str(output / "images")]
    assert cli.main(["predict", *arguments, "--checkpoint", str(checkpoint)]) == 1
    with (output / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    good = [row for row in rows if row["image"].endswith("bag_0018.png")]
    assert [row["rank"] for row in good] == [str(rank + 1) for rank in range(10)]  # ten classes, not twenty
    assert sum(float(row["probability"]) for row in good) == pytest.approx(1, abs=1e-4)
    assert {row["name"] for row in good} == set(FASHION_MNIST_CLASSES)
    (bad,) = (row for row in rows if row not in good)
    assert "can't be read" in bad["error"] and bad["class"] == ""
    (image,) = (output / "images").rglob("*.png")
    assert image.name == "bag_0018.png" and Image.open(image).height > 320 + 10 * 22
    capsys.readouterr()


def test_bad_image_among_good_ones(checkpoint, tmp_path, capsys):
    (tmp_path / "bad.png").write_text("no")
    good = str(SAMPLES / "bag_0018.png")
    assert (
        cli.main(["predict", str(tmp_path / "bad.png"), good, "--checkpoint", str(checkpoint), "--device", "cpu"]) == 1
    )
    captured = capsys.readouterr()
    assert "bag_0018.png" in captured.out and "bad.png' can't be read" in captured.err
    arguments = ["predict", str(tmp_path / "bad.png"), "--checkpoint", str(checkpoint), "--device", "cpu"]
    assert cli.main(arguments) == 1 and "no image could be read" in capsys.readouterr().out
    assert cli.main([*arguments, "--json"]) == 1
    assert "can't be read" in json.loads(capsys.readouterr().out)[0]["error"]


@pytest.mark.parametrize("option", ["--batch-size", "--topk"])
def test_counts(option, capsys):
    assert status_of("predict", SAMPLES, "--model", TINY, option, "0") == 2
    assert f"{option}: must be at least 1, got 0" in capsys.readouterr().err


# loading


def options(*given: str):
    import argparse

    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    return parser.parse_args([*given, "--device", "cpu"])


def test_a_checkpoint_says_how_it_was_trained(checkpoint):
    loaded = loading.load_model(options("--checkpoint", str(checkpoint)), pretrained=True)
    assert loaded.data_config["input_size"] == (1, 32, 32) and loaded.data_config["mean"] == (0.286,)
    assert loaded.label_names == FASHION_MNIST_CLASSES and not loaded.model.training
    other = loading.load_model(options("--checkpoint", str(checkpoint), "--img-size", "48", "--channels-last"), True)
    assert other.data_config["input_size"] == (1, 48, 48)


def test_safetensors_and_misfits(checkpoint, tmp_path):
    state = torch.load(checkpoint, weights_only=False)["state_dict"]
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "m.safetensors")
    given = ["--model", TINY, "--num-classes", "10", "--checkpoint", str(tmp_path / "m.safetensors")]
    config = loading.load_model(options(*given, "--in-chans", "1"), True).data_config
    assert config["input_size"][0] == 1 and config["mean"] == (0.5,)
    with pytest.raises(ValueError, match=r"--in-chans 3 was given, but the weights in .* are for 1 image channels"):
        loading.load_model(options(*given, "--in-chans", "3"), True)
    state["stray"] = state.pop("fc.bias")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=r"missing: fc\.bias; foreign: stray"):
        loading.load_model(options(*given, "--in-chans", "1"), True)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([], ValueError, "which model"),
        (["--model", "no_such_net"], ValueError, "Unknown model .no_such_net.*lists ours"),
        (
            ["--model", TINY, "--checkpoint", "none.safetensors"],
            FileNotFoundError,
            "no checkpoint at 'none.safetensors'",
        ),
        (["--model", TINY, "--checkpoint", "none.pth"], FileNotFoundError, "no checkpoint at 'none.pth'"),
        (["--model", TINY, "--checkpoint", "x.safetensors", "--use-ema"], FileNotFoundError, "no checkpoint at"),
    ],
)
def test_loading_refusals(given, error, message):
    with pytest.raises(error, match=message):
        loading.load_model(options(*given), pretrained=False)


def test_plain_state_dict_and_torchvisions_names(tmp_path):
    """A bare `.pth`, in the names that the authors and torchvision use, loads into the model of that name."""
    import torchvision

    torch.manual_seed(0)
    theirs = torchvision.models.mobilenet_v2(num_classes=3).eval()
    torch.save(theirs.state_dict(), tmp_path / "bare.pth")
    args = options("--model", "mobilenetv2_100", "--num-classes", "3", "--checkpoint", str(tmp_path / "bare.pth"))
    loaded = loading.load_model(args, pretrained=False)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_averaged_weights(checkpoint, tmp_path):
    with pytest.raises(ValueError, match="trained without --model-ema"):
        read_source(checkpoint, use_ema=True)
    saved = torch.load(checkpoint, weights_only=False)
    saved["state_dict_ema"] = {key: value * 0 for key, value in saved["state_dict"].items()}
    torch.save(saved, tmp_path / "ema.pth.tar")
    assert read_source(tmp_path / "ema.pth.tar", use_ema=True).state_dict["fc.bias"].abs().sum() == 0


def test_names_of_classes():
    def model(names, num_classes=10):
        return SimpleNamespace(num_classes=num_classes, pretrained_cfg={"label_names": names})

    assert loading.label_names(model([f"n{i}" for i in range(10)]))[3] == "n3"
    assert loading.label_names(model({str(i): f"m{i}" for i in range(10)}))[3] == "m3"
    assert loading.label_names(model(["too", "few"])) is None
    assert loading.label_names(model(None), "torch/fashion_mnist") == FASHION_MNIST_CLASSES
    assert "tench" in loading.label_names(model(None, 1000))[0]


def test_batches_do_not_change_the_answers(checkpoint):
    loaded = loading.load_model(options("--checkpoint", str(checkpoint)), pretrained=True)
    images = find_images([str(SAMPLES)])
    one, four = (dict(predict.predict(loaded, images, batch_size)) for batch_size in (1, 4))
    assert list(one) == list(four) == images
    for path in images:
        assert [item["class"] for item in one[path]] == [item["class"] for item in four[path]]
