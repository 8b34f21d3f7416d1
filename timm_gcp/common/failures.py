"""Errors as one line of text, with a remedy for those of the operating system."""

from __future__ import annotations

import errno

from timm_gcp.common.messages import printable

_REMEDIES = {
    errno.ENOSPC: "the disk is full: make room, or write elsewhere",
    errno.EDQUOT: "the quota of the disk is used up: make room, or write elsewhere",
    errno.EFBIG: "the file would be larger than is allowed here: write elsewhere, or raise the limit",
    errno.EACCES: "permission denied: change its rights, or name another place",
    errno.EPERM: "not permitted: change its rights, or name another place",
    errno.EROFS: "the disk is read-only: name another place",
    errno.ENOENT: "there is no such file or folder: check the path",
    errno.ENOTDIR: "a part of its path is a file, not a folder: name another place",
    errno.EISDIR: "that is a folder: name a file",
    errno.EEXIST: "that is there already: name another place, or move it away",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
    errno.EMFILE: "too many files are open: lower --workers, or raise the limit (ulimit -n)",
    errno.ENOMEM: "memory is used up: lower --batch-size or --workers",
    errno.EIO: "the disk can't be read or written: check it",
}
_LIMIT = 2000  # characters: a message that lists the keys of a model has tens of thousands


def one_line(error: BaseException) -> str:
    """The text of an error on one line, control characters escaped; its kind where it has no text."""
    text = _of_system(error) if isinstance(error, OSError) else ""
    text = " ".join((text or str(error)).split()) or _untold(error)
    shown = printable(text)
    return shown if len(shown) <= _LIMIT else f"{shown[:_LIMIT]}…"


def _of_system(error: OSError) -> str:
    """The system's own errors with the file's name and what to do; nothing for those that say so themselves."""
    remedy = _REMEDIES.get(error.errno or 0)
    if remedy is None or error.filename is None:
        return f"{remedy} ({error.strerror})" if remedy and error.filename is None else ""
    return f"{str(error.filename)!r}: {remedy}"


def _untold(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory is used up: lower --batch-size, --img-size or --workers"
    return type(error).__name__
