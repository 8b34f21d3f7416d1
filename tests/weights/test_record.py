"""The model record: what it takes from a checkpoint, and what it refuses to take."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import ARCH

import timm_gcp  # noqa: F401  (registers the models)
from timm_gcp.weights import record as records
from timm_gcp.weights import record_sources
from timm_gcp.weights.classes import classes_of, names_in_order
from timm_gcp.weights.data_config import read_data_config
from timm_gcp.weights.rebuild import rebuild
from timm_gcp.weights.source import Source, find_checkpoint, read_source

FULL: dict[str, Any] = {
    "architecture": ARCH,
    "model_args": {"num_classes": 2, "in_chans": 1, "reduce_dim": [16, 8]},
    "data_config": {"input_size": [1, 32, 32], "mean": [0.4], "std": [0.2], "interpolation": "bilinear",
                    "crop_pct": 0.9, "crop_mode": "center"},
    "label_names": ["a", "b"],
    "class_map": {"a": 0, "b": 1},
    "recipe": {"epochs": 3, "secret": "dropped"},
    "metrics": {"top1": 90.0, "broken": float("nan")},
}  # fmt: skip


def test_plain_values_there_and_back():
    record = records.checked_record(FULL, "x", "here")
    assert record.data_config["input_size"] == (1, 32, 32) and record.label_names == ("a", "b") and record.full
    assert record.recipe == {"epochs": 3} and record.metrics == {"top1": 90.0}
    assert records.checked_record(json.loads(json.dumps(record.plain())), "x", "here") == record
    args = record_sources.with_record(argparse.Namespace(model=ARCH), record)
    assert record_sources.record_from_args(vars(args), "x").model_args == record.model_args


def test_options_of_the_pooling_there_and_back():
    args = {"normalization": "isice", "pool_kwargs": {"steps": 3, "sparsity": 0.1, "concat_average": True}}
    record = records.checked_record({**FULL, "model_args": args}, "x", "here")
    assert record.model_args == args
    assert records.checked_record(json.loads(json.dumps(record.plain())), "x", "here") == record


def test_arguments_of_a_run_without_a_record():
    args = {"model": ARCH, "num_classes": 4, "gp": "avg", "bn_eps": 0.5, "input_size": [1, 64, 48], "mean": [0.1],
            "model_kwargs": {"reduce_dim": 8}, "data_dir": "some/birds", "epochs": 3, "resume": "secret"}  # fmt: skip
    record = record_sources.record_from_args(args, "x")
    assert record.model_args == {"num_classes": 4, "global_pool": "avg", "bn_eps": 0.5, "in_chans": 1, "reduce_dim": 8}
    assert record.data_config == {"input_size": (1, 64, 48), "mean": (0.1,)} and not record.full
    assert record.data_folder == "birds" and record.recipe == {"epochs": 3}
    assert record_sources.record_from_args({"epochs": 3}, "x") == records.Record()
    with pytest.raises(ValueError, match="x: model_kwargs must be a mapping, got 'a=1'"):
        record_sources.record_from_args({"model": ARCH, "model_kwargs": "a=1"}, "x")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "hf-hub:evil/model"}, "the model must be a plain name of timm's"),
        ({"architecture": None}, "the model must be a plain name of timm's"),
        ({"architecture": "no_such_net"}, "the model must be one that timm knows"),
        ({"model_args": [1]}, "model_args must be a mapping"),
        ({"model_args": {"checkpoint_path": "x"}}, "each model argument must be a keyword of the network itself"),
        ({"model_args": {"pretrained_cfg": {}}}, "each model argument must be a keyword of the network itself"),
        ({"model_args": {"act_layer": {"a": 1}}}, "act_layer must be a plain value"),
        ({"model_args": {"num_classes": 10**9}}, "num_classes must be a whole number from 0 to 1e"),
        ({"model_args": {"in_chans": "3"}}, "in_chans must be a whole number from 1 to 1000"),
        ({"model_args": {"pool_kwargs": "steps"}}, "pool_kwargs must be a mapping of names to numbers, true or false"),
        ({"model_args": {"pool_kwargs": {"steps": [1]}}}, "pool_kwargs must be a mapping of names to numbers"),
        ({"model_args": {"pool_kwargs": {"a b": 1}}}, "pool_kwargs must be a mapping of names to numbers"),
        ({"label_names": [1, 2]}, "label_names must be a list of strings"),
        ({"label_names": ["a"]}, "label_names must be 2 names, one a class"),
        ({"class_map": {"a": "0"}}, "class_map must be a mapping of names to whole numbers"),
        ({"label_descriptions": ["a"]}, "label_descriptions must be a mapping of names to texts"),
        ({"data_config": {"input_size": [3, 32]}}, "input_size must be channels, height and width"),
        ({"data_config": {"img_size": 0}}, "img_size must be a whole number of pixels"),
        ({"data_config": {"mean": ["x"]}}, "mean must be numbers, one per channel"),
        ({"data_config": {"std": [0.0]}}, "std must be numbers, one per channel and above 0"),
        ({"data_config": {"crop_pct": -1}}, "crop_pct must be a number above 0"),
        ({"data_config": {"interpolation": "guess"}}, "interpolation must be one of nearest"),
        ({"data_config": {"crop_mode": "guess"}}, "crop_mode must be one of center"),
        ({"data_config": {"colour": 1}}, "a data configuration has no key 'colour'"),
    ],
)
def test_senseless_values_are_refused(changed, message):
    with pytest.raises(ValueError, match=f"x: {message}"):
        records.checked_record({**FULL, **changed}, "x", "here")


def test_data_configuration_files(tmp_path: Path):
    path = tmp_path / "data.json"
    path.write_text('{"mean": [0.5], "img_size": 64}')
    assert read_data_config(path) == {"mean": (0.5,), "img_size": 64}
    with pytest.raises(FileNotFoundError, match="no data configuration at"):
        read_data_config(tmp_path / "none.yaml")
    path.write_text("- 1")
    with pytest.raises(ValueError, match=r"must map input_size, mean, .* got a list"):
        read_data_config(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is neither JSON nor YAML"):
        read_data_config(path)


def test_classes_in_order():
    assert classes_of(SimpleNamespace(reader=SimpleNamespace(class_to_idx={"a": 1}))) == {"a": 1}
    assert classes_of(SimpleNamespace(class_to_idx={"b": 0})) == {"b": 0} and classes_of(object()) == {}
    assert names_in_order({"b": 0, "a": 2}, 3) == ("b", "class 1", "a")
    assert names_in_order({"a": 0, "b": 0}, 2) is None and names_in_order({"a": 5}, 2) is None
    assert names_in_order({}, 2) is None


def test_a_run_by_its_folder(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"holds no checkpoint: none of model\.safetensors, model_best"):
        find_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        find_checkpoint(tmp_path / "none.pth")
    for name in ("last.pth.tar", "model_best.pth.tar"):
        torch.save({"state_dict": {"a": torch.ones(1)}, "epoch": 4}, tmp_path / name)
        assert find_checkpoint(tmp_path).name == name
    assert read_source(tmp_path).epoch == 4 and not read_source(tmp_path).record.origin


def test_args_yaml_beside_a_checkpoint(tmp_path: Path):
    torch.save({"state_dict": {"a": torch.ones(1)}}, tmp_path / "last.pth.tar")
    (tmp_path / "args.yaml").write_text(f"model: {ARCH}\nnum_classes: 3\nimg_size: 48\n")
    record = read_source(tmp_path).record
    assert record.model_args == {"num_classes": 3} and record.data_config == {"img_size": 48}
    (tmp_path / "args.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"args\.yaml is not a YAML file"):
        read_source(tmp_path)


def test_configuration_beside_safetensors(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"architecture": 1}')
    with pytest.raises(ValueError, match=r"config\.json is not the configuration of a timm model"):
        record_sources.record_from_folder(tmp_path)


def test_what_cannot_be_rebuilt():
    source = Source(Path("x.pth"), {"a": torch.ones(1)}, records.Record())
    with pytest.raises(ValueError, match=r"which model\? Give --model NAME \(x\.pth names none\)"):
        rebuild(source)
    with pytest.raises(ValueError, match=r"can't be built with .*no_such_argument"):
        rebuild(source, ARCH, {"no_such_argument": 1})
    with pytest.raises(ValueError, match="`triangle_order` must be one of auto, row, column"):
        rebuild(source, ARCH, triangle_order="diagonal")


def test_timm_that_notes_no_arguments(monkeypatch: pytest.MonkeyPatch):
    """train.py of an older checkout runs with its own timm: the run's settings say what was asked for."""
    monkeypatch.delattr("timm.models.get_model_args")
    model = SimpleNamespace(num_classes=3, pretrained_cfg={"architecture": ARCH})
    args = argparse.Namespace(
        model_kwargs={"reduce_dim": 8}, gp="gcp", in_chans=None, input_size=[1, 32, 32], bn_eps=0.5
    )
    found = record_sources.record_of(model, FULL["data_config"], args, {"a": 0, "b": 1, "c": 2})
    assert found.model_args == {
        "reduce_dim": 8, "global_pool": "gcp", "in_chans": 1, "bn_eps": 0.5, "num_classes": 3,
    }  # fmt: skip
    assert found.label_names == ("a", "b", "c")
