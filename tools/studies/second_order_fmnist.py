"""The second-order study on Fashion-MNIST: Eqs. (6) to (8) in training; GCP against GAP with a second-order optimizer.

    python tools/studies/second_order_fmnist.py --data-dir FMNIST

Writes `docs/optimization/` (CSV files, figures) and the tables of `docs/optimization.md`. Three trainings of
ShuffleNetV2 of equal length, each in a process of its own so that its peak memory can be told: GCP by `fmnist_fast`,
its GAP twin by the same recipe, and GAP with the optimizer and schedule of `secondorder_kron`. A fourth is the first
again, watched by the equations and not timed. Complete runs are not run again. About half an hour per seed on two CPU
cores; `--tables` prints the tables from the CSV files alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fmnist_study import add_study_arguments, fill, finished, keys_of, run, smaller_set, summary

from timm_gcp.common.files import copy, replacing, write_text
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.second_order.study import SecondOrderCallback, capture, read_rows, spectra, write_rows
from timm_gcp.train.callback import Callback

RECIPE, SECOND_ORDER = "fmnist_fast", "secondorder_kron"
COMMAND = "python tools/studies/second_order_fmnist.py"
RUNS = {
    "gcp": "GCP, plain momentum SGD",
    "gap": "GAP, plain momentum SGD",
    "kron": "GAP, kron",
}
WATCHED = "watched"
OPTIMIZER_KEYS = ("opt", "momentum", "weight_decay", "lr", "sched", "warmup_epochs", "smoothing")
READINGS = {
    "layer": "Eq. (6) against the layer's own gradient",
    "literal_printed": "Eq. (7) as printed against Eq. (6)",
    "columns_printed": "Eq. (7), mask on the columns, against Eq. (6)",
    "literal_eigen": "Eq. (7) in the eigenbasis against Eq. (6)",
    "columns_eigen": "Eq. (7), both, against Eq. (6)",
}
SPECTRA = {
    "literal_printed": "F⁻¹, as printed",
    "literal_eigen": "F⁻¹, in the eigenbasis",
    "columns_eigen": "F⁻¹, mask on the columns, eigenbasis",
    "kfac_inputs": "K-FAC, inverse of the input factor",
    "kfac_outputs": "K-FAC, inverse of the output factor",
}


class Cost(Callback):
    """Seconds of each epoch, validation included, and peak memory of the process, kept in the run's folder."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Add the epoch to `cost.json`."""
        import resource

        import torch

        path = folder / "cost.json"
        seconds = json.loads(path.read_text())["seconds"][:epoch] if epoch and path.is_file() else []
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
            peak = torch.cuda.max_memory_allocated()
        now = time.perf_counter()
        write_text(path, json.dumps({"seconds": [*seconds, now - self.started], "peak_mib": peak / 2**20}))
        self.started = time.perf_counter()


class LastBatch(Callback):
    """Keeps the batch that the run saw last, for the spectra."""

    def on_update(self, step: int, model: Any, batch: Any) -> None:
        """Keep it."""
        self.batch = batch


