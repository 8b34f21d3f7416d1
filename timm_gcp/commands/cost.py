"""`timm-gcp cost`: parameters, multiply-adds and time per image of GCP models and their GAP twins (Appendix V)."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from timm_gcp.commands.options import add_shared, check_at_least
from timm_gcp.common.device import pick_device
from timm_gcp.inference.cost import PAPER_KWARGS, PAPER_MODELS, WHY, check_pair, measure, table, twin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp cost`."""
    from timm.utils import ParseKwargs

    parser.add_argument("--model", nargs="+", metavar="NAME", help="GCP models; the four of Appendix V when left out")
    parser.add_argument(
        "--model-kwargs", nargs="*", default={}, action=ParseKwargs, help="of the GCP models, name=value"
    )
    parser.add_argument("--img-size", type=int, default=224, metavar="N", help="height and width of the images")
    add_shared(parser, "batch_size", default=8, help="images per step")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="steps timed at most, after two of warm-up")
    parser.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="time for inference and for training of each model; a step that is under way ends, one is always timed",
    )
    parser.add_argument("--no-time", action="store_true", help="count only")
    parser.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    add_shared(parser, "json", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the table, GAP and GCP side by side."""
    check_at_least(args, 1, "img_size", "batch_size", "repeats")
    if not args.seconds > 0:
        raise ValueError(f"--seconds must be above 0, got {args.seconds:g}.")
    as_paper = args.model is None and not args.model_kwargs and args.img_size == 224
    names = args.model or PAPER_MODELS
    for name in names:
        check_pair(name)
    kwargs = args.model_kwargs or (PAPER_KWARGS if args.model is None else {})
    device = pick_device(args.device)
    jobs: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        jobs += [(twin(name), {}), (name, kwargs)]
    costs = []
    bar = tqdm(jobs, unit="model", leave=False, disable=None)
    for number, (model, extra) in enumerate(bar, start=1):
        bar.set_postfix_str(model)
        if bar.disable and not args.no_time:
            print(f"{number}/{len(jobs)} {model}", file=sys.stderr, flush=True)
        timed = not args.no_time
        costs.append(measure(model, device, args.img_size, args.batch_size, args.repeats, timed, args.seconds, **extra))
    if args.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
        return 0
    print(f"{args.img_size} px, batch {args.batch_size}, {device}; GCP models with {kwargs or 'their defaults'}")
    print(table(costs, as_paper))
    if not args.no_time:
        steps = [timing.steps for cost in costs for timing in (cost.inference, cost.training) if timing]
        few = f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else str(min(steps))
        print(f"\nTimes: median of {few} steps, fastest and slowest in brackets.")
    if as_paper:
        print("\n" + WHY)
    return 0
