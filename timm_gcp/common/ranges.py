"""Which numbers an option takes: a range with its words for messages, and converters for `argparse` that check it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`, both included unless said otherwise.

    Attributes:
        low: Least number.
        high: Largest number.
        above: Leave out `low` itself.
        below: Leave out `high` itself.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: float) -> bool:
        if not _finite(value):
            return False
        over = value > self.low if self.above else value >= self.low
        return over and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        ends = []
        if self.low != -math.inf:
            ends.append(f"{'above' if self.above else 'at least'} {_text(self.low)}")
        if self.high != math.inf:
            ends.append(f"{'below' if self.below else 'at most'} {_text(self.high)}")
        return " and ".join(ends) or "a finite number"

    def wrong(self, value: float) -> str:
        """What a number must be that isn't in the range (`at least 1`, `a finite number`); empty for one that is.

        A large upper end guards against slips of the keyboard and is told only to those who exceed it.
        """
        if value in self:
            return ""
        if not _finite(value):
            return "a finite number"
        if self.high >= _LARGE and value < self.high:
            return str(Range(self.low, above=self.above))
        return str(self)


_LARGE = 1000
PROBABILITY = Range(0, 1)
POSITIVE = Range(0, above=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1, 10**9)
CLASSES = Range(1, 10**6)
PIXELS = Range(1, 16_384)  # sides of an image
CROP = Range(0, 10, above=True)  # share of an image that the centre crop keeps
WORKERS = Range(0, 1024)
SEED = Range(0, 2**32 - 1)  # as NumPy takes it


def whole(allowed: Range) -> Callable[[str], int]:
    """Converter of an `argparse` option to a whole number of a range."""
    return _converter(int, "a whole number", allowed)


def number(allowed: Range) -> Callable[[str], float]:
    """Converter of an `argparse` option to a number of a range; NaN and infinity are in none."""
    return _converter(float, "a number", allowed)


def _converter(kind: Callable[[str], _Number], wanted: str, allowed: Range) -> Callable[[str], _Number]:
    def convert(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}") from None
        if wrong := allowed.wrong(value):
            raise argparse.ArgumentTypeError(f"must be {wrong}, got {_short(text)}")
        return value

    return convert


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # a whole number of any length is


def _text(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
