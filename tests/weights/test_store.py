from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny
import torch
from safetensors.torch import load_file, save_file

from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.importing import import_file
from timm_gcp.weights.resolve import weight_source


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIMM_GCP_HUB_ORG", raising=False)


def imported(tmp_path: Path, name: str = tiny.NAME, **kwargs: Any) -> Path:
    return import_file(tiny.checkpoint(tmp_path / "x.pth"), name, model_args=tiny.ARGS, **kwargs).folder


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert store.home() == tmp_path / "home"
    monkeypatch.delenv("TIMM_GCP_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert store.home() == tmp_path / "cache" / "timm_gcp"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.home() == Path.home() / ".cache" / "timm_gcp"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "appdata"))
    assert store.home() == tmp_path / "appdata" / "timm_gcp"


@pytest.mark.parametrize("name", ["resnet18_gcp", "a.", "../x.y", "a.b/c", "a..b", ".a", ""])
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"Weights are named ARCH\.TAG"):
        store.stored_folder(name)


def test_import_find_and_load(tmp_path: Path) -> None:
    assert store.find(tiny.NAME) is None and store.stored_names() == []
    folder = imported(tmp_path)
    assert (
        store.find(tiny.NAME) == folder and store.stored_names() == [tiny.NAME] and store.state(tiny.NAME) == "stored"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "a store may be shared"
    expected = tiny.logits(tiny.model())
    for name in (tiny.NAME, f"local-dir:{folder}"):
        assert torch.equal(tiny.logits(timm.create_model(name, pretrained=True)), expected)


def test_stored_weights_adapt_as_timms_own_do(tmp_path: Path) -> None:
    imported(tmp_path)
    source = tiny.model().state_dict()
    model = timm.create_model(tiny.NAME, pretrained=True, num_classes=3, in_chans=1)
    assert model.num_classes == 3 and tiny.logits(model, 1).shape == (2, 3)
    assert torch.equal(model.state_dict()["stage2.0.branch1.0.weight"], source["stage2.0.branch1.0.weight"])
    torch.testing.assert_close(model.state_dict()["conv1.0.weight"], source["conv1.0.weight"].sum(1, keepdim=True))
    bare = timm.create_model(tiny.NAME, pretrained=True, num_classes=0)
    assert torch.equal(bare.global_pool.reduction[0].conv.weight, source["global_pool.reduction.0.conv.weight"])
    features = timm.create_model(tiny.NAME, pretrained=True, features_only=True)
    state = features.state_dict()
    shared = [key for key in state if key in source]
    assert len(shared) > 100 and all(torch.equal(state[key], source[key]) for key in shared)


@pytest.mark.parametrize("arch", ["resnet18_gcp", "mobilenetv2_100_gcp"])
def test_features_only_from_the_store(arch: str, tmp_path: Path) -> None:
    args = {"num_classes": 3, "reduce_dim": 4}
    model = timm.create_model(arch, **args).eval()
    path = tiny.checkpoint(tmp_path / "x.pth", model)
    import_file(path, f"{arch}.tiny", model_args=args)
    features = timm.create_model(f"{arch}.tiny", pretrained=True, features_only=True).eval()
    with torch.inference_mode():
        found = features(tiny.image())
        expected = model.forward_intermediates(tiny.image(), intermediates_only=True)
    assert len(found) == 5
    assert any(torch.equal(found[-1], other) for other in expected)
    source = model.state_dict()
    shared = [key for key in features.state_dict() if key in source]
    assert shared and all(torch.equal(features.state_dict()[key], source[key]) for key in shared)


def test_bundled_weights_load_by_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"num_classes": 10, "in_chans": 1}
    model = tiny.model(**args)
    labels = [f"class {i}" for i in range(10)]
    name = f"{tiny.ARCH}.norm_fmnist"
    import_file(
        tiny.checkpoint(tmp_path / "x.pth", model), name, model_args={**tiny.ARGS, **args},
        target=tmp_path / "bundled" / name, label_names=labels,
    )  # fmt: skip
    monkeypatch.setattr(table, "BUNDLED", tmp_path / "bundled")
    assert store.state(name) == "bundled"
    loaded = timm.create_model(name, pretrained=True)
    assert torch.equal(tiny.logits(loaded, 1), tiny.logits(model, 1))
    assert list(loaded.pretrained_cfg["label_names"]) == labels and loaded.pretrained_cfg["input_size"][0] == 1
    adapted = timm.create_model(name, pretrained=True, in_chans=3, num_classes=2)
    assert tiny.logits(adapted).shape == (2, 2)


