"""Landscape probes over a training run: a callback of `timm-gcp train`, the CSV it writes, and the range ratios."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from timm_gcp.common.files import replacing
from timm_gcp.landscape.probe import Landscape, equal_steps, largest_stable_step, probe
from timm_gcp.train.callback import Callback

# Appendix I: the ranges of η and the training steps between probes, by backbone
PAPER_RANGES = {"mobilenetv2_100": (0.045, 1.5), "resnet18": (0.1, 75.0)}
PAPER_EVERY = {"mobilenetv2_100": 1000, "resnet18": 500}


@dataclass(frozen=True)
class Record:
    """One row of the CSV: the range of η, L(X), ‖∇L(X)‖, and minimum, maximum and mean of Δl and Δg over η."""

    step: int
    low: float
    high: float
    points: int
    loss: float
    gradient_norm: float
    loss_min: float
    loss_max: float
    loss_mean: float
    gradient_min: float
    gradient_max: float
    gradient_mean: float

    @classmethod
    def of(cls, step: int, landscape: Landscape) -> Record:
        """Summarise a probe made at training step `step`."""
        steps, losses, changes = landscape.step_sizes, landscape.losses, landscape.gradient_changes
        summary = [f(values).item() for values in (losses, changes) for f in (Tensor.min, Tensor.max, Tensor.mean)]
        ends = steps[0].item(), steps[-1].item(), len(steps)
        return cls(step, *ends, landscape.loss, landscape.gradient_norm, *summary)

    @property
    def loss_range(self) -> float:
        """Width of the range of Δl."""
        return self.loss_max - self.loss_min

    @property
    def gradient_range(self) -> float:
        """Width of the range of Δg."""
        return self.gradient_max - self.gradient_min


COLUMNS = tuple(field.name for field in fields(Record))


def write_records(path: str | Path, records: Sequence[Record]) -> None:
    """Write the CSV in one move, so that a reader or a killed run never sees half a file."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([repr(value) for value in astuple(record)] for record in records)


