"""Ranges of numbers and the converters of options."""

from __future__ import annotations

import argparse
import math

import pytest

from timm_gcp.common.ranges import COUNT, NOT_NEGATIVE, POSITIVE, PROBABILITY, Range, number, whole


@pytest.mark.parametrize(
    ("allowed", "inside", "outside", "words"),
    [
        (PROBABILITY, (0, 0.5, 1), (-1e-9, 1.0001, -1), "at least 0 and at most 1"),
        (POSITIVE, (1e-9, 10**400), (0, -1), "above 0"),
        (NOT_NEGATIVE, (0, 3), (-1,), "at least 0"),
        (COUNT, (1, 10**9), (0, -1), "at least 1"),
        (COUNT, (), (10**9 + 1,), "at least 1 and at most 1000000000"),
        (Range(0, 1, below=True), (0, 0.99), (1,), "at least 0 and below 1"),
        (Range(0.5), (0.5,), (0.4,), "at least 0.5"),
        (Range(), (-1e300, 0), (), ""),
    ],
)
def test_ranges(allowed, inside, outside, words):
    for value in inside:
        assert value in allowed and allowed.wrong(value) == ""
    for value in outside:
        assert value not in allowed and allowed.wrong(value) == words
    for value in (math.nan, math.inf, -math.inf):
        assert value not in allowed and allowed.wrong(value) == "a finite number"
    assert str(Range()) == "a finite number"


@pytest.mark.parametrize(
    ("convert", "text", "message"),
    [
        (whole(COUNT), "0", "must be at least 1, got 0"),
        (whole(COUNT), "1.5", "must be a whole number, got '1.5'"),
        (whole(COUNT), "many", "must be a whole number, got 'many'"),
        (whole(COUNT), "9" * 60, "must be at least 1 and at most 1000000000, got 9{40}…"),
        (number(POSITIVE), "nan", "must be a finite number, got nan"),
        (number(POSITIVE), "-inf", "must be a finite number, got -inf"),
        (number(POSITIVE), "1e400", "must be a finite number, got 1e400"),
        (number(POSITIVE), "0", "must be above 0, got 0"),
        (number(POSITIVE), "x", "must be a number, got 'x'"),
    ],
)
def test_converters_refuse(convert, text, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        convert(text)


def test_converters_convert():
    assert whole(COUNT)("7") == 7 and number(POSITIVE)("1e-3") == 1e-3
