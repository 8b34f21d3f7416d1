"""A model for inference from the command line: `--model`, `--pretrained`, `--checkpoint` and how its images are made.

A checkpoint says how its model is made and fed; options override it, and what they override or what has to be assumed
is said in a line on the standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from timm_gcp.common.device import pick_device
from timm_gcp.weights.classes import names_in_order
from timm_gcp.weights.data_config import checked_data_config, read_data_config
from timm_gcp.weights.rebuild import create, rebuild, resolve_data
from timm_gcp.weights.record import Record
from timm_gcp.weights.source import read_source

_DATA = ("img_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")  # options of the data configuration


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


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `load_model` reads."""
    from timm.utils import ParseKwargs

    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", metavar="NAME", help="timm model, with tag if wanted, or local-dir:PATH, hf-hub:ORG/NAME"
    )
    group.add_argument(
        "--checkpoint", metavar="PATH", help="weights: a run's folder (best, else last), a checkpoint, or safetensors"
    )
    group.add_argument("--use-ema", action="store_true", help="take the averaged weights of the checkpoint")
    group.add_argument("--num-classes", type=int, metavar="N", help="classes, where the model's own number is wrong")
    group.add_argument("--in-chans", type=int, metavar="N", help="image channels")
    add_data_arguments(group)
    group.add_argument(
        "--model-kwargs", nargs="*", default={}, action=ParseKwargs, help="further arguments, name=value"
    )
    group.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    group.add_argument("--channels-last", action="store_true", help="use the channels_last memory layout")
    group.add_argument("--amp", action="store_true", help="mixed precision")
    group.add_argument(
        "--amp-dtype", default="float16", choices=["float16", "bfloat16"], help="type of mixed precision"
    )


def add_data_arguments(group: Any) -> None:
    """Declare the options that say how images are prepared; `data_options` reads them."""
    group.add_argument("--data-config", metavar="FILE", help="JSON or YAML file of timm's data configuration")
    group.add_argument("--img-size", type=int, metavar="N", help="height and width of the input in pixels")
    group.add_argument("--crop-pct", type=float, metavar="P", help="share of the image kept by the centre crop")
    group.add_argument("--mean", type=float, nargs="+", metavar="M", help="mean of the pixels, per channel")
    group.add_argument(
        "--std", type=float, nargs="+", metavar="S", help="standard deviation of the pixels, per channel"
    )
    group.add_argument("--interpolation", metavar="NAME", help="resizing of images")


def data_options(args: argparse.Namespace) -> dict[str, Any]:
    """Data configuration that the options give: the file's, then the single options.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A value of the wrong type or range.
    """
    path = getattr(args, "data_config", None)
    found = read_data_config(path) if path else {}
    given = {key: getattr(args, key, None) for key in _DATA}
    found.update(checked_data_config({key: value for key, value in given.items() if value not in (None, "")}, "option"))
    if given["img_size"] is not None:
        found.pop("input_size", None)
    return found


def load_model(args: argparse.Namespace, pretrained: bool) -> Loaded:
    """Build the model that the options of `add_model_arguments` describe.

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
    device = pick_device(args.device)
    if args.checkpoint:
        source = read_source(args.checkpoint, args.use_ema)
        rebuilt = rebuild(source, args.model or "", given, data)
        for note in rebuilt.notes:
            print(note, file=sys.stderr)
        model, record, epoch = rebuilt.model, rebuilt.record, source.epoch
        name, stated = args.model or record.architecture, _stated_names(record, int(model.num_classes))
    else:
        if not args.model:
            raise ValueError("which model? Give --model NAME, or --checkpoint PATH of a model trained here.")
        if args.use_ema:
            raise ValueError("--use-ema takes averaged weights out of a checkpoint: give --checkpoint PATH too.")
        model, epoch, name, stated = create(args.model, pretrained, given), None, args.model, None
        record = Record(data_config=resolve_data(data, model, given["in_chans"]))
    model = model.to(device).eval()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    autocast = torch.autocast(device.type, dtype=getattr(torch, args.amp_dtype)) if args.amp else nullcontext()
    names = record.label_names or label_names(model, getattr(args, "dataset", None) or record.dataset)
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
