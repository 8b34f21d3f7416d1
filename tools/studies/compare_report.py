"""Records, table and curves of a study, from the folders of its finished runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study_config import Entry, Study

from timm_gcp.common.files import copy, write_text
from timm_gcp.common.paired import Pair
from timm_gcp.plots.style import COLOURS, new_figure, plain, save
from timm_gcp.train.curves import RunCurve, matching_epoch, read_summary

_RECORDS = ("summary.csv", "seconds.csv", "test.json")


@dataclass(frozen=True)
class Outcome:
    """A finished run: held-out accuracy per epoch, seconds per epoch, its answers on the test images, and its size."""

    curve: RunCurve
    seconds: float
    top1: float
    loss: float
    right: tuple[bool, ...]
    per_class: float
    parameters: int | None = None

    @property
    def held_out(self) -> tuple[float, ...]:
        """Top-1 on the held-out images after every epoch, in %."""
        return self.curve.top1


Found = dict[str, dict[int, Outcome]]  # finished runs by entry and seed


def keep_records(study: Study, output: Path, docs: Path) -> None:
    """Copy the small files of every run, trials included, to `docs`."""
    for entry in study.entries:
        for cell in [*(entry.trials() if entry.tune else ()), *entry.cells({})]:
            for name in _RECORDS:
                source = output / cell.folder / name
                if source.is_file():
                    copy(source, docs / "runs" / cell.folder / name)


def read_outcome(folder: Path) -> Outcome | None:
    """A run's outcome; None if it has not finished."""
    if not (folder / "test.json").is_file():
        return None
    curve = read_summary(folder / "summary.csv", folder.name)
    with (folder / "seconds.csv").open(newline="") as file:
        seconds = sorted(float(row["seconds"]) for row in csv.DictReader(file))
    test = json.loads((folder / "test.json").read_text())
    right = tuple(p == t for p, t in zip(test["predictions"], test["targets"], strict=True))
    mean = mean_per_class(test["targets"], right)
    return Outcome(curve, seconds[len(seconds) // 2], test["top1"], test["loss"], right, mean, test.get("parameters"))


def mean_per_class(targets: Sequence[int], right: Sequence[bool]) -> float:
    """Mean over the classes of the share of images that are right, in %."""
    counts: dict[int, list[int]] = {}
    for target, hit in zip(targets, right, strict=True):
        counts.setdefault(target, []).append(hit)
    return 100 * sum(sum(hits) / len(hits) for hits in counts.values()) / len(counts)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> tuple[int, int, float]:
    """Exact McNemar test of two models on the same images.

    Args:
        first: Whether each image is right with the first model.
        second: The same with the second.

    Returns:
        Images that only the first has right, images that only the second has right, and the two-sided p-value
        (binomial, probability one half).
    """
    pair = Pair(
        sum(a and not b for a, b in zip(first, second, strict=True)),
        sum(b and not a for a, b in zip(first, second, strict=True)),
    )
    return pair.only_first, pair.only_second, pair.p_value


def spread(values: Sequence[float]) -> str:
    """Mean, and range over several seeds: `62.31 (61.90 to 62.70)`."""
    mean = f"{sum(values) / len(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with its first column to the left and the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def outcomes(study: Study, docs: Path) -> Found:
    """The finished runs by entry and seed."""
    found: Found = {}
    for entry in study.entries:
        runs = {cell.seed: read_outcome(docs / "runs" / cell.folder) for cell in entry.cells({})}
        found[entry.name] = {seed: run for seed, run in runs.items() if run is not None}
    return found


def results_table(study: Study, found: Found) -> str:
    """Test accuracy, gain over the run it is set against with its paired test, matching epoch and seconds per epoch."""
    rows = []
    further = any(entry.reach for entry in study.entries)
    counted = any(run.parameters for runs in found.values() for run in runs.values())
    for entry in study.entries:
        runs = found[entry.name]
        if not runs:
            continue
        row = [entry.label, *([_parameters(runs)] if counted else []), str(len(runs))]
        row += [spread([run.top1 for run in runs.values()])]
        row += [spread([run.per_class for run in runs.values()])]
        row += [spread([run.loss for run in runs.values()])]
        row += [f"{sum(run.held_out[-1] for run in runs.values()) / len(runs):.2f}"]
        row += _versus(entry.name, entry.against, found)
        row += [_further(entry, study, found)] if further else []
        row += [f"{sum(run.seconds for run in runs.values()) / len(runs):.0f}"]
        rows.append(row)
    head = [
        "Run",
        *(["Parameters"] if counted else []),
        "Seeds",
        "Test top-1",
        "Mean per class",
        "Test loss",
        "Held-out top-1",
        "Gain",
        "Only it right : only the other, p",
    ]
    head += ["Reaches the other's last held-out top-1 at epoch"]
    head += ["Against another schedule: reached at epoch; gain; only it right : only the other, p"] if further else []
    return markdown([*head, "Seconds an epoch"], rows)


def _versus(name: str, other: str | None, found: Found) -> list[str]:
    """Gain, paired test and matching epoch against the other entry, by the seeds of both; empty cells without it."""
    runs, others = found[name], found.get(other or "", {})
    seeds = sorted(set(runs) & set(others))
    if not seeds:
        return ["", "", ""]
    gains = [runs[seed].top1 - others[seed].top1 for seed in seeds]
    tests = [mcnemar(runs[seed].right, others[seed].right) for seed in seeds]
    paired = "; ".join(f"{ours} : {theirs}, {p:.2g}" for ours, theirs, p in tests)
    reached = [matching_epoch(runs[seed].curve, others[seed].held_out[-1]) for seed in seeds]
    return [_signed(gains), paired, ", ".join(str(epoch or "never") for epoch in reached)]


def _parameters(runs: dict[int, Outcome]) -> str:
    count = next(iter(runs.values())).parameters
    return f"{count:,}" if count else ""


def _further(entry: Entry, study: Study, found: Found) -> str:
    """The same against `reach` in one cell, behind that entry's label."""
    gain, paired, epochs = _versus(entry.name, entry.reach, found)
    return f"{study.entry(entry.reach).label}: {epochs}; {gain}; {paired}" if entry.reach and epochs else ""


def _signed(gains: Sequence[float]) -> str:
    mean = f"{sum(gains) / len(gains):+.2f}"
    return mean if len(gains) == 1 else f"{mean} ({min(gains):+.2f} to {max(gains):+.2f})"


def epochs_table(found: Found, study: Study) -> str:
    """Held-out accuracy after every epoch, a row for each run."""
    length = max((len(run.held_out) for runs in found.values() for run in runs.values()), default=0)
    rows = []
    for entry in study.entries:
        for seed, run in sorted(found[entry.name].items()):
            values = [f"{value:.1f}" for value in run.held_out]
            rows.append([f"{entry.label}, seed {seed}", *values, *[""] * (length - len(values))])
    return markdown(["Held-out top-1 after epoch", *(str(n + 1) for n in range(length))], rows)


def tuning_table(study: Study, docs: Path) -> str:
    """Held-out accuracy of every trial; empty if nothing was tuned."""
    rows = []
    for entry in study.entries:
        for cell in entry.trials() if entry.tune else ():
            path = docs / "runs" / cell.folder / "summary.csv"
            if path.is_file():
                values = ", ".join(f"{name} {cell.keys[name]:g}" for name in entry.tune if name != "epochs")
                rows.append([entry.label, values, f"{read_summary(path, '').top1[-1]:.2f}"])
    return markdown(["Run", "Trial", "Held-out top-1"], rows) if rows else ""


def draw(study: Study, found: Found, path: Path) -> Path:
    """Held-out accuracy per epoch, mean over seeds with their range."""
    drawn = [entry for entry in study.entries if found[entry.name]]
    beside = len(drawn) > len(COLOURS)  # a legend so long would cover the curves
    figure = new_figure(10 if beside else 7, 4)
    axes = figure.subplots()
    plain(axes)
    for number, entry in enumerate(drawn):
        columns = list(zip(*(run.held_out for run in found[entry.name].values()), strict=False))
        epochs = range(1, len(columns) + 1)
        means = [sum(column) / len(column) for column in columns]
        again, index = divmod(number, len(COLOURS))
        style, colour = "--" if entry.against is None else ("-", "-.", ":")[again % 3], COLOURS[index]
        axes.plot(epochs, means, style, color=colour, label=f"{entry.label} ({means[-1]:.1f})")
        axes.fill_between(epochs, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15)
    axes.set_title(study.title)
    axes.set_xlabel("epoch")
    axes.set_ylabel("held-out top-1 (%)")
    axes.xaxis.get_major_locator().set_params(integer=True)
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if beside else {}
    axes.legend(frameon=False, fontsize=8, **place)
    return save(figure, path)


def write_figure(study: Study, docs: Path, path: Path) -> Path:
    """Draw the curves of a study's finished runs from their records.

    Raises:
        ValueError: No run has finished.
    """
    found = outcomes(study, docs)
    if not any(found.values()):
        raise ValueError(f"no finished run in {str(docs / 'runs')!r}: give the records' folder as --docs.")
    return draw(study, found, path)


def write_report(study: Study, output: Path, docs: Path) -> Path:
    """Copy the records, write `results.md` and `curves.png` to `docs`; returns the page's path.

    Raises:
        ValueError: No run has finished.
    """
    if output.is_dir():
        keep_records(study, output, docs)
    found = outcomes(study, docs)
    if not any(found.values()):
        raise ValueError(
            f"no finished run in {str(docs / 'runs')!r}: train first, or give the records' folder as --docs."
        )
    draw(study, found, docs / "curves.png")
    parts = [results_table(study, found), epochs_table(found, study), tuning_table(study, docs)]
    write_text(docs / "results.md", f"# {study.title}\n\n" + "\n".join(part for part in parts if part))
    return docs / "results.md"
