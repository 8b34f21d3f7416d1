"""Classifiers fed with bytes: each normalises on its own device, so that several can share one stream of images."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from timm_gcp.common.device import mixed_precision, pick_device
from timm_gcp.inference.classes import check_classifier, check_num_classes, own_names
from timm_gcp.inference.model import Loaded, load_model
from timm_gcp.weights.source import find_checkpoint, read_source

TORCHVISION = "torchvision:"  # prefix of models that timm lacks, such as the benchmark's baseline AlexNet
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601, as Pillow turns colour into grey


class Classifier:
    """A model with its normalisation, taking uint8 RGB images.

    Args:
        label: name in tables and files.
        loaded: the model, its device and its data configuration.
        names: class names by index that its weights carry, if any.
    """

    def __init__(self, label: str, loaded: Loaded, names: tuple[str, ...] | None = None) -> None:
        self.label, self.names = label, names
        self.loaded = loaded
        config = loaded.data_config
        self.in_chans = int(config["input_size"][0])
        if self.in_chans not in (1, 3):
            raise ValueError(f"{label} takes {self.in_chans} channels; corrupted images have 3 (or 1, made grey)")
        self.size = int(config["input_size"][-1])
        self.mean, self.std = (self._per_channel(config[key]) for key in ("mean", "std"))

    def _per_channel(self, values: Sequence[float]) -> Tensor:
        tensor = torch.tensor(values, dtype=torch.float32, device=self.loaded.device)
        if len(tensor) != self.in_chans:  # a colour model's statistics on a grey one, or the reverse
            tensor = tensor.mean().repeat(self.in_chans)
        return tensor.view(-1, 1, 1)

    @property
    def num_classes(self) -> int:
        """Number of classes, from the model."""
        return int(getattr(self.loaded.model, "num_classes", 0))

    @torch.inference_mode()
    def logits(self, images: Tensor) -> Tensor:
        """Return `(B, classes)` float32 on the model's device from `(B, H, W, 3)` uint8 on any.

        Raises:
            RuntimeError: A logit isn't finite.
        """
        pixels = images.to(self.loaded.device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        if self.in_chans == 1:
            weights = torch.tensor(LUMINANCE, device=pixels.device).view(1, 3, 1, 1)
            pixels = (pixels * weights).sum(dim=1, keepdim=True)
        with self.loaded.autocast:
            logits = self.loaded.model((pixels - self.mean) / self.std)
        if not torch.isfinite(logits).all():
            raise RuntimeError(f"{self.label} gave logits that aren't finite: leave out --amp, or check the weights")
        return logits.float()


def load_classifiers(args: argparse.Namespace) -> list[Classifier]:
    """Build the classifiers that `--model`, `--checkpoint` and `--label` describe.

    Args:
        args: options of `inference.model.add_model_arguments`, with `model` a list, `checkpoint` a list or None,
            `label` a list or None, and `pretrained`.

    Raises:
        ValueError: The lists don't fit together, labels repeat, or weights are missing.
    """
    check_num_classes(args.num_classes)
    if not args.model and not args.checkpoint:
        raise ValueError("which models? Give --model NAME, or --checkpoint PATH of models trained here")
    args.model = args.model or [read_architecture(path) for path in args.checkpoint]
    names: list[str] = args.model
    checkpoints: list[str | None] = list(args.checkpoint or [None] * len(names))
    if len(checkpoints) != len(names):
        raise ValueError(
            f"{len(names)} models but {len(checkpoints)} checkpoints: give one --checkpoint file per --model name"
        )
    if args.checkpoint and args.pretrained:
        raise ValueError("--pretrained and --checkpoint exclude each other: the weights come from one place")
    if not args.checkpoint and not args.pretrained:
        raise ValueError("a model without weights has nothing to score: add --pretrained or --checkpoint FILE")
    if args.checkpoint:
        args.checkpoint = checkpoints = [str(find_checkpoint(path)) for path in args.checkpoint]
    labels = list(args.label or _labels(names, checkpoints))
    if len(labels) != len(names):
        raise ValueError(f"{len(names)} models but {len(labels)} labels: give one --label per --model name")
    if len(set(labels)) != len(labels):
        raise ValueError(f"two models share a label ({', '.join(labels)}): tell them apart with --label")
    classifiers = []
    for name, checkpoint, label in zip(names, checkpoints, labels, strict=True):
        one = argparse.Namespace(**{**vars(args), "model": name, "checkpoint": checkpoint})
        if name.startswith(TORCHVISION):
            loaded = _load_torchvision(one)
        else:
            loaded = load_model(one, args.pretrained)
            check_classifier(loaded, checkpoint)
        classifiers.append(Classifier(label, loaded, own_names(loaded, checkpoint)))
    return classifiers


def read_architecture(path: str) -> str:
    """Name of the model that a checkpoint says it holds.

    Raises:
        FileNotFoundError: No such file.
        ValueError: It doesn't say.
    """
    name = read_source(path).record.architecture
    if not name:
        raise ValueError(f"{path} doesn't say which model it holds: give --model NAME")
    return name


def _labels(names: list[str], checkpoints: list[str | None]) -> list[str]:
    """Name models by their own name, and by their checkpoint too where that occurs twice."""
    shorts = [name.removeprefix(TORCHVISION).rstrip("/").rsplit("/", 1)[-1] for name in names]
    return [
        f"{short}@{Path(file).parent.name}-{Path(file).stem}" if file and shorts.count(short) > 1 else short
        for short, file in zip(shorts, checkpoints, strict=True)
    ]


def _load_torchvision(args: argparse.Namespace) -> Loaded:
    from torchvision import models

    from timm_gcp.weights.checkpoint import read_checkpoint
    from timm_gcp.weights.fit import load_whole
    from timm_gcp.weights.layouts import unwrap
    from timm_gcp.weights.named import check_model

    name = args.model.removeprefix(TORCHVISION)
    if name not in models.list_models(module=models):
        raise ValueError(
            f"torchvision has no classifier {name!r}; it has {', '.join(models.list_models(module=models))}"
        )
    device = pick_device(args.device)
    options: dict[str, Any] = {} if args.num_classes is None else {"num_classes": args.num_classes}
    model: nn.Module = models.get_model(name, weights="DEFAULT" if args.pretrained else None, **options)
    if args.checkpoint:
        tensors = unwrap(read_checkpoint(args.checkpoint))
        load_whole(model, tensors, args.checkpoint)
        check_model(model, args.checkpoint)
    model.num_classes = 1000 if args.num_classes is None else args.num_classes  # type: ignore[assignment]
    config = {
        "input_size": (3, args.img_size or 224, args.img_size or 224),
        "mean": args.mean or (0.485, 0.456, 0.406),
        "std": args.std or (0.229, 0.224, 0.225),
        "interpolation": args.interpolation or "bilinear",
        "crop_pct": args.crop_pct or 0.875,
    }
    autocast = mixed_precision(device, args.amp, args.amp_dtype)
    return Loaded(model.to(device).eval(), args.model, config, None, device, autocast)
