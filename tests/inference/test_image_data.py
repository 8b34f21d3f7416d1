"""timm's data sets with our reader: the same samples as timm's, the same pixels as `open_image`, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_dataset
from toy_images import image_folder

from timm_gcp.inference import image_data
from timm_gcp.inference.image_data import UNREADABLE, check_classes, check_name, class_names, open_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("data"), train=3, validation=2, classes=11, size=8)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("name", ["", "torch/image_folder"])
def test_samples_are_timms(data, split, name):
    ours, theirs = open_data(name, data, split, 3), create_dataset("", root=str(data), split=split)
    assert ours.reader.samples == theirs.reader.samples and ours.filenames() == theirs.filenames()
    assert ours.filename(0, basename=True) == theirs.filename(0, basename=True)
    assert class_names(ours) == tuple(f"c{index}" for index in range(11))  # c10 last, not second
    for index in (0, 5, len(ours) - 1):
        assert ours[index][1] == theirs[index][1] and np.array_equal(ours[index][0], theirs[index][0])


def test_unreadable_images(data, tmp_path, caplog):
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / "val" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "val" / name).write_bytes(b"no image")
    Image.new("L", (4, 4), 9).save(tmp_path / "val/a/2.png")
    evaluated = open_data("", tmp_path, "val", 1)
    assert [evaluated[index][1] for index in range(3)] == [UNREADABLE, 0, UNREADABLE]
    assert "b/3.png' can't be read as an image" in evaluated.why_unreadable(2)
    assert "can be: check the disk" in evaluated.why_unreadable(1)
    trained = open_data("", tmp_path, "val", 1, is_training=True)
    assert [(np.asarray(image).mean(), target) for image, target in trained] == [(9, 0)] * 3
    assert caplog.text.count("The next image takes its place in training") == 3
    trained._max_retries = 1
    with pytest.raises(IndexError, match="image 3 of 3"):
        trained[3]
    with pytest.raises(RuntimeError, match=r"1 images in a row can't be read, the first .*a/1\.png'"):
        trained[0]


def test_another_reader_of_indexed_images(monkeypatch):
    """What timm reads from elsewhere (hfds/) goes through `open_image`, too."""
    import io

    from timm.data import ImageDataset
    from timm.data.readers.reader import Reader

    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), 128 * 256, dtype="uint16")).save(buffer, format="PNG")

    class Held(Reader):
        def __getitem__(self, index):
            return io.BytesIO(buffer.getvalue()), None

        def __len__(self):
            return 1

        def _filename(self, index, basename=False, absolute=False):
            return "held"

    monkeypatch.setattr(image_data, "create_dataset", lambda *given, **more: ImageDataset("", reader=Held()))
    image, target = open_data("hfds/x", None, "train", 3)[0]
    assert image.getpixel((0, 0)) == (128, 128, 128) and target == -1


@pytest.mark.parametrize("name", ["bogus/x", "torch/bogus", "torch/fashion_mnit", "folder", "hfds/", "imagenet"])
def test_unknown_data_sets(data, name):
    with pytest.raises(ValueError, match=f"no data set '{name}': leave --dataset out for an image folder"):
        open_data(name, data, "train", 3)
    check_name("torch/Fashion_MNIST"), check_name("HFDS/some/set"), check_name("torch/inat")


@pytest.mark.parametrize(
    ("name", "split", "more", "message"),
    [
        ("", "train", {"channels": 4}, "1 or 3 channels, the model takes 4"),
        ("torch/fashion_mnist", "tset", {}, "torch/fashion_mnist has no split 'tset': give --val-split one of train, "),
        ("torch/fashion_mnist", "train", {"class_map": {"a": 0}}, "--class-map is for image folders"),
        ("torch/fashion_mnist", "train", {}, "data set 'torch/fashion_mnist' in .*not found"),
        ("", "train", {"num_classes": 3}, "has 11 class folders, the model 3 classes"),
    ],
)
def test_refusals(data, name, split, more, message):
    with pytest.raises(ValueError, match=message):
        open_data(name, data, split, **{"channels": 3, **more})


def test_classes_of_a_named_data_set():
    check_classes("torch/x", ("T-shirt/top", "Bag"), 2, ("t-shirt top", "bag"))
    with pytest.raises(ValueError, match="'torch/x' has 2 classes, the model 3"):
        check_classes("torch/x", ("a", "b"), 3, None)
    with pytest.raises(ValueError, match="class 1 of the data set 'torch/x' is 'b', the model's is 'c'"):
        check_classes("torch/x", ("a", "b"), 2, ("a", "c"))


def test_unreadable_target_is_ignored_by_the_loss():
    loss = torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.tensor([1, UNREADABLE]))
    assert loss.item() == pytest.approx(np.log(3))
