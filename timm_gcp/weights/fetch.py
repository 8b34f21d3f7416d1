"""The authors' weights into the store, once per machine: download, convert, check, pin; one process at it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from filelock import FileLock, Timeout

from timm_gcp.weights import catalog as table
from timm_gcp.weights import download, store
from timm_gcp.weights.importing import Imported, import_file
from timm_gcp.weights.transfer import HOME_REMEDY

_PATIENCE = 10.0  # seconds after which a waiting process says so


def fetch(
    name: str, url: str | None = None, *, replace: bool = False, keep: bool = False, quiet: bool = False
) -> Imported | None:
    """Put the published weights `arch.tag` into the store; other processes that want the same wait.

    Torch's random state is left as it was, so that a run with a download draws the numbers of a run without.

    Args:
        name: `arch.tag` of the table.
        url: Where else to download from; see `download.download`.
        replace: Replace weights of that name.
        keep: Keep the downloaded file in the `downloads` folder.
        quiet: Without progress bar.

    Returns:
        What was imported; None if the weights are there already, perhaps from another process.

    Raises:
        ValueError: `name` is not in the table, or the file is not usable or another than before.
        ImportError: gdown is needed and not installed.
        RuntimeError: The download fails, or the disk is full or can't be written.
    """
    entry = download.find_entry(name)
    with _alone(name):
        if not replace and store.find(name) is not None:
            return None
        path = download.download(name, url, quiet)
        try:
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                result = import_file(path, name, replace=replace)
        except ValueError as error:
            if str(error).startswith(str(path)):  # the file's own fault: the next attempt is not to meet it again
                path.unlink(missing_ok=True)
                raise ValueError(f"{error} The download is thrown away.") from error
            raise
        download.pin(entry, result.sha256)
        if not keep:
            path.unlink(missing_ok=True)
    return result


def fetch_aloud(name: str) -> None:
    """Fetch the weights for `pretrained=True`, and say in one line what they are and where they lie.

    Raises:
        RuntimeError, ValueError, ImportError: As `fetch`.
    """
    result = fetch(name)
    if result is not None:
        file = download.file_name(table.WEIGHTS[name])
        print(
            f"{name}: the authors' file {file}, converted. {table.NO_LICENCE} It is in {result.folder}", file=sys.stderr
        )


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold the lock of these weights, which lies beside the store."""
    path = store.home() / "locks" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            print(f"{name}: another process is at it; waiting for {path}", file=sys.stderr)
            lock.acquire()
    except OSError as error:
        raise RuntimeError(f"{path} could not be written: {error}. {HOME_REMEDY}") from error
    try:
        yield
    finally:
        lock.release()
