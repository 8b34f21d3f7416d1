"""A model for inference from the command line: `--model`, `--pretrained`, `--checkpoint` and how its images are made.

A checkpoint of `timm-gcp train` or train.py carries its run's settings; they stand in for options left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timm_gcp.common.device import pick_device

# Settings of a training run that decide how its model is made and fed.
_FROM_RUN = (
    "model",
    "num_classes",
    "in_chans",
    "img_size",
    "input_size",
    "mean",
    "std",
    "crop_pct",
    "interpolation",
    "gp",
    "model_kwargs",
    "dataset",
)


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
    """

    model: Any
    name: str
    data_config: dict[str, Any]
    label_names: tuple[str, ...] | None
    device: torch.device
    autocast: AbstractContextManager[Any]


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `load_model` reads."""
    from timm.utils import ParseKwargs

    group = parser.add_argument_group("model")
    group.add_argument(
        "--model", metavar="NAME", help="timm model, with tag if wanted, or local-dir:PATH, hf-hub:ORG/NAME"
    )
    group.add_argument("--checkpoint", metavar="FILE", help="weights: a training checkpoint, or safetensors")
    group.add_argument("--use-ema", action="store_true", help="take the averaged weights of the checkpoint")
    group.add_argument("--num-classes", type=int, metavar="N", help="classes, where the model's own number is wrong")
    group.add_argument("--in-chans", type=int, metavar="N", help="image channels")
    group.add_argument("--img-size", type=int, metavar="N", help="height and width of the input in pixels")
    group.add_argument("--crop-pct", type=float, metavar="P", help="share of the image kept by the centre crop")
    group.add_argument("--mean", type=float, nargs="+", metavar="M", help="mean of the pixels, per channel")
    group.add_argument(
        "--std", type=float, nargs="+", metavar="S", help="standard deviation of the pixels, per channel"
    )
    group.add_argument("--interpolation", metavar="NAME", help="resizing of images")
    group.add_argument(
        "--model-kwargs", nargs="*", default={}, action=ParseKwargs, help="further arguments, name=value"
    )
    group.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    group.add_argument("--channels-last", action="store_true", help="use the channels_last memory layout")
    group.add_argument("--amp", action="store_true", help="mixed precision")
    group.add_argument(
        "--amp-dtype", default="float16", choices=["float16", "bfloat16"], help="type of mixed precision"
    )


def load_weights(path: str | Path, use_ema: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """State dict of a weight file or training checkpoint, and the settings of its run (empty if unknown).

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not such a file, or no averaged weights although they were asked for.
    """
    from timm_gcp.weights.checkpoint import read_checkpoint
    from timm_gcp.weights.layouts import unwrap

    no_average = f"{str(path)!r} holds no averaged weights (trained without --model-ema): drop --use-ema."
    if use_ema and Path(path).suffix == ".safetensors":
        raise ValueError(no_average)
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {str(path)!r}.")
    checkpoint = read_checkpoint(path)
    if use_ema and "state_dict_ema" not in checkpoint:
        raise ValueError(no_average)
    run = checkpoint.get("args")
    return unwrap(checkpoint, use_ema), vars(run) if isinstance(run, argparse.Namespace) else {}


def load_model(args: argparse.Namespace, pretrained: bool) -> Loaded:
    """Build the model that the options of `add_model_arguments` describe.

    Args:
        args: Parsed options.
        pretrained: Load the model's pretrained weights, where no checkpoint is given.

    Raises:
        ValueError: No model named, an unknown name, or weights that don't fit; says which keys.
        FileNotFoundError: No such checkpoint.
    """
    from timm.data import resolve_data_config
    from timm.models import create_model

    weights, run = load_weights(args.checkpoint, args.use_ema) if args.checkpoint else (None, {})
    settings = {key: run.get(key) for key in _FROM_RUN}
    for key in _FROM_RUN:
        given = getattr(args, key, None)
        if given not in (None, {}, ""):
            settings[key] = given
    name = settings["model"]
    if not name:
        raise ValueError("which model? Give --model NAME (the checkpoint names none).")
    device = pick_device(args.device)
    in_chans = settings["in_chans"] or (settings["input_size"] or [None])[0]
    try:
        model: Any = create_model(
            name,
            pretrained=pretrained and weights is None,
            num_classes=settings["num_classes"],
            in_chans=in_chans,
            global_pool=settings["gp"],
            **(settings["model_kwargs"] or {}),
        )
    except RuntimeError as error:
        if "Unknown model" not in str(error):
            raise
        raise ValueError(f"{error}. `timm.list_models('*gcp*')` lists ours, `timm.list_models()` all.") from error
    if weights is not None:
        _fill(model, name.split(".")[0], weights, args.checkpoint)
    settings["in_chans"] = in_chans or getattr(model, "in_chans", None) or model.pretrained_cfg["input_size"][0]
    if settings["img_size"] and settings["input_size"] and getattr(args, "img_size", None):
        settings["input_size"] = None  # an option outdoes the run's setting
    data_config = resolve_data_config({k: v for k, v in settings.items() if v is not None}, model=model)
    data_config = _for_channels(data_config, settings["in_chans"])
    model = model.to(device).eval()
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    autocast = torch.autocast(device.type, dtype=getattr(torch, args.amp_dtype)) if args.amp else nullcontext()
    names = label_names(model, settings["dataset"] or getattr(args, "dataset", None))
    return Loaded(model, name, data_config, names, device, autocast)


def _for_channels(config: dict[str, Any], channels: Any) -> dict[str, Any]:
    """timm's configuration for as many channels as the model takes: statistics of others are averaged."""
    config = {**config, "input_size": (channels, *config["input_size"][1:])}
    for key in ("mean", "std"):
        if len(config[key]) != channels:
            config[key] = (sum(config[key]) / len(config[key]),) * channels
    return config


def _fill(model: nn.Module, arch: str, weights: dict[str, Any], path: str) -> None:
    from timm_gcp.weights.architectures import ARCHITECTURES
    from timm_gcp.weights.layouts import rename

    if arch in ARCHITECTURES:  # the authors' and torchvision's names, too
        weights = rename(weights)
    own = model.state_dict()
    missing = [key for key in own if key not in weights]
    foreign = [key for key in weights if key not in own]
    sizes = [
        f"{key} {tuple(weights[key].shape)} for {tuple(own[key].shape)}"
        for key in own
        if key in weights and weights[key].shape != own[key].shape
    ]
    if missing or foreign or sizes:
        parts = {"missing": missing, "foreign": foreign, "of another size": sizes}
        said = "; ".join(
            f"{what}: {', '.join(keys[:5])}{' …' * (len(keys) > 5)}" for what, keys in parts.items() if keys
        )
        raise ValueError(
            f"the weights in {path!r} don't fit the model: {said}. Check --model, --num-classes, --in-chans."
        )
    model.load_state_dict(weights)


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
