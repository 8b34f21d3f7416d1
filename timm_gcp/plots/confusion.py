"""The confusion matrix of a validation, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from timm_gcp.plots.style import new_figure, save


def draw_confusion(confusion: Tensor, names: Sequence[str], title: str, path: Path) -> None:
    """Draw the row-normalised matrix as a PNG; counts are written in for up to 20 classes."""
    shares = confusion.double() / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    count = len(names)
    labelled = count <= 20
    side = min(12.0, 3.5 + 0.5 * count) if labelled else 9.0
    figure = new_figure(side + 1.2, side)
    axes = figure.subplots()
    picture = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    if labelled:
        axes.set_xticks(range(count), names, rotation=45, ha="right")
        axes.set_yticks(range(count), names)
        for (row, column), number in zip(
            ((r, c) for r in range(count) for c in range(count)), confusion.flatten().tolist(), strict=True
        ):
            if number:
                dark = shares[row, column] > 0.5
                axes.text(column, row, number, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title)
    figure.colorbar(picture, label="share of the true class", shrink=0.8)
    save(figure, path)
