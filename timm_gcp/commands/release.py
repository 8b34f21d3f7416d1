"""The command `timm-gcp weights release`."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from timm_gcp.commands.options import add_shared
from timm_gcp.weights import catalog as table

if TYPE_CHECKING:
    from timm_gcp.weights.release import Measure

_STATES = ("uploaded", "there already", "failed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = (
        "Fetch, convert, verify and upload the authors' weights, all or those that match PATTERN. What the Hub has "
        "already is skipped; what fails does not stop the rest."
    )
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="part of a name, or such as 'resnet*'"
    )
    parser.add_argument("--org", required=True, metavar="ORG", help="Hub user or organisation")
    parser.add_argument("--data-dir", metavar="DIR", help="ImageNet's validation images: measure the accuracy first")
    parser.add_argument("--val-split", default="validation", metavar="NAME", help="its split")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.2,
        metavar="POINTS",
        help="by how much it may differ from the published one",
    )
    add_shared(parser, "batch_size", default=64)
    add_shared(parser, "workers")
    parser.add_argument("--device", metavar="NAME", help="such as cpu or cuda; by default CUDA where there is one")
    parser.add_argument("--private", action="store_true", help="create the repositories private")
    parser.add_argument("--licence", "--license", metavar="SPDX-ID", help="under which the authors permit publication")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def main(args: argparse.Namespace) -> int:
    """Release the entries; the exit status is 1 if one failed."""
    from timm_gcp.weights.release import plan, release

    names = table.matching(args.pattern)
    width = max(map(len, names))
    if not args.tolerance >= 0:
        raise ValueError(f"--tolerance takes points of accuracy, at least 0. Got {args.tolerance:g}.")
    if args.data_dir is not None and not Path(args.data_dir).is_dir():
        raise FileNotFoundError(f"no folder {args.data_dir!r}: give ImageNet's validation images with --data-dir.")
    if args.dry_run:
        for outcome in plan(names, args.org):
            print(f"{outcome.name:{width}}  {outcome.text}")
        measured = (
            f"measured on {args.data_dir} (tolerance {args.tolerance:g} points)" if args.data_dir else "not measured"
        )
        print(
            f"{len(names)} to release, accuracy {measured}, licence {args.licence or 'still to be given (--licence)'}."
        )
        return 0
    _check_permission(args)
    measure = _measure(args) if args.data_dir else None
    counts: Counter[str] = Counter()
    for outcome in release(names, args.org, args.licence, args.private, measure, args.tolerance):
        counts[outcome.state] += 1
        print(f"{outcome.name:{width}}  {outcome.state:13}  {outcome.text}", flush=True)
    print(", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state]))
    return 1 if counts["failed"] else 0


def _check_permission(args: argparse.Namespace) -> None:
    """Refuse before anything is downloaded what the last step would refuse."""
    from huggingface_hub import get_token

    if not args.licence:
        raise ValueError(
            f"these weights are not ours to publish. {table.NO_LICENCE} With permission from the authors, say under "
            "which licence: --licence SPDX-ID. --dry-run shows what would be done."
        )
    if not get_token():
        raise ValueError("the Hub takes uploads with a token only: `hf auth login`, or set HF_TOKEN.")


def _measure(args: argparse.Namespace) -> Measure:
    """A function that measures top-1 and top-5 accuracy of a weight folder."""
    from timm_gcp.common.device import pick_device
    from timm_gcp.inference.evaluate import validate
    from timm_gcp.inference.model import load_model
    from timm_gcp.inference.options import model_arguments

    pick_device(args.device)  # refuses one that is not there before anything is downloaded

    def measure(folder: Path) -> tuple[float, float]:
        loaded = load_model(model_arguments(model=f"local-dir:{folder}", device=args.device), pretrained=True)
        found = validate(loaded, args.data_dir, "", args.val_split, args.batch_size, args.workers)
        return found.accuracy(1), found.accuracy(5)

    return measure