def read_records(path: str | Path) -> list[Record]:
    """Read a CSV of `write_records`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has other columns or a cell is not a number.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"{path} is not a landscape CSV: its columns must be {', '.join(COLUMNS)}.")
    integers = {"step", "points"}
    try:
        parsed = [
            {name: int(cell) if name in integers else float(cell) for name, cell in zip(COLUMNS, row, strict=True)}
            for row in rows[1:]
        ]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}. Delete it and run the probe again.") from error
    return [Record(**row) for row in parsed]  # type: ignore[arg-type]


def backbone_of(model: str) -> str:
    """Name of the backbone that GAP and GCP twins share: `resnet18` for `resnet18_gcp.norm_in1k`."""
    return model.split(".")[0].removesuffix("_d128").removesuffix("_gcp")


def step_range(
    model: str, rate: float | None, low: float | None = None, high: float | None = None
) -> tuple[float, float | None]:
    """The range [a, b] of η for a model: the given ends, else the paper's, else a = the initial learning rate.

    Returns `(a, b)`, where b is None when it has to be measured (`largest_stable_step`).

    Raises:
        ValueError: `a` is neither given, nor the paper's, nor known from a learning rate.
    """
    paper = PAPER_RANGES.get(backbone_of(model))
    if low is None:
        low = paper[0] if paper else rate
    if low is None:
        known = ", ".join(PAPER_RANGES)
        raise ValueError(f"give --low or a learning rate for {model!r}: the paper has a range only for {known}.")
    return low, high if high is not None else paper[1] if paper else None


class LandscapeCallback(Callback):
    """Probes the landscape of each `every`-th training batch, before the update, and keeps the CSV up to date.

    The training run is not changed by it: parameters, gradients, running statistics, modes and random numbers stay.
    A CSV left by an interrupted run is continued; rows from the resumed step on are replaced.

    Args:
        path: the CSV.
        low: smallest step size η.
        high: largest one, or None for what `largest_stable_step` finds at the first probe.
        points: number of step sizes.
        every: training steps from probe to probe.
        images: probe only so many images of the batch.
        options: further arguments of `probe`: layer, batch_norm, chunk_size, double.

    Raises:
        ValueError: Numbers out of range, or a CSV that was made with another range of η.
    """

    def __init__(
        self,
        path: str | Path,
        low: float,
        high: float | None,
        points: int = 50,
        *,
        every: int = 500,
        images: int | None = None,
        **options: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 training step; got {every}.")
        if images is not None and images < 1:
            raise ValueError(f"images must be at least 1; got {images}. Leave it out to probe the whole batch.")
        self.path, self.every, self.images, self.options = Path(path), every, images, options
        self.records = read_records(self.path) if self.path.is_file() else []
        if self.records:
            first = self.records[0]
            if (low, points) != (first.low, first.points) or high not in (None, first.high):
                raise ValueError(
                    f"{path} was made with {first.points} step sizes in [{first.low}, {first.high}], not {points} in "
                    f"[{low}, {high}]. Ask for the same, or for another file."
                )
            high = first.high
        self.low, self.points = low, points
        self.step_sizes = None if high is None else equal_steps(low, high, points)

    def on_update(self, step: int, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        """Probe and rewrite the CSV."""
        images, targets = (part[: self.images] for part in batch)
        if self.step_sizes is None:
            options = {name: self.options[name] for name in ("layer", "batch_norm") if name in self.options}
            high = largest_stable_step(model, images, targets, self.low, **options)
            self.step_sizes = equal_steps(self.low, high, self.points)
        landscape = probe(model, images, targets, self.step_sizes, **self.options)
        self.records = [record for record in self.records if record.step < step] + [Record.of(step, landscape)]
        write_records(self.path, self.records)


class StableStepCallback(Callback):
    """Follows the largest stable step size over a run; `high` is the smallest one seen, the paper's b for GAP."""

    def __init__(self, low: float, *, every: int = 500, layer: str | None = None, images: int | None = None) -> None:
        self.low, self.every, self.layer, self.images, self.high = low, every, layer, images, math.inf

    def on_update(self, step: int, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        """Measure at this batch."""
        images, targets = (part[: self.images] for part in batch)
        self.high = min(self.high, largest_stable_step(model, images, targets, self.low, layer=self.layer))


def range_table(runs: Mapping[str, Sequence[Record]], baseline: str | None = None) -> str:
    """Markdown table of the mean width of the ranges of Δl and Δg per run, and the baseline's width over it.

    Args:
        runs: label to records; a ratio above 1 means a smoother landscape than the baseline's.
        baseline: label of the run to compare with, the first by default.

    Raises:
        ValueError: An unknown baseline or a run without records.
    """
    names = list(runs)
    baseline = (names or [""])[0] if baseline is None else baseline
    if baseline not in runs:
        raise ValueError(f"baseline {baseline!r} is not among the runs: {', '.join(names) or 'none given'}.")
    widths = {}
    for name, records in runs.items():
        if not records:
            raise ValueError(f"run {name!r} has no records to compare.")
        count = len(records)
        widths[name] = [
            sum(record.loss_range for record in records) / count,
            sum(record.gradient_range for record in records) / count,
        ]
    lines = [
        f"| run | probes | range of Δl | {baseline} / run | range of Δg | {baseline} / run | loss at X |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, (loss, gradient) in widths.items():
        ratios = [base / own if own else math.inf for base, own in zip(widths[baseline], (loss, gradient), strict=True)]
        mean_loss = sum(record.loss for record in runs[name]) / len(runs[name])
        cells = [f"{loss:.4g}", f"{ratios[0]:.2f}", f"{gradient:.4g}", f"{ratios[1]:.2f}", f"{mean_loss:.4g}"]
        lines.append(f"| {name} | {len(runs[name])} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
