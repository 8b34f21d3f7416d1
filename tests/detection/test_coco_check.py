"""Annotation files that are broken in every field: one sentence that names the entry, and no mask drawn before."""

from __future__ import annotations

import copy
import json
import math
from itertools import pairwise

import pytest
from detection_sets import make_content, write_json

from timm_gcp.detection.coco_check import read_coco, short
from timm_gcp.detection.coco_data import CocoDataset
from timm_gcp.detection.coco_masks import _runs, check_segmentation, encode_mask

POLYGON = [1.0, 1.0, 9.0, 1.0, 9.0, 9.0]
ANNOTATION = r"a\.json: annotation 1 of image 10"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("coco")
    return root / "images", make_content(root / "images", 2)


def entry(kind, **values):
    return lambda content: content[kind][0].update(values)


def put(kind, value):
    return lambda content: content[kind].insert(0, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (put(kind, value), rf"a\.json: entry 0 of {kind} must be an object, got ")
            for kind in ("images", "annotations", "categories")
            for value in (None, 3, "x", [], [1])
        ),
        (lambda c: c.update(images={}), "not in COCO's format: it needs the lists images, annotations, categories"),
        (lambda c: c.update(annotations=None), "not in COCO's format"),
        (lambda c: c.update(categories=[]), "lists no categories"),
        *(
            (entry(kind, id=value), rf"the id of entry 0 of {kind} must be a whole number, got ")
            for kind in ("images", "annotations", "categories")
            for value in (None, "1", [1], {"a": 1}, 1.5, True, 10**30)
        ),
        (entry("categories", name=["a"]), r"the name of category 7 must be text, got \['a'\]"),
        *(
            (entry("images", file_name=value), "image 10 must have a file_name of text")
            for value in (7, None, "", "a\0")
        ),
        *(
            (entry("images", **{side: value}), rf"image 10 must have a {side} in whole pixels, from 1 up, got ")
            for side in ("height", "width")
            for value in (0, -4, 3.5, "64", None, [64], True, math.nan, math.inf, 10**7)
        ),
        (entry("images", height=10**5, width=10**5), "image 10 has 10000000000 pixels, more than the"),
        *(
            (entry("annotations", image_id=value), r"annotation 1 of image .*: image_id must be")
            for value in ("1", [1], None)
        ),
        *(
            (entry("annotations", category_id=value), rf"{ANNOTATION}: category_id must be")
            for value in ("3", [3], {}, None)
        ),
        *(
            (
                entry("annotations", bbox=value),
                rf"{ANNOTATION}: bbox must be four numbers, x, y, width and height, got ",
            )
            for value in (
                None,
                "1 2 3 4",
                {"x": 1},
                ["1", "2", "3", "4"],
                [1, 2, None, 4],
                [[1], 2, 3, 4],
                [True, 2, 3, 4],
            )
        ),
        *(
            (entry("annotations", bbox=value), r"1 boxes of a\.json have no area.*annotation 1 of image 10")
            for value in (
                [],
                [1, 2, 3],
                [math.nan, 1, 2, 3],
                [0, 0, math.inf, 3],
                [10**400, 1, 2, 3],
                [1e308, 0, 1e308, 5],
            )
        ),
        *((entry("annotations", iscrowd=value), rf"{ANNOTATION}: iscrowd must be 0 or 1") for value in (2, "yes", [])),
        *(
            (entry("annotations", area=value), rf"{ANNOTATION}: area must be a number")
            for value in ("5", None, math.nan, -1)
        ),
        (
            entry("annotations", segmentation=[[*POLYGON[:4], 1e300, 5]]),
            r"annotation 1 of image 10: a polygon has x = 1e\+300",
        ),
        (
            entry("annotations", segmentation=[[*POLYGON[:5], math.nan]]),
            "annotation 1 of image 10: a polygon has y = nan",
        ),
        (
            entry("annotations", segmentation=[[*POLYGON[:5], -65.0]]),
            r"y = -65\.0, far outside the image of 64×64 pixels",
        ),
        (entry("annotations", segmentation=[["1", 2, 3, 4, 5, 6]]), "a polygon is a list of at least 3 x, y pairs"),
        (entry("annotations", segmentation={"size": 64, "counts": [4096]}), "the run-length code is 64"),
        (
            entry("annotations", segmentation={"size": [64, 64], "counts": ["4096"]}),
            "the counts of a run-length code are whole",
        ),
        (
            entry("annotations", segmentation={"size": [64, 64], "counts": [-1, 4097]}),
            "the counts of a run-length code",
        ),
        (entry("annotations", segmentation={"size": [64, 64], "counts": None}), "the counts of a run-length code"),
        (
            entry("annotations", segmentation={"size": [64, 64], "counts": "garbage!"}),
            "the counts of a run-length code",
        ),
        (entry("annotations", segmentation={"size": [64, 64], "counts": "é"}), "the counts of a run-length code"),
        (entry("annotations", segmentation={"size": [64, 64], "counts": "0"}), "covers 0 pixels, the image has 4096"),
    ],
)
@pytest.mark.parametrize("options", [{"masks": True}, {"segmentations": True}], ids=["train", "eval"])
def test_whatever_is_wrong_is_named(drawn, tmp_path, change, message, options):
    folder, content = drawn
    content = copy.deepcopy(content)
    change(content)
    with pytest.raises(ValueError, match=message):
        CocoDataset(write_json(tmp_path / "a.json", content), folder, **options)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "null", "[" * 100_000, '{"images": [' * 50_000, "\ufeff{}", "1" * 5000]
)
def test_files_of_another_kind(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json' is not (a JSON file|in COCO's format)"):
        read_coco(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not a JSON file"):
        read_coco(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError, match="no annotation file"):
        read_coco(tmp_path / "b.json")


def test_names_that_no_file_can_have(drawn, tmp_path):
    folder, content = drawn
    content = copy.deepcopy(content)
    content["images"][0]["file_name"] = "x" * 5000
    with pytest.raises(FileNotFoundError, match=r"1 of 2 images of a\.json are not in"):
        CocoDataset(write_json(tmp_path / "a.json", content), folder)


def test_what_is_good_stays_good(drawn, tmp_path):
    """Whole numbers as floats, polygons a little outside, crowds, ids of any size, no area: as COCO's own files are."""
    folder, content = drawn
    content = copy.deepcopy(content)
    content["images"][0].update(height=64.0, width=64.0)
    content["annotations"][0].update(segmentation=[[-3.0, -2.5, 70.0, 1.0, 9.0, 66.0]])
    content["annotations"][1].update(iscrowd=1, segmentation={"size": [64, 64], "counts": [4000, 96]})
    content["annotations"][2].update(id=900100581904)
    del content["annotations"][2]["area"]
    content["categories"][0]["name"] = None
    data = CocoDataset(write_json(tmp_path / "a.json", content), folder, masks=True)
    assert data[0][1]["masks"].shape == (1, 64, 64) and data.dropped["crowd"] == 1
    boxes = copy.deepcopy(content)
    boxes["annotations"][0]["segmentation"] = [[math.nan] * 6]  # of no use to a detector of boxes
    assert len(CocoDataset(write_json(tmp_path / "b.json", boxes), folder)) == 2


def test_compressed_text_is_read_as_the_evaluator_writes_it():
    import numpy as np

    rng = np.random.default_rng(0)
    for number in range(60):
        height, width = rng.integers(1, 90, 2).tolist()
        mask = (rng.random((height, width)) < rng.random()).astype(np.uint8)
        if number % 3 == 0:
            mask = np.zeros((height, width), np.uint8)
            mask[height // 3 :, width // 4 :] = 1
        flat = mask.flatten(order="F")
        ends = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), len(flat)]
        runs = [b - a for a, b in pairwise(ends)]
        code = encode_mask(mask)
        assert _runs(code["counts"]) == ([0, *runs] if flat[0] else runs)
        check_segmentation(code, height, width, "here")
        check_segmentation({**code, "counts": code["counts"].encode()}, height, width, "here")


def test_long_values_are_cut():
    assert short("x" * 100) == "'" + "x" * 59 + "..." and json.loads("1") == 1
