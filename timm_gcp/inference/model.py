"""The model that a command's options name (see `inference.options`), in evaluation mode on its device.

A checkpoint says how its model is made and fed; options override it, and what they override or what has to be assumed
is said in a line on the standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from timm_gcp.common.device import mixed_precision, pick_device
from timm_gcp.common.messages import printable
from timm_gcp.inference.options import data_options
from timm_gcp.weights.classes import names_in_order
from timm_gcp.weights.named import create
from timm_gcp.weights.rebuild import rebuild, resolve_data
from timm_gcp.weights.record import Record
from timm_gcp.weights.source import read_source
from timm_gcp.weights.swap_names import as_swap


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on its device.

    Attributes:
        model: The classifier.
        name: What was asked for.
        data_config: timm's data configuration: input_size, mean, std, interpolation, crop_pct, crop_mode.
        label_names: Names of the classes, or None where nothing says them.
        device: Where the model is.
        autocast: Context of its forward passes.
        dataset: Name of the data set that it was trained on, or empty.
        class_map: Index of each class folder in training, or None where nothing says it.
        epoch: Epoch of the checkpoint, counted from 0, or None.
        stated_names: Names of the classes as the checkpoint states them, those of its training folders where it
            has them; None where it names none, or not each.
    """

    model: Any
    name: str
    data_config: dict[str, Any]
    label_names: tuple[str, ...] | None
    device: torch.device
    autocast: AbstractContextManager[Any]
    dataset: str = ""
    class_map: dict[str, int] | None = None
    epoch: int | None = None
    stated_names: tuple[str, ...] | None = None


def load_model(args: argparse.Namespace, pretrained: bool) -> Loaded:
    """Build the model that the options of `inference.options.add_model_arguments` describe.

    Args:
        args: Parsed options.
        pretrained: Load the model's pretrained weights, where no checkpoint is given.

    Raises:
        ValueError: No model named, an unknown name, or weights that don't fit; says which keys.
        FileNotFoundError: No such checkpoint.
    """
    given = dict(getattr(args, "model_kwargs", None) or {})
    for key in ("num_classes", "in_chans"):
        given[key] = getattr(args, key, None)
        if given[key] is not None and given[key] < 1:
            raise ValueError(f"--{key.replace('_', '-')} must be at least 1, got {given[key]}.")
    data = data_options(args)
    asked, given = as_swap(args.model or "", given)
    device = pick_device(args.device)
    if args.checkpoint:
        source = read_source(args.checkpoint, args.use_ema)
        rebuilt = rebuild(source, asked, given, data)
        for note in rebuilt.notes:
            print(note, file=sys.stderr)
        model, record, epoch = rebuilt.model, rebuilt.record, source.epoch
        name, stated = args.model or record.architecture, _stated_names(record, int(model.num_classes))
    else:
        if not args.model:
            raise ValueError("which model? Give --model NAME, or --checkpoint PATH of a model trained here.")
        if args.use_ema:
            raise ValueError("--use-ema takes averaged weights out of a checkpoint: give --checkpoint PATH too.")
        model, epoch, name, stated = create(asked, pretrained, given), None, args.model, None
        record = Record(data_config=resolve_data(data, model, given["in_chans"]))
    model = model.to(device).eval()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    autocast = mixed_precision(device, args.amp, args.amp_dtype)
    names = record.label_names or label_names(model, getattr(args, "dataset", None) or record.dataset)
    names = tuple(map(printable, names)) if names else None  # they end up in a terminal
    return Loaded(
        model, name, record.data_config, names, device, autocast, record.dataset, record.class_map, epoch, stated
    )


def _stated_names(record: Record, num_classes: int) -> tuple[str, ...] | None:
    if record.class_map is None:
        return record.label_names
    return names_in_order(record.class_map, num_classes) if len(record.class_map) == num_classes else None


def label_names(model: Any, dataset: str | None = None) -> tuple[str, ...] | None:
    """Class names of a model: its own, else those of Fashion-MNIST or ImageNet-1k where that is what it classifies."""
    from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES

    own: Sequence[str] | dict[Any, str] | None = (getattr(model, "pretrained_cfg", None) or {}).get("label_names")
    if isinstance(own, dict):
        own = list(own.values())
    if own and len(own) == model.num_classes:
        return tuple(own)
    if dataset == "torch/fashion_mnist" and model.num_classes == len(FASHION_MNIST_CLASSES):
        return FASHION_MNIST_CLASSES
    if model.num_classes == 1000:
        from timm.data import ImageNetInfo

        info = ImageNetInfo()
        return tuple(info.index_to_description(index) for index in range(1000))
    return None
