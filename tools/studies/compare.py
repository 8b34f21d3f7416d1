"""Train the runs of a study on any image folder and compare them on its test images.

    python tools/studies/compare.py CONFIG --data-dir FOLDER
    python tools/studies/compare.py CONFIG --data-dir FOLDER --jobs 2
    python tools/studies/compare.py CONFIG --tables --docs docs/natural/imagenette
    python tools/studies/compare.py CONFIG --tables --docs DIR --runs NAME NAME --figure curves.png

CONFIG is a file of tools/studies/configs/. FOLDER has train/ and val/, a folder a class in each; or, where the study
draws its training images (`train_per_class`), a folder a class; or the data set that the study names. `--weights DIR`
holds the weights that a study starts from. A part of the training images is held out: accuracy per epoch and every
choice are of these. A finished run sees the test images once; its answers are kept beside it, so that two runs can be
compared image by image. Finished runs are skipped, stopped ones go on from their last epoch. On a CPU, two runs of one
thread get more done than one of two.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare_report import mean_per_class, write_figure, write_report
from image_tensors import Images, hold_out, study_images
from principal_start import principal_start
from started import use_weights
from study_config import Cell, Entry, Study, check_runs, read_study

from timm_gcp.common.files import write_text
from timm_gcp.common.freed_memory import keep_freed_memory
from timm_gcp.inference.evaluate import evaluate
from timm_gcp.train.callback import Callback, PrintEpochs
from timm_gcp.train.checkpoint import load_checkpoint
from timm_gcp.train.curves import read_summary
from timm_gcp.train.in_memory import TensorData
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train


class WallTime(Callback):
    """Keeps the seconds of every epoch in `seconds.csv`."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Append the epoch's seconds."""
        now = time.perf_counter()
        path = folder / "seconds.csv"
        lines = path.read_text().splitlines() if path.is_file() else ["epoch,seconds"]
        kept = [line for line in lines if not line[0].isdigit() or int(line.split(",")[0]) < epoch]
        write_text(path, "\n".join([*kept, f"{epoch},{now - self.started:.1f}"]) + "\n")
        self.started = now


def finished(folder: Path, epochs: int) -> bool:
    """Whether a run has all its epochs and has seen the test images."""
    return (folder / "test.json").is_file() and len(read_summary(folder / "summary.csv", "").epochs) >= epochs


def train_cell(
    cell: Cell, study: Study, data_dir: str, output: Path, test: bool, callbacks: Sequence[Callback] = ()
) -> None:
    """Train one run, going on from its last epoch, and show it the test images once."""
    for module in study.modules:
        importlib.import_module(module)
    cache = output / "data"
    (images, targets), seen_once = study_images(study, data_dir, cache, cell.seed)
    kept, held = hold_out(targets, study.held_out)
    data = TensorData((images[kept], targets[kept]), (images[held], targets[held]))
    folder = output / cell.folder
    last = folder / "last.pth.tar"
    keys: dict[str, Any] = {
        **cell.keys,
        "seed": cell.seed,
        "num_classes": int(targets.max()) + 1,
        "data_dir": str(data_dir),
        "output": str(output),
        "experiment": cell.folder,
        "checkpoint_hist": 1,
        "resume": str(last) if last.is_file() else "",
    }
    args = resolve_args(cell.recipe, keys)
    if cell.principal:
        path = output / "starts" / f"{cell.folder}.safetensors"
        args.initial_checkpoint = str(principal_start(args, data.parts[0], path))
    made = train(args, [WallTime(), PrintEpochs(f"{cell.folder}, "), *callbacks], data.loaders)
    if test:
        _test(made.model, args, seen_once, folder)


