"""Training step and inference of GCP models and their twins, with freed memory given back to the system and kept.

    python tools/bench/bench_allocator.py [--rows 8 6 7] [--batch-size 32] [--rounds 10]

Given back is glibc's way, and that of a program that only imports this package; kept is what `timm-gcp` and train.py
with our hook ask for (timm_gcp/common/freed_memory.py). What was kept once would serve the other way, so each row has
four processes, GCP and average pooling by either way, which take turns. SGD with momentum, fused, is part of the
training step. Peak memory is the largest resident size of the GCP process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from bench_common import interleaved, machine
from bench_models import label_of, make_known, models_of, runs_of
from bench_modes import collect, parse_mode

import timm_gcp  # noqa: F401
from timm_gcp.common.freed_memory import has_settings, keep_freed_memory

RUNS = ("inference", "training step")
WAYS = {"given back": False, "kept": True}


def peak_resident() -> float:
    """Largest resident size of this process so far, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def serve(connection: Connection, kept: bool, name: str, kwargs: dict[str, Any], args: Any) -> None:
    """Do what is named, one of `RUNS` or "peak", each time that a name comes, and answer with its value, until None."""
    if kept and not keep_freed_memory():
        raise RuntimeError("freed memory can't be kept here: this needs glibc")
    torch.set_num_threads(args.threads)
    make_known(name)
    step, infer = runs_of(name, kwargs, args.batch_size, parse_mode("float32", args.device), args, fused=True)
    known: dict[str, Callable[[], Any]] = {**dict(zip(RUNS, (infer, step), strict=True)), "peak": peak_resident}
    while (what := connection.recv()) is not None:
        connection.send(known[what]())


@contextmanager
def server(*args: Any) -> Iterator[Callable[[str], Any]]:
    """A process of its own that does what `serve` knows by name."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, *args), daemon=True)
    process.start()
    there.close()  # so that the end of the process is seen here

    def ask(what: str) -> Any:
        try:
            here.send(what)
            return here.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"a process of {args[1]} ended before its time; its own message is above") from error

    try:
        yield ask
        with suppress(OSError):  # it has ended already
            here.send(None)
        process.join()
    finally:
        process.terminate()


def measure(name: str, kwargs: dict[str, Any], run: str, args: Any) -> dict[str, Any]:
    """One row: medians in ms, their ratios and the peaks of the GCP model in MB."""
    twins = {"GAP": {**kwargs, "global_pool": "avg"}, "GCP": kwargs}
    label = label_of(name, kwargs)
    with ExitStack() as processes:
        asked = {
            f"{who}, {way}": processes.enter_context(server(kept, name, of_model, args))
            for who, of_model in twins.items()
            for way, kept in WAYS.items()
        }
        runs = {key: partial(ask, run) for key, ask in asked.items()}
        medians = interleaved(runs, args.rounds, args.device, f"{label} {run}")
        peaks = {f"GCP peak MB, {way}": asked[f"GCP, {way}"]("peak") for way in WAYS}
    return {"model": label, "run": run} | medians | ratios(medians) | peaks


def ratios(medians: dict[str, float]) -> dict[str, float]:
    """Kept over given back, and GCP over GAP."""
    ways = {
        f"{who}: kept / given back": medians[f"{who}, kept"] / medians[f"{who}, given back"] for who in ("GAP", "GCP")
    }
    return ways | {f"GCP / GAP, {way}": medians[f"GCP, {way}"] / medians[f"GAP, {way}"] for way in WAYS}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", default=32, type=int)
    parser.add_argument("--img-size", default=224, type=int)
    parser.add_argument("--num-classes", default=1000, type=int)
    parser.add_argument("--threads", default=torch.get_num_threads(), type=int)
    parser.add_argument("--rounds", default=10, type=int)
    parser.add_argument(
        "--seconds", type=float, help="start no row after so many seconds; the table names what is left"
    )
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the models to run (default: all)")
    parser.add_argument("--model", nargs="+", help="these models instead")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    args.device = torch.device("cpu")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: give at least 1")
    if has_settings():
        parser.error("the environment sets glibc's allocator (MALLOC_… or GLIBC_TUNABLES): unset it")
    jobs = [
        (f"{label_of(*model)} {run}", partial(measure, *model, run, args))
        for model in models_of(parser, args)
        for run in RUNS
    ]
    about = f"{machine(args.device)}; {args.img_size} px; batch {args.batch_size}; median ms of {args.rounds}"
    collect(jobs, "allocator_cpu", about, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
