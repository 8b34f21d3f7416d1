"""Convergence of finished runs from their summary.csv: top-1 per epoch (Figs. 1, 3 and 5) and the table of Table 2.

The matching epoch is the first one, counted from 1, whose top-1 reaches the baseline's final top-1.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

NEEDED = ("epoch", "eval_top1", "eval_top5")


@dataclass(frozen=True)
class RunCurve:
    """A run: its label, epochs (counted from 0) and accuracies in %."""

    label: str
    epochs: tuple[int, ...]
    top1: tuple[float, ...]
    top5: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A line of the table; `matching_epoch` is None for the baseline and for a run that never gets there."""

    run: str
    epochs: int
    matching_epoch: int | None
    top1: float
    top5: float
    best_top1: float
    top1_gain: float | None


def read_runs(specs: Sequence[str]) -> list[RunCurve]:
    """Read runs given as `PATH` or `LABEL=PATH`, a path being a run's folder or its summary.csv.

    Raises:
        FileNotFoundError: No summary.csv there.
        ValueError: A file without accuracies, or two runs of one label.
    """
    runs: list[RunCurve] = []
    for spec in specs:
        label, path = _label_and_path(spec)
        if label in [run.label for run in runs]:
            raise ValueError(f"Two runs are called '{label}'. Name them: LABEL=PATH.")
        runs.append(read_summary(path, label))
    return runs


def _label_and_path(spec: str) -> tuple[str, Path]:
    label, equals, rest = spec.partition("=")
    path = Path(rest if equals and not Path(spec).exists() else spec)
    if path.is_dir():
        path = path / "summary.csv"
    if not path.is_file():
        raise FileNotFoundError(f"no summary.csv at '{path}'. Give a run's output folder or its summary.csv.")
    named = bool(equals) and not Path(spec).exists()
    return (label if named else path.resolve().parent.name if path.name == "summary.csv" else path.stem), path


def read_summary(path: Path, label: str) -> RunCurve:
    """Read timm's summary.csv.

    A run resumed in its own folder appends a second header and may repeat epochs: the later row counts.

    Raises:
        ValueError: Columns are missing, a cell is not a number, or there is no row.
    """
    rows: dict[int, tuple[float, float]] = {}
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        missing = [name for name in NEEDED if name not in (lines.fieldnames or [])]
        if missing:
            raise ValueError(f"'{path}' has no column {', '.join(missing)}: was the run trained with validation?")
        for line in lines:
            if line["epoch"] == "epoch":
                continue
            try:
                rows[int(line["epoch"])] = (float(line["eval_top1"]), float(line["eval_top5"]))
            except (TypeError, ValueError):
                raise ValueError(f"'{path}', line {lines.line_num}: not numbers: {line}.") from None
    if not rows:
        raise ValueError(f"'{path}' holds no epoch yet.")
    epochs = sorted(rows)
    return RunCurve(label, tuple(epochs), tuple(rows[e][0] for e in epochs), tuple(rows[e][1] for e in epochs))


def matching_epoch(run: RunCurve, target: float) -> int | None:
    """First epoch, counted from 1, with a top-1 of at least `target`; None if there is none."""
    return next((epoch + 1 for epoch, top1 in zip(run.epochs, run.top1, strict=True) if top1 >= target), None)


def table(runs: Sequence[RunCurve], baseline: str | None = None) -> list[Row]:
    """Final accuracies, epochs and, given a baseline's label, when each run matches its final top-1.

    Raises:
        ValueError: No run has the baseline's label.
    """
    reference = find_run(runs, baseline)
    rows = []
    for run in runs:
        other = reference is not None and run is not reference
        rows.append(
            Row(
                run=run.label,
                epochs=run.epochs[-1] + 1,
                matching_epoch=matching_epoch(run, reference.top1[-1]) if reference and other else None,
                top1=run.top1[-1],
                top5=run.top5[-1],
                best_top1=max(run.top1),
                top1_gain=run.top1[-1] - reference.top1[-1] if reference and other else None,
            )
        )
    return rows


def find_run(runs: Sequence[RunCurve], label: str | None) -> RunCurve | None:
    """The run called `label`, None for no label.

    Raises:
        ValueError: No run has that label.
    """
    if label is None:
        return None
    for run in runs:
        if run.label == label:
            return run
    raise ValueError(f"No run is called '{label}'. Runs: {', '.join(run.label for run in runs)}.")


def format_table(rows: Sequence[Row], baseline: str | None = None) -> str:
    """The table in Markdown, in the columns of Table 2."""
    head = ["Run", "Epochs", "Matching epoch", "Top-1", "Top-5", "Best top-1"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        compared = baseline is not None and row.run != baseline
        matching = "N/A" if not compared else "not reached" if row.matching_epoch is None else str(row.matching_epoch)
        gain = "" if row.top1_gain is None else f" ({row.top1_gain:+.2f})"
        lines.append(
            [row.run, str(row.epochs), matching, f"{row.top1:.2f}{gain}", f"{row.top5:.2f}", f"{row.best_top1:.2f}"]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_json(rows: Sequence[Row]) -> str:
    """The table as a JSON list."""
    return json.dumps([asdict(row) for row in rows], indent=2)
