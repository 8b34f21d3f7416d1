"""`timm-gcp cost`: parameters, multiply-adds and time per image of GCP models and their GAP twins (Appendix V)."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from timm_gcp.common.device import pick_device
from timm_gcp.inference.cost import PAPER_KWARGS, PAPER_MODELS, WHY, Cost, check_pair, measure, table, twin
from timm_gcp.weights.source import read_source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp cost`."""
    from timm.utils import ParseKwargs

    parser.add_argument("--model", nargs="+", metavar="NAME", help="GCP models; the four of Appendix V when left out")
    parser.add_argument("--checkpoint", metavar="PATH", help="the model of a checkpoint, or of a run's folder")
    parser.add_argument(
        "--model-kwargs", nargs="*", default={}, action=ParseKwargs, help="of the GCP models, name=value"
    )
    parser.add_argument(
        "--img-size", type=int, metavar="N", help="height and width of the images (the checkpoint's, else 224)"
    )
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="images per step")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="steps timed")
    parser.add_argument("--no-time", action="store_true", help="count only")
    parser.add_argument("--device", metavar="NAME", help="device; cuda where there is one, else cpu")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")


def main(args: argparse.Namespace) -> int:
    """Print the table, GAP and GCP side by side."""
    if args.checkpoint and (args.model or args.model_kwargs):
        raise ValueError("--checkpoint says model and arguments: leave out --model and --model-kwargs.")
    record = read_source(args.checkpoint).record if args.checkpoint else None
    if record is not None and not record.architecture:
        raise ValueError(f"{args.checkpoint} doesn't say which model it holds: give --model NAME instead.")
    if args.img_size is None:
        args.img_size = max((record.data_config if record else {}).get("input_size", (3, 224, 224))[1:])
    for option in ("img_size", "batch_size", "repeats"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}.")
    device = pick_device(args.device)
    if record is not None:
        timed = not args.no_time
        cost = measure(
            record.architecture, device, args.img_size, args.batch_size, args.repeats, timed, record.model_args
        )
        return _print([cost], args, f"{args.checkpoint} with {record.model_args}", False)
    as_paper = args.model is None and not args.model_kwargs and args.img_size == 224
    names = args.model or PAPER_MODELS
    for name in names:
        check_pair(name)
    kwargs = args.model_kwargs or (PAPER_KWARGS if args.model is None else {})
    costs = []
    for name in names:
        for model, extra in ((twin(name), {}), (name, kwargs)):
            costs.append(
                measure(model, device, args.img_size, args.batch_size, args.repeats, not args.no_time, **extra)
            )
    return _print(costs, args, f"GCP models with {kwargs or 'their defaults'}", as_paper)


def _print(costs: list[Cost], args: argparse.Namespace, models: str, as_paper: bool) -> int:
    if args.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
        return 0
    print(f"{args.img_size} px, batch {args.batch_size}, {pick_device(args.device)}; {models}")
    print(table(costs, as_paper))
    if as_paper:
        print("\n" + WHY)
    return 0
