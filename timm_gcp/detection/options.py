"""Options of `timm-gcp detect train`: one table for the command line and for the YAML recipes.

Precedence: default, then recipe, then command line. The defaults are the paper's settings (Section 4.3).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import did_you_mean
from timm_gcp.common.ranges import (
    COUNT,
    NOT_NEGATIVE,
    PIXELS,
    POSITIVE,
    PROBABILITY,
    SEED,
    WORKERS,
    Range,
    number,
    whole,
)
from timm_gcp.common.recipe import read_recipe, recipe_dirs
from timm_gcp.detection.backbone import LAST_STAGES, NORMS
from timm_gcp.detection.coco_data import BAD_BOXES
from timm_gcp.detection.models import ANCHOR_SIZES, DETECTORS

RECIPES = "detection"  # subfolder of the recipes
AMP_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Option:
    """One option: YAML key (`batch_size`; `--batch-size` on the command line), type, default and meaning."""

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[Any, ...] | None = None
    many: bool = False
    allowed: Range | None = None  # of numbers

    @property
    def flag(self) -> str:
        """Spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def flags(self) -> tuple[str, ...]:
        """All spellings: the short ones are those of the other commands."""
        short = {"batch_size": "-b", "workers": "-j"}.get(self.name)
        return (short, self.flag) if short else (self.flag,)


