"""Options that say which model to load and how its images are prepared: declared here, read by `load_model`."""

from __future__ import annotations

import argparse
from typing import Any

from timm_gcp.common.named_values import NamedValues
from timm_gcp.common.ranges import CLASSES, CROP, PIXELS, POSITIVE, Range, number, whole
from timm_gcp.weights.data_config import checked_data_config, read_data_config

_DATA = ("img_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")  # options of the data configuration


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that `load_model` reads."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="timm model, with tag if wanted, gcp:NAME to swap its pooling, local-dir:PATH, or hf-hub:ORG/NAME",
    )
    group.add_argument(
        "--checkpoint", metavar="PATH", help="weights: a run's folder (best, else last), a checkpoint, or safetensors"
    )
    group.add_argument("--use-ema", action="store_true", help="take the averaged weights of the checkpoint")
    group.add_argument(
        "--num-classes", type=whole(CLASSES), metavar="N", help="classes, where the model's own number is wrong"
    )
    group.add_argument("--in-chans", type=whole(PIXELS), metavar="N", help="image channels")
    add_data_arguments(group)
    group.add_argument(
        "--model-kwargs", nargs="*", default={}, action=NamedValues, help="further arguments, name=value"
    )
    group.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    group.add_argument("--channels-last", action="store_true", help="use the channels_last memory layout")
    group.add_argument("--amp", action="store_true", help="mixed precision")
    group.add_argument(
        "--amp-dtype", default="float16", choices=["float16", "bfloat16"], help="type of mixed precision"
    )


def model_arguments(**given: Any) -> argparse.Namespace:
    """What `load_model` reads, as if these options had been given and all others left out.

    Args:
        **given: Options by their Python names, such as `model`, `checkpoint`, `device`.

    Raises:
        ValueError: There is no such option.
    """
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    found = vars(parser.parse_args([]))
    if unknown := sorted(set(given) - set(found)):
        raise ValueError(f"{unknown[0]!r} is not an option of a model; there are {', '.join(found)}.")
    return argparse.Namespace(**{**found, **given})


def add_data_arguments(group: Any) -> None:
    """Declare the options that say how images are prepared; `data_options` reads them."""
    group.add_argument("--data-config", metavar="FILE", help="JSON or YAML file of timm's data configuration")
    group.add_argument("--img-size", type=whole(PIXELS), metavar="N", help="height and width of the input in pixels")
    group.add_argument("--crop-pct", type=number(CROP), metavar="P", help="share of the image kept by the centre crop")
    group.add_argument("--mean", type=number(Range()), nargs="+", metavar="M", help="mean of the pixels, per channel")
    group.add_argument(
        "--std", type=number(POSITIVE), nargs="+", metavar="S", help="standard deviation of the pixels, per channel"
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
