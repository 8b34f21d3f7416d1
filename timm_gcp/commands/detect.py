"""`timm-gcp detect train|eval|predict`: train a detector, measure it on COCO-format data, draw its detections."""

from __future__ import annotations

import argparse

from timm_gcp.commands.options import add_shared
from timm_gcp.common.ranges import PROBABILITY, number
from timm_gcp.detection.inference import evaluate, predict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three actions and their options."""
    from timm_gcp.detection.options import add_options

    actions = parser.add_subparsers(dest="action", required=True, metavar="train|eval|predict")
    add_options(
        actions.add_parser("train", help="train a detector (several GPUs: torchrun -m timm_gcp.cli detect train)")
    )

    measure = actions.add_parser("eval", help="COCO's average precision of a trained detector")
    _add_common(measure)
    measure.add_argument("--data-dir", help="folder with annotations/instances_*.json and the image folders")
    measure.add_argument("--val-split", default="val", help="split to evaluate on (default: val, or val2017)")
    measure.add_argument("--val-json", help="annotation file, instead of a split")
    measure.add_argument("--val-images", help="folder of its images")
    measure.add_argument(
        "--bad-boxes", choices=("error", "drop"), default="error", help="what to do about boxes without area"
    )
    add_shared(measure, "workers", default=4, help="processes that read images (default: 4)")
    measure.add_argument("--output", help="folder for results.json and metrics.json")

    predict = actions.add_parser("predict", help="run a trained detector on images and draw what it finds")
    _add_common(predict)
    predict.add_argument("images", nargs="+", help="image files, or folders of them")
    predict.add_argument("--output", required=True, help="folder for the pictures and results.json")
    predict.add_argument(
        "--score-threshold",
        type=number(PROBABILITY),
        default=0.5,
        help="draw detections from this score up (default: 0.5)",
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, help="a detector that `detect train` wrote")
    add_shared(parser, "batch_size", default=8, help="images per batch (default: 8)")
    parser.add_argument("--device", help="device (cuda when there is one, when left out)")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--amp-dtype", choices=("float16", "bfloat16"), help="lower precision")
    add_shared(parser, "json", help="print the outcome as JSON")


def main(args: argparse.Namespace) -> int:
    """Run one action; returns the exit status."""
    return {"train": _train, "eval": evaluate, "predict": predict}[args.action](args)


def _train(args: argparse.Namespace) -> int:
    from timm_gcp.detection.options import OPTIONS, resolve
    from timm_gcp.detection.run import run_training

    given = {name: value for name, value in vars(args).items() if name in OPTIONS}
    run_training(resolve(given, args.config))
    return 0
