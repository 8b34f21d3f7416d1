"""What every figure of the package shares: matplotlib without a display, plain axes, files written whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from timm_gcp.common.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#444444")  # Okabe-Ito first


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Axes) -> None:
    """Light grid, no box."""
    axes.grid(alpha=0.3, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def check_output(path: Path) -> Path:
    """Refuse a file name that matplotlib would not know, before anything is computed.

    Raises:
        ValueError: Another ending than `FORMATS`.
    """
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"A figure's name must end in {', '.join(FORMATS)}. Got '{path}'.")
    return path


def save(figure: Figure, path: Path) -> Path:
    """Write the figure whole or not at all; returns the path."""
    check_output(path)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150)
    return path
