"""The parts of timm's training API that differ between timm releases: task, checkpoint saver, resuming."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
from pathlib import Path
from typing import Any

import torch
from timm.utils import CheckpointSaver, ModelEmaV3, NativeScaler, get_state_dict, unwrap_model
from torch import Tensor, nn

from timm_gcp.common.messages import one_line
from timm_gcp.weights.allowed import is_number
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.fit import load_whole
from timm_gcp.weights.layouts import EMA_CONTAINERS, unwrap
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.source import find_checkpoint

_TimmTask: Any = None
with contextlib.suppress(ImportError):  # timm before 1.0.23 has no tasks
    _TimmTask = importlib.import_module("timm.task").ClassificationTask


class PlainTask(nn.Module):
    """The methods of `timm.task.ClassificationTask` that training calls, for timm releases without them."""

    def __init__(self, model: nn.Module, criterion: nn.Module, device: torch.device, verbose: bool = False):
        super().__init__()
        self.trainable_module: Any = model
        self.criterion = criterion
        self.device = device
        self.ema: ModelEmaV3 | None = None

    def forward(self, images: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Loss and logits of a batch."""
        output = self.trainable_module(images)
        return {"loss": self.criterion(output, target), "output": output}

    def get_trainable_module(self, ema: bool = False) -> nn.Module | None:
        """The model, or its moving average."""
        return self.ema if ema else self.trainable_module

    def get_eval_model(self, ema: bool = False) -> nn.Module | None:
        """The model to validate."""
        return self.get_trainable_module(ema)

    def setup_ema(self, decay: float, use_warmup: bool = False) -> None:
        """Start a moving average of the weights."""
        self.ema = ModelEmaV3(self.trainable_module, decay=decay, use_warmup=use_warmup)

    def update_ema(self, step: int | None = None) -> None:
        """Fold the present weights into the average."""
        if self.ema is not None:
            self.ema.update(unwrap_model(self.trainable_module), step=step)

    def compile(self, backend: str = "inductor", mode: str | None = None) -> None:  # type: ignore[override]
        """Compile the model."""
        self.trainable_module = torch.compile(self.trainable_module, backend=backend, mode=mode)

    def get_checkpoint_state(self, ema: bool = False, unwrap_fn: Any = unwrap_model) -> dict[str, Any]:
        """The model's entry of a checkpoint."""
        model = self.get_eval_model(ema)
        return {} if model is None else {"state_dict_ema" if ema else "state_dict": get_state_dict(model, unwrap_fn)}


def make_task(model: nn.Module, criterion: nn.Module, device: torch.device) -> Any:
    """timm's classification task, or `PlainTask` where timm has none with these methods."""
    complete = _TimmTask is not None and hasattr(_TimmTask, "setup_ema") and hasattr(_TimmTask, "get_eval_model")
    task_class = _TimmTask if complete else PlainTask
    return task_class(model=model, criterion=criterion, device=device, verbose=False)


def make_saver(task: Any, optimizer: Any, args: argparse.Namespace, folder: Path, **options: Any) -> CheckpointSaver:
    """timm's checkpoint saver over a task, or over model and average where timm's saver takes no task."""
    if "task" in inspect.signature(CheckpointSaver).parameters:
        options["task"] = task
    else:
        options["model_ema"] = task.get_trainable_module(ema=True)
    return CheckpointSaver(
        model=task.get_trainable_module(),
        optimizer=optimizer,
        args=args,
        checkpoint_dir=str(folder),
        recovery_dir=str(folder),
        **options,
    )


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


def resume(
    path: str | Path, task: Any, optimizer: torch.optim.Optimizer | None, scaler: NativeScaler | None
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
            optimizer.load_state_dict(checkpoint["optimizer"])
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
