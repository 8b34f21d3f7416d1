"""COCO metrics: against pycocotools on boxes and masks, on cases with a known answer, and on wrong results."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import sys

import numpy as np
import pytest
import torch
from detection_sets import make_content, write_json

from timm_gcp.detection.coco_eval import METRICS, coco_results, evaluate, format_metrics
from timm_gcp.detection.coco_masks import decode_segmentation, encode_mask

SIDE = 128  # objects on both sides of 32² pixels, whose masks and boxes differ in size


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    content = make_content(tmp_path_factory.mktemp("images"), 12, seed=5, side=SIDE)
    for annotation in content["annotations"][:4]:
        annotation["iscrowd"] = 1
    return content


def perfect(content):
    return [
        {key: a[key] for key in ("image_id", "category_id", "bbox", "segmentation")} | {"score": 0.9}
        for a in content["annotations"]
        if not a["iscrowd"]
    ]


def disturbed(content, seed=0):
    """Detections as a detector makes them: shifted, some missing, some of the wrong class, some invented."""
    rng = np.random.default_rng(seed)
    results = []
    for row in perfect(content) * 2:
        if rng.random() < 0.2:
            continue
        shift = rng.integers(-4, 5, 2)
        mask = np.roll(decode_segmentation(row["segmentation"], SIDE, SIDE, "x"), shift, (1, 0))
        x, y, width, height = row["bbox"]
        results.append(
            {
                "image_id": row["image_id"],
                "category_id": row["category_id"] if rng.random() < 0.8 else 10 - row["category_id"],
                "bbox": [float(x + shift[0]), float(y + shift[1]), width + rng.normal(), height + rng.normal()],
                "segmentation": encode_mask(mask),
                "score": float(rng.random()),
            }
        )
    return results


def test_numbers_equal_pycocotools(truth):
    reference = pytest.importorskip("pycocotools.coco", reason="the reference implementation of COCO's metrics")
    from pycocotools.cocoeval import COCOeval

    results = disturbed(truth)
    metrics = evaluate(truth, results)
    assert 10 < metrics["bbox"]["AP"] < 90 and 10 < metrics["segm"]["AP"] < 90
    with contextlib.redirect_stdout(io.StringIO()):
        gt = reference.COCO()
        gt.dataset = copy.deepcopy(truth)
        gt.createIndex()
        for kind in ("bbox", "segm"):
            keys = {"bbox": "segmentation", "segm": "bbox"}[kind]
            dt = gt.loadRes([{k: v for k, v in copy.deepcopy(r).items() if k != keys} for r in results])
            judge = COCOeval(gt, dt, kind)
            judge.evaluate()
            judge.accumulate()
            judge.summarize()
            for name, value in zip(METRICS, judge.stats[:6], strict=True):
                found = metrics[kind][name]
                assert math.isnan(found) if value < 0 else abs(found - 100 * value) < 1e-10, (kind, name)


def test_perfect_detections_have_100_percent(truth):
    metrics = evaluate(truth, perfect(truth))
    for kind in ("bbox", "segm"):
        assert [metrics[kind][name] for name in ("AP", "APS", "APM")] == pytest.approx([100] * 3)
        assert math.isnan(metrics[kind]["APL"])  # no object of 96² pixels


def test_no_detections_have_0_percent(truth):
    assert evaluate(truth, [])["bbox"]["AP"] == 0
    assert evaluate(truth, [], kinds=("bbox", "segm"))["segm"]["AP50"] == 0


def test_a_detection_on_a_crowd_is_no_error(truth):
    crowd = truth["annotations"][0]
    extra = {key: crowd[key] for key in ("image_id", "category_id", "bbox", "segmentation")} | {"score": 0.99}
    assert evaluate(truth, [*perfect(truth), extra])["bbox"]["AP"] == pytest.approx(100)
    elsewhere = {**extra, "bbox": [60, 60, 3, 3]}
    assert evaluate(truth, [*perfect(truth), elsewhere])["bbox"]["AP"] < 100


def test_some_images_only_and_annotations_without_area(truth, tmp_path):
    ids = [image["id"] for image in truth["images"]]
    content = copy.deepcopy(truth)
    for annotation in content["annotations"]:
        del annotation["area"], annotation["iscrowd"]
    half = [row for row in perfect(truth) if row["image_id"] in ids[6:]]
    path = write_json(tmp_path / "a.json", content)
    assert evaluate(path, half, image_ids=ids[6:])["bbox"]["AP"] == pytest.approx(100)
    assert evaluate(path, half)["bbox"]["AP"] < 100


def test_the_ground_truth_is_left_as_it_is(truth):
    before = copy.deepcopy(truth)
    evaluate(truth, disturbed(truth))
    assert truth == before


def test_outputs_become_results():
    masks = torch.zeros(2, 1, 8, 8)
    masks[0, 0, 2:4, 1:7] = 0.9
    output = {
        "boxes": torch.tensor([[1.0, 2.0, 7.0, 4.0], [0.0, 0.0, 2.0, 3.0]]),
        "labels": torch.tensor([2, 1]),
        "scores": torch.tensor([0.75, 0.5]),
        "masks": masks,
    }
    first, second = coco_results([output], [42], {1: 3, 2: 7})
    assert {key: first[key] for key in ("image_id", "category_id", "bbox", "score")} == {
        "image_id": 42, "category_id": 7, "bbox": [1.0, 2.0, 6.0, 2.0], "score": 0.75,
    }  # fmt: skip
    assert np.array_equal(decode_segmentation(first["segmentation"], 8, 8, "x"), masks[0, 0] > 0.5)
    assert second["category_id"] == 3
    without = {key: value for key, value in output.items() if key != "masks"}
    assert "segmentation" not in coco_results([without], [42], {1: 3, 2: 7})[0]


def test_metrics_become_a_table():
    values = dict(zip(METRICS, [12.34, 50.0, 0.0, float("nan"), 1.0, 2.0], strict=True))
    lines = format_metrics({"bbox": values, "segm": values}).splitlines()
    assert lines[0] == "| | AP | AP50 | AP75 | APS | APM | APL |"
    assert lines[2] == "| boxes | 12.3 | 50.0 | 0.0 | n/a | 1.0 | 2.0 |" and lines[3].startswith("| masks |")


def test_wrong_results_are_named(truth):
    row = perfect(truth)[0]
    with pytest.raises(ValueError, match="a result is for image 5, which the annotations do not list"):
        evaluate(truth, [{**row, "image_id": 5}])
    with pytest.raises(ValueError, match="a result is of category 4; the annotations have 3, 7"):
        evaluate(truth, [{**row, "category_id": 4}])
    with pytest.raises(ValueError, match="unknown kind 'keypoints': choose from bbox, segm"):
        evaluate(truth, [row], kinds=["keypoints"])


@pytest.mark.parametrize("use", [lambda: evaluate({}, []), lambda: encode_mask(np.zeros((2, 2)))])
def test_a_missing_evaluator_is_named(use, monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    monkeypatch.setitem(sys.modules, "faster_coco_eval.core", None)
    with pytest.raises(ImportError, match=r"need[s]? faster-coco-eval: pip install timm-gcp\[detection\]"):
        use()
