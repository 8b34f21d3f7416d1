"""From the options of the command to its plan, its runs and its table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from timm_gcp.common.files import write_text
from timm_gcp.reproduce import trial
from timm_gcp.reproduce.catalog import ITEMS, find_item
from timm_gcp.reproduce.execute import RunCommand, execute, show
from timm_gcp.reproduce.item import Item, Row
from timm_gcp.reproduce.page import overview
from timm_gcp.reproduce.report import comma_separated, markdown
from timm_gcp.reproduce.setup import Setup

OUTPUT = Path("output/reproduce")


def setup_of(args: argparse.Namespace) -> Setup:
    """The options, checked; a trial's folder is another than the real runs'.

    Raises:
        ValueError: A number that makes no sense.
        FileNotFoundError: A file or folder that is not there.
    """
    output = args.output or (OUTPUT if args.limit is None else OUTPUT.with_name(f"{OUTPUT.name}-limit-{args.limit}"))
    one = args.limit is not None or args.device is not None
    gpus = args.gpus if args.gpus is not None else 1 if one else max(1, torch.cuda.device_count())
    return Setup(
        output=output,
        data_dir=args.data_dir,
        coco_dir=args.coco_dir,
        imagenet_c=args.imagenet_c,
        imagenet_p=args.imagenet_p,
        limit=args.limit,
        gpus=gpus,
        train_py=args.train_py,
        device=args.device,
        workers=args.workers,
        published=args.weights == "published",
        dry_run=args.dry_run,
    )


def reproduce(args: argparse.Namespace, run_command: RunCommand) -> int:
    """Print or run the plan of a table or figure, then print its table and write the files.

    Args:
        args: Options of the command.
        run_command: Runs the words after `timm-gcp` in this process and returns the exit status.

    Raises:
        ValueError: An unknown table or model, options that don't fit, or a folder with a run of other settings.
        FileNotFoundError: Data, weights or train.py are missing.
        RuntimeError: A run failed.
    """
    if args.table == "list":
        print(overview(ITEMS.values()))
        return 0
    item = find_item(args.table)
    rows = item.choose(args.models)
    setup = setup_of(args)
    if setup.published and not item.published:
        known = ", ".join(name for name, other in ITEMS.items() if other.published)
        raise ValueError(f"{item.title} is of networks that are trained: --weights published is for {known}.")
    jobs = item.plan(rows, setup)
    if args.dry_run:
        where = f"{setup.gpus} GPUs" if setup.gpus > 1 else "one process"
        print(f"# {item.title}: {item.what}\n# {len(jobs)} jobs, {where}; results in {setup.output}")
        print(show(jobs) if jobs else "# nothing to run: the table is computed")
        return 0
    if setup.limit is not None:
        trial.prepare(setup, [name for name in item.data if not (setup.published and name == "imagenet")])
    execute(jobs, run_command)
    return report(item, rows, setup)


def report(item: Item, rows: Sequence[Row], setup: Setup) -> int:
    """Print the table beside the paper's; write it as Markdown and CSV, and draw the figure where there is one."""
    text = markdown(item, rows, setup)
    stem = setup.output / item.name
    written = [stem.with_suffix(".md"), stem.with_suffix(".csv")]
    write_text(written[0], text)
    write_text(written[1], comma_separated(item, rows, setup))
    if item.draw is not None:
        written.append(stem.with_suffix(".png"))
        item.draw(rows, setup, written[-1])
    print(f"\n{text}\nwritten: {', '.join(map(str, written))}")
    return 0
