"""Bar charts of robustness results, one colour per model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from timm_gcp.plots.style import COLOURS, new_figure, plain, save
from timm_gcp.robustness.corruptions import EXTRA_CORRUPTIONS, SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import EXTRA_PERTURBATIONS, TEST_PERTURBATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR_SHARE = 0.8  # of the space of one group
PANELS_PER_ROW = 5


def _bars(axes: Axes, groups: int, values: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """Draw bars side by side; a value that wasn't measured is NaN and leaves its place empty."""
    width = BAR_SHARE / len(values)
    for i, (heights, label) in enumerate(zip(values, labels, strict=True)):
        place = np.arange(groups) + (i - (len(values) - 1) / 2) * width
        axes.bar(place, heights, width, label=label, color=COLOURS[i % len(COLOURS)])
    plain(axes)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)


def draw_c(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the error by corruption and severity: a panel per corruption, bars per severity, a colour per model."""
    names = [
        name
        for name in TEST_CORRUPTIONS + EXTRA_CORRUPTIONS
        if any(isinstance(result["corruption_error"].get(name), dict) for result in results)
    ]
    columns = min(PANELS_PER_ROW, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(2.4 * columns + 0.6, 1.9 * rows + 0.8)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, name in zip(panels.flat, names, strict=False):
        values = [
            [100 * result["corruption_error"].get(name, {}).get(str(s), np.nan) for s in SEVERITIES]
            for result in results
        ]
        _bars(axes, len(SEVERITIES), values, [result["model"] for result in results])
        for i, result in enumerate(results):
            if result.get("clean_error") is not None:
                axes.axhline(
                    100 * result["clean_error"], color=COLOURS[i % len(COLOURS)], linewidth=0.9, linestyle="--"
                )
        axes.set_title(name.replace("_", " ") + (" (extra)" if name in EXTRA_CORRUPTIONS else ""), fontsize=9)
        axes.set_xticks(range(len(SEVERITIES)), [str(s) for s in SEVERITIES])
    for i, axes in enumerate(panels.flat):
        if i >= len(names):
            axes.set_visible(False)
        elif i + columns >= len(names):  # the lowest panel of its column
            axes.tick_params(labelbottom=True)
    figure.supxlabel("severity", fontsize=10)
    figure.supylabel("top-1 error, % (dashed: clean images)", fontsize=10)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)
    save(figure, path)


def draw_p(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw flip probability and top-5 distance by perturbation, a colour per model."""
    names = [
        name
        for name in TEST_PERTURBATIONS + EXTRA_PERTURBATIONS
        if any(name in result["flip_probability"] for result in results)
    ]
    figure = new_figure(max(5.0, 0.95 * len(names) + 1), 5.4)
    panels = figure.subplots(2, 1, sharex=True)
    for axes, key, factor, title in (
        (panels[0], "flip_probability", 100, "flip probability, %"),
        (panels[1], "top5_distance", 1, "top-5 distance"),
    ):
        values = [[factor * result[key].get(name, np.nan) for name in names] for result in results]
        _bars(axes, len(names), values, [result["model"] for result in results])
        axes.set_ylabel(title)
    ticks = [name.replace("_", "\n") for name in names]
    panels[1].set_xticks(range(len(names)), ticks, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False)
    save(figure, path)
