"""Put the benchmarks' tables into docs/performance.md and docs/poolings.md, from the files that the benchmarks wrote.

python tools/bench/performance_page.py [--docs FOLDER]
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
KINDS = (
    "pooling",
    "poolings",
    "forms",
    "precision",
    "classifier",
    "step",
    "models",
    "models_compiled",
    "allocator",
    "timm_tests",
    "growth",
)
NO_GPU = "Not measured: no GPU was at hand.\n"
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
    lines = (folder / f"pooling_{device}.md").read_text(encoding="utf-8").splitlines()
    about, left = lines[0], next((f"\n{line}\n" for line in lines if line.startswith("Left out: ")), "")
    key = {"B, D, map": "B, D, map", "mode": "mode"}
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
        f"Memory, MB:\n\n{saved}\n{left}"
    )


def plain(folder: Path, name: str) -> str:
    """The table that a benchmark printed."""
    return (folder / f"{name}.md").read_text(encoding="utf-8")


def page(text: str, folder: Path) -> str:
    """`text` with each marked part replaced by the tables that `folder` holds; a part without a file says so."""
    parts = {f"{kind} {device}": f"{kind}_{device}" for kind in KINDS for device in ("cpu", "cuda")}
    for mark, name in parts.items():
        begin, end = BEGIN.format(mark), END.format(mark)
        if begin not in text:
            continue
        before, rest = text.split(begin)
        content = NO_GPU if name.endswith("_cuda") else ""
        if (folder / f"{name}.md").is_file():
            content = (
                pooling_tables(folder, name.rpartition("_")[2]) if mark.startswith("pooling ") else plain(folder, name)
            )
        text = before + begin + content + end + rest.split(end)[1]
    return text


def main() -> int:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder with the pages, and the tables in performance/")
    docs = parser.parse_args().docs
    pages = [docs / name for name in PAGES if (docs / name).is_file()]
    if not pages:
        parser.error(f"--docs {docs} holds neither of {', '.join(PAGES)}; name the folder of the pages")
    for path in pages:
        part = path.with_suffix(".part")
        part.write_text(page(path.read_text(encoding="utf-8"), docs / "performance"), encoding="utf-8")
        part.replace(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
