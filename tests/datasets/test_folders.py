"""The layout of image folders: what is taken, and one sentence on everything that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from timm_gcp.datasets.folders import check_same_classes, class_indices, plain, split_folder, survey


def tree(root: Path, *files: str) -> Path:
    """Empty files: the layout is read from names alone."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize("name", ["val", "valid", "eval", "evaluation", "validation"])
def test_usual_names_stand_for_one_another(tmp_path, name):
    root = tree(tmp_path, f"{name}/a/1.png", "training/a/1.png")
    assert split_folder(root, "validation", "--val-split") == root / name
    assert split_folder(root, "train", "--train-split") == root / "training"
    assert split_folder(root, "", "--val-split") == root


def test_an_exact_name_comes_first(tmp_path):
    root = tree(tmp_path, "val/a/1.png", "validation/a/1.png")
    assert split_folder(root, "validation", "--val-split") == root / "validation"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("tset", r"has no folder 'tset', it has test, train: name the split's .* --val-split\. Did you mean 'test'"),
        ("validation", r"has no folder 'validation' \(nor val, valid, eval, evaluation\), it has test, train"),
        ("train[:10%]", "image folders can't be sliced"),
    ],
)  # fmt: skip
def test_missing_splits_are_listed(tmp_path, split, message, whole):
    root = tree(tmp_path, "train/a/1.png", "test/a/1.png")
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        split_folder(root, split, "--val-split", whole)


def test_class_folders_in_place_of_splits(tmp_path, caplog):
    root = tree(tmp_path, "a/1.png", "b/1.jpg")
    assert split_folder(root, "validation", "--val-split", whole=True) == root
    assert "has no folder 'validation': its 2 class folders themselves are read" in caplog.text
    for split, whole in (("validation", False), ("tset", True), ("train", True)):
        with pytest.raises(FileNotFoundError, match="it has a, b"):
            split_folder(root, split, "--val-split", whole)


def test_folder_itself_is_missing(tmp_path):
    for root in ("", tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match=r"no folder '.*': give the data set's folder with --data-dir"):
            split_folder(root, "train", "--train-split")
    with pytest.raises(FileNotFoundError, match=r"has no folder 'train' \(nor training\), it has no folders"):
        split_folder(tmp_path, "train", "--train-split")
    with pytest.raises(FileNotFoundError, match="no folder"):
        survey(tmp_path / "none")


def test_survey_counts_as_timm_does(tmp_path):
    from timm.data.readers.reader_image_folder import ReaderImageFolder

    names = ["10/b10.png", "10/b9.PNG", "9/x.jpeg", "group/11/y.jpg"]
    root = tree(tmp_path, *names, "9/notes.txt", "9/.hidden.png", ".cache/z.png")
    found = survey(root)
    assert found.files == {"9": ["9/x.jpeg"], "10": ["10/b9.PNG", "10/b10.png"], "11": ["group/11/y.jpg"]}
    (root / "9" / ".hidden.png").unlink()
    (root / ".cache" / "z.png").unlink()
    assert class_indices(found) == ReaderImageFolder(str(root)).class_to_idx


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["1.png", "2.png"], r"is flat, 2 images and no class folders: put the images of each class in a folder"),
        (["a/1.png", "b/1.png", "x.png"], r"has 1 image beside its 2 class folders, of no class: move"),
        (["a/1.png", "b/1.webp", "b/2.webp", "b/3.tif"], r"1 class folder in .* with: 'b' \(1 \.tif, 2 \.webp\)"),
        (["a/1.png", "b/x/1.npy", "c/README"], r"2 class folders in .*: 'b/x' \(1 \.npy\), 'c' \(1 no ending\)"),
        (["a/images/1.png", "b/images/1.png"], r"'a/images' and 'b/images' .* one class 'images'"),
        (["1/a.png", "01/a.png"], "have the same place in natural order"),
    ],
)  # fmt: skip
def test_wrong_layouts_are_named(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        survey(tree(tmp_path, *files))


def test_nothing_at_all(tmp_path):
    with pytest.raises(ValueError, match="no images in the class folders of"):
        survey(tmp_path)


def test_skipped_images_are_counted(tmp_path, caplog):
    survey(tree(tmp_path, "a/1.png", "a/2.webp", "b/1.png", "b/2.webp", "b/3.tif", "b/labels.txt"))
    assert "1 .tif, 2 .webp not read (only .jpeg, .jpg, .png are)" in caplog.text


def test_splits_with_different_classes(tmp_path):
    root = tree(tmp_path, "train/a/1.png", "train/b/1.png", "train/b/2.png", "val/a/1.png", "val/c/1.png")
    train, val = survey(root / "train"), survey(root / "val")
    with pytest.raises(
        ValueError, match=r"without b \(2 training images\) and with c \(1 image\), which training lacks"
    ):
        check_same_classes(train, val, None)
    with pytest.raises(ValueError, match="lacks c: name each of the 2 class folders in it"):
        check_same_classes(train, val, {"a": 0, "b": 1})
    check_same_classes(train, val, {"a": 0, "b": 1, "c": 2})
    check_same_classes(train, train, None)


def test_classes_of_a_model(tmp_path):
    found = survey(tree(tmp_path, "ant/1.png", "t_shirt_top/1.png"))
    assert class_indices(found, num_classes=2, names=("T-shirt/top", "Ant")) == {"ant": 1, "t_shirt_top": 0}
    with pytest.raises(ValueError, match=r"\(2\) are not the model's \(3\): the model's bee missing or empty there"):
        class_indices(found, num_classes=3, names=("ant", "bee", "t-shirt/top"))
    with pytest.raises(ValueError, match=r"the model's car, bus missing .*; ant, t_shirt_top unknown to the model"):
        class_indices(found, num_classes=2, names=("car", "bus"))
    with pytest.raises(ValueError, match=r"has 2 class folders, the model 3 classes: .*--class-map"):
        class_indices(found, num_classes=3)
    assert class_indices(found, num_classes=2, names=("c", "c++")) == {"ant": 0, "t_shirt_top": 1}  # look alike
    with pytest.raises(ValueError, match="names 5 classes; the model has 3"):
        class_indices(found, {"ant": 0, "t_shirt_top": 4}, num_classes=3)
    assert class_indices(found, {"ant": 0, "t_shirt_top": 2}, 3) == {"ant": 0, "t_shirt_top": 2}


def test_names_are_compared_plainly():
    assert plain("T-shirt/top") == plain("t_shirt top") == "t_shirt_top"
