"""Sentences that many errors share: choices, near misses, listings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, allowed))}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 image`, `2 images`, `2 classes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: object) -> str:
    """`text` with control characters escaped, so that a name out of a file can't steer the terminal or fake a line."""
    return "".join(
        char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in str(text)
    )


def one_line(text: object, limit: int = 200) -> str:
    """`text` in one line, cut after `limit` characters, the control ones escaped; without the full stop."""
    line = printable(" ".join(str(text).split()))
    return (line if len(line) <= limit else f"{line[:limit]}…").rstrip(".")


def listed(names: Iterable[object], limit: int = 12) -> str:
    """`names` in one line, control characters escaped, cut after `limit` of them with a count of the rest."""
    texts = [printable(name)[:200] for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more
