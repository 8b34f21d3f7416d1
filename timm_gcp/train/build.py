"""Model, data, loss, optimizer and rate of a training run: timm's factories, called as its train.py calls them.

The order of random draws is train.py's: seed, then the model's initial weights, then the loaders.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import FastCollateMixup, Mixup, create_loader
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from torch import nn

from timm_gcp.train.checkpoint import check_values_of, load_initial
from timm_gcp.train.data import check_folder, open_split
from timm_gcp.train.ranges import check_policy
from timm_gcp.weights import rebuild
from timm_gcp.weights.named import create

_logger = logging.getLogger(__name__)


@dataclass
class Loaders:
    """What an epoch runs over: batches of images and targets; `len(train)` is the number of batches."""

    train: Any
    val: Iterable[Any] | None
    mixup: Mixup | None = None  # applied in the loop where the loader doesn't


def check_sources(args: argparse.Namespace) -> None:
    """Check the files that a run starts from.

    Raises:
        FileNotFoundError: One is missing.
        ValueError: Weights are named that would not be loaded.
    """
    for key in ("initial_checkpoint", "pretrained_path", "resume"):
        path = getattr(args, key)
        if path and not Path(path).is_file():
            option = key.replace("_", "-")
            raise FileNotFoundError(f"no checkpoint at {path!r}: give a file with --{option}, or leave it out.")
    if args.pretrained_path and not args.pretrained:
        raise ValueError("--pretrained-path is read with --pretrained only: add that, or use --initial-checkpoint.")


def build_model(args: argparse.Namespace, device: torch.device) -> Any:
    """Create the model of a run on its device; sets `args.num_classes` and `args.in_chans` where they were left out.

    Raises:
        ValueError: An unknown model, or arguments that it doesn't take.
    """
    in_chans = args.in_chans if args.in_chans is not None else args.input_size[0] if args.input_size else 3
    args.in_chans = in_chans  # as the checkpoint is to say
    overlay: dict[str, Any] = {}
    if args.pretrained_path:  # num_classes=-1 makes timm adapt the classifier
        check_values_of(args.pretrained_path)
        overlay["pretrained_cfg_overlay"] = {"file": args.pretrained_path, "num_classes": -1}
    settings = {
        "in_chans": in_chans,
        "num_classes": args.num_classes,
        "drop_rate": args.drop,
        "drop_path_rate": args.drop_path,
        "drop_block_rate": args.drop_block,
        "global_pool": args.gp,
        "bn_momentum": args.bn_momentum,
        "bn_eps": args.bn_eps,
        "scriptable": False,
        **overlay,
    }
    if twice := [key for key in args.model_kwargs if settings.get(key) not in (None, "", False)]:
        raise ValueError(f"model_kwargs has {', '.join(twice)}, which a key of its own sets: give one of them.")
    model: Any = create(args.model, args.pretrained, {**settings, **args.model_kwargs})
    if args.initial_checkpoint:
        load_initial(model, args.initial_checkpoint)
    with torch.no_grad():
        if args.head_init_scale is not None:
            for head in _classifiers(model):
                head.weight.mul_(args.head_init_scale)
                head.bias.mul_(args.head_init_scale)
        if args.head_init_bias is not None:
            for head in _classifiers(model):
                head.bias.fill_(args.head_init_bias)
    if args.num_classes is None:
        args.num_classes = model.num_classes
    if args.grad_checkpointing:
        model.set_grad_checkpointing(enable=True)
    model.to(device=device)
    return model.to(memory_format=torch.channels_last) if args.channels_last else model


def _classifiers(model: Any) -> tuple[Any, ...]:
    """The classifiers of a model: one, or several whose logits are added."""
    found = model.get_classifier()
    return found if isinstance(found, tuple) else (found,)


def resolve_data(args: argparse.Namespace, model: Any) -> dict[str, Any]:
    """timm's data configuration of a run: the recipe's keys, else what the model's weights were trained with.

    Raises:
        ValueError: A mean or standard deviation for another number of channels.
    """
    return rebuild.resolve_data(vars(args), model, args.input_size[0] if args.input_size else args.in_chans)


def trained_size(args: argparse.Namespace, model: Any) -> tuple[int, int] | None:
    """Height and width of the images that the run's initial weights were trained on, None for random weights."""
    cfg = getattr(model, "pretrained_cfg", None) or {}
    size = cfg.get("input_size") if args.pretrained else None
    return (int(size[1]), int(size[2])) if size else None


def images_in(loader: Any) -> int:
    """Images behind a loader: of its data set, of the tensor that it holds, or, batch by batch, of a list."""
    for held in (getattr(loader, "dataset", None), getattr(loader, "images", None)):
        if held is not None:
            return len(held)
    return sum(len(images) for images, *_ in loader)


def mixup_active(args: argparse.Namespace) -> bool:
    """Does the run mix images (and so train on soft targets)?"""
    return args.mixup > 0 or args.cutmix > 0


