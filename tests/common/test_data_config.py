"""A data configuration for other channels."""

from __future__ import annotations

import pytest

from timm_gcp.common.data_config import for_channels

GREY = {"input_size": (1, 96, 96), "mean": (0.286,), "std": (0.353,), "crop_pct": 1.0}


def test_statistics_are_averaged():
    colour = for_channels(GREY, 3)
    assert colour == {"input_size": (3, 96, 96), "mean": (0.286,) * 3, "std": (0.353,) * 3, "crop_pct": 1.0}
    grey = for_channels({**colour, "mean": (0.4, 0.5, 0.6)}, 1)
    assert grey["input_size"] == (1, 96, 96) and grey["mean"] == (pytest.approx(0.5),)
    assert for_channels(GREY, 1) == GREY
