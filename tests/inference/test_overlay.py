"""Maps over images: what is drawn where."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from timm_gcp.inference.overlay import overlay, shown_image


def test_shown_image_undoes_the_normalisation():
    pixels = torch.rand(3, 4, 5)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    normalised = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(shown_image(normalised, mean, std), pixels)
    assert shown_image(torch.zeros(1, 4, 5), (0.5,), (0.2,)).shape == (3, 4, 5)


def test_red_speaks_for_and_blue_against():
    drawn = np.asarray(overlay(torch.full((3, 8, 8), 0.5), torch.tensor([[2.0, -2.0], [0.0, 0.0]])), dtype=float)
    assert drawn.shape == (8, 8, 3)
    assert drawn[0, 0, 0] > drawn[0, 0, 2] + 50 and drawn[0, 7, 2] > drawn[0, 7, 0] + 50
    assert abs(drawn[7, 0] - 127.5).max() <= 0.5


def test_a_map_of_zeros_leaves_the_image():
    assert (np.asarray(overlay(torch.full((3, 4, 4), 0.2), torch.zeros(2, 2))) == 51).all()


def test_strength_is_a_share():
    with pytest.raises(ValueError, match=r"strength must be in \[0, 1\], got 2"):
        overlay(torch.zeros(3, 4, 4), torch.zeros(2, 2), strength=2)