def main() -> int:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_arguments(parser, "output/second_order_fmnist")
    parser.add_argument("--epochs", type=int, default=6, metavar="N", help="epochs of each run")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="updates between two looks at the equations")
    parser.add_argument("--images", type=int, default=16, metavar="N", help="images that they look at")
    parser.add_argument("--kron-lr", type=float, metavar="RATE", help="rate of kron, if not its recipe's")
    parser.add_argument("--child", choices=[*RUNS, WATCHED], help=argparse.SUPPRESS)  # one training, in this process
    args = parser.parse_args()
    docs = Path(args.docs)
    if args.tables:
        print(tables(docs / "optimization"), end="")
        return 0
    if not args.data_dir:
        parser.error("--data-dir is needed to train")
    output = Path(args.output)
    data = smaller_set(args.data_dir, output, args.train_images, args.test_images)
    if args.child:
        return child(args, args.child, args.seeds[0], data, output)
    for name, seed in [*((name, seed) for seed in args.seeds for name in RUNS), (WATCHED, args.seeds[0])]:
        folder = output / f"{name}-{seed}"
        complete = finished(folder, args.epochs) and (name != WATCHED or (folder / "spectra.csv").is_file())
        if not complete:
            command = [sys.executable, __file__, *sys.argv[1:], "--seeds", str(seed), "--child", name]
            # kron's compiled step would spend minutes on compiling
            subprocess.run(command, check=True, env={**os.environ, "TORCHDYNAMO_DISABLE": "1"})
        if name != WATCHED:
            collect(folder, name, seed, docs / "optimization")
    for file in ("equations.csv", "spectra.csv"):
        copy(output / f"{WATCHED}-{args.seeds[0]}" / file, docs / "optimization" / file)
    draw(docs / "optimization")
    fill(docs / "optimization.md", COMMAND, tables(docs / "optimization"))
    print(f"wrote {docs / 'optimization.md'} and {docs / 'optimization'}")
    return 0


def keys(args: argparse.Namespace, name: str, seed: int, data: Path, folder: Path) -> dict[str, Any]:
    """Keys of one of the runs on top of `RECIPE`."""
    values = {**keys_of(args, data, folder), "epochs": args.epochs, "seed": seed}
    values["model"] = "shufflenet_v2_x1_0_gcp" if name in ("gcp", WATCHED) else "shufflenet_v2_x1_0"
    if name == "kron":
        recipe = read_recipe(find_recipe(SECOND_ORDER))
        values |= {key: recipe[key] for key in OPTIMIZER_KEYS if key in recipe}
        values["sched"] += f",stretch={recipe['epochs']}"  # the shape of its own epochs, drawn over these
        values |= {"sched_on_updates": False, "opt_kwargs": recipe.get("opt_kwargs", {})}
        values |= {"lr": args.kron_lr} if args.kron_lr is not None else {}
    return values


def child(args: argparse.Namespace, name: str, seed: int, data: Path, output: Path) -> int:
    """One training, in this process."""
    folder = output / f"{name}-{seed}"
    if name != WATCHED:
        run(RECIPE, keys(args, name, seed, data, folder), [Cost()])
        return 0
    for old in folder.glob("*.*"):  # the equations and the spectra must come from one and the same run
        old.unlink()
    last = LastBatch()
    callbacks = [SecondOrderCallback(folder / "equations.csv", every=args.every, images=args.images), last]
    done = run(RECIPE, keys(args, name, seed, data, folder), callbacks)
    curves = spectra(capture(done.model, *(part[: args.images] for part in last.batch)))
    length = max(len(values) for values in curves.values())
    padded = {key: [*values.tolist(), *[float("nan")] * (length - len(values))] for key, values in curves.items()}
    write_rows(folder / "spectra.csv", [{key: padded[key][row] for key in padded} for row in range(length)])
    return 0


