"""Download one of the authors' files from Google Drive, with progress and resume."""

from __future__ import annotations

from pathlib import Path

from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.checkpoint import read_checkpoint

DRIVE_URL = "https://drive.google.com/uc?id={id}"


def download(name: str, url: str | None = None, quiet: bool = False) -> Path:
    """Download the published file of `arch.tag` into the local store's `downloads` folder.

    A broken download goes on where it stopped; a complete one is not repeated. What can't be read is thrown away.

    Args:
        name: `arch.tag` of the table.
        url: Where else to download from, such as a mirror.
        quiet: Without progress bar.

    Returns:
        The downloaded file, under the authors' own file name.

    Raises:
        ValueError: `name` is not in the table, or what arrived is not a checkpoint.
        ImportError: gdown is not installed.
        RuntimeError: The download fails.
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
    _clear(target)
    url = url or DRIVE_URL.format(id=entry.google_drive_id)
    try:
        arrived = gdown.download(url=url, output=str(target), quiet=quiet, resume=True)
    except Exception as error:  # gdown, requests and the system each have their own
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        if "range" in reason.lower() or "416" in reason:  # what was kept is not part of what is there
            _throw_away(target)
            raise RuntimeError(
                f"{entry.source_name} did not arrive from {url}: {reason}. What had arrived before is thrown away: the "
                f"same command starts anew. {_by_hand(entry)}"
            ) from error
        raise RuntimeError(
            f"{entry.source_name} did not arrive from {url}: {reason}. What has arrived is kept: the same command goes "
            f"on from there. {_by_hand(entry)}"
        ) from error
    if arrived is None:  # gdown before version 5 reports a refusal so
        raise RuntimeError(f"{entry.source_name} did not arrive from {url}. {_by_hand(entry)}")
    try:
        read_checkpoint(target)
    except ValueError as error:
        _throw_away(target)  # or the next attempt would take it for the finished download
        raise ValueError(f"{error} {_by_hand(entry)}") from error
    return target


def _parts(target: Path) -> list[Path]:
    """Unfinished downloads of `target`, as gdown names them."""
    return sorted(path for path in target.parent.glob("*.part") if path.name.startswith(target.name))


def _throw_away(target: Path) -> None:
    for path in (target, *_parts(target)):
        path.unlink(missing_ok=True)


def _clear(target: Path) -> None:
    """Remove what would be in the way: a finished file that can't be read, parts of a page, more than one part."""
    if target.exists():
        try:
            read_checkpoint(target)
        except ValueError:
            target.unlink()
    parts = sorted(_parts(target), key=lambda path: path.stat().st_size)
    for path in parts:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
        if path is not parts[-1] or not start or start.startswith(b"<"):
            path.unlink()


def _by_hand(entry: table.Weights) -> str:
    return (
        f"By hand: save https://drive.google.com/open?id={entry.google_drive_id} in a browser, then "
        f"`timm-gcp weights import {entry.source_name}.pth.tar --as {entry.name}`."
    )
