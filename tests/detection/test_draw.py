"""Drawings: where boxes, masks and nothing are drawn, and the files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from timm_gcp.detection.draw import draw_detections, label_color, save_png, side_by_side

TARGET = {"boxes": torch.tensor([[10.0, 20.0, 40.0, 60.0], [5.0, 5.0, 9.0, 9.0]]), "labels": torch.tensor([1, 2])}


def test_boxes_are_drawn_in_the_colour_of_their_label():
    drawn = np.asarray(draw_detections(torch.zeros(3, 80, 80), TARGET, shortest_side=80))
    assert drawn.shape == (80, 80, 3)
    assert tuple(drawn[59, 25]) == label_color(1) and tuple(drawn[40, 10]) == label_color(1)
    assert not drawn[45:55, 15:35].any()  # the inside stays, below the name
    assert len({label_color(label) for label in range(81)}) == 81


def test_detections_below_the_threshold_are_left_out():
    scored = {**TARGET, "scores": torch.tensor([0.9, 0.2])}
    both, one = (np.asarray(draw_detections(torch.zeros(1, 80, 80), scored, score_threshold=t)) for t in (0.1, 0.5))
    assert (both != one).any() and one.any()
    none = np.asarray(draw_detections(torch.zeros(3, 80, 80), scored, score_threshold=1.0))
    assert not none.any()


def test_masks_are_tinted_and_small_images_enlarged():
    masks = torch.zeros(2, 1, 80, 80)
    masks[0, 0, 50:56, 20:30] = 1
    drawn = np.asarray(
        draw_detections(torch.zeros(3, 80, 80), {**TARGET, "masks": masks}, {1: "coat"}, shortest_side=160)
    )
    assert drawn.shape == (160, 160, 3)
    assert drawn[106, 50].any() and not drawn[106, 70].any()


def test_pictures_are_saved_and_joined(tmp_path):
    pictures = [Image.new("RGB", (10, 20), color) for color in ("red", "blue")]
    sheet = side_by_side(pictures, gap=4)
    assert sheet.size == (24, 20) and sheet.getpixel((12, 5)) == (255, 255, 255)
    save_png(sheet, tmp_path / "new" / "sheet.png")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["sheet.png"]
    assert Image.open(tmp_path / "new" / "sheet.png").size == (24, 20)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"score_threshold must be in \[0, 1\]. Got 2"):
        draw_detections(torch.zeros(3, 8, 8), TARGET, score_threshold=2)
    with pytest.raises(ValueError, match="needs at least one image"):
        side_by_side([])