def test_the_store_comes_before_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(tmp_path, target=tmp_path / "bundled" / tiny.NAME)
    monkeypatch.setattr(table, "BUNDLED", tmp_path / "bundled")
    assert store.find(tiny.NAME) == tmp_path / "bundled" / tiny.NAME
    assert store.find(tiny.NAME) != imported(tmp_path) == store.find(tiny.NAME)


def test_the_one_error(tmp_path: Path) -> None:
    name = "resnet50_gcp.adju_in1k"
    assert store.state(name) == "from the authors' file"
    for attempt in (name, "resnet50_gcp"):
        with pytest.raises(FileNotFoundError) as caught:
            timm.create_model(attempt, pretrained=True)
        text = str(caught.value)
        shown = name if attempt == name else "resnet50_gcp.norm_in1k"
        assert f"No weights for {shown} on this machine" in text
        assert str(tmp_path / "home" / "weights" / shown) in text
        assert f"timm-gcp weights fetch {shown}\n" in text
        assert f"timm-gcp weights import {table.WEIGHTS[shown].source_name}.pth.tar --as {shown} " in text
        assert table.WEIGHTS[shown].google_drive_id in text
        assert "TIMM_GCP_HUB_ORG" in text
    with pytest.raises(
        FileNotFoundError, match=r"No weights are called resnet18_gcp\.x\..* Known for resnet18_gcp: .*norm"
    ):
        timm.create_model("resnet18_gcp.x", pretrained=True)


def test_published_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ON_THE_HUB", frozenset({"resnet18_gcp.fast_in1k"}))
    assert store.state("resnet18_gcp.fast_in1k") == "on the Hub"


def test_without_pretrained_nothing_is_looked_up() -> None:
    kwargs = {"pretrained_cfg": "norm_in1k"}
    with weight_source("resnet18_gcp", False, kwargs) as found:
        assert found == kwargs


@pytest.mark.parametrize("suffix", [".pth.tar", ".safetensors"])
def test_overlay_file(tmp_path: Path, suffix: str) -> None:
    model = tiny.model()
    path = tmp_path / f"x{suffix}"
    if suffix == ".safetensors":
        save_file(model.state_dict(), path)
    else:
        renamed = {key.replace("global_pool.reduction.0.conv", "dimension_reduction.0")
                      .replace("global_pool.reduction.0.bn", "dimension_reduction.1"): value
                   for key, value in model.state_dict().items()}  # fmt: skip
        torch.save({"state_dict": {f"module.{key}": value for key, value in renamed.items()}}, path)
    # 7 classes against a cfg of 1000: the classifier that fits is loaded, not thrown away
    loaded = timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **tiny.ARGS)
    assert torch.equal(tiny.logits(loaded), tiny.logits(model))
    with pytest.raises(ValueError, match="The file has 7 classes: pass num_classes=7"):
        timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, reduce_dim=8)
    overlay = {"file": str(path), "num_classes": 7}
    other = timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=3, reduce_dim=8)
    assert other.num_classes == 3
    with pytest.raises(ValueError, match="covariance is 8 wide, the model's 256"):
        timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, num_classes=7)


def test_overlay_file_with_numpy_numbers(tmp_path: Path) -> None:
    import numpy as np

    path = tiny.checkpoint(tmp_path / "x.pth", best_acc1=np.float64(3.5))
    loaded = timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, **tiny.ARGS)
    assert torch.equal(tiny.logits(loaded), tiny.logits(tiny.model()))


def test_overlay_file_that_is_no_weight_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    make = lambda: timm.create_model(tiny.ARCH, pretrained=True, pretrained_cfg_overlay={"file": str(path)})  # noqa: E731
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors does not exist"):
        make()
    path.write_bytes(b"<html>")
    with pytest.raises(ValueError, match=r"model\.safetensors is a web page"):
        make()


