"""`timm-gcp cost`: parameters, multiply-adds and time per image of GCP models and their GAP twins (Appendix V)."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from timm_gcp.commands.options import add_shared
from timm_gcp.common.device import fast_kernels, pick_device
from timm_gcp.common.named_values import NamedValues
from timm_gcp.common.ranges import COUNT, PIXELS, POSITIVE, number, whole
from timm_gcp.inference.cost import PAPER_KWARGS, PAPER_MODELS, WHY, Cost, check_pair, measure, table, twin
from timm_gcp.weights.rebuild import rebuild
from timm_gcp.weights.source import read_source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp cost`."""
    parser.add_argument("--model", nargs="+", metavar="NAME", help="GCP models; the four of Appendix V when left out")
    parser.add_argument("--checkpoint", metavar="PATH", help="the model of a checkpoint, or of a run's folder")
    parser.add_argument(
        "--model-kwargs", nargs="*", default={}, action=NamedValues, help="of the GCP models, name=value"
    )
    parser.add_argument(
        "--img-size",
        type=whole(PIXELS),
        metavar="N",
        help="height and width of the images (the checkpoint's, else 224)",
    )
    add_shared(parser, "batch_size", default=8, help="images per step")
    parser.add_argument(
        "--repeats", type=whole(COUNT), default=5, metavar="N", help="steps timed at most, after two of warm-up"
    )
    parser.add_argument(
        "--seconds",
        type=number(POSITIVE),
        default=10.0,
        metavar="S",
        help="time for inference and for training of each model; a step that is under way ends, one is always timed",
    )
    parser.add_argument("--no-time", action="store_true", help="count only")
    parser.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    add_shared(parser, "json", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the table, GAP and GCP side by side."""
    if args.checkpoint and (args.model or args.model_kwargs):
        raise ValueError("--checkpoint says model and arguments: leave out --model and --model-kwargs.")
    source = read_source(args.checkpoint) if args.checkpoint else None
    record = source.record if source is not None else None
    if record is not None and not record.architecture:
        raise ValueError(f"{args.checkpoint} doesn't say which model it holds: give --model NAME instead.")
    if source is not None:
        rebuild(source)  # the model is the one that the weights are of
    if args.img_size is None:
        args.img_size = max((record.data_config if record else {}).get("input_size", (3, 224, 224))[1:])
    device = pick_device(args.device)
    fast_kernels(device)
    if record is not None:
        cost = measure(record.architecture, device, model_args=record.model_args, **_plan(args))
        return _print([cost], args, f"{args.checkpoint} with {record.model_args}", False)
    as_paper = args.model is None and not args.model_kwargs and args.img_size == 224
    names = args.model or PAPER_MODELS
    for name in names:
        check_pair(name)
    kwargs = args.model_kwargs or (PAPER_KWARGS if args.model is None else {})
    jobs: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        jobs += [(twin(name), {}), (name, kwargs)]
    costs = []
    bar = tqdm(jobs, unit="model", leave=False, disable=None)
    for position, (model, extra) in enumerate(bar, start=1):
        bar.set_postfix_str(model)
        if bar.disable and not args.no_time:
            print(f"{position}/{len(jobs)} {model}", file=sys.stderr, flush=True)
        costs.append(measure(model, device, model_args=extra, **_plan(args)))
    return _print(costs, args, f"GCP models with {kwargs or 'their defaults'}", as_paper)


def _plan(args: argparse.Namespace) -> dict[str, Any]:
    """How to measure, as keywords of `measure`."""
    return {
        "img_size": args.img_size,
        "batch_size": args.batch_size,
        "repeats": args.repeats,
        "timed": not args.no_time,
        "seconds": args.seconds,
    }


def _print(costs: list[Cost], args: argparse.Namespace, models: str, as_paper: bool) -> int:
    if args.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
        return 0
    print(f"{args.img_size} px, batch {args.batch_size}, {pick_device(args.device)}; {models}")
    print(table(costs, as_paper))
    if not args.no_time:
        steps = [timing.steps for cost in costs for timing in (cost.inference, cost.training) if timing]
        few = f"{min(steps)} to {max(steps)}" if min(steps) < max(steps) else str(min(steps))
        print(f"\nTimes: median of {few} steps, fastest and slowest in brackets.")
    if as_paper:
        print("\n" + WHY)
    return 0
