"""The figure of the landscape probes, in the form of Fig. 2: bands of Δl (left) and Δg (right) over training steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from timm_gcp.landscape.records import Record
from timm_gcp.plots.style import COLOURS, new_figure, plain, save

PANELS = (("loss", "Loss along the gradient, Δl"), ("gradient", "Change of the gradient, Δg"))


def plot_landscape(
    rows: Mapping[str, Mapping[str, Sequence[Record]]], path: str | Path, *, log_scale: bool = False
) -> None:
    """Draw one row of two panels per entry of `rows` (a backbone), with one band per run, and save it at `path`.

    A band spans minimum to maximum over the step sizes η; the line inside it is their mean.

    Args:
        rows: title to {label to records}; runs of one entry share their axes.
        path: the figure; its suffix names the format.
        log_scale: logarithmic vertical axes, for ranges that differ by orders of magnitude.

    Raises:
        ValueError: There is nothing to draw.
    """
    if not rows or not all(runs and all(runs.values()) for runs in rows.values()):
        raise ValueError("nothing to draw: every run needs at least one probe.")
    figure = new_figure(10, 3.6 * len(rows))
    grid = figure.subplots(len(rows), 2, squeeze=False)
    for axes, (title, runs) in zip(grid, rows.items(), strict=True):
        for panel, (quantity, label) in zip(axes, PANELS, strict=True):
            for colour, (name, records) in zip(COLOURS * len(runs), runs.items(), strict=False):
                steps = [record.step for record in records]
                low, high, mean = (
                    [getattr(record, f"{quantity}_{end}") for record in records] for end in ("min", "max", "mean")
                )
                panel.fill_between(steps, low, high, color=colour, alpha=0.3, linewidth=0)
                # a single probe has no width on the axis: mark it
                panel.plot(steps, mean, color=colour, label=name, marker="o" if len(steps) == 1 else "", linewidth=1.3)
                if len(steps) == 1:
                    panel.vlines(steps, low, high, color=colour, alpha=0.5, linewidth=6)
            panel.set_yscale("log" if log_scale else "linear")
            panel.set(xlabel="training step", ylabel=label, title=title)
            plain(panel)
            panel.legend(frameon=False)
    save(figure, Path(path))
