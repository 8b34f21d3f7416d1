"""Ctrl-C that says what was kept and how to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(sentence: Callable[[], str]) -> Iterator[None]:
    """Let a `KeyboardInterrupt` of the block carry `sentence()`, unless it says something already."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if stop.args:
            raise
        raise KeyboardInterrupt(sentence()) from stop
