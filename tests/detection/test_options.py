"""Options and recipes of `timm-gcp detect train`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import timm
import yaml

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.options import OPTIONS, add_options, find_detection_recipe, resolve

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes" / "detection").glob("*.yaml"))
PAPER = [path for path in RECIPES if "rcnn_" in path.stem]
# Section 4.3 of the paper, and MMDetection's defaults that it names: flip, warm-up
SETTINGS = {
    "epochs": 12, "batch_size": 8, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4, "decay_milestones": [8, 11],
    "decay_rate": 0.1, "min_size": 800, "max_size": 1333, "hflip": 0.5, "warmup_iters": 500, "trainable_layers": 3,
}  # fmt: skip


def parse(*words):
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = vars(parser.parse_args(words))
    return resolve({key: value for key, value in given.items() if key in OPTIONS}, given["config"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_key_of_a_recipe_is_an_option(path):
    options = resolve({}, path.stem)
    for key, value in yaml.safe_load(path.read_text()).items():
        assert getattr(options, key) == value
    assert timm.is_model(options.model.split(".")[0])
    assert f"-c {path.stem} " in path.read_text()  # the header's command names the recipe


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_recipes_have_the_papers_settings(path):
    options = vars(resolve({}, path.stem))
    assert {key: options[key] for key in SETTINGS} == SETTINGS
    detector, backbone, method = path.stem.split("_", 2)
    # No weights of the last one are published: its classifier is trained first and named with --checkpoint.
    assert options["detector"] == detector and options["pretrained"] == (method != "gcp_ds")
    expected = {"gap": (f"{backbone}.tv_in1k", None)}
    expected |= dict.fromkeys(("gcp_d", "gcp_ds"), (f"{backbone}_gcp", "stride2"))
    assert (options["model"], options["last_stage"]) == expected.get(method, (f"{backbone}_gcp", "maxpool"))
    assert options["model"] in timm.list_models() + timm.list_pretrained()


def test_recipes_cover_tables_6_and_7():
    rows = {f"{d}rcnn_resnet{n}_{m}" for d in ("faster", "mask") for n in (50, 101) for m in ("gap", "gcp_d", "gcp_m")}
    assert rows <= {path.stem for path in PAPER}


def test_recipes_cover_table_8():
    rows = {f"fasterrcnn_resnet{n}_gcp_{m}" for n in (18, 50, 101) for m in ("d", "ds")}
    assert rows <= {path.stem for path in PAPER}


def test_defaults_recipe_and_command_line_in_that_order(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text("lr: 0.5\nepochs: 3\namp: true\n")
    assert parse().lr == 0.01
    options = parse("--epochs", "7", "-c", str(recipe), "--anchor-sizes", "1", "2", "3", "4", "5")
    assert (options.lr, options.epochs, options.amp, options.anchor_sizes) == (0.5, 7, True, [1, 2, 3, 4, 5])
    assert parse("-c", str(recipe), "--no-amp").amp is False
    assert parse("--last-stage", "maxpool").last_stage == "maxpool"


@pytest.mark.parametrize(
    "content, message",
    [
        ("learning_rate: 0.1", "has no key 'learning_rate'"),
        ("epoch: 1", "has no key 'epoch'. Did you mean 'epochs'"),
        ("epochs: two", "epochs must be int. Got 'two'"),
        ("epochs: 1.5", "epochs must be int. Got 1.5"),
        ("epochs: null", "epochs must be int. Got None"),
        ("epochs: true", "epochs must be int. Got True"),
        ("epochs: 0", "epochs must be at least 1. Got 0"),
        ("lr: [1, 2]", r"lr must be float. Got \[1, 2\]"),
        ("amp: 1", "amp must be bool. Got 1"),
        ("norm: gn", "norm must be one of frozen_bn, eval_bn, bn, sync_bn. Got 'gn'"),
        ("decay_milestones: [8, -1]", "decay_milestones must be at least 0. Got -1"),
    ],
)
def test_bad_recipes_are_named(content, message, tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"bad.yaml.*{message}"):
        resolve({}, path)


def test_a_null_stands_for_the_default_that_is_none(tmp_path):
    path = tmp_path / "null.yaml"
    path.write_text("last_stage: null\ncheckpoint: null\n")
    assert resolve({}, path).last_stage is None


def test_an_unknown_recipe_is_named():
    with pytest.raises(FileNotFoundError, match=r"fasterrcnn_resnet50_gcp_m.*Did you mean 'fasterrcnn_resnet50_gcp_m'"):
        find_detection_recipe("fasterrcnn_resnet50_gcpm")
    assert find_detection_recipe("fmnist.yaml").name == "fmnist.yaml"
