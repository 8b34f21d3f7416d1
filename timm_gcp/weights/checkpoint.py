"""Read a checkpoint file of any age without running code from it, and say clearly what is wrong with a bad one.

Safetensors files hold no code. PyTorch files are pickles: they are read with `weights_only=True`, which builds tensors
and plain containers and refuses everything else by name. Real checkpoints also carry the odd NumPy number (an accuracy)
and the `argparse.Namespace` of the training script; those are let through by stand-ins that can do nothing but hold a
number or a name, and are thrown away with the rest of what is not weights.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from timm_gcp.weights.container import AGAIN, check_asked, check_file, check_zip, read_header

_DEEPEST = 64  # containers within containers


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


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What a checkpoint file holds, on the CPU: a state dict, or a training checkpoint around one, in plain dicts.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, holds no dict, asks for code (the refused names are listed), or for far more
            memory than its size accounts for.
    """
    path = Path(path)
    if check_file(path) == "safetensors":
        return _read_safetensors(path)
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"
    stored, sizes = check_zip(path) if zipped else (True, None)
    try:
        with safe_types(), path.open("rb") as file:
            # Mapped, a zip file's tensors are read where they are used: half the memory for a large checkpoint. By
            # name, torch.load would take a misnamed .safetensors for what it says.
            mapped = zipped and stored and path.suffix != ".safetensors"
            source: Any = path if mapped else file
            checkpoint = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        raise ValueError(_explain(path, error)) from error
    walk = _Walk(path)
    try:
        checkpoint = walk.plain(checkpoint)
    except RecursionError:
        raise ValueError(f"{path} nests its entries too deep for a checkpoint. {AGAIN}.") from None
    walk.check_storages(sizes)
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} holds a {type(checkpoint).__name__}, not a dict of weights.")
    return checkpoint


class _Walk:
    """One pass over what `torch.load` has made: plain containers of it, and what its tensors take."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storages: dict[int, int] = {}
        self.asked = 0
        self._made: dict[int, tuple[Any, Any]] = {}  # with the object itself, which keeps its id its own
        self._open: set[int] = set()

    def plain(self, value: Any) -> Any:
        """`value` with plain dicts, lists and tuples; a file can give its containers methods of its own."""
        if isinstance(value, torch.Tensor):
            self._count(value)
            return value
        if not isinstance(value, dict | list | tuple | argparse.Namespace) or isinstance(value, torch.Size):
            return value
        if id(value) in self._made:
            return self._made[id(value)][1]
        if id(value) in self._open or len(self._open) > _DEEPEST:
            raise RecursionError
        self._open.add(id(value))
        made: Any
        if isinstance(value, dict):
            made = {key: self.plain(item) for key, item in dict.items(value)}
        elif isinstance(value, argparse.Namespace):
            made = argparse.Namespace(**{str(key): self.plain(item) for key, item in vars(value).items()})
        else:
            made = type(value)(self.plain(item) for item in value)
        self._open.discard(id(value))
        self._made[id(value)] = (value, made)
        return made

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
            kind = "without values (meta)" if tensor.is_meta else "in a sparse or nested layout"
            raise ValueError(f"{self.path} holds a tensor {kind}. Save it again with plain, dense tensors.")
        self.asked += tensor.numel() * tensor.element_size()
        check_asked(self.path, self.asked, "its tensors")
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self.storages[storage.data_ptr()] = storage.nbytes()

    def check_storages(self, sizes: Counter[int] | None) -> None:
        """Compare the storages with the members of the archive, or, where it is none, with the length of the file."""
        held = Counter(self.storages.values())
        if sum(self.storages.values()) > self.path.stat().st_size if sizes is None else held - sizes:
            raise ValueError(f"{self.path} is damaged: it says more of its tensors than it holds of them. {AGAIN}.")


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except Exception as error:  # safetensors has one class for all, torch lacks some of its types
        raise ValueError(f"{path} can't be read: {' '.join(str(error).split())[:200]}. {AGAIN}.") from error


def safetensors_metadata(path: str | Path) -> dict[str, str]:
    """Metadata in the header of a safetensors file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a whole safetensors file.
    """
    path = Path(path)
    if check_file(path) != "safetensors":
        raise ValueError(f"{path} is not a safetensors file.")
    return dict(read_header(path).get("__metadata__", {}))


def _explain(path: Path, error: Exception) -> str:
    """Why torch.load failed, in one sentence with the remedy."""
    text = str(error)
    refused = sorted(set(re.findall(r"GLOBAL ([\w.]+)", text)))
    if refused:
        return (
            f"{path} asks to run {', '.join(refused)}, which no checkpoint needs. It was not loaded and nothing in it "
            "was run. If you trust its author, ask for a file that holds only the state dict."
        )
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return f"{path} asks for more memory than this machine has: it is damaged, or made to exhaust it. {AGAIN}."
    if "tar" in text and "weights_only" in text:
        return (
            f"{path} is in the tar format of PyTorch before 0.1.10. Save it again with a PyTorch that still reads it."
        )
    if "torch.jit" in text or "TorchScript" in text:
        return f"{path} is a TorchScript program, not weights. Ask for the state dict of its model."
    if "Unsupported operand" in text:
        return (
            f"{path} was written with a pickle protocol that PyTorch cannot read safely (weights_only=True). Save it "
            "again with torch.save as it is, without pickle_protocol."
        )
    reason = re.search(r"WeightsUnpickler error: (.+)", text)
    line = reason[1] if reason else (text.strip().split("\n")[0] or "no reason given")
    if "weights_only" in line or "Weights only" in line:  # torch's advice to load it with everything in it
        line = "it holds what no checkpoint needs"
    return f"{path} is damaged or cut short ({type(error).__name__}: {line[:200]}). {AGAIN}."
