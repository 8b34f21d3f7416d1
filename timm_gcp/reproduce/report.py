"""The table beside the paper's: Markdown to read, CSV to work with."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from timm_gcp.reproduce.item import Column, Item, Row, Value
from timm_gcp.reproduce.setup import Setup

ABSENT = "–"


def header(item: Item) -> list[str]:
    """Headings: the labels, then each column as printed and as measured."""
    names = list(item.labels)
    for column in item.columns:
        names += [f"{column.name}, {item.printed}"] if column.printed else []
        names.append(f"{column.name}, ours")
    return names


def cells(item: Item, row: Row, measured: Sequence[Value]) -> list[tuple[Column | None, Value]]:
    """A row's labels and figures, in the order of `header`."""
    found: list[tuple[Column | None, Value]] = [(None, label) for label in row.labels]
    printed = iter(row.paper)
    for column, value in zip(item.columns, measured, strict=True):
        if column.printed:
            found.append((column, next(printed)))
        found.append((column, value))
    return found


def written(column: Column | None, value: Value) -> str:
    """A figure in its column's form."""
    if value is None:
        return ABSENT
    return f"{value:{column.form}}" if column is not None and isinstance(value, float) else str(value)


def markdown(item: Item, rows: Sequence[Row], setup: Setup) -> str:
    """The table, what has to be known to read it, and a warning under a trial's."""
    names = header(item)
    lines = [names, ["---"] * len(item.labels) + ["---:"] * (len(names) - len(item.labels))]
    for row in rows:
        lines.append([written(column, value) for column, value in cells(item, row, item.measure(row, setup))])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = list(item.notes)
    if setup.limit is not None:
        notes.insert(
            0, f"A trial with --limit {setup.limit}: the figures say that it runs, and nothing of the networks."
        )
    told = "\n".join(f"- {note}" for note in notes)
    return f"{item.title}: {item.what}\n\n{table}\n" + (f"\n{told}\n" if told else "")


def comma_separated(item: Item, rows: Sequence[Row], setup: Setup) -> str:
    """The table with all digits; a figure that is missing is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header(item))
    for row in rows:
        writer.writerow(["" if value is None else value for _, value in cells(item, row, item.measure(row, setup))])
    return text.getvalue()
