"""`timm-gcp init`: a file of start weights that train.py's --initial-checkpoint takes, and what it refuses."""

from __future__ import annotations

import timm
import torch
from safetensors.torch import load_file
from timm.models import load_checkpoint
from toy_images import image_folder

from timm_gcp.cli import main

MODEL = ["--model", "gcp:test_resnet", "--img-size", "32", "--workers", "0"]


def init(tmp_path, *options):
    given = ["--data-dir", str(tmp_path / "photos"), "--to", str(tmp_path / "start.safetensors")]
    return main(["init", *MODEL, *given, *options])


def test_start_weights(tmp_path, capsys):
    image_folder(tmp_path / "photos", train=8, size=40)
    kwargs = ["--model-kwargs", "reduce_dim=4", "head_act_layer=identity"]
    assert init(tmp_path, *kwargs) == 0
    said = capsys.readouterr().out
    assert "gcp:test_resnet, 2 classes; " in said and "to 4, which hold " in said and "of 16 images" in said
    assert "--initial-checkpoint" in said and "behind the reduction" not in said
    model = timm.create_model(
        "gcp_swap", backbone="test_resnet", num_classes=2, reduce_dim=4, head_act_layer="identity"
    )
    load_checkpoint(model, str(tmp_path / "start.safetensors"), strict=True)
    weight = model.global_pool.reduction[0].conv.weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, torch.eye(4), atol=1e-4, rtol=0)
    first = load_file(tmp_path / "start.safetensors")
    assert init(tmp_path, *kwargs) == 0
    again = load_file(tmp_path / "start.safetensors")
    assert all(torch.equal(value, again[key]) for key, value in first.items())  # the seed decides
    capsys.readouterr()
    assert init(tmp_path, "--model-kwargs", "reduce_dim=4", "--num-images", "10", "--num-classes", "5") == 0
    said = capsys.readouterr().out
    assert "5 classes" in said and "of 10 images" in said and "The ReLU behind the reduction cuts off" in said


def test_refusals(tmp_path, capsys):
    assert init(tmp_path) == 1
    assert "photos" in capsys.readouterr().err
    image_folder(tmp_path / "photos", train=4, size=40)
    assert init(tmp_path, "--to", str(tmp_path / "start.pth")) == 1
    assert "must end in .safetensors" in capsys.readouterr().err
    assert init(tmp_path, "--model", "resnet18") == 1
    assert "has 0 GlobalCovPool2d" in capsys.readouterr().err
    assert not list(tmp_path.glob("start*"))