_CHANNELS = Range(1, 65_536)
_EPOCHS = Range(0, 10**6)
_PROPOSALS = Range(1, 10**6)
_OPTIONS = (
    # data
    Option("data_dir", str, None, "folder with annotations/instances_*.json and the image folders train2017, val2017"),
    Option("train_split", str, "train", "split to train on (train also finds train2017)"),
    Option("val_split", str, "val", "split to evaluate on"),
    Option("train_json", str, None, "annotation file to train on, instead of a split"),
    Option("train_images", str, None, "folder of its images"),
    Option("val_json", str, None, "annotation file to evaluate on, instead of a split"),
    Option("val_images", str, None, "folder of its images"),
    Option("bad_boxes", str, "error", "what to do about boxes without area", BAD_BOXES),
    Option("keep_empty", bool, False, "train on images without boxes too"),
    Option("hflip", float, 0.5, "probability of mirroring a training image", allowed=PROBABILITY),
    # detector
    Option("detector", str, "fasterrcnn", "detector", tuple(DETECTORS)),
    Option("model", str, "resnet50_gcp", "timm model of the backbone"),
    Option("pretrained", bool, False, "start from the model's pretrained weights"),
    Option("checkpoint", str, None, "start from this classifier checkpoint"),
    Option("last_stage", str, None, "last stage of a GCP ResNet (stride2 when left out)", LAST_STAGES),
    Option("norm", str, "frozen_bn", "batch norms of the backbone", NORMS),
    Option("trainable_layers", int, 3, "groups of the backbone to train, of 5", allowed=Range(0, 5)),
    Option("in_chans", int, 3, "channels of the images", (1, 3)),
    Option("min_size", int, 800, "shorter side of a resized image in pixels", allowed=PIXELS),
    Option("max_size", int, 1333, "longest side of a resized image in pixels", allowed=PIXELS),
    Option("fpn_channels", int, 256, "channels of the pyramid", allowed=_CHANNELS),
    Option("head_channels", int, 1024, "width of the box branch", allowed=_CHANNELS),
    Option("mask_channels", int, 256, "width of the mask branch", allowed=_CHANNELS),
    Option(
        "anchor_sizes", int, list(ANCHOR_SIZES), "side of the anchors in pixels, one per map", many=True, allowed=PIXELS
    ),
    Option(
        "rpn_proposals", int, 2000, "proposals per image in training (1000 in evaluation at most)", allowed=_PROPOSALS
    ),
    Option("rois_per_image", int, 512, "proposals per image that the box branch learns from", allowed=_PROPOSALS),
    # optimization
    Option("epochs", int, 12, "passes over the training data", allowed=Range(1, 10**6)),
    Option("batch_size", int, 8, "images per batch and process", allowed=COUNT),
    Option("lr", float, 0.01, "learning rate of SGD", allowed=POSITIVE),
    Option("momentum", float, 0.9, "momentum of SGD", allowed=Range(0, 1, below=True)),
    Option("weight_decay", float, 1e-4, "weight decay", allowed=NOT_NEGATIVE),
    Option("decay_milestones", int, [8, 11], "epochs after which the rate falls", many=True, allowed=_EPOCHS),
    Option("decay_rate", float, 0.1, "factor of each fall", allowed=NOT_NEGATIVE),
    Option(
        "warmup_iters", int, 500, "steps of linear warm-up, as MMDetection's default schedule", allowed=Range(0, 10**9)
    ),
    Option("clip_grad", float, None, "clip the norm of the gradient at this value", allowed=POSITIVE),
    Option("amp", bool, False, "mixed precision"),
    Option("amp_dtype", str, None, "lower precision (float16 on GPUs, else bfloat16, when left out)", AMP_DTYPES),
    Option("seed", int, 0, "seed of everything random", allowed=SEED),
    # running
    Option("device", str, None, "device (cuda when there is one, when left out)"),
    Option("workers", int, 4, "processes that read images", allowed=WORKERS),
    Option("eval_interval", int, 1, "evaluate every so many epochs; 0: after the last only", allowed=_EPOCHS),
    Option("output", str, None, "folder for checkpoints and results"),
    Option("force", bool, False, "replace another run in the output folder"),
    Option("resume", str, None, "go on from this checkpoint; 'last': from the output folder's"),
)
OPTIONS: dict[str, Option] = {option.name: option for option in _OPTIONS}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--config` and all `OPTIONS`; what is not given stays out of the namespace, see `resolve`."""
    parser.add_argument("-c", "--config", default=None, help="recipe: a YAML file, or the name of a shipped one")
    for option in OPTIONS.values():
        text = option.help if option.default is None else f"{option.help} (default: {option.default})"
        if option.type is bool:
            parser.add_argument(
                *option.flags, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
            )
        else:
            parser.add_argument(
                *option.flags, type=_converter(option), default=argparse.SUPPRESS, help=text,
                choices=option.choices, nargs="+" if option.many else None,
            )  # fmt: skip


def _converter(option: Option) -> Callable[[str], Any]:
    if option.allowed is None:
        return option.type
    return whole(option.allowed) if option.type is int else number(option.allowed)


def resolve(given: Mapping[str, Any], config: str | Path | None = None) -> argparse.Namespace:
    """Defaults, overlaid by the recipe `config`, overlaid by the options `given`; all checked.

    Raises:
        FileNotFoundError: No such recipe.
        ValueError: An unknown key, or a value of the wrong type or out of range.
    """
    values = {name: option.default for name, option in OPTIONS.items()}
    if config is not None:
        path = find_detection_recipe(config)
        values.update(_checked(read_recipe(path), f"recipe {str(path)!r}"))
    values.update(_checked(given, "option"))
    return argparse.Namespace(**values)


def find_detection_recipe(name: str | Path) -> Path:
    """A recipe given as a path, or as the name of a shipped detection recipe.

    Raises:
        FileNotFoundError: There is none of that name; lists the known ones.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = {path.stem: path for folder in recipe_dirs() for path in sorted((folder / RECIPES).glob("*.yaml"))}
    stem = str(name).removesuffix(".yaml")
    if stem not in shipped:
        raise FileNotFoundError(
            f"no recipe {str(name)!r}: not a file, and not one of the shipped detection recipes "
            f"({', '.join(sorted(shipped)) or 'none found'}).{did_you_mean(stem, shipped)}"
        )
    return shipped[stem]


def _checked(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in given:
        if key not in OPTIONS:
            raise ValueError(f"{where}: timm-gcp detect has no key {key!r}.{did_you_mean(key, OPTIONS)}")
    return {key: _convert(OPTIONS[key], value, where) for key, value in given.items()}


def _convert(option: Option, value: Any, where: str) -> Any:
    if value is None and option.default is None:
        return None
    if option.many:
        values = [_convert_one(option, item, where) for item in (value if isinstance(value, list | tuple) else [value])]
        if values != sorted(values):
            raise ValueError(f"{where}: {option.name} must rise from value to value. Got {values}.")
        if not values and option.name == "anchor_sizes":
            raise ValueError(f"{where}: {option.name} is empty: give one size per map, or leave it out.")
        return values
    return _convert_one(option, value, where)


def _convert_one(option: Option, value: Any, where: str) -> Any:
    wrong = ValueError(f"{where}: {option.name} must be {option.type.__name__}. Got {value!r}.")
    if (option.type is bool) != isinstance(value, bool) or value is None or isinstance(value, dict | list | tuple):
        raise wrong
    try:
        converted = option.type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if isinstance(value, float) and option.type is int and converted != value:
        raise wrong
    if option.choices is not None and converted not in option.choices:
        raise ValueError(f"{where}: {option.name} must be one of {', '.join(map(str, option.choices))}. Got {value!r}.")
    problem = option.allowed.wrong(converted) if option.allowed is not None else ""
    if problem:
        raise ValueError(f"{where}: {option.name} must be {problem}. Got {value!r}.")
    return converted
