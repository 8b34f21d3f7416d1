"""Images and their likeliest classes on one page: each photo above the bars of its probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timm_gcp.inference.images import open_image
from timm_gcp.plots.style import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 60  # images on a page
_COLUMNS = 4
_WIDTH, _PHOTO, _BAR = 2.1, 1.6, 0.19  # inches: of a column, height of a photo and of a bar
_SIDE = 480  # pixels that a photo is reduced to
_FILL = "#b8d8ea"


def check_count(count: int) -> None:
    """Refuse more images than a page takes, before any is classified.

    Raises:
        ValueError: More than `MOST`.
    """
    if count > MOST:
        raise ValueError(
            f"--figure draws up to {MOST} images on a page, got {count}: name fewer, or take --annotate DIR."
        )


def draw_classified(results: Sequence[tuple[Path, Sequence[dict[str, Any]]]], title: str, path: Path) -> Path:
    """Draw each image with its classes below it, the likeliest first; returns the path.

    Args:
        results: Files with their classes, as `timm_gcp.inference.predict.predict` yields them: `name` and
            `probability` in [0, 1].
        title: Above all of them.
        path: Figure to write.

    Raises:
        ValueError: No images, or too many; or an image can't be read.
    """
    if not results:
        raise ValueError("no image to draw: none could be read.")
    check_count(len(results))
    columns = min(_COLUMNS, len(results))
    rows, most = math.ceil(len(results) / columns), max(len(top) for _, top in results)
    bars = _BAR * max(most, 1)
    figure = new_figure(_WIDTH * columns, (_PHOTO + bars + 0.15) * rows + 0.3)
    figure.suptitle(title, fontsize=10)
    places = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[_PHOTO, bars] * rows)
    for axes in places.flat:
        axes.axis("off")
    for number, (file, top) in enumerate(results):
        row, column = divmod(number, columns)
        image = open_image(file, 3)
        image.thumbnail((_SIDE, _SIDE))
        places[2 * row, column].imshow(image)
        _bars(places[2 * row + 1, column], top, most)
    return save(figure, path)


def _bars(axes: Axes, top: Sequence[dict[str, Any]], count: int) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(count - 0.5, -0.5)
    for line, entry in enumerate(top):
        axes.barh(line, entry["probability"], height=0.86, color=_FILL)
        axes.text(0.01, line, entry["name"], va="center", fontsize=7, parse_math=False)
        axes.text(0.99, line, f"{entry['probability']:.1%}", va="center", ha="right", fontsize=7)
