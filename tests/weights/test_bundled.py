"""The weights inside the package: complete, described truly, and as good as their table says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from timm_gcp.cli import main
from timm_gcp.common.files import file_sha256
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.datasets.fashion_mnist import DEBIAN_FOLDER, FASHION_MNIST_CLASSES
from timm_gcp.weights import cards
from timm_gcp.weights import catalog as table
from timm_gcp.weights.bundled import PAIR
from timm_gcp.weights.listing import rows

SAMPLES = Path(__file__).parents[2] / "samples" / "fashion_mnist"
NAMES = list(table.BUNDLED_WEIGHTS)


def test_table_and_folders_name_the_same_weights():
    assert set(NAMES) == set(table.bundled_names())
    assert {"shufflenet_v2_x1_0_gcp.adju_fmnist", "shufflenet_v2_x1_0.adju_fmnist"} <= set(NAMES)
    assert sum(path.stat().st_size for path in table.BUNDLED.rglob("*") if path.is_file()) <= 25e6


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_complete_and_its_file_is_the_one_it_describes(name):
    entry, folder = table.BUNDLED_WEIGHTS[name], table.BUNDLED / name
    assert all(getattr(entry, field.name) for field in dataclasses.fields(entry) if field.name not in ("seed", "keys"))
    assert entry.name == name and file_sha256(folder / "model.safetensors") == entry.sha256
    tensors = load_file(folder / "model.safetensors")
    dtypes = {str(value.dtype).removeprefix("torch.") for key, value in tensors.items() if key.endswith("weight")}
    assert dtypes == {entry.dtype}
    recipe = read_recipe(find_recipe(entry.recipe))
    assert recipe["epochs"] == entry.epochs and "fmnist" in entry.tag
    config = json.loads((folder / "config.json").read_text())
    assert config["label_names"] == list(FASHION_MNIST_CLASSES) and config["num_classes"] == 10
    assert (folder / "README.md").read_text(encoding="utf-8") == cards.card(name)
    (row,) = rows(name)
    assert row["state"] == "bundled" and row["figures"][0]["top1"] == entry.top1 and row["licence"] == "Apache-2.0"


@pytest.mark.parametrize("name", NAMES)
def test_model_is_the_one_that_was_trained(name):
    model = timm.create_model(name, pretrained=True)
    assert sum(parameter.numel() for parameter in model.parameters()) == table.BUNDLED_WEIGHTS[name].params
    side = 96 if "img_size: 96" in table.BUNDLED_WEIGHTS[name].keys else 64
    config = timm.data.resolve_model_data_config(model)
    assert config["input_size"] == (1, side, side) and config["crop_pct"] == 1.0 and len(config["mean"]) == 1
    images = torch.zeros(2, 1, side, side)
    features = model.eval().forward_features(images)
    assert features.shape[2:] == (side // 16, side // 16), "the map that it was trained with"
    untrained = timm.create_model(name).eval()
    assert untrained.forward_features(images).shape == features.shape
    assert untrained.num_classes == 10 and timm.create_model(name, num_classes=3).num_classes == 3
    assert timm.create_model(name, pretrained=True, num_classes=3)(images).shape == (2, 3)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="samples/ comes with a checkout, not with the wheel")
@pytest.mark.parametrize("name", NAMES)
def test_samples_are_recognised(name, capsys):
    assert main(["predict", str(SAMPLES), "--model", name, "--json"]) == 0
    found = {Path(entry["image"]).stem[:-5]: entry["top"][0]["name"] for entry in json.loads(capsys.readouterr().out)}
    names = {"t_shirt_top": "T-shirt/top", "ankle_boot": "Ankle boot"}
    assert len(found) == 6
    assert found == {stem: names.get(stem, stem.capitalize()) for stem in found}


def test_pair_agrees_with_the_accuracies_and_its_cards_tell_of_it():
    first, second = (table.BUNDLED_WEIGHTS[name] for name in (PAIR.first, PAIR.second))
    assert PAIR.only_first - PAIR.only_second == round(100 * (first.top1 - second.top1))
    assert "lr: 0.125" in first.keys and "lr" not in second.keys and PAIR.unequal.startswith("the learning rate, 0.125")
    for name in NAMES:
        told = "alone classifies 213 correctly, the second alone 185" in cards.card(name) and "p = 0.18" in cards.card(
            name
        )
        assert told == (name in (PAIR.first, PAIR.second))


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="needs the data set: apt-get install dataset-fashion-mnist")
@pytest.mark.parametrize("name", [name for name in NAMES if name != PAIR.second])
def test_accuracy_is_what_the_table_says(name, tmp_path, capsys):
    assert main(["data", "fashion-mnist", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    command = ["validate", "--model", name, "--pretrained", "--data-dir", str(tmp_path), "--json"]
    command += ["--compare", PAIR.second] if name == PAIR.first else []
    assert main([*command, "--dataset", "torch/fashion_mnist"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == 10000
    measured = {name: report, **({PAIR.second: report["compare"]} if "compare" in report else {})}
    for known, figures in measured.items():
        entry = table.BUNDLED_WEIGHTS[known]
        assert figures["top1"] == pytest.approx(entry.top1, abs=0.025)
        assert figures["top5"] == pytest.approx(entry.top5, abs=0.025)
    if name == PAIR.first:
        counted = [report["compare"]["only_first"], report["compare"]["only_second"]]
        assert counted == pytest.approx([PAIR.only_first, PAIR.only_second], abs=3)
