"""The device of a command, and its mixed precision."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def pick_device(name: str | None) -> torch.device:
    """The device to run on: the one named, else CUDA where there is one, else the CPU.

    Raises:
        ValueError: Not a device, no CUDA, or several processes were started.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        raise ValueError(f"this command runs in one process, not in {processes}: start it without torchrun.")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda', got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no CUDA device: use --device cpu.")
    return device


def fast_kernels(device: torch.device) -> None:
    """Let CUDA multiply in TF32 and try its convolution kernels, as timm's train.py and benchmark.py do."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True


def mixed_precision(device: torch.device, enabled: bool, dtype: str) -> AbstractContextManager[Any]:
    """Context of forward passes, entered as often as needed: torch's autocast to `dtype`, or nothing."""
    return torch.autocast(device.type, dtype=getattr(torch, dtype)) if enabled else nullcontext()
