"""Resuming a training run from a checkpoint of timm's saver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from timm.models import clean_state_dict
from timm.task import TrainingTask
from timm.utils import NativeScaler, unwrap_model
from torch import Tensor

from timm_gcp.weights.checkpoint import read_checkpoint


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A training checkpoint on the CPU, loaded without running any code in it.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not readable, or not a training checkpoint (no `state_dict`).
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no checkpoint at {str(path)!r}.")
    checkpoint = read_checkpoint(path)
    if "state_dict" not in checkpoint:
        raise ValueError(
            f"{str(path)!r} is not a training checkpoint (it has no `state_dict`): "
            "load bare weights with --initial-checkpoint instead of --resume."
        )
    return checkpoint


def resume(
    path: str | Path, task: TrainingTask, optimizer: torch.optim.Optimizer | None, scaler: NativeScaler | None
) -> tuple[int, dict[str, Tensor] | None]:
    """Load model, optimizer and loss scaler from a checkpoint of timm's saver.

    Args:
        path: Checkpoint file.
        task: Task whose model is filled.
        optimizer: Filled too, unless None.
        scaler: Loss scaler, filled too, unless None.

    Returns:
        The epoch to go on with, and the state of the averaged weights if there is one.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a training checkpoint, or without optimizer state.
    """
    checkpoint = load_checkpoint(path)
    unwrap_model(task.get_eval_model()).load_state_dict(clean_state_dict(checkpoint["state_dict"]))
    if optimizer is not None:
        if "optimizer" not in checkpoint:
            raise ValueError(f"{str(path)!r} holds no optimizer state: add --no-resume-opt to resume the weights only.")
        optimizer.load_state_dict(checkpoint["optimizer"])
    if scaler is not None and scaler.state_dict_key in checkpoint:
        scaler.load_state_dict(checkpoint[scaler.state_dict_key])
    epoch = int(checkpoint.get("epoch", -1))
    return epoch + (1 if checkpoint.get("version", 2) > 1 else 0), checkpoint.get("state_dict_ema")
