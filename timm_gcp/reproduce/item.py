"""A table or figure of the paper: its rows and columns, what makes them, what is measured, what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timm_gcp.common.messages import did_you_mean

if TYPE_CHECKING:
    from timm_gcp.reproduce.jobs import Job
    from timm_gcp.reproduce.setup import Setup

Value = float | int | str | None


@dataclass(frozen=True)
class Column:
    """A figure of each row: its heading, how a number is written, and whether the paper (or the release) prints it."""

    name: str
    form: str = ".2f"
    printed: bool = True


@dataclass(frozen=True)
class Row:
    """A row of a table, a curve of a figure.

    Attributes:
        labels: What it is, in the item's label columns.
        backbone: timm's name of the network with average pooling.
        model: timm's name of the network.
        paper: The printed figures, in the order of the columns that are printed.
        source: What measures it: runs, or whatever the item's functions understand. None for a row that nobody runs.
        name: Of its run or recipe, where that chooses the row alone.
    """

    labels: tuple[str, ...]
    backbone: str
    model: str
    paper: tuple[Value, ...] = ()
    source: Any = None
    name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What `--models` takes for it."""
        return tuple(name for name in (self.backbone, self.model, self.name) if name)


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Attributes:
        name: As the command takes it, such as `table2`.
        title: As the paper calls it.
        what: What it shows, in a line.
        data: Options that name the data it needs: `imagenet`, `coco`, `imagenet_c`, `imagenet_p`.
        labels: Headings of the rows' labels.
        columns: The figures.
        rows: All rows.
        plan: The jobs that the chosen rows need, in order.
        measure: A row's figures, in the order of `columns`; None where they are missing.
        draw: Draws the figure into a file; None where the paper has a table.
        printed: Whose the printed figures are.
        notes: What has to be known to compare.
        cost: Time and hardware.
        claim: The paper's result, in a phrase.
        here: What was measured for this package.
        published: Whether it can start from published weights.
    """

    name: str
    title: str
    what: str
    data: tuple[str, ...]
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    plan: Callable[[Sequence[Row], Setup], list[Job]]
    measure: Callable[[Row, Setup], Sequence[Value]]
    cost: Callable[[], str]
    claim: str
    here: Callable[[], str]
    draw: Callable[[Sequence[Row], Setup, Path], None] | None = None
    printed: str = "paper"
    notes: tuple[str, ...] = ()
    published: bool = False

    def choose(self, models: Iterable[str] | None) -> list[Row]:
        """Rows of these backbones (`resnet18`: all of its rows), models (`resnet18_gcp`) or runs; all rows for None.

        Raises:
            ValueError: A name that no row has; lists the known ones.
        """
        if models is None:
            return list(self.rows)
        known = list(dict.fromkeys(name for row in self.rows for name in row.names))
        wanted = list(models)
        for name in wanted:
            if name not in known:
                raise ValueError(
                    f"{self.title} has no rows of {name!r}; --models takes {', '.join(known)}."
                    f"{did_you_mean(name, known)}"
                )
        return [row for row in self.rows if set(row.names) & set(wanted)]


def spread(values: Iterable[float], digits: int = 2) -> str:
    """`1.51 to 4.39`: the smallest and the largest value."""
    found = sorted(values)
    return f"{found[0]:.{digits}f} to {found[-1]:.{digits}f}"