def collect(folder: Path, name: str, seed: int, docs: Path) -> None:
    """Put a run's accuracy, time and memory per epoch into the page's CSV."""
    path = docs / "runs.csv"
    rows = list(csv.DictReader(path.open(newline=""))) if path.is_file() else []
    rows = [row for row in rows if (row["run"], row["seed"]) != (name, str(seed))]
    cost = json.loads((folder / "cost.json").read_text())
    for row, seconds in zip(summary(folder), cost["seconds"], strict=True):
        values = (name, seed, int(row["epoch"]) + 1, f"{float(row['eval_top1']):.2f}", f"{seconds:.1f}")
        columns = ("run", "seed", "epoch", "top1", "seconds", "peak_mib")
        rows.append(dict(zip(columns, map(str, (*values, round(cost["peak_mib"]))), strict=True)))
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def draw(docs: Path) -> None:
    """The figure: cosine and norm ratio over training, and the spectra at its end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, curves = read_rows(docs / "equations.csv"), read_rows(docs / "spectra.csv")
    figure = Figure(figsize=(15, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    cosine, ratio, spectrum = figure.subplots(1, 3)
    steps = [row["step"] for row in rows]
    for key, label in READINGS.items():
        cosine.plot(steps, [row[f"cosine_{key}"] for row in rows], label=label)
        ratio.plot(steps, [row[f"ratio_{key}"] for row in rows], label=label)
    cosine.set(xlabel="training step", ylabel="cosine", ylim=(-0.25, 1.05), title="Angle between the gradients")
    ratio.set(xlabel="training step", ylabel="ratio of norms", yscale="log", title="Length of the gradients")
    cosine.legend(fontsize=7)
    for style, (key, label) in zip(("-", "--", "-", "-", ":"), SPECTRA.items(), strict=True):  # flat ones coincide
        values = [row[key] for row in curves if row[key] == row[key] and row[key] > 1e-9 * curves[0][key]]
        places = [(index + 0.5) / len(values) for index in range(len(values))]
        spectrum.plot(places, [value / values[0] for value in values], ls=style, lw=2, label=f"{label} ({len(values)})")
    spectrum.set(
        xlabel="place among the positive values",
        ylabel="value over the largest",
        yscale="log",
        title="Spectra of the pre-conditioners",
    )
    spectrum.legend(fontsize=7)
    for axes in (cosine, ratio, spectrum):
        axes.grid(alpha=0.25)
    with replacing(docs / "equations.png") as partial:
        figure.savefig(partial, dpi=130)


def tables(docs: Path) -> str:
    """The generated part of the page."""
    rows = list(csv.DictReader((docs / "runs.csv").open(newline="")))
    epochs = max(int(row["epoch"]) for row in rows)
    head = "".join(f" {epoch} |" for epoch in range(1, epochs + 1))
    lines = [f"| run | seed | top-1 after epoch{head} seconds per epoch | peak memory, MiB |"]
    lines += ["|---|" + "---:|" * (epochs + 3)]
    for name, label in RUNS.items():
        for seed in sorted({row["seed"] for row in rows if row["run"] == name}):
            own = [row for row in rows if (row["run"], row["seed"]) == (name, seed)]
            mean = sum(float(row["seconds"]) for row in own) / len(own)
            cells = "".join(f" {row['top1']} |" for row in own)
            lines.append(f"| {label} | {seed} |{cells} {mean:.1f} | {own[-1]['peak_mib']} |")
    equations = read_rows(docs / "equations.csv")
    thirds = [equations[0], equations[len(equations) // 2], equations[-1]]
    steps = [f"step {row['step']:.0f}" for row in thirds]
    lines += ["", "| cosine (ratio of norms) | " + " | ".join(steps) + " |", "|---|" + "---:|" * len(thirds)]
    for key, label in READINGS.items():
        shown = [f"{row[f'cosine_{key}']:.3f} ({row[f'ratio_{key}']:.3g})" for row in thirds]
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    lines += ["", "| condition number (flatness) | " + " | ".join(steps) + " |", "|---|" + "---:|" * len(thirds)]
    for key, label in SPECTRA.items():
        shown = [f"{row[f'condition_{key}']:.3g} ({row[f'flatness_{key}']:.2g})" for row in thirds]
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    shown = [f"{row['overlap']:.3f} (chance {row['overlap_chance']:.3f})" for row in thirds]
    lines += ["", "Overlap of the leading eigenspaces of the covariance and of K-FAC's output factor: "]
    lines[-1] += ", ".join(f"{value} at {step}" for value, step in zip(shown, steps, strict=True)) + "."
    text = f"<!-- written by `{COMMAND}` -->\n\n" + "\n".join(lines) + "\n"
    return text + "\n![Gradients and spectra](optimization/equations.png)\n"


if __name__ == "__main__":
    sys.exit(main())
