"""Download one of the authors' files from Google Drive, with progress and resume."""

from __future__ import annotations

from pathlib import Path

from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.checkpoint import check_file

DRIVE_URL = "https://drive.google.com/uc?id={id}"


def download(name: str, url: str | None = None, quiet: bool = False) -> Path:
    """Download the published file of `arch.tag` into the local store's `downloads` folder.

    A broken download goes on where it stopped; a complete one is not repeated.

    Args:
        name: `arch.tag` of the table.
        url: Where else to download from, such as a mirror.
        quiet: Without progress bar.

    Returns:
        The downloaded file, under the authors' own file name.

    Raises:
        ValueError: If `name` is not in the table, or what arrived is no checkpoint.
        ImportError: If gdown is not installed.
        RuntimeError: If the download fails.
    """
    entry = table.WEIGHTS.get(name)
    if entry is None:
        raise ValueError(f"No published weights are called {name!r}. Known: {', '.join(table.WEIGHTS)}.")
    try:
        import gdown
    except ImportError as error:
        raise ImportError(f"Downloading needs gdown: pip install 'timm-gcp[download]'. {_by_hand(entry)}") from error
    target = store.home() / "downloads" / f"{entry.source_name}.pth.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    url = url or DRIVE_URL.format(id=entry.google_drive_id)
    try:
        arrived = gdown.download(url=url, output=str(target), quiet=quiet, resume=True)
    except Exception as error:  # gdown, requests and the system each have their own
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise RuntimeError(
            f"{entry.source_name} did not arrive from {url}: {reason}. What has arrived is kept: the same command goes "
            f"on from there. {_by_hand(entry)}"
        ) from error
    if arrived is None:  # gdown before version 5 reports a refusal so
        raise RuntimeError(f"{entry.source_name} did not arrive from {url}. {_by_hand(entry)}")
    try:
        check_file(target)
    except ValueError as error:
        target.unlink()  # or the next attempt would take it for the finished download
        raise ValueError(f"{error} {_by_hand(entry)}") from error
    return target


def _by_hand(entry: table.Weights) -> str:
    return (
        f"By hand: save https://drive.google.com/open?id={entry.google_drive_id} in a browser, then "
        f"`timm-gcp weights import {entry.source_name}.pth.tar --as {entry.name}`."
    )
