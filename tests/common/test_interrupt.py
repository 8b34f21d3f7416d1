"""Ctrl-C that carries a sentence."""

from __future__ import annotations

import pytest

from timm_gcp.common.interrupt import on_interrupt


def test_the_innermost_sentence_is_kept():
    with (
        pytest.raises(KeyboardInterrupt, match=r"^inner$"),
        on_interrupt(lambda: "outer"),
        on_interrupt(lambda: "inner"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="other"), on_interrupt(lambda: "outer"):
        raise ValueError("other")
