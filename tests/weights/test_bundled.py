"""The weights inside the package: complete, described truly, and as good as their table says."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.utils.misc import natural_key

from timm_gcp.cli import main
from timm_gcp.common.files import file_sha256
from timm_gcp.common.paired import Pair
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.datasets.fashion_mnist import DEBIAN_FOLDER, FASHION_MNIST_CLASSES
from timm_gcp.weights import cards
from timm_gcp.weights import catalog as table
from timm_gcp.weights.bundled import PAIRS
from timm_gcp.weights.listing import rows
from timm_gcp.weights.named import create, kept_folder

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
NAMES = list(table.BUNDLED_WEIGHTS)
GREY = [name for name in NAMES if name.endswith("fmnist")]
PHOTOS = [name for name in NAMES if name.endswith("caltech101")]
OPTIONAL = ("seed", "keys", "mean_per_class", "start", "recipe", "schedule", "stages")
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="samples/ comes with a checkout, not with the wheel")


@cache
def loaded(name: str) -> Any:
    return create(name, True, {}).eval()


def configuration(name: str) -> dict[str, Any]:
    return json.loads((table.BUNDLED / name / "config.json").read_text())


def test_table_and_folders_name_the_same_weights():
    assert set(NAMES) == set(table.bundled_names()) == {name for pair in PAIRS for name in (pair.first, pair.second)}
    assert len(GREY) == len(PHOTOS) == 2
    assert sum(path.stat().st_size for path in table.BUNDLED.rglob("*") if path.is_file()) <= 25e6


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_complete_and_its_file_is_the_one_it_describes(name):
    entry, folder = table.BUNDLED_WEIGHTS[name], table.BUNDLED / name
    assert all(getattr(entry, field.name) for field in dataclasses.fields(entry) if field.name not in OPTIONAL)
    assert entry.name == name and file_sha256(folder / "model.safetensors") == entry.sha256
    tensors = load_file(folder / "model.safetensors")
    dtypes = {str(value.dtype).removeprefix("torch.") for key, value in tensors.items() if key.endswith("weight")}
    assert dtypes == {entry.dtype}
    assert bool(entry.stages) != bool(entry.recipe) == bool(entry.schedule)
    assert not entry.recipe or read_recipe(find_recipe(entry.recipe))["epochs"] == entry.epochs
    assert (folder / "README.md").read_text(encoding="utf-8") == cards.card(name)
    (row,) = rows(name)
    assert row["state"] == "bundled" and row["figures"][0]["top1"] == entry.top1 and row["licence"] == "Apache-2.0"
    assert configuration(name)["pretrained_cfg"]["license"] == "apache-2.0"


@pytest.mark.parametrize("name", GREY)
def test_fashion_mnist_model_is_the_one_that_was_trained(name):
    config = timm.data.resolve_model_data_config(loaded(name))
    assert configuration(name)["label_names"] == list(FASHION_MNIST_CLASSES)
    assert config["input_size"] == (1, 96, 96) and config["crop_pct"] == 1.0 and len(config["mean"]) == 1
    images = torch.zeros(2, 1, 96, 96)
    features = loaded(name).forward_features(images)
    assert features.shape[2:] == (6, 6), "the map that it was trained with"
    untrained = timm.create_model(name).eval()
    assert untrained.forward_features(images).shape == features.shape
    assert untrained.num_classes == 10 and timm.create_model(name, num_classes=3).num_classes == 3
    assert timm.create_model(name, pretrained=True, num_classes=3)(images).shape == (2, 3)


@pytest.mark.parametrize("name", PHOTOS)
def test_caltech_model_is_the_one_that_was_trained(name):
    names, config = configuration(name)["label_names"], timm.data.resolve_model_data_config(loaded(name))
    assert len(names) == loaded(name).num_classes == 101 and names == sorted(names, key=natural_key)
    assert {"Faces", "cup", "pagoda"} < set(names) and "BACKGROUND_Google" not in names
    assert [*config["mean"], *config["std"], config["crop_pct"]] == [*[0.5] * 6, 0.875]
    assert tuple(config["input_size"]) == tuple(configuration(name)["pretrained_cfg"]["input_size"])
    assert loaded(name).conv_stem.padding == (0, 0), "padded by its size, as the start weights were trained"


def test_weights_of_timms_own_model_are_found_by_name():
    name = "mobilenetv2_100.caltech101"
    assert kept_folder(name) == f"local-dir:{table.BUNDLED / name}"
    for other in ("mobilenetv2_100", "resnet18.a1_in1k", "mobilenetv2_100_gcp_d128.caltech101", "local-dir:a.b"):
        assert kept_folder(other) == other
    untrained = create(name, False, {"num_classes": 3})
    assert untrained.num_classes == 3 and untrained.conv_stem.padding == (0, 0)
    with pytest.raises(RuntimeError, match=r"mobilenetv2_100\.nothing: Invalid pretrained tag"):
        create("mobilenetv2_100.nothing", True, {})


@pytest.mark.parametrize("name", NAMES)
def test_number_of_parameters(name):
    count = sum(parameter.numel() for parameter in loaded(name).parameters())
    assert count == table.BUNDLED_WEIGHTS[name].params


@needs_samples
@pytest.mark.parametrize("name", GREY)
def test_fashion_mnist_samples_are_recognised(name, capsys):
    assert main(["predict", str(SAMPLES / "fashion_mnist"), "--model", name, "--json"]) == 0
    found = {Path(entry["image"]).stem[:-5]: entry["top"][0]["name"] for entry in json.loads(capsys.readouterr().out)}
    names = {"t_shirt_top": "T-shirt/top", "ankle_boot": "Ankle boot"}
    assert len(found) == 6
    assert found == {stem: names.get(stem, stem.capitalize()) for stem in found}


@needs_samples
@pytest.mark.parametrize("name", PHOTOS)
def test_photos_are_classified_as_when_the_weights_were_bundled(name, capsys):
    recorded = json.loads((ROOT / "tests" / "data" / "bundled_photos.json").read_text())[name]
    assert main(["predict", str(SAMPLES / "photos"), "--model", name, "--device", "cpu", "--json"]) == 0
    found = {
        Path(entry["image"]).name: {top["name"]: top["probability"] for top in entry["top"]}
        for entry in json.loads(capsys.readouterr().out)
    }
    assert set(found) == set(recorded) and len(found) >= 6
    for photo, top in recorded.items():
        assert found[photo] == pytest.approx(top, abs=0.005), photo
    assert next(iter(found["coffee.jpg"])) == "cup"


def test_attribution_of_every_photo():
    text = (SAMPLES / "photos" / "README.md").read_text(encoding="utf-8")
    photos = [path.name for path in (SAMPLES / "photos").glob("*.jpg")]
    assert len(photos) >= 6 and all(f"`{name}`" in text for name in photos)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.first)
def test_pair_agrees_with_the_accuracies_and_its_cards_tell_of_it(pair):
    first, second = (table.BUNDLED_WEIGHTS[name] for name in (pair.first, pair.second))
    gain = 100 * (pair.only_first - pair.only_second) / pair.images
    assert gain == pytest.approx(first.top1 - second.top1, abs=0.011)
    for name in NAMES:
        told = f"alone classifies {pair.only_first} correctly, the second alone {pair.only_second} " in cards.card(name)
        assert told == (name in (pair.first, pair.second))
        assert (pair.unequal in cards.card(name)) == told


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.first)
def test_pages_state_the_same(pair):
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/weights.md"))
    p_value = Pair(pair.only_first, pair.only_second).p_value
    for name, alone in ((pair.first, pair.only_first), (pair.second, pair.only_second)):
        assert f" {table.BUNDLED_WEIGHTS[name].top1:.2f} | {alone} of {pair.images:,} | {p_value:.2g} |" in readme
    side = configuration(pair.first)["pretrained_cfg"]["input_size"][-1]
    assert re.search(rf"\| `{pair.first}`, .* (RGB|grey), {side}×{side} \|", page)


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="needs the data set: apt-get install dataset-fashion-mnist")
def test_accuracy_is_what_the_table_says(tmp_path, capsys):
    """Of the Fashion-MNIST pair, on the whole test set; `tools/release/bundle_caltech.py` measures the other."""
    pair = next(pair for pair in PAIRS if pair.first in GREY)
    assert main(["data", "fashion-mnist", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    command = ["validate", "--model", pair.first, "--pretrained", "--data-dir", str(tmp_path), "--json"]
    assert main([*command, "--compare", pair.second, "--dataset", "torch/fashion_mnist"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == pair.images
    for name, figures in ((pair.first, report), (pair.second, report["compare"])):
        entry = table.BUNDLED_WEIGHTS[name]
        assert figures["top1"] == pytest.approx(entry.top1, abs=0.025)
        assert figures["top5"] == pytest.approx(entry.top5, abs=0.025)
    counted = [report["compare"]["only_first"], report["compare"]["only_second"]]
    assert counted == pytest.approx([pair.only_first, pair.only_second], abs=3)
