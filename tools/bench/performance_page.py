"""Put the benchmarks' tables into docs/performance.md and docs/poolings.md, from the files that the benchmarks wrote.

python tools/bench/performance_page.py
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

from bench_common import markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("performance.md", "poolings.md")
BEGIN, END = "<!-- begin {} -->\n", "<!-- end {} -->"


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV file, numbers as floats."""
    with path.open(newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(value: str) -> Any:
    try:
        return float(value) if "." in value and "e" not in value else value
    except ValueError:
        return value


def _columns(rows: list[dict[str, Any]], names: dict[str, str]) -> str:
    return markdown([{new: row[old] for old, new in names.items() if old in row} for row in rows])


def pooling_tables(folder: Path, device: str) -> str:
    """Forward and backward, forward alone, and memory, from the pooling benchmark."""
    rows = read(folder / f"pooling_{device}.csv")
    about = (folder / f"pooling_{device}.md").read_text(encoding="utf-8").splitlines()[0]
    key = {"B, D, map": "B, D, map"}
    pools = ("ours", "reference", "authors", "eigh", "compiled", "average")
    both = _columns(
        rows,
        key
        | {f"{p} f+b": p for p in pools}
        | {"operations": "operations", "operations f+b": "each alone", "kernels f+b": "kernels alone"}
        | {"floor f+b": "floor", "faster": "reference / ours"},
    )
    forward = _columns(rows, key | {f"{p} fwd": p for p in pools})
    memory = {f"{who} {what} MB": f"{who} {what}" for what in ("saved", "peak") for who in ("ours", "reference")}
    saved = _columns(rows, key | memory | {"saved 1/": "saved: reference / ours"})
    picture = f"![Forward and backward, ms](performance/pooling_{device}.png)"
    return (
        f"{about}\n\nForward and backward, ms:\n\n{both}\n\n{picture}\n\nForward alone, ms:\n\n{forward}\n\n"
        f"Memory, MB:\n\n{saved}\n"
    )


def plain(folder: Path, name: str) -> str:
    """The table that a benchmark printed."""
    return (folder / f"{name}.md").read_text(encoding="utf-8")


def page(text: str, folder: Path) -> str:
    """`text` with each marked part replaced by the tables that `folder` holds; a part without a file stays empty."""
    kinds = ("pooling", "poolings", "precision", "classifier", "models")
    parts = {f"{kind} {device}": f"{kind}_{device}" for kind in kinds for device in ("cpu", "cuda")}
    for mark, name in parts.items():
        begin, end = BEGIN.format(mark), END.format(mark)
        if begin not in text:
            continue
        before, rest = text.split(begin)
        content = ""
        if (folder / f"{name}.md").is_file():
            content = pooling_tables(folder, name.split("_")[1]) if mark.startswith("pooling ") else plain(folder, name)
        text = before + begin + content + end + rest.split(end)[1]
    return text


def main() -> int:
    """Rewrite the pages."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name in PAGES:
        path = DOCS / name
        part = path.with_suffix(".part")
        part.write_text(page(path.read_text(encoding="utf-8"), DOCS / "performance"), encoding="utf-8")
        part.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
