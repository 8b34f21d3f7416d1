"""Read a checkpoint file of any age without running code from it, and say clearly what is wrong with a bad one.

Safetensors files hold no code. PyTorch files are pickles: they are read with `weights_only=True`, which builds tensors
and plain containers and refuses everything else by name. Real checkpoints also carry the odd NumPy number (an accuracy)
and the `argparse.Namespace` of the training script; those are let through by stand-ins that can do nothing but hold a
number or a name, and are thrown away with the rest of what is not weights.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

_SNIFF = 512  # bytes that tell the kind of file
_AGAIN = "Download it again"


class _Dtype:
    """Stands in for `numpy.dtype`: a type code of a plain number, with nothing behind it."""

    def __init__(self, code: str, *_: Any) -> None:
        if re.fullmatch(r"[biuf]\d|b1|\?", str(code)) is None:
            raise ValueError(f"numpy.dtype({code!r})")
        self.code = str(code)

    def __setstate__(self, state: Any) -> None:
        self.big_endian = len(state) > 1 and state[1] == ">"


def _number(dtype: _Dtype, data: bytes) -> float | int | bool:
    """Stands in for NumPy's scalar constructor: the Python number in `data`."""
    import numpy as np

    order = ">" if getattr(dtype, "big_endian", False) else "<"
    number: float | int | bool = np.frombuffer(data, dtype=np.dtype(order + dtype.code))[0].item()
    return number


def _stand_in(module: str, name: str, target: Callable[..., Any]) -> Any:
    """A copy of `target` that the unpickler knows as `module.name`."""
    if isinstance(target, type):
        return type(name, (target,), {"__module__": module, "__qualname__": name})

    def stand_in(*args: Any) -> Any:
        return target(*args)

    stand_in.__module__, stand_in.__name__, stand_in.__qualname__ = module, name, name
    return stand_in


ALLOWED = (
    argparse.Namespace,
    _stand_in("numpy", "dtype", _Dtype),
    _stand_in("numpy.core.multiarray", "scalar", _number),  # NumPy 1
    _stand_in("numpy._core.multiarray", "scalar", _number),  # NumPy 2
)


def safe_types() -> AbstractContextManager[None]:
    """Context in which `torch.load(..., weights_only=True)` accepts what real checkpoints carry besides tensors."""
    context: AbstractContextManager[None] = torch.serialization.safe_globals(list(ALLOWED))
    return context


def check_file(path: str | Path) -> str:
    """Kind of a weight file, `'safetensors'` or `'torch'`, found out from its first bytes and its length.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is empty, a web page, a Git LFS pointer, something else, or a safetensors file cut short.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {what}. Name a checkpoint: .pth, .pth.tar, .bin or .safetensors.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_SNIFF)
    if not size:
        raise ValueError(f"{path} is empty. {_AGAIN}.")
    if start.lstrip().startswith(b"<"):
        raise ValueError(
            f"{path} is a web page, not weights: the server answered with a page (a login, a quota or a virus-scan "
            f"warning) that was saved under this name. {_AGAIN} through the browser, or with `timm-gcp weights fetch`."
        )
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{path} is a Git LFS pointer, not weights. Run `git lfs pull` in its repository.")
    if start.startswith(b"PK\x03\x04"):
        return "torch"
    length = struct.unpack("<Q", start[:8])[0] if size >= 8 else 0
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        _check_safetensors(path, size, length)
        return "safetensors"
    if start.startswith(b"\x80"):  # a bare pickle; a safetensors file may start so too, so it comes first
        return "torch"
    if start[257:262] == b"ustar":
        raise ValueError(f"{path} is a tar archive. Unpack it and name the checkpoint inside.")
    raise ValueError(
        f"{path} is neither a PyTorch checkpoint nor a safetensors file: it starts with {start[:8]!r}. {_AGAIN}."
    )


def _check_safetensors(path: Path, size: int, length: int) -> None:
    """Compare the length of a safetensors file with what its header promises."""
    damaged = f"{path} is damaged: it has no readable safetensors header. {_AGAIN}."
    if not 2 <= length <= 100_000_000:
        raise ValueError(damaged)
    with path.open("rb") as file:
        header = file.read(8 + length)[8:]
    if len(header) < length:
        raise ValueError(f"{path} is cut short: {size:,} bytes, less than its header of {length:,}. {_AGAIN}.")
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(damaged) from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        what = "is cut short" if size < expected else "is damaged"
        raise ValueError(f"{path} {what}: {size:,} bytes, its header says {expected:,}. {_AGAIN}.")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint file holds, on the CPU: a state dict, or a training checkpoint around one.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read, holds no dict, or asks for code; the refused names are listed.
    """
    path = Path(path)
    if check_file(path) == "safetensors":
        from safetensors.torch import load_file

        return dict(load_file(path))
    try:
        with safe_types(), path.open("rb") as file:
            # Mapped, a zip file's tensors are read where they are used: half the memory for a large checkpoint. By
            # name, torch.load would take a misnamed .safetensors for what it says.
            mapped = file.read(2) == b"PK" and path.suffix != ".safetensors"
            file.seek(0)
            source: Any = path if mapped else file
            checkpoint = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise ValueError(_explain(path, error)) from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} holds a {type(checkpoint).__name__}, not a dict of weights.")
    return checkpoint


def safetensors_metadata(path: str | Path) -> dict[str, str]:
    """Metadata in the header of a safetensors file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no whole safetensors file.
    """
    path = Path(path)
    if check_file(path) != "safetensors":
        raise ValueError(f"{path} is not a safetensors file.")
    with path.open("rb") as file:
        header = file.read(struct.unpack("<Q", file.read(8))[0])
    return dict(json.loads(header).get("__metadata__", {}))


def _explain(path: Path, error: Exception) -> str:
    """Why torch.load failed, in one sentence with the remedy."""
    refused = sorted(set(re.findall(r"GLOBAL ([\w.]+)", str(error))))
    if refused:
        return (
            f"{path} asks to run {', '.join(refused)}, which no checkpoint needs. It was not loaded and nothing in it "
            "was run. If you trust its author, ask for a file that holds only the state dict."
        )
    if "tar" in str(error) and "weights_only" in str(error):
        return (
            f"{path} is in the tar format of PyTorch before 0.1.10. Save it again with a PyTorch that still reads it."
        )
    if "Unsupported operand" in str(error):
        return (
            f"{path} was written with a pickle protocol that PyTorch cannot read safely (weights_only=True). Save it "
            "again with torch.save as it is, without pickle_protocol."
        )
    first_line = str(error).strip().split("\n")[0][:200]
    return f"{path} is damaged or cut short ({type(error).__name__}: {first_line}). {_AGAIN}."