def build_loaders(args: argparse.Namespace, data_config: dict[str, Any], device: torch.device) -> Loaders:
    """Training and validation loaders of a run.

    Raises:
        FileNotFoundError: No data folder or split.
        ValueError: A split can't be read, or there are fewer training images than one batch.
    """
    check_folder(args)
    channels = data_config["input_size"][0]
    train_set = open_split(args, channels, training=True, seed=args.seed, repeats=args.epoch_repeats)
    val_set = open_split(args, channels, training=False) if args.val_split else None
    if len(train_set) < args.batch_size:
        raise ValueError(
            f"{len(train_set)} training images make no batch of {args.batch_size} (the last, incomplete batch is "
            "dropped): lower --batch-size, or check --data-dir."
        )
    common = {
        "input_size": data_config["input_size"],
        "mean": data_config["mean"],
        "std": data_config["std"],
        "pin_memory": args.pin_mem,
        "img_dtype": torch.float32,
        "device": device,
        "use_prefetcher": not args.no_prefetcher,
        "num_workers": args.workers,
    }
    collate, mixup = None, None
    if mixup_active(args):
        options = {
            "mixup_alpha": args.mixup,
            "cutmix_alpha": args.cutmix,
            "prob": args.mixup_prob,
            "switch_prob": args.mixup_switch_prob,
            "mode": args.mixup_mode,
            "label_smoothing": args.smoothing,
            "num_classes": args.num_classes,
        }
        if args.no_prefetcher:
            mixup = Mixup(**options)
        else:
            collate = FastCollateMixup(**options)
    plain = args.no_aug or not args.train_interpolation
    check_policy(vars(args))
    train = create_loader(
        train_set,
        batch_size=args.batch_size,
        is_training=True,
        no_aug=args.no_aug,
        re_prob=args.reprob,
        re_mode=args.remode,
        re_count=args.recount,
        train_crop_mode=args.train_crop_mode,
        scale=args.scale,
        ratio=args.ratio,
        hflip=args.hflip,
        vflip=args.vflip,
        color_jitter=args.color_jitter,
        color_jitter_prob=args.color_jitter_prob,
        grayscale_prob=args.grayscale_prob,
        gaussian_blur_prob=args.gaussian_blur_prob,
        auto_augment=args.aa,
        interpolation=data_config["interpolation"] if plain else args.train_interpolation,
        worker_seeding=args.worker_seeding,
        collate_fn=collate,
        **common,
    )
    val = None
    if val_set is not None:
        val = create_loader(
            val_set,
            batch_size=args.validation_batch_size or args.batch_size,
            is_training=False,
            interpolation=data_config["interpolation"],
            crop_pct=data_config["crop_pct"],
            **common,
        )
    return Loaders(train, val, mixup)


def build_criterion(args: argparse.Namespace) -> nn.Module:
    """Training loss: soft targets under mixup, else cross-entropy with the recipe's label smoothing."""
    if mixup_active(args):
        return SoftTargetCrossEntropy()
    return LabelSmoothingCrossEntropy(smoothing=args.smoothing) if args.smoothing else nn.CrossEntropyLoss()


def build_optimizer(args: argparse.Namespace, model: Any) -> Any:
    """timm's optimizer of a recipe.

    Raises:
        ValueError: timm has no such optimizer, or it doesn't take the recipe's values.
    """
    from timm.optim import create_optimizer_v2, optimizer_kwargs

    try:
        return create_optimizer_v2(model, **optimizer_kwargs(cfg=args), **args.opt_kwargs)
    except (TypeError, ValueError, AssertionError, KeyError, IndexError) as error:
        given = f" with opt_kwargs {args.opt_kwargs}" if args.opt_kwargs else ""
        raise ValueError(
            f"the optimizer {args.opt!r} can't be made{given}: {error}. Check --opt and its options; "
            "`timm.optim.list_optimizers()` lists the names."
        ) from error


def resolve_rate(args: argparse.Namespace) -> float:
    """The base learning rate: `lr`, or `lr_base` scaled with the number of images per update."""
    if args.lr:
        return float(args.lr)
    ratio = args.batch_size * args.grad_accum_steps / args.lr_base_size
    scale = args.lr_base_scale
    if not scale:
        scale = "sqrt" if any(name in args.opt.lower() for name in ("ada", "lamb")) else "linear"
    return float(args.lr_base * (ratio**0.5 if scale == "sqrt" else ratio))


def build_scheduler(args: argparse.Namespace, optimizer: Any, updates_per_epoch: int) -> tuple[Any, int]:
    """The rate schedule (None for `none`) and the number of epochs it runs for.

    The factory is looked up at call time, so that the `gcp_*` schedules are found.

    Raises:
        ValueError: timm (with our schedules) knows no schedule of that name.
    """
    import timm.scheduler

    options = timm.scheduler.scheduler_kwargs(args, decreasing_metric=args.eval_metric == "loss")
    try:
        scheduler, epochs = timm.scheduler.create_scheduler_v2(
            optimizer, **options, updates_per_epoch=updates_per_epoch
        )
    except (ValueError, RuntimeError, AssertionError, KeyError) as error:
        raise ValueError(f"the schedule {args.sched!r} can't be made: {error}") from error
    if scheduler is None and args.sched not in ("none", ""):
        raise ValueError(f"no schedule {args.sched!r} (older timm would train at a constant rate): check --sched.")
    return scheduler, epochs
