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


def listed(names: Iterable[object], limit: int = 12) -> str:
    """`names` in one line, cut after `limit` of them with a count of the rest."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more
