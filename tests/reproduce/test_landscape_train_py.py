"""Probes in the loop of train.py. `timm_gcp.train` stands for it: it calls task and schedule alike."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import torch.multiprocessing as mp
from probed_pair import RANGE, of_two
from timm.task import ClassificationTask
from toy_images import tiny_settings

from timm_gcp import train_hook
from timm_gcp.landscape import LandscapeCallback, read_records
from timm_gcp.reproduce.jobs import LANDSCAPE_VARIABLE
from timm_gcp.reproduce.landscape_train_py import Probes, from_environment, install
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """Undo what `install` does."""
    monkeypatch.setattr(ClassificationTask, "forward", ClassificationTask.forward)
    monkeypatch.setattr(train_hook, "create", train_hook.create)


def settings(images, tmp_path, name: str, **more: object):
    keys = {"sched": "gcp_resnet_adju", "epochs": 3, "batch_size": 4, "experiment": name, **more}
    return resolve_args(None, tiny_settings(images, tmp_path, **keys))


def test_they_are_those_of_timm_gcp_landscape_train(images, tmp_path, monkeypatch):
    """16 images in batches of 4: every second of 12 updates."""
    expected = LandscapeCallback(tmp_path / "expected.csv", *RANGE.values(), every=2)
    train(settings(images, tmp_path, "expected"), [expected])
    content = {"csv": str(tmp_path / "found.csv"), "every": 2, **RANGE}
    monkeypatch.setenv(LANDSCAPE_VARIABLE, json.dumps(content))
    monkeypatch.delitem(sys.modules, "timm_gcp.reproduce.landscape_hook", raising=False)
    importlib.import_module("timm_gcp.reproduce.landscape_hook")  # as `--device-modules` does
    run = train(settings(images, tmp_path, "found"))
    found = read_records(tmp_path / "found.csv")
    assert [record.step for record in found] == list(range(0, 12, 2))
    assert found == expected.records
    assert [row["train_loss"] for row in run.rows] == [
        float(line.split(",")[1]) for line in (tmp_path / "expected" / "summary.csv").read_text().splitlines()[1:]
    ]


@pytest.mark.parametrize("per_update", [False, True])
def test_a_resumed_run_counts_on(per_update, images, tmp_path):
    more = {"sched": "gcp_linear:epochs=9", "sched_on_updates": True} if per_update else {}
    install(Probes(str(tmp_path / "probes.csv"), 3, **RANGE))
    train(settings(images, tmp_path, "run", **{**more, "epochs": 2}))
    assert [record.step for record in read_records(tmp_path / "probes.csv")] == [0, 3, 6]
    ClassificationTask.forward = ClassificationTask.forward.__wrapped__  # a new process
    train_hook.create = train_hook.create.__wrapped__
    install(Probes(str(tmp_path / "probes.csv"), 3, **RANGE))
    last = str(tmp_path / "run" / "last.pth.tar")
    train(settings(images, tmp_path, "run", **{**more, "resume": last}))
    assert [record.step for record in read_records(tmp_path / "probes.csv")] == [0, 3, 6, 9]


def test_accumulated_batches_are_one_update(images, tmp_path):
    install(Probes(str(tmp_path / "probes.csv"), 1, **RANGE))
    train(settings(images, tmp_path, "run", epochs=1, grad_accum_steps=2))
    assert [record.step for record in read_records(tmp_path / "probes.csv")] == [0, 1]


def test_two_processes_probe_their_common_batch(tmp_path):
    mp.spawn(of_two, (str(tmp_path),), nprocs=2)
    assert read_records(tmp_path / "two.csv") == read_records(tmp_path / "one.csv")


def test_settings_come_from_the_environment(tmp_path, monkeypatch):
    content = {"csv": str(tmp_path / "a.csv"), "every": 4, **RANGE}
    monkeypatch.setenv(LANDSCAPE_VARIABLE, json.dumps(content))
    probes = from_environment()
    assert (probes.callback.every, probes.callback.low, probes.callback.points) == (4, 0.1, 3)


@pytest.mark.parametrize("text", [None, "", "every=3", "[]", '{"csv": "a.csv", "every": 3}'])
def test_settings_that_are_missing_or_bad_are_named(text, monkeypatch):
    monkeypatch.delenv(LANDSCAPE_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(LANDSCAPE_VARIABLE, text)
    with pytest.raises(ValueError, match="TIMM_GCP_LANDSCAPE must be JSON with the keys csv, every, low, high, points"):
        from_environment()
