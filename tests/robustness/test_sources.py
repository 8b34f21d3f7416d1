from __future__ import annotations

import gzip

import numpy as np
import pytest
import timm.data
from PIL import Image
from robustness_sets import SIZE, idx, write_fashion_mnist, write_images

from timm_gcp.robustness import sources
from timm_gcp.robustness.sources import FashionMnistSource, FolderSource, Framing


def test_spread_is_even_and_keeps_classes_balanced():
    assert sources.spread(6, None).tolist() == [0, 1, 2, 3, 4, 5]
    assert sources.spread(6, 3).tolist() == [0, 2, 4]
    assert sources.spread(6, 9).tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(ValueError, match="--limit must be 1 or more; got 0"):
        sources.spread(6, 0)


def test_folder_source(clean_tree):
    source = FolderSource(clean_tree, 2)
    assert len(source) == 6 and source.paths[:2] == ["ant/0.png", "ant/1.png"]
    assert [source.read(i)[1] for i in range(6)] == [0, 0, 0, 1, 1, 1]
    limited = FolderSource(clean_tree, 2, limit=2)
    assert limited.positions.tolist() == [0, 3] and limited.read(1)[1] == 1
    swapped = FolderSource(clean_tree, 5, class_map={"x": 0, "bee": 1, "y": 2, "ant": 3})
    assert [swapped.read(i)[1] for i in (0, 5)] == [3, 1]


def test_folder_source_rejects(clean_tree, tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        FolderSource(tmp_path / "none", 2)
    with pytest.raises(ValueError, match=r"2 class folders, the model 10 classes.*--class-map"):
        FolderSource(clean_tree, 10)
    with pytest.raises(ValueError, match="lacks bee"):
        FolderSource(clean_tree, 2, class_map={"ant": 0, "cat": 1})
    with pytest.raises(ValueError, match="names 3 classes; the model has 2"):
        FolderSource(clean_tree, 2, class_map={"ant": 0, "bee": 1, "cat": 2})
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"1 class folder in .* without images .* 0 with: 'a' \(empty\)"):
        FolderSource(tmp_path / "empty", 1)


def test_broken_image_is_named(clean_tree):
    (clean_tree / "ant" / "0.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"ant/0\.png' can't be read as an image"):
        FolderSource(clean_tree, 2).read(0)


def test_classes_are_in_natural_order(tmp_path):
    for index in range(12):
        (tmp_path / str(index)).mkdir()
        Image.new("RGB", (4, 4), (index, 0, 0)).save(tmp_path / str(index) / "a.png")
    source = FolderSource(tmp_path, 12)
    read = [source.read(i) for i in range(12)]
    assert [image.getpixel((0, 0))[0] for image, _ in read] == [label for _, label in read] == list(range(12))
    order = [str(index) for index in range(12)]
    shuffled = FolderSource(tmp_path, 12, names=tuple(order[::-1]))  # the model's own order
    assert [shuffled.read(i)[1] for i in range(12)] == list(range(12))[::-1]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", ["", "FashionMNIST/raw"])
def test_fashion_mnist(tmp_path, packed, below):
    images = np.random.RandomState(0).randint(0, 256, size=(5, 28, 28))
    write_fashion_mnist(tmp_path / below, images, np.arange(5), packed)
    source = FashionMnistSource(tmp_path, 10)
    image, label = source.read(3)
    assert image.mode == "RGB" and label == 3 and len(source) == 5
    assert (np.asarray(image) == images[3][..., None]).all()
    assert FashionMnistSource(tmp_path, 10, limit=2).positions.tolist() == [0, 2]


def test_fashion_mnist_rejects(tmp_path):
    with pytest.raises(FileNotFoundError, match="timm-gcp data fashion-mnist"):
        FashionMnistSource(tmp_path, 10)
    images = np.zeros((5, 28, 28))
    write_fashion_mnist(tmp_path, images, np.arange(4))
    with pytest.raises(ValueError, match="5 test images but 4 labels"):
        FashionMnistSource(tmp_path, 10)
    write_fashion_mnist(tmp_path, images, np.arange(5))
    with pytest.raises(ValueError, match="labels go up to 4, the model has 3 classes"):
        FashionMnistSource(tmp_path, 3)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x03", idx(np.zeros((2, 2, 2), np.uint8))[:-1], b"\0" * 20])
def test_damaged_idx_files(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a whole IDX file"):
        sources.read_idx(path)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(np.zeros((2, 2, 2), np.uint8)))[:-9])
    with pytest.raises(ValueError, match="is not a whole IDX file"):
        sources.read_idx(path)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
def test_framing_is_timm_s_evaluation_transform(tmp_path, interpolation, crop_pct):
    write_images(tmp_path, 1, seed=0, size=70)
    image = Image.open(tmp_path / "ant" / "0.png").resize((90, 70))
    framing = Framing(SIZE, int(SIZE / crop_pct), interpolation)
    transform = timm.data.create_transform(SIZE, crop_pct=crop_pct, interpolation=interpolation, mean=0.0, std=1.0)
    expected = (transform(image) * 255).round().numpy().transpose(1, 2, 0)
    assert (framing.crop(image) == expected).all()
    assert min(framing.resize(image).shape[:2]) == framing.canvas


def test_framing_rejects():
    with pytest.raises(ValueError, match=r"crop \(64 px\) must fit into the resized image \(32 px\)"):
        Framing(64, 32)
    with pytest.raises(ValueError, match=r"unknown interpolation 'cubic'; choose from .*bicubic"):
        Framing(32, 32, "cubic")
