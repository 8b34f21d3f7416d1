"""Figure of the convergence of finished runs: top-1 per epoch (Fig. 1 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from timm_gcp.common.messages import listed
from timm_gcp.plots.style import COLOURS, check_output, new_figure, plain, save
from timm_gcp.train.curves import RunCurve, find_run, matching_epoch


def default_title(runs: Sequence[RunCurve]) -> str:
    """A title that names the runs."""
    return f"Top-1 per epoch: {listed([run.label for run in runs], 6)}"


def draw_convergence(output: Path, runs: Sequence[RunCurve], baseline: str | None = None, title: str = "") -> Path:
    """Draw top-1 per epoch of each run, and where it matches the baseline's final top-1.

    Args:
        output: File to write.
        runs: At least one run.
        baseline: Label of the run to match: a dashed line at its final top-1, a dot where another run crosses it, and
            the epoch in the legend.
        title: Title of the figure; the runs' labels when left out.

    Returns:
        The file.

    Raises:
        ValueError: An unknown baseline or a bad file name.
    """
    check_output(output)
    reference = find_run(runs, baseline)
    figure = new_figure(7.5, 5)
    axes = figure.subplots()
    plain(axes)
    axes.set_xlabel("epoch")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.set_title(title or default_title(runs), wrap=True)
    if reference is not None:
        axes.axhline(reference.top1[-1], color="#888888", linestyle="--", linewidth=1)
    for index, run in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        marker = "o" if len(run.epochs) < 3 else None
        epochs = [epoch + 1 for epoch in run.epochs]
        label = f"{run.label}: {run.top1[-1]:.2f}"
        if reference is not None and run is not reference:
            reached = matching_epoch(run, reference.top1[-1])
            label += f", matches at epoch {reached}" if reached else ", does not match"
            if reached is not None:
                axes.plot([reached], [run.top1[epochs.index(reached)]], "o", color=colour, markersize=7)
        axes.plot(epochs, run.top1, color=colour, marker=marker, label=label)
    heading = "final top-1 (%)" if reference is None else f"final top-1 (%); dashed: {reference.label}'s"
    axes.legend(frameon=False, loc="lower right", title=heading, alignment="left")
    return save(figure, output)
