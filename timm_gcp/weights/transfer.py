"""One file from an HTTP server or a folder to this disk: room is looked at first, a broken transfer can go on."""

from __future__ import annotations

import http.client
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tqdm import tqdm

from timm_gcp.common.files import copy
from timm_gcp.common.messages import one_line

HOME_REMEDY = "Free some space, or set TIMM_GCP_HOME to a folder on another disk."
TIMEOUT = 60.0  # seconds without a byte after which a server is given up
_CHUNK = 1 << 18
_PAGE = "it answers with a web page (a login, a quota or a warning) in place of the file"


class TransferError(RuntimeError):
    """A source did not deliver; the text says why, without the name of the file."""


class MissingError(TransferError):
    """A source does not have the file."""


class RoomError(RuntimeError):
    """The disk is too small; the text says what to do."""


def bar(title: str, quiet: bool) -> Any:
    """Progress bar of bytes; its total is set once it is known."""
    return tqdm(desc=title, unit="B", unit_scale=True, unit_divisor=1024, disable=quiet)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Check that the disk of `folder` has `needed` bytes left.

    Raises:
        RoomError: It has not.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RoomError(
            f"{what} needs {needed / 1e6:,.1f} MB in {folder}, and the disk has {free / 1e6:,.1f} MB free. "
            f"{HOME_REMEDY}"
        )


def part_of(target: Path) -> Path:
    """Where the bytes of an unfinished transfer to `target` are kept."""
    return target.with_name(f"{target.name}.part")


def throw_away(target: Path) -> None:
    """Remove `target` and every unfinished transfer to it, gdown's included."""
    kept = [path for path in target.parent.glob("*.part*") if path.name.startswith(target.name)]
    for path in (target, *kept):
        path.unlink(missing_ok=True)


def from_folder(source: Path, target: Path, reserve: int = 0) -> None:
    """Copy a file to `target`.

    Args:
        source: The file.
        target: Where to; it appears whole.
        reserve: Bytes to be left on the disk afterwards.

    Raises:
        MissingError: There is no such file.
        RoomError: The disk is too small.
        TransferError: It can't be read.
    """
    if not source.is_file():
        raise MissingError("it does not have the file")
    check_room(target.parent, source.stat().st_size + reserve, target.name)
    try:
        copy(source, target)
    except OSError as error:
        if error.filename is None or Path(error.filename) != source:
            raise
        raise TransferError(one_line(error)) from error


def from_http(url: str, target: Path, reserve: int = 0, quiet: bool = False) -> None:
    """Download to `target`, from where an earlier attempt stopped if the server still has the same file.

    Args:
        url: `http://` or `https://`.
        target: Where to; it appears whole, the bytes so far are in `part_of(target)`.
        reserve: Bytes to be left on the disk afterwards.
        quiet: Without progress bar.

    Raises:
        MissingError: The server does not have the file.
        RoomError: The disk is too small.
        TransferError: The server fails, answers with a web page or breaks off.
    """
    part = part_of(target)
    state = part.with_name(f"{part.name}.etag")  # tells the version of the file that the part is of
    response = _open(url, part, state)
    begin = _begin(response, part)
    if begin is None:  # a part of something else
        response.close()
        part.unlink()
        response = _open(url, part, state)
        begin = 0
    with response:
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length and length.isdigit() else None
        check_room(target.parent, (total or begin) - begin + reserve, target.name)
        chunk = _read(response)
        if "html" in response.headers.get_content_type() or (
            not begin and chunk.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<"
        ):
            raise TransferError(_PAGE)
        state.write_text(_version(response), encoding="utf-8")
        with part.open("ab" if begin else "wb") as file, bar(target.name, quiet) as progress:
            progress.total = total
            progress.update(begin)
            while chunk:
                file.write(chunk)
                progress.update(len(chunk))
                chunk = _read(response)
            arrived = file.tell()
    if total is not None and arrived < total:
        raise TransferError(f"it broke off after {arrived:,} of {total:,} bytes")
    part.replace(target)
    state.unlink(missing_ok=True)


def _open(url: str, part: Path, state: Path) -> Any:
    """The server's answer, to a request for the rest where there is a part."""
    start = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "timm-gcp", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        version = state.read_text(encoding="utf-8") if state.is_file() else ""
        headers |= {"If-Range": version} if version else {}
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # there is no rest: the part is whole already, or too long
            part.unlink()
            return _open(url, part, state)
        if error.code in (404, 410):
            raise MissingError(f"it does not have the file ({error.code})") from error
        raise TransferError(f"it answers {error.code} {one_line(error.reason)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not an address
        raise TransferError(one_line(getattr(error, "reason", error))) from error


def _begin(response: Any, part: Path) -> int | None:
    """Byte at which the answer starts; None where it does not join onto the part."""
    if response.status != 206:
        return 0
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    start = part.stat().st_size if part.is_file() else 0
    return start if found and int(found[1]) == start else None


def _version(response: Any) -> str:
    """What tells one version of a file from another: a strong ETag, else nothing."""
    tag = str(response.headers.get("ETag") or "")
    return "" if tag.startswith("W/") else tag


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read(_CHUNK))
    except (OSError, http.client.HTTPException) as error:
        raise TransferError(f"it broke off ({one_line(error)})") from error
