"""Files as the package wrote them before checkpoints kept a model record: `tests/data/older`, two epochs on noise.

timm-gcp train --model resnet18_gcp --model-kwargs reduce_dim=4 "channels=(4,4,4,8)" --num-classes 2 --img-size 32 …
timm-gcp weights export resnet18_gcp last.pth.tar --to folder --model-kwargs reduce_dim=4 "channels=(4,4,4,8)"
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import timm
import torch
from toy_images import image_folder

from timm_gcp import cli
from timm_gcp.weights.rebuild import rebuild
from timm_gcp.weights.source import read_source

OLDER = Path(__file__).parents[1] / "data" / "older"
CHECKPOINT = OLDER / "last.pth.tar"
LOGITS = torch.tensor([[-0.13215923309326172, -0.038577377796173096]])  # as computed by what wrote the files
IMAGE = torch.linspace(-2, 2, 3 * 32 * 32).reshape(1, 3, 32, 32)


def test_a_weight_folder_loads():
    model = timm.create_model(f"local-dir:{OLDER / 'folder'}", pretrained=True).eval()
    assert torch.allclose(model(IMAGE), LOGITS, atol=1e-6)


def test_a_checkpoint_loads():
    rebuilt = rebuild(read_source(CHECKPOINT))
    assert torch.allclose(rebuilt.model(IMAGE), LOGITS, atol=1e-6)
    assert tuple(rebuilt.record.data_config["input_size"]) == (3, 32, 32)


def test_a_run_goes_on(tmp_path):
    data = image_folder(tmp_path / "data")
    words = ["train", "--model", "resnet18_gcp", "--model-kwargs", "reduce_dim=4", "channels=(4,4,4,8)"]
    words += ["--num-classes", "2", "--img-size", "32", "-b", "8", "-j", "0", "--opt", "momentum", "--sched", "step"]
    words += ["--warmup-epochs", "0", "--lr", "0.05", "--epochs", "3", "--device", "cpu", "--data-dir", str(data)]
    assert cli.main([*words, "--resume", str(CHECKPOINT), "--output", str(tmp_path), "--experiment", "run"]) == 0
    with (tmp_path / "run" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["2"]
    assert float(rows[0]["train_loss"]) == pytest.approx(0.59, abs=0.1)  # from 0.70 and 0.64 before
