"""Checkpoints on a full disk, and where links can't be made."""

from __future__ import annotations

import os
import resource

import pytest
import torch

from timm_gcp.train.saver import WholeSaver


def make(folder, **options):
    model = torch.nn.Linear(64, 64)
    return WholeSaver(model, torch.optim.SGD(model.parameters(), lr=0.1), checkpoint_dir=str(folder), **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def file_limit():
    """Files may not grow beyond so many bytes: to a program, a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(tmp_path, file_limit):
    saver = make(tmp_path)
    file_limit(5000)
    with pytest.raises(
        OSError, match=r"the checkpoint of epoch 1 can't be written .*: make room .* another --output\.$"
    ):
        saver.save_checkpoint(0, 1.0)
    assert names(tmp_path) == []
    file_limit(1 << 20)
    saver.save_checkpoint(0, 1.0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["checkpoint-0.pth.tar", "last.pth.tar", "model_best.pth.tar"]
    file_limit(5000)
    with pytest.raises(OSError, match=r"epoch 2 can't be written .* then go on with --resume .*last\.pth\.tar\.$"):
        saver.save_checkpoint(1, 2.0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    def stop(state, path):
        open(path, "wb").close()
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path).save_checkpoint(0, 1.0)
    assert names(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_the_best_is_kept_with_and_without_links(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*_):
            raise OSError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    saver = make(tmp_path, max_history=2)
    for epoch, score in enumerate([1.0, 3.0, None, 2.0]):
        best = saver.save_checkpoint(epoch, score)
    assert best == (3.0, 1)
    found = {name: torch.load(tmp_path / name, weights_only=True)["epoch"] for name in names(tmp_path)}
    assert found == {"checkpoint-1.pth.tar": 1, "checkpoint-3.pth.tar": 3, "last.pth.tar": 3, "model_best.pth.tar": 1}
