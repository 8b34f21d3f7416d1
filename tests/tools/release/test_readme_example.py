"""README's example is found, and it runs."""

from __future__ import annotations

import pytest
from readme_example import README, example


def test_runs():
    found: dict = {}
    exec(example(README.read_text(encoding="utf-8")), found)
    assert found["logits"].shape == (2, 10)


def test_takes_the_first_block_alone():
    assert example("# A\n\n```python\na = 1\n```\n\n```python\nb = 2\n```\n") == "a = 1\n"


def test_none():
    with pytest.raises(ValueError, match=r"README\.md has no Python example"):
        example("# A\n\n    code\n")
