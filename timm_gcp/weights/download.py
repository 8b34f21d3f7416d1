"""Download one of the authors' files, from the mirror or else from Google Drive, and check what arrives.

The digest of the first download that could be used is kept in the store, and a later file has to have it too.
"""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

from timm_gcp.common.files import file_sha256, write_text
from timm_gcp.weights import catalog as table
from timm_gcp.weights import drive, mirror, store
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.transfer import (
    HOME_REMEDY,
    MissingError,
    RoomError,
    TransferError,
    from_http,
    throw_away,
)

OFFLINE = ("TIMM_GCP_OFFLINE", "HF_HUB_OFFLINE")


class DownloadError(RuntimeError):
    """An authors' file did not arrive; `reason` is the text without the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason} {remedy}")
        self.reason = reason


def offline() -> str:
    """The setting that forbids the network, such as `HF_HUB_OFFLINE=1`, or an empty string."""
    for variable in OFFLINE:
        value = os.environ.get(variable, "").strip()
        if value.lower() in ("1", "true", "yes", "on"):
            return f"{variable}={value}"
    return ""


def allowed(name: str) -> bool:
    """Whether the file of `arch.tag` may be looked for: the network is not forbidden, or a folder holds the file.

    Raises:
        ValueError: `TIMM_GCP_MIRROR` names neither a server nor a folder.
    """
    if not offline():
        return True
    folder = mirror.folder()
    return folder is not None and (folder / file_name(table.WEIGHTS[name])).is_file()


def file_name(entry: table.Weights) -> str:
    """The authors' own name of the file."""
    return f"{entry.source_name}.pth.tar"


def find_entry(name: str) -> table.Weights:
    """Entry of the table.

    Raises:
        ValueError: There is none.
    """
    entry = table.WEIGHTS.get(name)
    if entry is None:
        raise ValueError(f"No published weights are called {name!r}. Known: {', '.join(table.WEIGHTS)}.")
    return entry


def download(name: str, url: str | None = None, quiet: bool = False) -> Path:
    """Download the published file of `arch.tag` into the local store's `downloads` folder.

    A broken download goes on where it stopped; a complete one is not repeated. What can't be read is thrown away.

    Args:
        name: `arch.tag` of the table.
        url: Where else to download from; by default the mirror, then Google Drive.
        quiet: Without progress bar.

    Returns:
        The downloaded file, under the authors' own file name.

    Raises:
        ValueError: `name` is not in the table, or what arrived is not a checkpoint or not the file that it should be.
        ImportError: gdown is needed and not installed.
        DownloadError: The network is forbidden or fails.
        RuntimeError: The disk is too small or can't be written.
    """
    entry = find_entry(name)
    target = store.home() / "downloads" / file_name(entry)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            try:
                _check(target, entry)
                return target
            except ValueError:  # of an earlier attempt, and no use
                target.unlink()
        origin = _bring(entry, url, target, quiet)
    except OSError as error:
        raise RuntimeError(f"{target} could not be written: {error}. {HOME_REMEDY}") from error
    try:
        _check(target, entry)
    except ValueError as error:
        throw_away(target)  # or the next attempt would take it for the finished download
        raise ValueError(f"{error} It came from {origin} and is thrown away. {_by_hand(entry)}") from error
    return target


def _bring(entry: table.Weights, url: str | None, target: Path, quiet: bool) -> str:
    """Transfer the file to `target`; where it came from."""
    file, reserve = target.name, 4 * entry.architecture.params  # the weight folder that is made of it
    forbidden = offline()
    before = ""
    place = url or mirror.place()
    try:
        if not url and place and (not forbidden or mirror.folder() is not None):
            try:
                mirror.get(file, target, reserve, quiet)
                return place
            except MissingError as error:
                before = f" {mirror.VARIABLE} {place}: {error}."
        if forbidden:
            raise DownloadError(
                f"{file} can't be downloaded: {forbidden} forbids the network.{before}",
                f"Unset it, or name a folder that holds the file with {mirror.VARIABLE}. {_by_hand(entry)}",
            )
        place = url or drive.DRIVE_URL.format(id=entry.google_drive_id)
        if url and not (urllib.parse.urlsplit(url).hostname or "").endswith("google.com"):
            from_http(url, target, reserve, quiet)
        else:
            drive.from_drive(place, target, reserve, quiet)
    except (RoomError, DownloadError):
        raise
    except ImportError as error:
        raise ImportError(f"{error}{before} {_by_hand(entry)}") from error
    except TransferError as error:
        kept = any(path.name.startswith(file) for path in target.parent.glob("*.part"))
        more = " What has arrived is kept: the next attempt goes on from there." if kept else ""
        remedy = f"Or name a server or a folder that holds the file: {mirror.VARIABLE}=PLACE. {_by_hand(entry)}"
        raise DownloadError(f"{file} did not arrive from {place}: {error}.{before}{more}", remedy) from error
    return place


def _check(path: Path, entry: table.Weights) -> None:
    """Check that a file can be read, and that it is the one that was pinned.

    Raises:
        ValueError: It is not.
    """
    read_checkpoint(path)
    expected = entry.sha256 or pinned(entry)
    if expected is None:
        return
    digest = file_sha256(path)
    if digest != expected:
        remedy = (
            f"Where the new file is to be trusted, remove {_pin(entry)} and fetch again." if not entry.sha256 else ""
        )
        raise ValueError(
            f"{path} is another file than before: its SHA-256 is {digest}, that of the first download {expected}. "
            f"{remedy}".rstrip()
        )


def pinned(entry: table.Weights) -> str | None:
    """SHA-256 of the first download of this file that could be used; None before that."""
    try:
        return _pin(entry).read_text(encoding="utf-8").split()[0]
    except (FileNotFoundError, IndexError):
        return None


def pin(entry: table.Weights, digest: str) -> None:
    """Keep the digest of a download that could be used, unless one is kept already."""
    if pinned(entry) is None:
        write_text(_pin(entry), f"{digest}  {file_name(entry)}\n")  # as sha256sum writes it


def _pin(entry: table.Weights) -> Path:
    return store.home() / "digests" / f"{file_name(entry)}.sha256"


def _by_hand(entry: table.Weights) -> str:
    return (
        f"By hand: save https://drive.google.com/open?id={entry.google_drive_id} in a browser, then "
        f"`timm-gcp weights import {file_name(entry)} --as {entry.name}`."
    )