def _test(model: Any, args: argparse.Namespace, images: Images, folder: Path) -> None:
    from timm.data import resolve_data_config

    from timm_gcp.train.in_memory import TensorLoader

    model.load_state_dict(load_checkpoint(folder / "last.pth.tar")["state_dict"])
    config = resolve_data_config(vars(args), model=model)
    result = evaluate(model, TensorLoader(*images, args, config, False), torch.device(args.device))
    predictions, targets = result.predictions[:, 0].tolist(), result.targets.tolist()
    right = [guess == target for guess, target in zip(predictions, targets, strict=True)]
    record = {**result.metrics, "mean_per_class": mean_per_class(targets, right)}
    record["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    record.update(predictions=predictions, targets=targets)
    write_text(folder / "test.json", json.dumps(record) + "\n")


def _prepare(threads: int) -> None:
    """Set a process up that will train."""
    torch.set_num_threads(threads)
    keep_freed_memory()


def run_all(cells: list[Cell], study: Study, args: argparse.Namespace, test: bool) -> None:
    """Train what is missing among `cells`, `--jobs` at a time, each in a process of its own."""
    output = Path(args.output)
    missing = [cell for cell in cells if not done(output / cell.folder, cell, test)]
    study_images(study, args.data_dir, output / "data", 0)  # packed before several processes read it
    threads = max(1, torch.get_num_threads() // args.jobs)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context, _prepare, (threads,), max_tasks_per_child=1) as pool:
        jobs = {pool.submit(train_cell, cell, study, args.data_dir, output, test): cell for cell in missing}
        try:
            for number, job in enumerate(as_completed(jobs), start=1):
                job.result()
                print(f"== {number}/{len(missing)} {jobs[job].folder} is complete", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def done(folder: Path, cell: Cell, test: bool) -> bool:
    """Whether a run is complete; with `test`, whether it has seen the test images too."""
    if not (folder / "summary.csv").is_file():
        return False
    if test:
        return finished(folder, cell.keys["epochs"])
    return len(read_summary(folder / "summary.csv", "").epochs) >= cell.keys["epochs"]


def choose(entry: Entry, output: Path) -> dict[str, Any]:
    """The tuned keys of the trial that was best on the held-out images after its last epoch."""
    trials = list(entry.trials()) if entry.tune else []
    if not trials:
        return {}
    best = max(trials, key=lambda cell: read_summary(output / cell.folder / "summary.csv", "").top1[-1])
    return {name: best.keys[name] for name in entry.tune if name != "epochs"}


def tuned(entry: Entry, study: Study) -> Entry:
    """The entry whose trials choose this one's tuned keys: itself, or the one that it names."""
    return study.entry(entry.tuned_as) if entry.tuned_as else entry


def main() -> int:
    """Run what is missing, then write tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", metavar="CONFIG", help="study: a YAML file of tools/studies/configs/")
    parser.add_argument("--data-dir", metavar="DIR", help="image folder: train/ and val/, or a folder a class")
    parser.add_argument("--weights", metavar="DIR", help="folder of the weights that a study starts from")
    parser.add_argument("--output", metavar="DIR", help="folder of the runs; output/studies/ and the study's name")
    parser.add_argument("--docs", metavar="DIR", help="folder of records, tables and figures; the runs' if left out")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time; they share the threads")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="only these runs of the study")
    parser.add_argument("--tables", action="store_true", help="train nothing, write tables from the records in --docs")
    parser.add_argument("--figure", metavar="FILE", help="with --tables: draw the curves of --runs alone, nothing else")
    parser.add_argument("--title", metavar="TEXT", help="with --figure: its title, in place of the study's")
    parser.add_argument("--list", action="store_true", help="train nothing, list the runs and which are complete")
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error(f"--jobs must be 1 or more, got {args.jobs}.")
    try:
        study = read_study(args.config)
        check_runs(study, args.runs or (), args.config)
        args.output = args.output or f"output/studies/{Path(args.config).stem}"
        entries = [entry for entry in study.entries if not args.runs or entry.name in args.runs]
        return _run(study, entries, args, parser)
    except (ValueError, FileNotFoundError) as error:
        print(f"compare.py: error: {error}", file=sys.stderr)
        return 1


def _run(study: Study, entries: list[Entry], args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    output = Path(args.output)
    docs = Path(args.docs) if args.docs else output
    trials = [cell for entry in entries if entry.tune for cell in entry.trials()]
    if args.list:
        for cell in trials + [cell for entry in entries for cell in entry.cells({})]:
            print(f"{'done' if done(output / cell.folder, cell, '-tune-' not in cell.name) else '    '} {cell.folder}")
        return 0
    if args.tables and args.figure:
        drawn = replace(study, entries=tuple(entries), title=args.title or study.title)
        print(f"wrote {write_figure(drawn, docs, Path(args.figure))}")
        return 0
    if not args.tables:
        if not args.data_dir:
            parser.error("--data-dir is needed to train.")
        use_weights(args.weights, [entry.keys for entry in entries])
        run_all(trials, study, args, test=False)
        cells = [cell for entry in entries for cell in entry.cells(choose(tuned(entry, study), output))]
        cells.sort(key=lambda cell: cell.seed)  # what is compared with each other is complete early
        run_all(cells, study, args, test=True)
    print(f"wrote {write_report(study, output, docs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
