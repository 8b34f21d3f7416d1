"""The paper's comparison on Fashion-MNIST, in one command: GAP and GCP under three schedules, widths, backbones.

    python tools/studies/reproduce_fmnist.py --data-dir FMNIST
    python tools/studies/reproduce_fmnist.py --data-dir FMNIST --train-images 20000 --jobs 2
    python tools/studies/reproduce_fmnist.py --data-dir FMNIST --device cuda --amp --parts backbones schedules dims

Runs `recipes/fmnist_*.yaml` and writes the tables and the figure of `docs/fashion_mnist.md`. A run whose `summary.csv`
is complete is not run again, an interrupted one goes on from its last epoch. The images are held as one tensor on the
device and augmented there by the recipe's keys. On a CPU, runs side by side with a share of the threads each (`--jobs`)
get more done than one run with all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from fmnist_cells import BACKBONES, PARTS, SCHEDULES, Cell, plan
from fmnist_study import DOCS, fill, finished
from fmnist_tables import TABLES, draw, read_curves

from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.datasets.fashion_mnist import prepare_fashion_mnist
from timm_gcp.train.callback import PrintEpochs
from timm_gcp.train.in_memory import TensorData
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train

_SECTIONS = {"seeds": "schedules"}  # the section of a part that has none of its own


def main() -> int:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data-dir", required=True, metavar="DIR", help="folder of the set; laid out there when missing"
    )
    parser.add_argument("--output", default="output/fmnist", metavar="DIR", help="folder of the runs")
    parser.add_argument("--docs", default=str(DOCS), metavar="DIR", help="folder of the page")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="what to run and to write")
    parser.add_argument("--backbones", nargs="+", default=["mobilenetv2_100", "resnet18"], choices=list(BACKBONES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="seeds of the six cells")
    parser.add_argument(
        "--train-images", type=int, metavar="N", help="train on the first N images; runs named `-all` take all"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the threads")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images per update; the rate follows in proportion")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of every run, for a trial")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="device")
    parser.add_argument("--amp", action="store_true", help="mixed precision, bfloat16")
    parser.add_argument("--tables", action="store_true", help="run nothing, write the page from what has run")
    parser.add_argument("--list", action="store_true", help="run nothing, list the runs and which are complete")
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error(f"--jobs must be 1 or more. Got {args.jobs}.")
    plans = {part: plan([part], args.seeds, args.backbones, subset=args.train_images is not None) for part in PARTS}
    cells = list(dict.fromkeys(cell for part in PARTS if part in args.parts for cell in plans[part]))
    output = Path(args.output)
    epochs = {name: args.epochs or read_recipe(find_recipe(f"fmnist_{name}"))["epochs"] for name in SCHEDULES}
    if args.list:
        for cell in cells:
            print(f"{'done' if finished(output / cell.name, epochs[cell.schedule]) else '    '} {cell.name}")
        return 0
    if not args.tables:
        prepare_fashion_mnist(args.data_dir)
        missing = [cell for cell in cells if not finished(output / cell.name, epochs[cell.schedule])]
        run_all(missing, args)
    page = write_page(output, Path(args.docs), plans, args.parts, epochs)
    print(f"wrote {page}")
    return 0


def run_all(cells: list[Cell], args: argparse.Namespace) -> None:
    """Train the cells, `--jobs` at a time, each in a process of its own where there are several."""
    if args.jobs == 1:
        for number, cell in enumerate(cells, start=1):
            print(f"== {number}/{len(cells)} {cell.name}", flush=True)
            run(cell, args)
        return
    threads = max(1, torch.get_num_threads() // args.jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context, torch.set_num_threads, (threads,), max_tasks_per_child=1) as pool:
        jobs = {pool.submit(run, cell, args): cell for cell in cells}
        try:
            for number, job in enumerate(as_completed(jobs), start=1):
                job.result()
                print(f"== {number}/{len(cells)} {jobs[job].name} is complete", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def run(cell: Cell, args: argparse.Namespace) -> None:
    """Train one cell, going on from its last epoch if there is one."""
    data = TensorData.fashion_mnist(args.data_dir, None if cell.all_images else args.train_images)
    last = Path(args.output) / cell.name / "last.pth.tar"
    keys: dict[str, Any] = {
        **cell.settings(read_recipe(find_recipe(cell.recipe)), args.batch_size),
        "data_dir": args.data_dir,
        "output": args.output,
        "experiment": cell.name,
        "device": args.device,
        "checkpoint_hist": 1,
        "amp": args.amp,
        "amp_dtype": "bfloat16",
        "resume": str(last) if last.is_file() else "",
    }
    if args.epochs:
        keys["epochs"] = args.epochs
    train(resolve_args(cell.recipe, keys), [PrintEpochs(f"{cell.name}, " if args.jobs > 1 else "")], data.loaders)


def write_page(
    output: Path, docs: Path, plans: dict[str, list[Cell]], parts: Sequence[str], epochs: dict[str, int]
) -> Path:
    """Fill in the page's tables of `parts` and draw its figure; a part of which nothing has run stays empty."""
    curves = read_curves(output, [cell for cells in plans.values() for cell in cells], epochs)
    page = docs / "fashion_mnist.md"
    for name in dict.fromkeys(_SECTIONS.get(part, part) for part in parts):
        cells = [cell for part, planned in plans.items() if _SECTIONS.get(part, part) == name for cell in planned]
        text = TABLES[name](curves) if any(cell in curves for cell in cells) else ""
        if text and name == "schedules":
            text += f"\n![Top-1 per epoch under each schedule]({draw(curves, docs / 'fashion_mnist.png').name})\n"
        fill(page, name, text)
    return page


if __name__ == "__main__":
    sys.exit(main())
