"""`timm-gcp landscape train|probe|plot`: measure the landscape in a training run or at checkpoints, and draw it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.commands.options import add_shared
from timm_gcp.common.ranges import COUNT, POSITIVE, SEED, Range, number, whole
from timm_gcp.inference.classes import check_classifier
from timm_gcp.landscape.plot import plot_landscape
from timm_gcp.landscape.probe import BATCH_NORM_MODES, equal_steps, largest_stable_step, probe
from timm_gcp.landscape.records import (
    PAPER_EVERY,
    LandscapeCallback,
    Record,
    backbone_of,
    range_table,
    read_records,
    step_range,
    write_records,
)

_EXAMPLES = """examples:
  timm-gcp landscape train --csv gap.csv --every 100 -c fmnist_norm --data-dir FMNIST --model shufflenet_v2_x1_0
  timm-gcp landscape probe --model resnet18 --checkpoint run/checkpoint-*.pth.tar --data-dir DIR --output gap.csv
  timm-gcp landscape plot GAP=gap.csv GCP=gcp.csv --output landscape.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three subcommands."""
    from timm_gcp.commands.train import add_arguments as add_train_arguments
    from timm_gcp.inference.options import add_model_arguments

    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="train|probe|plot")

    train = actions.add_parser("train", help="train by a recipe and probe every n steps")
    add_train_arguments(train)
    train.add_argument("--csv", required=True, metavar="FILE", help="where to write the measurements")
    train.add_argument(
        "--every", type=whole(COUNT), metavar="N", help="training steps from probe to probe (the paper's, or 500)"
    )
    _add_probe_arguments(train)

    at = actions.add_parser("probe", help="probe saved checkpoints, or a model as it is", conflict_handler="resolve")
    add_model_arguments(at)
    at.add_argument("--checkpoint", nargs="+", default=[], metavar="PATH", help="one run's checkpoints, in order")
    add_shared(at, "pretrained", help="probe the pretrained weights")
    at.add_argument("--data-dir", required=True, metavar="DIR", help="folder of the data set")
    at.add_argument(
        "--dataset", default="", metavar="NAME", help="type/name of the data set; empty for an image folder"
    )
    at.add_argument("--split", default="train", metavar="NAME", help="split to take the batch from (train)")
    add_shared(at, "batch_size", default=128, help="images of the batch (128)")
    at.add_argument("--seed", type=whole(SEED), default=42, metavar="N", help="which images make the batch (42)")
    at.add_argument("--lr", type=number(POSITIVE), metavar="RATE", help="initial learning rate, the smallest step size")
    at.add_argument("--output", required=True, metavar="FILE", help="CSV with a row per checkpoint")
    _add_probe_arguments(at)

    plot = actions.add_parser("plot", help="draw the bands of Fig. 2 and print the table of range ratios")
    plot.add_argument("runs", nargs="+", metavar="LABEL=CSV", help="runs on one axis; the first is the baseline")
    plot.add_argument("--output", default="landscape.png", metavar="FILE", help="the figure (landscape.png)")
    plot.add_argument("--title", default="", help="what the runs have in common, such as the backbone")
    plot.add_argument("--log", action="store_true", help="logarithmic axes")


def _add_probe_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("probe")
    group.add_argument(
        "--low", type=number(POSITIVE), metavar="A", help="smallest step size (the paper's, or the learning rate)"
    )
    group.add_argument(
        "--high",
        type=_high,
        metavar="B",
        help="largest step size: a number, or `stable` for the largest stable one at the first probe "
        "(the paper's, or stable); give GAP's to both runs",
    )
    group.add_argument(
        "--points", type=whole(Range(2, 10**6)), default=50, metavar="N", help="step sizes between them (50)"
    )
    group.add_argument("--layer", metavar="NAME", help="module whose output is X (the first convolution)")
    group.add_argument(
        "--batch-norm",
        choices=BATCH_NORM_MODES,
        default="train",
        help="statistics of the batch, as the paper's scripts (train), or the running ones; neither changes the latter",
    )
    group.add_argument(
        "--chunk-size", type=whole(COUNT), metavar="N", help="step sizes per pass; lower it to save memory"
    )
    group.add_argument("--images", type=whole(COUNT), metavar="N", help="probe only so many images of a batch")
    group.add_argument("--double", action="store_true", help="probe in float64")


def _high(text: str) -> float | str:
    if text == "stable":
        return text
    try:
        return number(POSITIVE)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or give `stable`") from None


def _range(args: argparse.Namespace, model: str) -> tuple[float, float | None]:
    low, high = step_range(model, args.lr, args.low, None if args.high == "stable" else args.high)
    return low, None if args.high == "stable" else high


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("layer", "batch_norm", "chunk_size", "double")}


def main(args: argparse.Namespace) -> int:
    """Run the chosen subcommand."""
    return {"train": _train, "probe": _probe, "plot": _plot}[args.action](args)


def _train(args: argparse.Namespace) -> int:
    from timm_gcp.train.build import resolve_rate
    from timm_gcp.train.callback import PrintEpochs
    from timm_gcp.train.options import OPTIONS, resolve_args
    from timm_gcp.train.run import train

    recipe = resolve_args(args.config, {name: value for name, value in vars(args).items() if name in OPTIONS})
    args.lr = resolve_rate(recipe)
    every = args.every if args.every is not None else PAPER_EVERY.get(backbone_of(recipe.model), 500)
    low, high = _range(args, recipe.model)
    callback = LandscapeCallback(args.csv, low, high, args.points, every=every, images=args.images, **_options(args))
    if callback.records and not recipe.resume:
        raise ValueError(f"{args.csv} holds the probes of another run. Resume that run, or name another file.")
    train(recipe, [callback, PrintEpochs()], force=args.force)
    last = callback.records[-1]
    print(f"{len(callback.records)} probes with step sizes in [{last.low:g}, {last.high:g}]: {args.csv}")
    return 0


def _probe(args: argparse.Namespace) -> int:
    from timm_gcp.inference.model import load_model

    files: Sequence[str | None] = args.checkpoint or [None]
    steps, records, batch = None, [], None
    for index, file in enumerate(files):
        args.checkpoint = file
        loaded = load_model(args, args.pretrained)
        if args.pretrained:
            check_classifier(loaded, file)
        batch = _batch(args, loaded) if batch is None else batch
        images, targets = batch
        if steps is None:
            low, high = _range(args, loaded.name)
            if high is None:
                options = {"layer": args.layer, "batch_norm": args.batch_norm}
                high = largest_stable_step(loaded.model, images, targets, low, **options)
            steps = equal_steps(low, high, args.points)
        landscape = probe(loaded.model, images, targets, steps, **_options(args))
        records.append(Record.of(index if loaded.epoch is None else loaded.epoch, landscape))
        last = records[-1]
        print(
            f"{file or loaded.name}: loss {last.loss:.4g}, Δl {last.loss_min:.4g} to {last.loss_max:.4g}, "
            f"Δg {last.gradient_min:.4g} to {last.gradient_max:.4g}",
            flush=True,
        )
    write_records(args.output, records)
    return 0


def _batch(args: argparse.Namespace, loaded: Any) -> tuple[Any, Any]:
    """The same images for every checkpoint and every model: drawn by seed, pre-processed as in validation."""
    import torch
    from timm.data import create_transform

    from timm_gcp.inference.image_data import UNREADABLE, open_data

    if not Path(args.data_dir).is_dir():
        raise FileNotFoundError(f"no folder {args.data_dir!r}: give the data set's folder with --data-dir.")
    config = loaded.data_config
    dataset = open_data(args.dataset, args.data_dir, args.split, config["input_size"][0], option="--split")
    dataset.transform = create_transform(**config, is_training=False)
    count = min(args.images or args.batch_size, len(dataset))
    if count < 1:
        raise ValueError(
            f"the batch needs at least one image; got --batch-size {args.batch_size}, {len(dataset)} found."
        )
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(args.seed))[:count]
    samples = [dataset[index] for index in order.tolist()]
    unread = [index for index, (_, target) in zip(order.tolist(), samples, strict=True) if target == UNREADABLE]
    if unread:
        raise ValueError(f"{dataset.why_unreadable(unread[0])} Remove the file, or draw others with --seed.")
    images = torch.stack([image for image, _ in samples]).to(loaded.device)
    return images, torch.tensor([int(target) for _, target in samples], device=loaded.device)


def _plot(args: argparse.Namespace) -> int:
    runs = {}
    for text in args.runs:
        label, separator, path = text.partition("=")
        if not separator or not label or label in runs:
            raise ValueError(f"runs are given as LABEL=CSV, each label once; got {text!r}.")
        runs[label] = read_records(path)
    print(range_table(runs), end="")
    plot_landscape({args.title: runs}, args.output, log_scale=args.log)
    print(f"wrote {args.output}")
    return 0
