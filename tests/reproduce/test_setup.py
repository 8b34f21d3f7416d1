"""Options that are refused, and where data are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from timm_gcp.reproduce.setup import Setup


def test_data_are_found(images, coco, tmp_path):
    setup = Setup(tmp_path, data_dir=images, coco_dir=coco)
    assert (setup.imagenet, setup.coco, setup.classes) == (images, coco, 2)
    assert Setup(tmp_path, data_dir=coco).coco == coco  # where nothing else is asked for
    trial = Setup(tmp_path, data_dir=images, coco_dir=coco, limit=8)
    assert trial.imagenet == tmp_path / "data" / "imagenet-8" and trial.coco == tmp_path / "data" / "coco-8"


def test_a_dry_run_needs_no_data(tmp_path):
    setup = Setup(tmp_path, dry_run=True)
    assert (setup.imagenet, setup.coco, setup.classes) == (Path("IMAGENET"), Path("COCO"), 1000)
    assert Setup(tmp_path, dry_run=True, limit=8).classes == 8
    assert Setup(tmp_path, data_dir=Path("/data"), dry_run=True).imagenet == Path("/data")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"limit": 3}, ValueError, r"--limit must be at least 4 images\. Got 3"),
        ({"gpus": 0}, ValueError, r"--gpus must be at least 1\. Got 0"),
        ({"imagenet_c": Path("nowhere")}, FileNotFoundError, "no folder 'nowhere' for --imagenet-c"),
        ({"imagenet_p": Path("nowhere")}, FileNotFoundError, "no folder 'nowhere' for --imagenet-p"),
        ({"train_py": Path("train.py")}, FileNotFoundError, r"no file 'train.py': --train-py names timm's own"),
    ],
)
def test_bad_options_are_named(options, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        Setup(tmp_path, **options)


def test_missing_data_are_named(coco, images, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"needs IMAGENET: give its folder, with the folders train/ and val/, as"
    ):
        _ = Setup(tmp_path).imagenet
    with pytest.raises(
        FileNotFoundError, match=r"--data-dir '.*' is not IMAGENET .* the folders train/ and val/ must be in it"
    ):
        _ = Setup(tmp_path, data_dir=coco).imagenet
    with pytest.raises(FileNotFoundError, match=r"needs COCO: give its folder, with annotations/.* as --coco-dir"):
        _ = Setup(tmp_path, data_dir=images).coco
    with pytest.raises(FileNotFoundError, match=r"--coco-dir '.*' is not COCO"):
        _ = Setup(tmp_path, data_dir=coco, coco_dir=images).coco
