from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import synthetic
import timm
import torch
import yaml
from timm.models._registry import get_pretrained_cfg

import timm_gcp  # noqa: F401
from timm_gcp.inference.cost import count_macs
from timm_gcp.schedules.spec import schedule_names
from timm_gcp.weights import catalog as table
from timm_gcp.weights.architectures import STOCK
from timm_gcp.weights.authors import PAPER
from timm_gcp.weights.timm_cfgs import default_cfgs, folder_cfg

ROOT = Path(__file__).parents[2]
RELEASED = {row["name"]: row for row in json.loads((synthetic.HERE / "checkpoints.json").read_text())}
OPTIONAL = {"licence", "sha256"}


def test_every_field_of_every_entry_is_filled() -> None:
    assert len(table.WEIGHTS) == 40
    for entry in table.WEIGHTS.values():
        for field in dataclasses.fields(entry):
            assert getattr(entry, field.name) or field.name in OPTIONAL, f"{entry.name} lacks {field.name}"
        for field in dataclasses.fields(entry.architecture):
            value = getattr(entry.architecture, field.name)
            assert value or (field.name == "dimension" and "gcp" not in entry.arch), f"{entry.arch} lacks {field.name}"


def test_the_table_is_the_release() -> None:
    assert {entry.source_name for entry in table.WEIGHTS.values()} == RELEASED.keys()
    pooling = Counter("gcp" if entry.architecture.dimension else "gap" for entry in table.WEIGHTS.values())
    assert pooling == {"gcp": 22, "gap": 18}
    for entry in table.WEIGHTS.values():
        row = RELEASED[entry.source_name]
        release = entry.figures[0]
        assert (release.top1, release.top5, release.origin) == (row["top1"], row["top5"], "the authors' release")
        assert entry.google_drive_id == row["google_drive_id"]
        assert entry.architecture.authors == row["authors_arch"]
        assert entry.architecture.dimension == row["dimension"]
        assert entry.tag == {"LRnorm": "norm_in1k", "LRfast": "fast_in1k", "LRadju": "adju_in1k"}[row["schedule"]]
        assert entry.licence is None and entry.licence_note == "The authors' repository states no licence."


def test_figures_of_the_paper_stand_beside_those_of_the_release() -> None:
    for source, (top1, top5, place) in PAPER.items():
        entry = next(entry for entry in table.WEIGHTS.values() if entry.source_name == source)
        assert (entry.figures[1].top1, entry.figures[1].top5) == (top1, top5) and place in entry.figures[1].origin
        assert abs(entry.figures[0].top1 - top1) < 0.3 and abs(entry.figures[0].top5 - top5) < 0.4, source


