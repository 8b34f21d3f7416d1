"""Fake benchmark trees."""

from __future__ import annotations

from pathlib import Path

import pytest
from robustness_sets import write_images

from timm_gcp.robustness.corruptions import SEVERITIES, TEST_CORRUPTIONS


@pytest.fixture
def clean_tree(tmp_path) -> Path:
    write_images(tmp_path / "clean", per_class=3, seed=0, size=56)
    return tmp_path / "clean"


@pytest.fixture(scope="session")
def c_tree(tmp_path_factory) -> Path:
    """All fifteen corruptions at five severities, two classes of two random images each."""
    root = tmp_path_factory.mktemp("imagenet-c")
    for i, corruption in enumerate(TEST_CORRUPTIONS):
        for severity in SEVERITIES:
            write_images(root / corruption / str(severity), per_class=2, seed=1000 * i + 10 * severity)
    return root
