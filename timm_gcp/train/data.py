"""The data of a training run, checked before anything is built: splits, classes and their number."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import counted
from timm_gcp.datasets.class_map import read_class_map
from timm_gcp.datasets.folders import check_same_classes, class_indices, split_folder, survey
from timm_gcp.inference.classes import check_num_classes
from timm_gcp.inference.image_data import FOLDERS, check_name, class_names, open_data

_logger = logging.getLogger(__name__)
_MODES = {"RGB": 3, "L": 1}


def check_data(args: argparse.Namespace) -> None:
    """Check the splits of a run against each other and the number of classes; set `args.num_classes` if left out.

    Raises:
        FileNotFoundError: No data folder, split or class map.
        ValueError: What a split holds is wrong, the splits differ in their classes, there are more classes than
            `num_classes`, or mixup has an odd batch.
    """
    check_num_classes(args.num_classes)
    check_name(args.dataset)
    if (args.mixup > 0 or args.cutmix > 0) and args.batch_size % 2:
        raise ValueError(
            f"mixup and cutmix pair the images of a batch: --batch-size must be even, got {args.batch_size}."
        )
    folder = args.dataset in FOLDERS
    if not folder and not args.dataset.lower().startswith("torch/"):
        return  # a stream says its classes when it runs, if at all
    count = _classes_of_folders(args) if folder else _classes_of_data_set(args)
    if count is None:
        return
    if args.num_classes is None:
        args.num_classes = count
    elif args.num_classes < count:
        raise ValueError(
            f"--num-classes {args.num_classes}, but the training data have {counted(count, 'class', 'classes')}: leave "
            f"it out, or give {count} or more."
        )
    elif args.num_classes > count:
        _logger.warning(
            "--num-classes %d, the training data have %d classes: the other %d outputs see no images.",
            args.num_classes, count, args.num_classes - count,
        )  # fmt: skip


def _classes_of_folders(args: argparse.Namespace) -> int:
    folder = split_folder(args.data_dir or "", args.train_split, "--train-split")
    train, class_map = survey(folder), read_class_map(args.class_map, args.data_dir)
    if args.val_split:
        other = split_folder(args.data_dir, args.val_split, "--val-split (empty for no validation)")
        if other.samefile(folder):
            _logger.warning("%r is both training and validation split: its figures say nothing of new images.", folder)
        check_same_classes(train, survey(other), class_map)
    return 1 + max(class_indices(train, class_map).values())


def _classes_of_data_set(args: argparse.Namespace) -> int | None:
    check_folder(args)
    data = open_data(
        args.dataset, args.data_dir, args.train_split, 3, option="--train-split", download=args.dataset_download
    )
    names = class_names(data)
    return None if names is None else len(names)


def check_folder(args: argparse.Namespace) -> None:
    """Check that the data folder is there, where one is needed.

    Raises:
        FileNotFoundError: It is not.
    """
    on_disk = args.dataset in FOLDERS or (args.dataset.startswith("torch/") and not args.dataset_download)
    if on_disk and not (args.data_dir and Path(args.data_dir).is_dir()):
        raise FileNotFoundError(f"no folder {args.data_dir!r}: give the data set's folder with --data-dir.")


def open_split(args: argparse.Namespace, channels: int, training: bool, **more: Any) -> Any:
    """Open the training or validation split of a run."""
    if args.input_img_mode:
        if args.input_img_mode not in _MODES:
            raise ValueError(f"input_img_mode must be one of {', '.join(_MODES)}, got {args.input_img_mode!r}.")
        channels = _MODES[args.input_img_mode]
    return open_data(
        args.dataset,
        args.data_dir,
        args.train_split if training else args.val_split,
        channels,
        option="--train-split" if training else "--val-split",
        is_training=training,
        class_map=read_class_map(args.class_map, args.data_dir or ""),
        download=args.dataset_download,
        batch_size=args.batch_size,
        **more,
    )
