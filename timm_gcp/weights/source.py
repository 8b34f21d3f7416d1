"""Weights on this machine by file or folder: the state dict, and what is said of its model there."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from timm_gcp.common.messages import one_line
from timm_gcp.weights.allowed import is_number
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.layouts import EMA_CONTAINERS, unwrap
from timm_gcp.weights.record import Record
from timm_gcp.weights.record_sources import record_from_args, record_from_folder

IN_A_FOLDER = ("model.safetensors", "model_best.pth.tar", "last.pth.tar")


@dataclass(frozen=True)
class Source:
    """A weight file as it was read.

    Attributes:
        path: The file.
        state_dict: Its tensors under the file's own names, without wrapper prefixes.
        record: What is known of the model; empty where nothing is.
        epoch: Epoch of a training checkpoint.
    """

    path: Path
    state_dict: dict[str, Tensor]
    record: Record
    epoch: int | None = None


def find_checkpoint(path: str | Path) -> Path:
    """The weight file that a path means: itself, or the weights of a weight folder, or a run's best, else last.

    Raises:
        FileNotFoundError: There is none.
    """
    path = Path(path)
    if path.is_dir():
        for name in IN_A_FOLDER:
            if (path / name).is_file():
                return path / name
        raise FileNotFoundError(f"the folder {str(path)!r} holds no checkpoint: none of {', '.join(IN_A_FOLDER)}.")
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {str(path)!r}: it does not exist.")
    return path


def read_source(path: str | Path, use_ema: bool = False) -> Source:
    """Read a weight file, or the one in a folder, with what it says of its model.

    That is the record that training keeps in a checkpoint; else the arguments of the run, in the checkpoint or in
    `args.yaml` beside it; or the `config.json` beside safetensors.

    Args:
        path: A file or folder, see `find_checkpoint`.
        use_ema: Take the averaged weights.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Unreadable or unsafe, no averaged weights though asked for, or senseless settings.
    """
    path = find_checkpoint(path)
    if use_ema and path.suffix == ".safetensors":
        raise ValueError(f"{str(path)!r} holds no averaged weights (trained without --model-ema): drop --use-ema.")
    checkpoint = read_checkpoint(path)
    if use_ema and not any(name in checkpoint for name in EMA_CONTAINERS):
        raise ValueError(f"{str(path)!r} holds no averaged weights (trained without --model-ema): drop --use-ema.")
    record = _record(path, checkpoint)
    epoch, metric = checkpoint.get("epoch"), checkpoint.get("metric")
    if record.origin and is_number(metric) and not record.metrics:
        run = checkpoint.get("args")
        name = getattr(run, "eval_metric", None) or "metric"
        record = dataclasses.replace(record, metrics={one_line(name, 80): float(metric)})  # type: ignore[arg-type]
    try:
        tensors = unwrap(checkpoint, use_ema)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Source(path, tensors, record, epoch if isinstance(epoch, int) else None)


def _record(path: Path, checkpoint: dict[str, Any]) -> Record:
    args = checkpoint.get("args")
    if isinstance(args, argparse.Namespace):
        return record_from_args(vars(args), str(path))
    if path.suffix == ".safetensors" and (path.parent / "config.json").is_file():
        return record_from_folder(path.parent)
    beside = path.with_name("args.yaml")
    if beside.is_file():
        try:
            content = yaml.safe_load(beside.read_text(encoding="utf-8"))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ValueError(f"{beside} is not a YAML file: {one_line(error)}. Repair or remove it.") from error
        if isinstance(content, dict):
            return record_from_args(content, str(beside))
    return Record()
