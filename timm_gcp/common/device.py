"""The device of a command."""

from __future__ import annotations

import os

import torch


def pick_device(name: str | None) -> torch.device:
    """The device to train on: the one named, else CUDA where there is one, else the CPU.

    Raises:
        ValueError: Not a device, no CUDA, or several processes were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("timm-gcp train runs in one process: start timm's train.py with torchrun for several.")
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device must be a torch device such as 'cpu' or 'cuda', got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no CUDA device: use --device cpu.")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    return device
