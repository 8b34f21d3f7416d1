from __future__ import annotations

import argparse
import collections
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from timm_gcp.weights import checkpoint, container

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(4)}


class Payload:
    """A pickle that runs a command when it is loaded the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def equal(found: dict[str, Any]) -> bool:
    return found.keys() == WEIGHTS.keys() and all(torch.equal(found[key], WEIGHTS[key]) for key in WEIGHTS)


@pytest.mark.parametrize("zipped", [True, False])
def test_what_real_checkpoints_carry_is_read(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "x.pth.tar"
    content = {
        "state_dict": collections.OrderedDict(WEIGHTS),
        "args": argparse.Namespace(lr=0.1, model="resnet18_gcp"),
        "best_acc1": np.float64(75.25),
        "best_acc5": torch.tensor(92.0),
        "step": np.int64(7),
        "flag": np.bool_(True),
        "big": np.dtype(">f4").type(1.5),
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    }
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    found = checkpoint.read_checkpoint(path)
    assert equal(found["state_dict"])
    assert (found["best_acc1"], found["step"], found["flag"]) == (75.25, 7, True)
    assert found["args"].model == "resnet18_gcp"


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_saved_on_a_gpu_are_read_without_one(tmp_path: Path, zipped: bool, monkeypatch: Any) -> None:
    path = tmp_path / "x.pth"
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
    torch.save(dict(WEIGHTS), path, _use_new_zipfile_serialization=zipped)
    monkeypatch.undo()
    assert b"cuda:3" in path.read_bytes()
    found = checkpoint.read_checkpoint(path)
    assert equal(found) and found["b"].device.type == "cpu"


def test_numpy_one_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"w": torch.ones(1), "acc": np.float64(2.5)}, path, _use_new_zipfile_serialization=False)
    old = path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    path.write_bytes(old)
    assert b"numpy.core.multiarray" in old
    assert checkpoint.read_checkpoint(path)["acc"] == 2.5


def test_safetensors_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(WEIGHTS, path, metadata={"arch": "x"})
    assert equal(checkpoint.read_checkpoint(path))
    assert checkpoint.safetensors_metadata(path) == {"arch": "x"}
    other = tmp_path / "x.pth"
    torch.save(WEIGHTS, other)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        checkpoint.safetensors_metadata(other)


def test_a_safetensors_header_may_start_like_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for padding in range(256):
        save_file(WEIGHTS, path, metadata={"x": "x" * padding})
        if path.read_bytes()[0] == 0x80:
            assert container.check_file(path) == "safetensors"
            return
    raise AssertionError("no header of such a length came up")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_payload_does_not_run(tmp_path: Path, zipped: bool) -> None:
    mark, path = tmp_path / "it ran", tmp_path / "x.pth"
    torch.save({"state_dict": WEIGHTS, "extra": Payload(tmp_path / "it\\ ran")}, path,
               _use_new_zipfile_serialization=zipped)  # fmt: skip
    with pytest.raises(ValueError, match=r"asks to run (posix|nt)\.system.*nothing in it was run"):
        checkpoint.read_checkpoint(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the payload is a live one"


@pytest.mark.parametrize("value", [np.ones(3), Path("x"), collections.deque([1]), np.str_("x"), np.datetime64("2020")])
def test_anything_else_is_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x.pth"
    torch.save({"state_dict": WEIGHTS, "extra": value}, path)
    with pytest.raises(ValueError, match=r"asks to run [\w.]+|is damaged or cut short"):
        checkpoint.read_checkpoint(path)


def test_allow_list_is_not_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save({"args": argparse.Namespace(x=1)}, path)
    checkpoint.read_checkpoint(path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(FileNotFoundError, match=r"does not exist\. Name a checkpoint"):
        container.check_file(path)
    with pytest.raises(FileNotFoundError, match="is a folder, not a file"):
        container.check_file(tmp_path)
    for content, message in [
        (b"", "is empty"),
        (b"\n<!DOCTYPE html><html><title>Google Drive - Virus scan warning", "is a web page, not weights"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n", "is a Git LFS pointer"),
        (b"x" * 257 + b"ustar" + b"x" * 300, "damaged: it has no readable safetensors header"),
        (struct.pack("<Q", 12) + b'{"a": 1}    ', "damaged: it has no readable safetensors header"),
        (struct.pack("<Q", 10) + b"notjson!!!", "damaged: it has no readable safetensors header"),
        (struct.pack("<Q", 5000) + b'{"a', "is cut short: 11 bytes, less than its header of 5,000"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            checkpoint.read_checkpoint(path)
    other = tmp_path / "x.pth"
    other.write_bytes(b"x" * 257 + b"ustar" + b"x" * 300)
    with pytest.raises(ValueError, match="is a tar archive"):
        checkpoint.read_checkpoint(other)
    other.write_bytes(b"GIF89a" + b"x" * 300)
    with pytest.raises(
        ValueError, match="neither a PyTorch checkpoint nor a safetensors file: it starts with b'GIF89a"
    ):
        checkpoint.read_checkpoint(other)
    other.write_bytes(b"ab")
    with pytest.raises(ValueError, match="neither a PyTorch checkpoint"):
        checkpoint.read_checkpoint(other)
    torch.save([torch.ones(1)], other)
    with pytest.raises(ValueError, match="holds a list, not a dict"):
        checkpoint.read_checkpoint(other)


@pytest.mark.parametrize("kept", [0.05, 0.5, 0.99])
def test_truncated_files(tmp_path: Path, kept: float) -> None:
    safe, zipped, legacy = (tmp_path / name for name in ("x.safetensors", "x.pth", "x.pth.tar"))
    weights = {"w": torch.randn(200, 10)}
    save_file(weights, safe)
    torch.save(weights, zipped)
    torch.save(weights, legacy, _use_new_zipfile_serialization=False)
    for path in (safe, zipped, legacy):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * kept)])
        with pytest.raises(ValueError, match=r"cut short|damaged"):
            checkpoint.read_checkpoint(path)
    save_file(weights, safe)
    safe.write_bytes(safe.read_bytes() + b"more")
    with pytest.raises(ValueError, match=r"is damaged: 8,\d+ bytes, its header says 8,\d+"):
        checkpoint.read_checkpoint(safe)
    header = json.loads(safe.read_bytes()[8 : 8 + struct.unpack("<Q", safe.read_bytes()[:8])[0]])
    assert header["w"]["data_offsets"] == [0, 8000]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_another_pickle_protocol_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(WEIGHTS, path, pickle_protocol=4)
    with pytest.raises(ValueError, match=r"pickle protocol that .* cannot read .*Save it again with torch\.save"):
        checkpoint.read_checkpoint(path)


def test_tar_of_ancient_pytorch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pth"
    torch.save(WEIGHTS, path)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Cannot use ``weights_only=True`` with files saved in the legacy .tar format.")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(ValueError, match="tar format of PyTorch before 0"):
        checkpoint.read_checkpoint(path)


def test_stand_ins_hold_numbers_only() -> None:
    with pytest.raises(ValueError, match=r"numpy\.dtype"):
        checkpoint._Dtype("O8")
    assert checkpoint._number(checkpoint._Dtype("f4"), struct.pack("<f", 1.5)) == 1.5
    big = checkpoint._Dtype("i4", False, True)
    big.__setstate__((3, ">", None, None, None, -1, -1, 0))
    assert checkpoint._number(big, struct.pack(">i", 7)) == 7
