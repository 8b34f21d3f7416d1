"""The data of a run, checked before the first step."""

from __future__ import annotations

import shutil

import pytest
from PIL import Image
from toy_images import image_folder, tiny_settings

from timm_gcp.train import build
from timm_gcp.train.data import check_data
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import train


@pytest.fixture
def data(tmp_path):
    return image_folder(tmp_path / "data", train=8, validation=2, classes=3)


def checked(data, **keys):
    args = resolve_args(None, {**tiny_settings(data, data / "out"), "num_classes": None, **keys})
    check_data(args)
    return args


def test_classes_are_counted(data, tmp_path, caplog):
    assert checked(data).num_classes == 3
    assert checked(data, num_classes=5).num_classes == 5
    assert "--num-classes 5, the training data have 3 classes: the other 2 outputs see no images" in caplog.text
    (tmp_path / "map.txt").write_text("x\nc2\nc1\nc0\n")
    assert checked(data, class_map=str(tmp_path / "map.txt")).num_classes == 4
    assert checked(data, val_split="").num_classes == 3


def test_a_run_takes_the_number_from_the_folder(data, tmp_path, monkeypatch):
    """Also where the pretrained weights have another number."""
    seen = {}
    real = build.create

    def watch(name, pretrained, options):
        seen.update(options)
        return real(name, pretrained, options)

    monkeypatch.setattr(build, "create", watch)
    keys = tiny_settings(data, tmp_path, epochs=1)
    del keys["num_classes"]
    run = train(resolve_args(None, keys))
    assert seen["num_classes"] == run.model.num_classes == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_classes": 2}, "--num-classes 2, but the training data have 3 classes: leave it out, or give 3 or more"),
        ({"num_classes": 0}, "num_classes must be at least 1, got 0"),
        ({"num_classes": -3}, "num_classes must be at least 1, got -3"),
        ({"batch_size": 7, "mixup": 0.2}, "--batch-size must be even, got 7"),
        ({"batch_size": 7, "cutmix": 1.0}, "--batch-size must be even, got 7"),
        ({"dataset": "bogus/x"}, "no data set 'bogus/x'"),
        ({"val_split": "tset"}, "has no folder 'tset', it has train, validation: .*--val-split"),
        ({"train_split": "trian"}, "has no folder 'trian', it has .*Did you mean 'train'"),
        ({"class_map": "none.txt"}, "no class map at 'none.txt'"),
        ({"input_img_mode": "CMYK"}, "input_img_mode must be one of RGB, L, got 'CMYK'"),
    ],
)
def test_refused_before_anything_is_written(data, tmp_path, keys, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(resolve_args(None, {**tiny_settings(data, tmp_path / "out", num_classes=3), **keys}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda data: shutil.rmtree(data / "validation"), r"has no folder 'validation' \(nor val, .*it has train"),
        (lambda data: shutil.rmtree(data / "validation/c1"), r"has 3 classes, .* 2, without c1 \(8 training images\)"),
        (lambda data: shutil.rmtree(data / "train/c1"), r"with c1 \(2 images\), which training lacks"),
        (lambda data: [p.unlink() for p in (data / "validation/c1").iterdir()], r"'c1' \(empty\)"),
        (lambda data: [p.rename(p.with_suffix(".webp")) for p in (data / "train/c1").iterdir()], r"'c1' \(8 \.webp\)"),
        (lambda data: Image.new("L", (2, 2)).save(data / "train/x.png"), "1 image beside its 3 class folders"),
    ],
)
def test_layouts_are_named_with_counts(data, break_it, message):
    break_it(data)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        checked(data)


def test_one_folder_for_both_splits_is_said(data, caplog):
    checked(data, val_split="train")
    assert "is both training and validation split" in caplog.text


def test_classes_of_a_named_data_set(tmp_path, monkeypatch):
    class Named(list):
        classes = ("a", "b")

    monkeypatch.setattr("timm_gcp.train.data.open_data", lambda *given, **more: Named())
    assert checked(tmp_path, dataset="torch/cifar10").num_classes == 2
    monkeypatch.setattr("timm_gcp.train.data.open_data", lambda *given, **more: [])
    assert checked(tmp_path, dataset="torch/cifar10").num_classes is None
    assert checked(tmp_path, dataset="wds/any").num_classes is None


def test_unreadable_validation_images_do_not_count(data, tmp_path, caplog):
    keys = tiny_settings(data, tmp_path, epochs=1, num_classes=3)
    (data / "validation" / "c1" / "0.png").write_bytes(b"broken")
    train(resolve_args(None, keys))
    assert "1 validation images can't be read and are not counted, the first: " in caplog.text
    assert "c1/0.png' can't be read as an image" in caplog.text
