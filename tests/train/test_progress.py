"""What a run says: its first line, its progress, what it resumes."""

from __future__ import annotations

import pytest
import timm
import torch
from toy_images import image_folder, tiny_settings

from timm_gcp import cli
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.train.build import build_model, resolve_data
from timm_gcp.train.callback import Callback
from timm_gcp.train.options import resolve_args
from timm_gcp.train.progress import Progress, Start
from timm_gcp.train.run import train

START = {
    "model": "resnet18_gcp",
    "parameters": 44_210_000,
    "num_classes": 10,
    "data_config": {"input_size": (3, 224, 224), "mean": (0.485, 0.456, 0.406), "std": (0.2, 0.2, 0.2)},
    "weights_size": None,
    "train_images": 100,
    "val_images": 20,
    "batch_size": 10,
    "updates": 5,
    "first_epoch": 0,
    "epochs": 3,
    "lr": 0.1,
    "device": "cpu",
    "resumed": "",
}


def options(settings: dict) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def test_first_line():
    line = Start(**START).describe()
    assert line == (
        "resnet18_gcp: 44.21 M parameters, input 3×224×224, mean 0.485 0.456 0.406, std 0.2 0.2 0.2, 10 classes; "
        "100 images to train on, 20 to validate; 3 epochs of 5 updates, batches of 10, rate 0.1; cpu"
    )
    other = Start(**{**START, "weights_size": (96, 96), "val_images": None}).describe()
    assert "input 3×224×224 (the weights were trained on 96×96), " in other and ", no validation; " in other
    assert "weights" not in Start(**{**START, "weights_size": (224, 224)}).describe()
    resumed = Start(**{**START, "resumed": "run/last.pth.tar", "first_epoch": 1}).describe()
    assert resumed.splitlines()[1] == "resumed from run/last.pth.tar at epoch 2 of 3"


def test_progress_line():
    line = Progress(0, 3, 49, 200, 1.5, 2.0, 0.01, 123.4, 75.0).describe()
    assert line == "Train: 1/3 [  50/200 ( 25%)]  Loss: 1.50 (2.00)  LR: 1.000e-02  123.4 images/s  1:15 left"


def test_command_says_it_and_resumes(tmp_path, capsys):
    data = image_folder(tmp_path / "data", train=24)
    settings = tiny_settings(data, tmp_path, epochs=1, log_interval=2)
    assert cli.main(["train", *options(settings)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("test_resnet: ") and "48 images to train on, 12 to validate; 1 epochs of 6" in lines[0]
    assert [line[:20] for line in lines[1:5]] == [f"Train: 1/1 [   {update}/6 (" for update in (1, 3, 5, 6)]
    assert lines[5].startswith("epoch 1/1: ") and "top5" not in lines[5]  # two classes
    last = tmp_path / "run" / "last.pth.tar"
    assert cli.main(["train", *options({**settings, "epochs": 2}), "--resume", str(last)]) == 0
    assert f"resumed from {last} at epoch 2 of 2" in capsys.readouterr().out


def test_progress_counts_updates_under_accumulation(tmp_path):
    seen: list[Progress] = []

    class Watch(Callback):
        def on_progress(self, progress: Progress) -> None:
            seen.append(progress)

    data = image_folder(tmp_path / "data", train=24)
    settings = tiny_settings(data, tmp_path, epochs=1, grad_accum_steps=4, log_interval=1)
    train(resolve_args(None, settings), [Watch()])
    assert [(p.update, p.updates, p.seconds_left > 0) for p in seen] == [(0, 2, True), (1, 2, False)]
    assert seen[-1].lr == pytest.approx(0.05)


def test_finetune_takes_its_input_from_the_weights():
    assert not {"img_size", "input_size", "in_chans", "crop_pct", "interpolation"} & set(
        read_recipe(find_recipe("finetune"))
    )
    args = resolve_args("finetune", {"num_classes": 3, "device": "cpu"})
    model = build_model(args, torch.device("cpu"))
    config, cfg = resolve_data(args, model), timm.get_pretrained_cfg(args.model)
    assert config["input_size"] == cfg.input_size and config["mean"] == (0.5,) * 3 and config["crop_pct"] == 0.875
    assert model.pretrained_cfg["input_size"] == cfg.input_size  # what train.py reads
    assert model.conv_stem.padding == (0, 0), "padding as the weights were trained with"


def test_finetune_of_grey_weights_reads_colour():
    args = resolve_args("finetune", {"model": "shufflenet_v2_x1_0_gcp.adju_fmnist", "num_classes": 3, "device": "cpu"})
    model = build_model(args, torch.device("cpu"))
    config = resolve_data(args, model)
    assert config["input_size"] == (3, 96, 96) and config["mean"] == pytest.approx((0.286,) * 3)
    assert config["crop_pct"] == 1.0 and args.in_chans == 3
    assert model.pretrained_cfg["input_size"] == (3, 96, 96)
    grey = timm.create_model(args.model, pretrained=True)
    images = torch.randn(2, 1, 96, 96)
    with torch.inference_mode():
        torch.testing.assert_close(
            model.eval().forward_features(images.expand(-1, 3, -1, -1)),
            grey.eval().forward_features(images),
            rtol=0.02,
            atol=0.02,
        )
    args = resolve_args("finetune", {"model": args.model, "num_classes": 3, "in_chans": 1, "img_size": 64})
    assert resolve_data(args, build_model(args, torch.device("cpu")))["input_size"] == (1, 64, 64)
