"""Weight files and folders that are broken or made to harm, each by a function that writes it to a path."""

from __future__ import annotations

import argparse
import json
import os
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import timm
import tiny
import torch
from safetensors.torch import save_file

SETTINGS = {"model": tiny.ARCH, "num_classes": 3, "model_kwargs": {"reduce_dim": 4, "repeats": [1, 1, 1]},
            "input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.25] * 3}  # fmt: skip


@cache
def _weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return timm.create_model(tiny.ARCH, num_classes=3, reduce_dim=4, repeats=(1, 1, 1)).state_dict()


def weights() -> dict[str, torch.Tensor]:
    """Weights of the small model that `SETTINGS` describe."""
    return {name: tensor.clone() for name, tensor in _weights().items()}


def save(path: Path, changed: dict[str, Any] | None = None, zipped: bool = True, **args: Any) -> None:
    """A training checkpoint; `changed` replaces weights, `args` replace settings."""
    run = argparse.Namespace(**{**SETTINGS, **args})
    content = {"state_dict": {**weights(), **(changed or {})}, "args": run, "epoch": 0}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)


def deflate(path: Path) -> None:
    """The same archive with compressed members."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)


def safetensors(path: Path, header: Any, data: bytes = b"\0" * 8, length: int | None = None) -> None:
    """A safetensors file with this header, as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def _entry(**changed: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


def _wrong_checksum(path: Path) -> None:
    save(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    content[largest.header_offset + 400 + largest.file_size // 2] ^= 0x10
    path.write_bytes(content)


def _bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data/0", "w") as member:
        for _ in range(100):
            member.write(b"\0" * (1 << 20))


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch it_ran",)


class _Allocates:
    def __init__(self, what: Any, size: int) -> None:
        self.what, self.size = what, size

    def __reduce__(self) -> tuple[Any, ...]:
        return self.what, (self.size,)


def _truncated(path: Path) -> None:
    save(path)
    path.write_bytes(path.read_bytes()[:-500])


def _recursive(path: Path) -> None:
    content: dict[str, Any] = dict(weights())
    content["state_dict"] = content
    torch.save(content, path)


# Broken whatever they are read for: name -> (writer, a part of the one sentence).
UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "page": (lambda path: path.write_bytes(b"\xef\xbb\xbf <html>log in</html>"), "is a web page"),
    "text": (lambda path: path.write_bytes(b"hello, these are my weights"), "neither a PyTorch checkpoint nor"),
    "truncated": (_truncated, "is damaged or cut short"),
    "checksum": (_wrong_checksum, "the checksum of its member"),
    "bomb": (_bomb, "for what it has packed, but is itself only"),
    "payload": (lambda path: torch.save({"a": _Payload()}, path), "asks to run posix.system"),
    "legacy payload": (
        lambda path: torch.save({"a": _Payload()}, path, _use_new_zipfile_serialization=False),
        "asks to run posix.system",
    ),
    "a list": (lambda path: torch.save([1, 2], path), "holds a list, not a dict"),
    "itself": (_recursive, "nests its entries too deep"),
    "stride 0": (
        lambda path: save(path, {"fc.weight": torch.zeros(1).as_strided((100_000, 100_000), (0, 0))}),
        "bytes of memory for its tensors",
    ),
    "tensor constructor": (
        lambda path: torch.save({"w": _Allocates(torch.Tensor, 10_000_000_000)}, path),
        "memory",
    ),
    "bytearray": (lambda path: torch.save({"w": _Allocates(bytearray, 40_000_000_000)}, path), "memory"),
    "meta": (lambda path: save(path, {"fc.bias": torch.empty(3, device="meta")}), "a tensor without values (meta)"),
    "sparse": (lambda path: save(path, {"fc.bias": torch.ones(3).to_sparse()}), "sparse or nested layout"),
    "string offsets": (lambda path: safetensors(path, _entry(data_offsets=["0", "8"])), "'a' lies from '0' to '8'"),
    "negative offsets": (lambda path: safetensors(path, _entry(data_offsets=[-8, 0])), "'a' lies from -8 to 0"),
    "overlap": (
        lambda path: safetensors(path, {**_entry(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
                                 b"\0" * 12),
        "'b' overlaps another tensor",
    ),
    "unknown dtype": (lambda path: safetensors(path, _entry(dtype="F13")), "the unknown type 'F13'"),
    "wrong size": (lambda path: safetensors(path, _entry(shape=[3])), "'a' has 8 bytes for F32 [3]"),
    "huge shape": (lambda path: safetensors(path, _entry(shape=[1 << 40, 1 << 40])), "'a' has 8 bytes for F32"),
    "null shape": (lambda path: safetensors(path, _entry(shape=None)), "'a' has the shape None"),
    "repeated name": (
        lambda path: safetensors(path, b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32",'
                                       b'"shape":[2],"data_offsets":[0,8]}}'),
        "it names 'a' twice",
    ),
    "deep header": (lambda path: safetensors(path, b"{" + b'"a":[' * 50_000), "no readable safetensors header"),
    "long header": (lambda path: safetensors(path, _entry(), length=1 << 60), "no readable safetensors header"),
    "metadata numbers": (lambda path: safetensors(path, {"__metadata__": {"a": 1}, **_entry()}), "are not texts"),
}  # fmt: skip


def _nan(path: Path) -> None:
    save(path, {"fc.bias": torch.tensor([0.0, float("nan"), 0.0])})


# Read well, but of no use as weights of the model.
UNUSABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nan": (_nan, "NaN or infinite values in fc.bias"),
    "inf": (lambda path: save(path, {"fc.bias": torch.full((3,), torch.inf)}), "NaN or infinite values in fc.bias"),
    "too large": (
        lambda path: save(path, {"fc.bias": torch.full((3,), 1e300, dtype=torch.float64)}),
        "NaN or infinite values in fc.bias",
    ),
    "negative variance": (
        lambda path: save(path, {"conv1.1.running_var": torch.full((24,), -1.0)}),
        "variances that are negative in conv1.1.running_var",
    ),
    "int8": (lambda path: save(path, {"fc.weight": torch.ones(3, 10, dtype=torch.int8)}), "fc.weight is int8"),
    "complex": (lambda path: save(path, {"fc.bias": torch.ones(3, dtype=torch.complex64)}), "of type complex64"),
    "float8": (lambda path: save(path, {"fc.bias": torch.ones(3).to(torch.float8_e4m3fn)}), "of type float8_e4m3fn"),
    "control characters": (
        lambda path: save(path, {"x\n\x1b[2Jy": torch.ones(3)}), r"foreign: x\n\x1b[2Jy",
    ),
    "no tensor": (lambda path: save(path, {"fc.bias": [1.0]}), "is of type list"),
}  # fmt: skip

# A checkpoint's own account of its model.
ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "hub name": ({"model": "hf-hub:someone/else"}, "the model must be a plain name of timm's"),
    "folder name": ({"model": "local-dir:/etc"}, "the model must be a plain name of timm's"),
    "no such model": ({"model": "resnet51_gcp"}, "the model must be one that timm knows"),
    "huge image": ({"input_size": [3, 30000, 30000]}, "input_size must be channels, height and width"),
    "huge side": ({"input_size": None, "img_size": 30000}, "img_size must be a whole number of pixels from 1 to 2048"),
    "std 0": ({"std": [0.0] * 3}, "std must be numbers"),
    "nan mean": ({"mean": [float("nan")] * 3}, "mean must be numbers"),
    "long mean": ({"mean": [10**400] * 3}, "mean must be numbers"),
    "crop": ({"crop_pct": 1e-9}, "crop_pct must be a number above 0"),
    "no size": ({"input_size": []}, "input_size must be channels, height and width"),
    "classes": ({"num_classes": 10**9}, "num_classes must be a whole number"),
    "beyond the limit": (
        {"model_kwargs": {"reduce_dim": 4000, "repeats": [1, 1, 1]}}, "or raise the limit with pool_kwargs",
    ),
    "width": ({"model_kwargs": {"reduce_dim": 40000}}, "reduce_dim must be a whole number from 1 to 4096"),
    "large width": (
        {"model_kwargs": {"reduce_dim": 1000, "repeats": [1, 1, 1]}}, "the model's 1000: create the model with",
    ),
    "unlisted": (
        {"model_kwargs": {"reduce_dim": 4, "repeats": [1, 1, 1], "qk_norm": True}},
        "asks for the model argument qk_norm=True, which a checkpoint can't decide by itself",
    ),
    "a file": ({"model_kwargs": {"checkpoint_path": "/etc/passwd"}}, "must be a keyword of the network itself"),
    "a deep list": ({"model_kwargs": {"foo": [[[[[[1]]]]]]}}, "foo must be a plain value"),
    "epochs of labels": (
        {"timm_gcp": {"architecture": tiny.ARCH, "model_args": SETTINGS["model_kwargs"], "label_names": ["a", "b"]}},
        "names 2 classes, but its classifier has 3",
    ),
    "record is null": ({"timm_gcp": {"architecture": None}}, "the model must be a plain name"),
    "eval_metric": ({"timm_gcp": {"architecture": tiny.ARCH, "metrics": [1]}}, "metrics must be a mapping"),
}  # fmt: skip


def folder(path: Path, config: Any = None, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A weight folder with this `config.json` (a text, or what JSON makes of it)."""
    path.mkdir(parents=True)
    save_file(weights() if tensors is None else tensors, path / "model.safetensors", metadata={"layout": "timm"})
    content = good_config() if config is None else config
    (path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def good_config(**changed: Any) -> dict[str, Any]:
    """What a folder of these weights says; a value of `...` leaves its key out."""
    cfg = {key: SETTINGS[key] for key in ("input_size", "mean", "std")} | {"interpolation": "bilinear", "crop_pct": 1.0}
    whole = {
        "architecture": tiny.ARCH, "num_classes": 3, "model_args": SETTINGS["model_kwargs"],
        "pretrained_cfg": {**cfg, "tag": "x", "custom_load": False, "num_classes": 3, "first_conv": "conv1.0",
                           "classifier": "fc"},
        **changed,
    }  # fmt: skip
    return {key: value for key, value in whole.items() if value is not ...}


CONFIGS: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "it is no JSON"),
    "page": ("<html>", "it is no JSON"),
    "deep": ("[" * 100_000, "it is no JSON"),
    "null": ("null", "it holds a NoneType"),
    "a list": ([1], "it holds a list"),
    "no architecture": (good_config(architecture=...), "it names no architecture"),
    "architecture is a number": (good_config(architecture=7), "it names no architecture"),
    "architecture elsewhere": (good_config(architecture="hf-hub:a/b"), "the model must be a plain name"),
    "unknown architecture": (good_config(architecture="resnet51_gcp"), "the model must be one that timm knows"),
    "cfg is null": (good_config(pretrained_cfg=None), "pretrained_cfg must be an object"),
    "cfg is a list": (good_config(pretrained_cfg=[1]), "pretrained_cfg must be an object"),
    "arguments are a list": (good_config(model_args=[1]), "model_args must be an object"),
    "unknown argument": (good_config(model_args={**SETTINGS["model_kwargs"], "foo": 1}), "foo"),
    "argument with code": (good_config(model_args={"pretrained_cfg": {}}), "a keyword of the network itself"),
    "a text for a number": (good_config(num_classes="3"), "num_classes must be a whole number"),
    "huge width": (good_config(model_args={"reduce_dim": 40000}), "reduce_dim must be a whole number"),
    "wide": (good_config(model_args={"reduce_dim": 4000}), "4000"),
    "many classes": (good_config(num_classes=10**6), ""),
    "size of text": (good_config(pretrained_cfg={"input_size": "big"}), "input_size must be channels"),
    "two names": (good_config(label_names=["a", "b"]), "label_names must be 3 names"),
    "names are numbers": (good_config(label_names=[1, 2, 3]), "label_names must be a list of strings"),
    "std 0": (good_config(pretrained_cfg={"std": [0, 0, 0]}), "std must be numbers"),
}
