"""`timm-gcp predict --figure`: every image is on the page with its classes, and bad requests are refused early."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from toy_images import TINY

from timm_gcp import cli
from timm_gcp.plots import classified


def save_images(folder, count):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Image.fromarray(np.full((20, 30, 3), 40 * number, "uint8")).save(folder / f"{number}.png")
    return folder


def test_every_image_is_drawn_above_its_classes(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(classified, "save", lambda figure, path: drawn.update(figure=figure, path=path))
    results = [
        (tmp_path / f"{number}.png", [{"name": f"$_{number}", "probability": 0.75}, {"name": "b", "probability": 0.2}])
        for number in range(5)
    ]
    save_images(tmp_path, 5)
    classified.draw_classified(results, "a model", tmp_path / "page.png")
    figure = drawn["figure"]
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [int(image[0, 0, 0]) for image in shown] == [0, 40, 80, 120, 160]
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes if axes.texts]
    assert texts == [[f"$_{number}", "75.0%", "b", "20.0%"] for number in range(5)]
    widths = [patch.get_width() for axes in figure.axes for patch in axes.patches]
    assert widths == [0.75, 0.2] * 5
    figure.canvas.draw()  # a name with a dollar is not taken for mathematics
    assert figure._suptitle.get_text() == "a model"


def test_by_the_command(tmp_path, capsys):
    """One page of what could be read; a name that matplotlib doesn't know is refused before the model is built."""
    images = save_images(tmp_path / "images", 2)
    (images / "broken.png").write_bytes(b"no image")
    run = argparse.Namespace(model=TINY, num_classes=3, img_size=32)
    torch.save({"state_dict": timm.create_model(TINY, num_classes=3).state_dict(), "args": run}, tmp_path / "m.tar")
    command = ["predict", str(images), "--checkpoint", str(tmp_path / "m.tar"), "--device", "cpu"]
    page = tmp_path / "out" / "page.png"
    assert cli.main([*command, "--figure", str(page)]) == 1
    assert "broken.png' can't be read" in capsys.readouterr().err
    assert Image.open(page).size[0] > 400
    gone = ["predict", str(images), "--checkpoint", "gone.tar"]
    assert cli.main([*gone, "--figure", str(tmp_path / "page.txt")]) == 1
    assert "A figure's name must end in .png, .pdf, .svg" in capsys.readouterr().err


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="--figure draws up to 60 images on a page, got 61: name fewer, or take"):
        classified.check_count(61)
    with pytest.raises(ValueError, match="no image to draw: none could be read"):
        classified.draw_classified([], "a model", tmp_path / "page.png")
