"""The reader of images: bits, orientation, sizes and what it refuses (the modes are in test_predict)."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from timm_gcp.inference.images import find_images, open_image

GREY = np.arange(64, dtype="uint8").reshape(8, 8) * 4


def turned(path, orientation: int, pixels=GREY[:4]):
    """An image whose EXIF tag says how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_keep_their_upper_eight(tmp_path, suffix):
    values = np.random.default_rng(0).integers(0, 65536, (64, 64)).astype("uint16")
    values[0, :3] = 0, 255, 65535
    Image.fromarray(values).save(tmp_path / f"deep.{suffix}")
    for channels in (1, 3):
        read = np.asarray(open_image(tmp_path / f"deep.{suffix}", channels).convert("L"))
        assert np.abs(read.astype(int) - (values >> 8)).max() <= 1
        assert read.mean() == pytest.approx(127.5, abs=2)


def test_more_than_sixteen_bits_are_refused(tmp_path):
    Image.fromarray(np.array([[0, 70000]], dtype="int32")).save(tmp_path / "long.tif")
    with pytest.raises(ValueError, match=r"long\.tif' holds values from 0 to 70000, more than 16 bits"):
        open_image(tmp_path / "long.tif", 1)


def test_a_stored_size_wins_over_the_tag(tmp_path):
    path = turned(tmp_path / "t.png", 6)  # 8 wide and 4 high as stored, 4 wide and 8 high upright
    upright = np.rot90(GREY[:4], -1)
    assert np.array_equal(open_image(path, 1), upright)
    assert np.array_equal(open_image(path, 1, size=(4, 8)), upright)
    assert np.array_equal(open_image(path, 1, size=(8, 4)), GREY[:4])
    assert np.array_equal(open_image(turned(path, 3), 1, size=(8, 4)), GREY[:4][::-1, ::-1])


def test_a_broken_tag_is_no_tag(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "b.jpg", exif=b"Exif\0\0nonsense")
    assert open_image(tmp_path / "b.jpg", 1).size == (8, 8)
    assert open_image(turned(tmp_path / "t.png", 77), 1).size == (8, 4)


def test_open_files_and_images(tmp_path):
    data = io.BytesIO()
    Image.fromarray(GREY).save(data, format="PNG")
    assert np.array_equal(open_image(io.BytesIO(data.getvalue()), 1), GREY)
    assert np.array_equal(open_image(Image.fromarray(GREY), 1), GREY)
    with pytest.raises(ValueError, match="'in/here' can't be read as an image"):
        open_image(io.BytesIO(data.getvalue()[:45]), 1, "in/here")


def test_decompression_bombs_are_named(tmp_path, monkeypatch):
    Image.fromarray(GREY).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(ValueError, match=r"bomb\.png' can't be read as an image: .*exceeds limit"):
        open_image(tmp_path / "bomb.png", 3)


def test_other_images_in_a_folder_are_counted(tmp_path, caplog):
    for name in ("2.png", "10.webp", "x.heic", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_images([str(tmp_path)])] == ["2.png", "10.webp"]
    assert "1 .heic not read" in caplog.text and ".txt" not in caplog.text.split("only")[0]
