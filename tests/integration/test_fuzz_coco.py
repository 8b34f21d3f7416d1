"""Seeded fuzz of COCO annotation files: whatever their fields hold, the right answer or one clear sentence.

The same examples in every run (`derandomize`), within seconds.
"""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from detection_sets import make_content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from timm_gcp.detection.coco_data import CocoDataset
from timm_gcp.detection.coco_eval import evaluate

FUZZ = settings(
    derandomize=True, max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
FIELDS = [
    *(("images", key) for key in ("id", "file_name", "height", "width")),
    *(("annotations", key) for key in ("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation")),
    *(("categories", key) for key in ("id", "name")),
]
numbers = st.one_of(
    st.integers(-3, 80), st.integers(), st.floats(), st.sampled_from([10**400, 2**63, -(2**31), 1e300, 0.5, 64, 4096])
)
plain = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5))
values = st.one_of(
    plain,
    st.lists(numbers, max_size=8),
    st.lists(st.lists(numbers, max_size=8), max_size=2),
    st.lists(plain, max_size=5),
    st.dictionaries(st.sampled_from(["size", "counts", "x"]), st.one_of(plain, st.lists(numbers, max_size=3))),
    st.builds(
        lambda counts: {"size": [64, 64], "counts": counts},
        st.one_of(
            st.text(st.characters(min_codepoint=40, max_codepoint=115), max_size=9), st.lists(numbers, max_size=4)
        ),
    ),
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = tmp_path_factory.mktemp("coco")
    return root, make_content(root / "images", 2)


def check(root, content):
    """Load, take all items, evaluate one detection; or a sentence that names the file, an entry or an id."""
    path = root / "fuzzed.json"
    path.write_text(json.dumps(content))
    try:
        data = CocoDataset(path, root / "images", masks=True)
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        assert "\n" not in text and len(text) < 600
        assert any(part in text for part in ("fuzzed.json", "annotation ")), text
        return
    for index in range(len(data)):
        try:
            _, target = data[index]
        except ValueError as error:  # the image has another size than the file says
            assert "pixels, fuzzed.json says" in str(error)
            return
        boxes = target["boxes"]
        assert boxes.shape == (len(target["labels"]), 4) and bool(torch.isfinite(boxes).all())
        assert bool((boxes >= 0).all() and (boxes <= 64).all() and (boxes[:, :2] < boxes[:, 2:]).all())
        assert target["masks"].shape == (len(boxes), 64, 64) and set(target["labels"].tolist()) <= {1, 2}
    result = {
        "image_id": data.images[0]["id"], "category_id": next(iter(data.categories)), "score": 0.5,
        "bbox": [1.0, 1.0, 5.0, 5.0],
    }  # fmt: skip
    for ap in evaluate(path, [result])["bbox"].values():
        assert math.isnan(ap) or 0 <= ap <= 100


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(FIELDS), st.integers(0, 3), values), min_size=1, max_size=3))
def test_fields(drawn, changes):
    root, content = drawn
    content = copy.deepcopy(content)
    for (kind, key), position, value in changes:
        content[kind][position % len(content[kind])][key] = value
    check(root, content)


@FUZZ
@given(st.sampled_from(["images", "annotations", "categories"]), st.one_of(values, st.lists(values, max_size=3)))
def test_lists_and_entries(drawn, kind, value):
    root, content = drawn
    check(root, {**content, kind: value})
    check(root, {**content, kind: [*content[kind], value]})
    check(root, {**content, kind: content[kind][:1]})


@FUZZ
@given(st.binary(max_size=60), st.integers(0, 10_000))
def test_bytes(drawn, inserted, place):
    root, content = drawn
    whole = json.dumps(content).encode()
    place %= len(whole)
    (root / "bytes.json").write_bytes(whole[:place] + inserted + whole[place + len(inserted) // 2 :])
    try:
        CocoDataset(root / "bytes.json", root / "images")
    except (ValueError, FileNotFoundError) as error:
        assert "bytes.json" in str(error) or "annotation " in str(error)
