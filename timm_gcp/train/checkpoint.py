"""Resuming a training run from a checkpoint of timm's saver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from timm.task import TrainingTask
from timm.utils import NativeScaler, unwrap_model
from torch import Tensor, nn

from timm_gcp.common.messages import one_line
from timm_gcp.weights.allowed import is_number
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.fit import load_whole
from timm_gcp.weights.layouts import EMA_CONTAINERS, unwrap
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.source import find_checkpoint


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """A training checkpoint on the CPU, loaded without running any code in it.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not readable, or not a training checkpoint (no `state_dict`).
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no checkpoint at {str(path)!r}.")
    checkpoint = read_checkpoint(path)
    if not isinstance(checkpoint.get("state_dict"), dict):
        raise ValueError(
            f"{str(path)!r} is not a training checkpoint (it has no `state_dict`): "
            "load bare weights with --initial-checkpoint instead of --resume."
        )
    return checkpoint


def check_values_of(path: str | Path) -> None:
    """Check that a file of weights can be read and holds finite ones.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not readable, or with NaN or infinite values.
    """
    _tensors(find_checkpoint(path))


def load_initial(model: nn.Module, path: str | Path) -> None:
    """Load initial weights into a model, the averaged ones where the file has such, as timm's train.py does.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not readable, of another model, or with NaN or infinite values.
    """
    load_whole(model, _tensors(Path(path), True), path)


def _tensors(path: Path, ema_first: bool = False) -> dict[str, Tensor]:
    checkpoint = read_checkpoint(path)
    averaged = ema_first and any(checkpoint.get(name) is not None for name in EMA_CONTAINERS)
    return _finite(checkpoint, path, averaged)


def _finite(checkpoint: dict[str, Any], path: str | Path, use_ema: bool = False) -> dict[str, Tensor]:
    """The weights in a checkpoint, without wrapper prefixes, if all are finite."""
    try:
        tensors = unwrap(checkpoint, use_ema)
        check_values(tensors, positive=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return tensors


def _with_kernel_of(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """`state` with `fused` as this run has it: a scaler asks the optimizer that was made whether it takes its scale."""
    groups = [dict(group) for group in state["param_groups"]]
    for group, own in zip(groups, optimizer.param_groups, strict=False):  # torch says it if their numbers differ
        group.update({"fused": own["fused"]} if "fused" in own else {})
    return {**state, "param_groups": groups}


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
        ValueError: Not a training checkpoint, of another model or optimizer, with NaN or infinite weights, or without
            optimizer state.
    """
    checkpoint = load_checkpoint(path)
    load_whole(unwrap_model(task.get_eval_model()), _finite(checkpoint["state_dict"], path), path)
    if optimizer is not None and "optimizer" not in checkpoint:
        raise ValueError(f"{str(path)!r} holds no optimizer state: add --no-resume-opt to resume the weights only.")
    try:
        if optimizer is not None:
            optimizer.load_state_dict(_with_kernel_of(optimizer, checkpoint["optimizer"]))
        if scaler is not None and scaler.state_dict_key in checkpoint:
            scaler.load_state_dict(checkpoint[scaler.state_dict_key])
    except Exception as error:  # whatever torch trips over in a state that is not of this optimizer
        raise ValueError(
            f"{str(path)!r}: its optimizer state is not one of this run ({type(error).__name__}: {one_line(error)}). "
            "Resume with the settings that it was trained with, or the weights only with --no-resume-opt."
        ) from error
    epoch, format_version = checkpoint.get("epoch", -1), checkpoint.get("version", 2)
    if type(epoch) is not int or not -1 <= epoch < 10**9 or not is_number(format_version):
        raise ValueError(
            f"{str(path)!r} doesn't say its epoch ({one_line(epoch, 80)}): take its weights with --initial-checkpoint."
        )
    averaged = _finite(checkpoint["state_dict_ema"], path) if checkpoint.get("state_dict_ema") else None
    return epoch + (1 if format_version > 1 else 0), averaged
