"""COCO-format data: targets against what was drawn, mirroring, every mask form, and every way data can be wrong."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from detection_sets import make_content, make_set, write_json
from PIL import Image

from timm_gcp.detection.coco_data import CocoDataset, collate, find_split, read_image
from timm_gcp.detection.coco_masks import decode_segmentation, encode_mask


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("coco")
    return root / "images", make_content(root / "images", 3)


def dataset(drawn, tmp_path, change=None, **options):
    folder, content = drawn
    content = copy.deepcopy(content)
    if change is not None:
        change(content)
    return CocoDataset(write_json(tmp_path / "a.json", content), folder, **options)


def test_items_hold_what_was_drawn(drawn, tmp_path):
    data = dataset(drawn, tmp_path, masks=True)
    content = drawn[1]
    assert len(data) == 3 and data.num_classes == 3
    assert data.categories == {3: "square", 7: "disc"} and data.label_of == {3: 1, 7: 2}
    assert data.category_of == {1: 3, 2: 7}
    for index, (image, target) in enumerate(data[i] for i in range(3)):
        rows = [row for row in content["annotations"] if row["image_id"] == target["image_id"]]
        pixels = np.array(Image.open(data.image_path(index)))
        assert image.dtype == torch.float32 and np.array_equal((image * 255).round().byte().permute(1, 2, 0), pixels)
        assert target["boxes"].dtype == torch.float32 and target["labels"].dtype == torch.int64
        for box, label, mask, row in zip(target["boxes"], target["labels"], target["masks"], rows, strict=True):
            x, y, width, height = row["bbox"]
            assert box.tolist() == [x, y, x + width, y + height]
            assert int(label) == {3: 1, 7: 2}[row["category_id"]]
            assert int(mask.sum()) == row["area"]
            inside = pixels[mask.numpy().astype(bool)]  # the masks are where the objects' colours are
            assert set(np.unique(inside)) == {240 if row["category_id"] == 3 else 10}


def test_mirroring_moves_boxes_and_masks_with_the_pixels(drawn, tmp_path):
    plain = dataset(drawn, tmp_path, masks=True)
    mirrored = dataset(drawn, tmp_path, masks=True, hflip=1.0)
    for (image, target), (other, moved) in zip(
        (plain[i] for i in range(3)), (mirrored[i] for i in range(3)), strict=True
    ):
        assert torch.equal(image.flip(-1), other) and torch.equal(target["masks"].flip(-1), moved["masks"])
        for box, mask in zip(moved["boxes"], moved["masks"], strict=True):  # every mask fills its own box
            columns, rows = torch.nonzero(mask.any(0)).flatten(), torch.nonzero(mask.any(1)).flatten()
            assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


def test_grey_images_have_one_channel(drawn, tmp_path):
    image, _ = dataset(drawn, tmp_path, in_chans=1)[0]
    assert image.shape == (1, 64, 64)


def test_crowds_teach_nothing_and_empty_images_go_or_stay(drawn, tmp_path):
    def change(content):
        for annotation in content["annotations"][2:4]:  # both objects of the second image
            annotation["iscrowd"] = 1
            annotation["segmentation"] = {"size": [64, 64], "counts": [64 * 64]}

    kept = dataset(drawn, tmp_path, change, masks=True)
    _, target = kept[1]
    assert target["boxes"].shape == (0, 4) and target["masks"].shape == (0, 64, 64)
    assert target["labels"].dtype == torch.int64
    assert kept.dropped == {"crowd": 2, "bad boxes": 0, "empty images": 0}
    gone = dataset(drawn, tmp_path, change, keep_empty=False)
    assert [entry["id"] for entry in gone.images] == [10, 12] and gone.dropped["empty images"] == 1
    mirrored = dataset(drawn, tmp_path, change, masks=True, hflip=1.0)
    assert mirrored[1][1]["boxes"].shape == (0, 4)


def test_boxes_are_cut_at_the_image(drawn, tmp_path):
    data = dataset(drawn, tmp_path, lambda content: content["annotations"][0].update(bbox=[-5.0, 50.0, 20.0, 30.0]))
    assert data[0][1]["boxes"][0].tolist() == [0.0, 50.0, 15.0, 64.0]


@pytest.mark.parametrize(
    "bbox", [[5, 5, 0, 10], [5, 5, 10, -3], [70, 5, 10, 10], [5, 5, float("nan"), 3], [1, 2, 3], [5, 5, 1e-6, 9]]
)
def test_boxes_without_area_are_named_or_dropped(drawn, tmp_path, bbox):
    def change(content):
        content["annotations"][1]["bbox"] = bbox

    with pytest.raises(ValueError, match=r"1 boxes of a.json have no area.*annotation 2 of image 10 has bbox \["):
        dataset(drawn, tmp_path, change)
    data = dataset(drawn, tmp_path, change, bad_boxes="drop")
    assert data.dropped["bad boxes"] == 1 and len(data[0][1]["boxes"]) == 1


def drop_key(kind, key):
    return lambda content: content[kind][0].pop(key)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda c: c["annotations"][0].update(category_id=4),
            "annotation 1 of image 10: category 4 is not among .* 3, 7",
        ),
        (lambda c: c["annotations"][0].update(image_id=99), "annotation 1 of image 99: a.json lists no image"),
        (lambda c: c["annotations"][1].update(id=1), "two entries of annotations have the id 1"),
        (lambda c: c["images"][1].update(id=10), "two entries of images have the id 10"),
        (lambda c: c.pop("categories"), "not in COCO's format: it needs the lists images, annotations, categories"),
        (drop_key("images", "height"), "entry 0 of images lacks height"),
        (drop_key("annotations", "bbox"), "entry 0 of annotations lacks bbox"),
        (lambda c: c["annotations"][0].pop("segmentation"), "annotation 1 of image 10 has no segmentation"),
        (lambda c: c.update(annotations=[]), "has no image with a usable box"),
    ],
)
def test_inconsistent_annotations_are_named(drawn, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        dataset(drawn, tmp_path, change, masks=True, keep_empty=False)


@pytest.mark.parametrize("as_stored", [True, False])
def test_boxes_lie_on_the_object_of_a_turned_image(tmp_path, as_stored):
    """The size in the json says whether the boxes are of the upright image or of the pixels as stored."""
    upright = np.full((40, 24), 50, np.uint8)  # rows, columns
    upright[5:15, 2:10] = 200
    stored = np.rot90(upright)  # a viewer turns it back by the tag
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "images").mkdir()
    Image.fromarray(stored).save(tmp_path / "images" / "a.png", exif=exif)
    frame = stored if as_stored else upright
    rows, columns = np.nonzero(frame == 200)
    left, top = int(columns.min()), int(rows.min())
    width, height = int(columns.max()) + 1 - left, int(rows.max()) + 1 - top
    entry = {"id": 1, "file_name": "a.png", "height": frame.shape[0], "width": frame.shape[1]}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [left, top, width, height]}
    content = {"images": [entry], "annotations": [box], "categories": [{"id": 1}]}
    image, target = CocoDataset(write_json(tmp_path / "a.json", content), tmp_path / "images", in_chans=1)[0]
    x1, y1, x2, y2 = (int(value) for value in target["boxes"][0])
    assert image.shape[1:] == frame.shape and (image[:, y1:y2, x1:x2] * 255).round().unique().tolist() == [200]


def test_missing_files_are_named(drawn, tmp_path):
    folder, content = drawn
    with pytest.raises(FileNotFoundError, match="no annotation file"):
        CocoDataset(tmp_path / "none.json", folder)
    with pytest.raises(FileNotFoundError, match="no image folder"):
        CocoDataset(write_json(tmp_path / "a.json", content), tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"1 of 3 images of a.json are not in .*the first: 'lost.png'"):
        dataset(drawn, tmp_path, lambda c: c["images"][1].update(file_name="lost.png"))
    with pytest.raises(FileNotFoundError, match=r"instances_val.json with val/ nor annotations/instances_val2017"):
        find_split(tmp_path, "val")


def test_files_that_are_not_what_they_say_are_named(drawn, tmp_path):
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="is not a JSON file"):
        CocoDataset(tmp_path / "broken.json", drawn[0])
    with pytest.raises(ValueError, match=r"is 64×64 pixels, a\.json says 128×64"):
        dataset(drawn, tmp_path, lambda c: c["images"][0].update(width=128))[0]
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match="can't be read as an image"):
        read_image(tmp_path / "text.png", 3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"in_chans": 4}, "in_chans must be one of 1, 3. Got 4"),
        ({"hflip": 1.5}, r"hflip is a probability in \[0, 1\]. Got 1.5"),
        ({"bad_boxes": "ignore"}, "bad_boxes must be one of error, drop. Got 'ignore'"),
    ],
)
def test_bad_options_are_named(drawn, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        dataset(drawn, tmp_path, **options)


def test_splits_are_found_by_either_name(tmp_path):
    root = make_set(tmp_path, 1, 1)
    assert find_split(root, "train") == find_split(root, "train2017")
    assert find_split(root, "val").images == root / "val2017"


def test_batches_are_lists(drawn, tmp_path):
    data = dataset(drawn, tmp_path)
    images, targets = collate([data[0], data[2]])
    assert len(images) == len(targets) == 2 and targets[1]["image_id"] == 12


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("pycocotools.mask", reason="the reference implementation of COCO's masks")


@pytest.fixture(scope="module")
def blob():
    rng = np.random.default_rng(3)
    return (rng.random((21, 34)) < 0.3).astype(np.uint8)


def test_run_length_codes_of_both_kinds_decode_as_pycocotools_does(blob, reference):
    code = encode_mask(blob)
    assert code == {**code, "counts": reference.encode(np.asfortranarray(blob))["counts"].decode()}
    assert np.array_equal(decode_segmentation(code, 21, 34, "x"), blob)
    flat, counts, value = blob.T.reshape(-1), [], 0  # runs of 0, 1, 0, ... down the columns
    while len(flat):
        run = int(np.argmax(flat != value)) if (flat != value).any() else len(flat)
        counts.append(run)
        flat, value = flat[run:], 1 - value
    assert np.array_equal(decode_segmentation({"size": [21, 34], "counts": counts}, 21, 34, "x"), blob)


def test_polygons_decode_as_pycocotools_does(reference):
    polygons = [[2.0, 2.0, 20.5, 3.0, 15.0, 18.0], [25, 5, 33, 5, 33, 12, 25, 12]]
    expected = reference.decode(reference.merge(reference.frPyObjects(polygons, 21, 34)))
    found = decode_segmentation(polygons, 21, 34, "x")
    assert found.sum() > 100 and np.array_equal(found, expected)


@pytest.mark.parametrize(
    "segmentation, message",
    [
        ([], "annotation 5: a polygon is a list of at least 3 x, y pairs"),
        ([[1, 2, 3, 4]], "at least 3 x, y pairs"),
        ([[1, 2, 3, 4, 5, 6, 7]], "at least 3 x, y pairs"),
        ([["a"] * 6], "at least 3 x, y pairs"),
        ("abc", "a segmentation is a list of polygons or a run-length code"),
        ({"counts": "abc"}, "a run-length code with size and counts"),
        ({"size": [34, 21], "counts": "abc"}, r"run-length code is \[34, 21\] \(height, width\), the image \[21, 34\]"),
        ({"size": [21, 34], "counts": [3, 4]}, "covers 7 pixels, the image has 714"),
    ],
)
def test_bad_segmentations_are_named(segmentation, message):
    with pytest.raises(ValueError, match=message):
        decode_segmentation(segmentation, 21, 34, "annotation 5")
