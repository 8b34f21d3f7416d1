"""The paper's figures of convergence: top-1 per epoch, a panel for each backbone, and the sweep of Fig. 4."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timm_gcp.plots.style import COLOURS, new_figure, plain, save
from timm_gcp.reproduce.item import Row
from timm_gcp.reproduce.jobs import SUMMARY, train_folder
from timm_gcp.reproduce.setup import Setup
from timm_gcp.schedules.spec import parse
from timm_gcp.train.curves import read_summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_ROW = 3


def draw_convergence(rows: Sequence[Row], setup: Setup, path: Path) -> None:
    """Top-1 per epoch of the rows' runs, GAP dashed, in a panel for each backbone."""
    backbones = list(dict.fromkeys(row.labels[0] for row in rows))
    across = min(PER_ROW, len(backbones))
    down = -(-len(backbones) // across)
    figure = new_figure(5 * across, 4 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, backbone in zip(panels, backbones, strict=False):
        _curves(axes, [row for row in rows if row.labels[0] == backbone], setup)
        axes.set_title(backbone)
    for axes in panels[len(backbones) :]:
        axes.set_axis_off()
    save(figure, path)


def draw_sweep(rows: Sequence[Row], setup: Setup, path: Path) -> None:
    """The rates of the rows' runs (left) and their top-1 per epoch (right)."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    plain(left)
    left.set(xlabel="epoch", ylabel="learning rate")
    for row, colour in zip(rows, cycle(COLOURS), strict=False):
        settings = row.source.settings
        shape = parse(settings["sched"]).shape
        epochs = range(settings["epochs"] + 1)
        left.plot(epochs, [settings["lr"] * shape(epoch) for epoch in epochs], color=colour, label=row.labels[1])
    left.legend(frameon=False)
    _curves(right, rows, setup)
    save(figure, path)


def _curves(axes: Axes, rows: Sequence[Row], setup: Setup) -> None:
    plain(axes)
    axes.set(xlabel="epoch", ylabel="top-1 accuracy (%)")
    for row, colour in zip(rows, cycle(COLOURS), strict=False):
        summary = train_folder(row.source, setup) / SUMMARY
        if not summary.is_file():
            continue
        run = read_summary(summary, " ".join(row.labels[1:]))
        style: dict[str, Any] = {"marker": "o"} if len(run.epochs) < 3 else {}
        line = "--" if row.source.pooling == "GAP" else "-"
        axes.plot([epoch + 1 for epoch in run.epochs], run.top1, line, color=colour, label=run.label, **style)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")
