"""`TIMM_GCP_MIRROR`: a server or a folder that holds the authors' files under their own names, asked before Drive."""

from __future__ import annotations

import os
import urllib.parse
import urllib.request
from pathlib import Path

from timm_gcp.weights import transfer

VARIABLE = "TIMM_GCP_MIRROR"


def place() -> str:
    """The mirror that the environment names, or an empty string."""
    return os.environ.get(VARIABLE, "").strip()


def folder() -> Path | None:
    """The mirror as a folder; None where it is a server, or there is none.

    Raises:
        ValueError: It is neither a server nor a folder.
    """
    given = place()
    if not given or _is_server(given):
        return None
    parts = urllib.parse.urlsplit(given)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
    elif "://" in given:
        raise ValueError(f"{VARIABLE} is {given!r}: give an http(s):// address, a file:// address or a folder.")
    else:
        path = Path(given).expanduser()
    if not path.is_dir():
        raise ValueError(f"{VARIABLE} is {given!r}, and there is no such folder: correct it, or unset it.")
    return path


def get(file: str, target: Path, reserve: int = 0, quiet: bool = False) -> None:
    """Bring `file` from the mirror to `target`.

    Args:
        file: Name of one of the authors' files.
        target: Where to.
        reserve: Bytes to be left on the disk afterwards.
        quiet: Without progress bar.

    Raises:
        ValueError: The variable names neither a server nor a folder.
        MissingError: The mirror does not have the file.
        RoomError: The disk is too small.
        TransferError: The mirror fails.
    """
    there = folder()
    if there is not None:
        transfer.from_folder(there / file, target, reserve)
    else:
        transfer.from_http(f"{place().rstrip('/')}/{urllib.parse.quote(file)}", target, reserve, quiet)


def _is_server(given: str) -> bool:
    return given.lower().startswith(("http://", "https://"))
