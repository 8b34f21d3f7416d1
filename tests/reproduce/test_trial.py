"""The data of a trial: few, the same classes everywhere, whole or not there."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from timm_gcp.detection.coco_data import CocoDataset, find_split
from timm_gcp.reproduce import trial
from timm_gcp.reproduce.setup import Setup


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


def test_images_are_taken_from_each_class_in_turn(images, tmp_path):
    setup = Setup(tmp_path, data_dir=images, limit=5)
    trial.prepare(setup, ["imagenet"])
    assert names(setup.imagenet / "train") == ["c0/0.png", "c0/1.png", "c0/2.png", "c1/0.png", "c1/1.png"]
    assert names(setup.imagenet / "val") == ["c0/0.png", "c0/1.png", "c0/2.png", "c1/0.png", "c1/1.png"]
    first = setup.imagenet / "train" / "c0" / "0.png"
    assert first.is_symlink() and first.read_bytes() == (images / "train" / "c0" / "0.png").read_bytes()
    before = os.stat(setup.imagenet).st_mtime_ns
    trial.prepare(setup, ["imagenet"])  # it stays
    assert os.stat(setup.imagenet).st_mtime_ns == before
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["imagenet-5"]


def test_more_classes_than_images_are_cut_to_as_many_and_are_the_same_in_both_splits(tmp_path):
    from toy_images import image_folder

    source = image_folder(tmp_path / "many", train=1, validation=1, classes=3)
    for label in range(3, 9):
        for split in ("train", "validation"):
            shutil.copytree(source / split / "c0", source / split / f"c{label}")
    shutil.rmtree(source / "validation" / "c1")
    setup = Setup(tmp_path, data_dir=source, limit=4)
    trial.prepare(setup, ["imagenet"])
    expected = [f"c{label}/0.png" for label in (0, 2, 3, 4)]
    assert names(setup.imagenet / "train") == names(setup.imagenet / "val") == expected
    assert setup.classes == 4


def test_where_links_are_not_allowed_images_are_copied(images, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    setup = Setup(tmp_path, data_dir=images, limit=4)
    trial.prepare(setup, ["imagenet"])
    assert not (setup.imagenet / "train" / "c0" / "0.png").is_symlink()
    assert len(names(setup.imagenet / "train")) == 4


def test_a_class_without_images_is_named_and_nothing_stays(images, tmp_path):
    source = shutil.copytree(images, tmp_path / "source")
    for path in (source / "validation" / "c1").iterdir():
        path.unlink()
    setup = Setup(tmp_path / "out", data_dir=source, limit=4)
    with pytest.raises(FileNotFoundError, match=r"no image \(.jpg, .*\) in '.*validation/c1'"):
        trial.prepare(setup, ["imagenet"])
    assert list((tmp_path / "out" / "data").iterdir()) == []


def test_annotations_follow_the_images(coco, tmp_path):
    source = shutil.copytree(coco, tmp_path / "source")
    path = source / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    empty = content["images"][0]["id"]
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] != empty]
    path.write_text(json.dumps(content))
    setup = Setup(tmp_path / "out", data_dir=source, limit=4)
    trial.prepare(setup, ["coco", "imagenet_c"])
    files = find_split(setup.coco, "train")
    dataset = CocoDataset(files.annotations, files.images, masks=True)
    assert len(dataset) == 3 and empty not in [entry["id"] for entry in dataset.images]
    assert len(dataset[0][1]["boxes"]) == 2
    assert len(CocoDataset(*vars(find_split(setup.coco, "val")).values())) == 3


def test_keys_of_a_trial():
    assert trial.train_keys(256, 8) == {"epochs": 2, "batch_size": 8, "img_size": 64, "workers": 0}
    assert trial.train_keys(96, 200, gpus=2) == {"epochs": 2, "batch_size": 96, "img_size": 64, "workers": 1}
