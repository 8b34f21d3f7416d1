"""Which runs become weights of the package, and what their rows say of how they were trained."""

from __future__ import annotations

import sys
from pathlib import Path

import bundle_fmnist as tool
import pytest
import yaml

from timm_gcp.cli import main as timm_gcp
from timm_gcp.train.options import resolve_args
from timm_gcp.weights.bundled import ROWS


def run(folder: Path, epochs: int, **keys: object) -> Path:
    folder.mkdir()
    (folder / "args.yaml").write_text(yaml.safe_dump(vars(resolve_args("fmnist_adju", {"epochs": 2, **keys}))))
    (folder / "summary.csv").write_text("epoch,eval_top1,eval_top5\n" + "".join(f"{k},90,99\n" for k in range(epochs)))
    return folder


def test_a_run_says_in_what_it_differs_from_its_recipe(tmp_path):
    keys = tool.read_run(run(tmp_path / "a", 2, lr=0.125, img_size=96, device="cpu", output="runs", seed=3))
    assert tool.changes(keys, "fmnist_adju") == {"lr": 0.125, "img_size": 96}
    keys = tool.read_run(run(tmp_path / "b", 2, model="shufflenet_v2_x1_0"))
    assert tool.changes(keys, "fmnist_adju") == {}


@pytest.mark.parametrize("row", [row for row in ROWS if row.dataset == "fashion_mnist"], ids=lambda row: row.name)
def test_the_command_of_a_shipped_row_is_of_its_keys(row):
    keys = {"model": row.arch, "epochs": row.epochs, **yaml.safe_load("{" + row.keys + "}")}
    recipe = row.recipe.removesuffix(".yaml")
    assert row.study == tool.command(vars(resolve_args(recipe, keys)), recipe)
    assert yaml.safe_load("{" + row.keys + "}") == tool.changes(vars(resolve_args(recipe, keys)), recipe)
    assert vars(resolve_args(recipe, keys))["sched"] == row.schedule


def test_the_command_is_one_that_train_takes(tmp_path, capsys):
    """It knows its options, and stops at the data, which are not there."""
    words = ROWS[-1].study.replace("FMNIST", str(tmp_path / "nowhere")).split()[1:]
    assert timm_gcp([*words, "--device", "cpu"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_what_is_no_finished_run_is_named(tmp_path, monkeypatch, capsys):
    run(tmp_path / "short", 1)
    for name, text in (("short", "has 1 of 2 epochs: let it finish with --resume"), ("none", "is no run of timm-gcp")):
        monkeypatch.setattr(sys, "argv", ["x", "--data-dir", str(tmp_path), str(tmp_path / name)])
        assert tool.main() == 1
        assert text in capsys.readouterr().err
