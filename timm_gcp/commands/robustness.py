"""`timm-gcp robustness c|p`: score models on ImageNet-C or ImageNet-P, or on any data set made likewise."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from timm_gcp.commands.options import add_shared
from timm_gcp.common.ranges import COUNT, SEED, whole
from timm_gcp.inference.options import add_model_arguments
from timm_gcp.robustness.corruptions import ALL_CORRUPTIONS, SEVERITIES
from timm_gcp.robustness.perturbations import DIFFICULTIES
from timm_gcp.robustness.run import run
from timm_gcp.robustness.sources import FASHION_MNIST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two benchmarks and their options."""
    benchmarks = parser.add_subparsers(dest="benchmark", required=True, metavar="c|p")
    shared: dict[str, Any] = {"formatter_class": argparse.ArgumentDefaultsHelpFormatter, "conflict_handler": "resolve"}
    c = benchmarks.add_parser("c", help="ImageNet-C: error under corruptions", **shared)
    _add_common(c, "folder of corruption/severity/class/image; with --on-the-fly, of the clean data set")
    c.add_argument(
        "--clean-dir", type=Path, metavar="DIR", help="clean validation folder, for relative mCE (resize 256)"
    )
    c.add_argument("--corruptions", nargs="+", metavar="NAME", help=f"of {', '.join(ALL_CORRUPTIONS)}")
    c.add_argument(
        "--severities", nargs="+", type=whole(COUNT), default=list(SEVERITIES), metavar="S", help="severities"
    )
    c.add_argument("--extra", action="store_true", help="the four extra corruptions too (with --on-the-fly)")
    c.add_argument("--baseline", metavar="FILE", help="alexnet (published figures), a result file of ours, or none")

    p = benchmarks.add_parser("p", help="ImageNet-P: stability under perturbations", **shared)
    _add_common(p, "folder of perturbation/class/clip.mp4; with --on-the-fly, of the clean data set")
    p.add_argument("--perturbations", nargs="+", metavar="NAME", help="perturbations to measure")
    p.add_argument(
        "--difficulty",
        type=whole(COUNT),
        default=1,
        metavar="N",
        help=f"{DIFFICULTIES[0]} to {DIFFICULTIES[-1]}: step of frames",
    )
    p.add_argument("--baseline", metavar="FILE", help="result file of ours to normalise by, or none")


def main(args: argparse.Namespace) -> int:
    """Score the models; returns the exit status."""
    return run(args)


def _add_common(parser: argparse.ArgumentParser, data_help: str) -> None:
    add_model_arguments(parser)
    # Several models share one pass over the images, so these take lists here.
    parser.add_argument(
        "--model",
        nargs="+",
        metavar="NAME",
        help="timm models (local-dir:PATH too), or torchvision:NAME; told by the checkpoints if left out; each image "
        "is decoded once for all",
    )
    parser.add_argument("--checkpoint", nargs="+", metavar="PATH", help="a weight file, or a run's folder, per model")
    add_shared(parser, "pretrained", help="load the models' pretrained weights")
    parser.add_argument("--label", nargs="+", metavar="TEXT", help="name of each model in tables and files")

    data = parser.add_argument_group("data")
    data.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help=data_help)
    data.add_argument("--class-map", type=Path, metavar="FILE", help="names of the class folders in the model's order")
    data.add_argument("--on-the-fly", action="store_true", help="make the corrupted images from a clean data set")
    data.add_argument(
        "--dataset", default="", metavar="NAME", help=f"clean data set: {FASHION_MNIST}; an image folder if left out"
    )
    data.add_argument("--limit", type=whole(COUNT), metavar="N", help="images (clips) per part, evenly spaced")
    data.add_argument("--seed", type=whole(SEED), default=0, metavar="N", help="seed of what is made on the fly")

    running = parser.add_argument_group("run")
    add_shared(running, "batch_size", default=64, help="images (frames) per forward pass")
    add_shared(running, "workers", help="processes that decode and corrupt")
    running.add_argument("--partial", action="store_true", help="accept missing parts; the score has another name then")
    running.add_argument("--restart", action="store_true", help="forget results of an earlier run")
    running.add_argument(
        "--output", type=Path, default=Path("output/robustness"), metavar="DIR", help="folder of results"
    )
    add_shared(running, "json")