@pytest.mark.parametrize("name", list(table.ARCHITECTURES))
def test_parameters_cost_and_sizes_are_recomputed(name: str) -> None:
    facts = table.ARCHITECTURES[name]
    with torch.device("meta"):
        model = timm.create_model(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == facts.params
    maps: list[torch.Size] = []
    model.global_pool.register_forward_pre_hook(lambda module, args: maps.append(args[0].shape))
    assert count_macs(model, (3, 224, 224)) / 1e9 == pytest.approx(facts.gmacs, abs=0.00051)
    assert tuple(maps[0][2:]) == facts.pool_size
    if facts.dimension:
        assert model.num_features and model.head_hidden_size == facts.dimension * (facts.dimension + 1) // 2


@pytest.mark.parametrize("name", table.OURS)
def test_timm_knows_every_tag_and_its_preprocessing(name: str) -> None:
    tags = [entry.tag for entry in table.WEIGHTS.values() if entry.arch == name]
    assert get_pretrained_cfg(name).tag == "norm_in1k"
    for tag in tags:
        cfg = get_pretrained_cfg(f"{name}.{tag}")
        config = timm.data.resolve_data_config(pretrained_cfg=cfg.to_dict())
        assert config["input_size"] == (3, 224, 224) and config["interpolation"] == "bilinear"
        assert config["crop_pct"] == 0.875 and config["mean"] == table.MEAN and config["std"] == table.STD
        assert cfg.num_classes == 1000 and not cfg.has_weights, "nothing is claimed to be downloadable that is not"
    with torch.device("meta"):
        model = timm.create_model(name)
    assert isinstance(model.get_submodule(model.pretrained_cfg["first_conv"]), torch.nn.Conv2d)
    assert model.get_submodule(model.pretrained_cfg["classifier"]) is model.get_classifier()


def test_recipes_and_schedules_exist() -> None:
    for entry in table.WEIGHTS.values():
        recipe = yaml.safe_load((ROOT / "recipes" / entry.recipe).read_text())
        assert entry.schedule == recipe["sched"] and entry.schedule in schedule_names(), entry.schedule


def test_stock_architectures_are_timms_own() -> None:
    assert all(timm.is_model(name) for name in STOCK)
    assert not set(STOCK) & set(default_cfgs())


def test_hub_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMM_GCP_HUB_ORG", raising=False)
    assert table.hub_id("a.b") == f"{table.HUB_ORG}/a.b"
    monkeypatch.setenv("TIMM_GCP_HUB_ORG", "mine")
    assert table.hub_id("a.b") == "mine/a.b"
    assert table.hub_id("a.b", "theirs") == "theirs/a.b"


def test_published_entries_name_their_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ON_THE_HUB", frozenset({"resnet18_gcp.fast_in1k"}))
    cfgs = default_cfgs()["resnet18_gcp"]
    assert cfgs.cfgs["fast_in1k"].hf_hub_id == "timm-gcp/resnet18_gcp.fast_in1k"
    assert cfgs.tags[0] == "norm_in1k" and cfgs.cfgs["norm_in1k"].hf_hub_id is None


def test_matching() -> None:
    assert table.matching("resnet18_gcp") == [f"resnet18_gcp.{s}_in1k" for s in ("norm", "fast", "adju")]
    assert len(table.matching("*.fast_in1k")) == 12
    with pytest.raises(ValueError, match=r"No weights match 'vgg'. Known: mobilenetv2_100.norm_in1k, "):
        table.matching("vgg")


def test_bundled_weights_become_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "resnet18_gcp.tiny_fmnist"
    folder.mkdir()
    labels = [f"class {i}" for i in range(10)]
    cfg = {"input_size": [1, 28, 28], "mean": [0.3], "std": [0.35], "num_classes": 10, "first_conv": "conv1",
           "classifier": "fc", "interpolation": "bilinear", "crop_pct": 1.0}  # fmt: skip
    config = {"architecture": "resnet18_gcp", "num_classes": 10, "label_names": labels, "pretrained_cfg": cfg}
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(table, "BUNDLED", tmp_path)
    assert table.bundled_names() == ["resnet18_gcp.tiny_fmnist"]
    cfgs = default_cfgs()["resnet18_gcp"]
    assert cfgs.tags[0] == "norm_in1k", "the default stays"
    bundled = cfgs.cfgs["tiny_fmnist"]
    assert bundled.num_classes == 10 and bundled.input_size == (1, 28, 28) and list(bundled.label_names) == labels
    assert bundled.file == str(folder / "model.safetensors") and bundled.source is None
    with pytest.raises(FileNotFoundError, match=r"config\.json|Config file not found"):
        folder_cfg(tmp_path)
    monkeypatch.setattr(table, "BUNDLED", tmp_path / "none")
    assert table.bundled_names() == []


def test_stored_weights_are_listed_as_pretrained(tmp_path: Path) -> None:
    """In a fresh process: stored weights, of a new tag and of the default one, and a broken folder beside them."""
    for name in ("resnet18_gcp.mine", "resnet34_gcp.norm_in1k", "resnet50_gcp.broken", "resnet50_gcp.half", "odd"):
        folder = tmp_path / "weights" / name
        folder.mkdir(parents=True)
        config = {"architecture": name.split(".")[0], "num_classes": 7, "pretrained_cfg": {"num_classes": 7}}
        (folder / "config.json").write_text("{" if "broken" in name else json.dumps(config))
        if "half" not in name:
            (folder / "model.safetensors").touch()
    code = (
        "import timm, timm_gcp; print(*timm.list_models('resnet*_gcp*', pretrained=True)); "
        "print(*timm.list_pretrained('resnet*_gcp*')); print(timm.create_model('resnet18_gcp.mine').num_classes)"
    )
    environment = {**os.environ, "TIMM_GCP_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    models, pretrained, classes = done.stdout.splitlines()
    assert models.split() == pretrained.split() == ["resnet18_gcp.mine", "resnet34_gcp.norm_in1k"]
    assert classes == "7"
