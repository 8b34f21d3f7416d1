"""Errors as one line."""

from __future__ import annotations

import pytest

from timm_gcp.common.failures import one_line


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device", "a.pth"), "'a.pth': the disk is full: make room, or write elsewhere"),
        (OSError(28, "No space"), "the disk is full: make room, or write elsewhere (No space)"),
        (OSError("can't be opened"), "can't be opened"),
        (OSError(9999, "odd"), "[Errno 9999] odd"),
        (ValueError("a\n  b\tc"), "a b c"),
        (ValueError("\x00\u202e"), "\\x00\\u202e"),
        (ValueError(), "ValueError"),
        (MemoryError(), "memory is used up: lower --batch-size, --img-size or --workers"),
    ],
)  # fmt: skip
def test_one_line(error, text):
    assert one_line(error) == text


def test_long_texts_are_cut():
    assert len(one_line(ValueError("x" * 10_000))) == 2001
