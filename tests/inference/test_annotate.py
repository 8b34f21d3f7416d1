"""Images with their classes written on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from timm_gcp.inference.annotate import annotate, annotated_names

TOP = [{"class": 1, "name": "golf ball", "probability": 0.75}, {"class": 0, "name": "tench", "probability": 0.25}]


@pytest.mark.parametrize(("mode", "size", "shown"), [("L", (28, 28), (320, 320)), ("RGB", (3000, 1500), (1024, 512))])
def test_classes_stand_below_the_image(tmp_path, mode, size, shown):
    Image.new(mode, size, 90 if mode == "L" else (90, 90, 90)).save(tmp_path / "a.png")
    annotate(tmp_path / "a.png", TOP, tmp_path / "out" / "a.png")
    page = np.asarray(Image.open(tmp_path / "out" / "a.png")).astype(int)
    assert page.shape == (shown[1] + 2 * 22 + 12, shown[0], 3)
    assert (page[: shown[1]] == 90).all()
    text = page[shown[1] :]
    bars = [(row == (184, 216, 234)).all(axis=1).sum() for row in (text[6 + 19], text[6 + 22 + 19])]  # below the text
    assert bars[0] / bars[1] == pytest.approx(3, rel=0.05)
    assert (text.sum(axis=2) < 200).any()  # black letters
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.png"]


def test_names_do_not_collide(tmp_path):
    files = [tmp_path / name for name in ("x/cat.jpg", "x/cat.png", "y/cat.jpg")]
    names = annotated_names(files, Path("out"))
    assert list(names.values()) == [Path("out/x/cat.png"), Path("out/x/cat.png.png"), Path("out/y/cat.png")]
    assert annotated_names([tmp_path / "x/cat.jpg"], Path("out")) == {tmp_path / "x/cat.jpg": Path("out/cat.png")}
