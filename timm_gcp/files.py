"""Files that appear whole: written under another name in the same folder, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with its ending, to write to; it replaces `path` if the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def copy(source: str | Path, path: str | Path) -> None:
    """Copy the bytes of a file."""
    with replacing(path) as partial:
        shutil.copyfile(source, partial)
