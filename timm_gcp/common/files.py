"""Files that appear whole: written under another name in the same folder, then renamed."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, with its ending, to write to; it replaces `path` if the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == partial:
            error.filename, error.filename2 = str(path), None  # whose name says more
        raise
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


_CHUNK = 1 << 20


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal, with a progress bar for a large one."""
    path = Path(path)
    digest = hashlib.sha256()
    size = path.stat().st_size
    with (
        path.open("rb") as file,
        tqdm(total=size, unit="B", unit_scale=True, desc="sha256", leave=False, disable=size < 256 * _CHUNK) as bar,
    ):
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()