def test_damaged_folders(tmp_path: Path) -> None:
    folder = imported(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    for name in (tiny.NAME, f"local-dir:{folder}"):
        with pytest.raises(ValueError, match=r"model\.safetensors is cut short: 1,000 bytes"):
            timm.create_model(name, pretrained=True)
    path.unlink()
    assert store.find(tiny.NAME) is None
    with pytest.raises(FileNotFoundError, match="No weights are called"):
        timm.create_model(tiny.NAME, pretrained=True)


def fill_with(content: str) -> Any:
    def fill(folder: Path) -> None:
        (folder / "config.json").write_text(content)
        (folder / "model.safetensors").write_text(content)

    return fill


def test_add_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "weights" / "a.b"

    def half(folder: Path) -> None:
        (folder / "config.json").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        RuntimeError, match=r"Could not write .*a\.b: .*No space left on device.* Nothing was kept.*TIMM_GCP_HOME"
    ):
        store.add(target, half)
    assert list(target.parent.iterdir()) == []
    store.add(target, fill_with("one"))
    with pytest.raises(ValueError, match=r"exists already\. Add --force"):
        store.add(target, fill_with("two"))
    assert (target / "config.json").read_text() == "one"
    with pytest.raises(RuntimeError):
        store.add(target, half, replace=True)
    assert (target / "config.json").read_text() == "one", "a failed replacement leaves the old"
    store.add(target, fill_with("two"), replace=True)
    assert (target / "config.json").read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["a.b"]

    def other(folder: Path) -> None:
        raise KeyError("not the disk")

    with pytest.raises(KeyError):
        store.add(tmp_path / "weights" / "c.d", other)


def test_losing_a_race_is_reported(tmp_path: Path) -> None:
    target = tmp_path / "weights" / "a.b"

    def overtaken(folder: Path) -> None:
        fill_with("late")(folder)
        store.add(target, fill_with("first"))

    with pytest.raises(ValueError, match="exists already"):
        store.add(target, overtaken)
    assert (target / "config.json").read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["a.b"]


def test_many_replacing_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "weights" / "a.b"
    failures: list[Exception] = []

    def replace(text: str) -> None:
        try:
            store.add(target, fill_with(text), replace=True)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=replace, args=(str(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (target / "config.json").read_text() == (target / "model.safetensors").read_text()
    assert [path.name for path in target.parent.iterdir()] == ["a.b"]


def worker(target: Path, how: str, pipe: Connection) -> None:
    """Add `target` in a process of its own; `how` says what goes wrong half-way."""

    def fill(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            save_file({"w": torch.zeros(10_000)}, folder / "model.safetensors")
        (folder / "model.safetensors").write_text(str(os.getpid()))
        pipe.send("filled")
        pipe.recv()

    try:
        store.add(target, fill)
        pipe.send("added")
    except (ValueError, RuntimeError) as error:
        pipe.send(str(error))


def start(target: Path, how: str) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")  # spawned processes would spend seconds importing torch
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(target, how, theirs))
    process.start()
    return process, ours


def test_killed_full_and_concurrent_processes(tmp_path: Path) -> None:
    weights = tmp_path / "home" / "weights"
    killed, _ = start(weights / "k.k", "kill")
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    _, full = start(weights / "f.f", "full")
    said = full.recv()
    assert "Could not write" in said and "too large" in said, "the system refused to write more"
    racers = [start(weights / "a.b", "race")[1] for _ in range(2)]
    assert [pipe.recv() for pipe in racers] == ["filled", "filled"]
    assert store.stored_names() == [], "nothing unfinished is ever found"
    for pipe in racers:
        pipe.send("go")
    answers = sorted(pipe.recv().split(" exists")[0] for pipe in racers)
    assert answers == [str(weights / "a.b"), "added"]
    assert store.stored_names() == ["a.b"] and store.find("a.b") == weights / "a.b"
    left = [path for path in weights.iterdir() if path.name.startswith(".")]
    assert len(left) == 1, "of the killed process"
    past = time.time() - 2 * 24 * 3600
    os.utime(left[0], (past, past))
    store.add(weights / "k.k", fill_with("whole"))
    assert sorted(path.name for path in weights.iterdir()) == ["a.b", "k.k"]


def test_saved_weights_are_those_of_the_file(tmp_path: Path) -> None:
    folder = imported(tmp_path)
    saved, source = load_file(folder / "model.safetensors"), tiny.model().state_dict()
    assert saved.keys() == source.keys() and all(torch.equal(saved[key], source[key]) for key in source)
