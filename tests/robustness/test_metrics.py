"""ImageNet-C and ImageNet-P scores: cases done by hand, and a second, literal method on random input."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest

from timm_gcp.robustness import metrics


def alexnet() -> dict:
    return json.loads((resources.files("timm_gcp.robustness") / "alexnet_imagenet_c.json").read_text())


def test_alexnet_scores_exactly_100_on_its_own_table():
    table = alexnet()
    errors = list(table["corruption_error"].values())
    clean = table["clean_error"]
    assert metrics.corruption_error(errors, errors).mean() == 100.0
    assert metrics.relative_corruption_error(errors, clean, errors, clean).mean() == 100.0


def test_corruption_error_by_hand():
    errors = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.5, 0.5, 0.5, 0.5]]  # sums 1.5 and 2.5
    baseline = [[0.2, 0.4, 0.6, 0.8, 1.0], [0.25, 0.5, 0.25, 0.5, 0.5]]  # sums 3 and 2
    np.testing.assert_allclose(metrics.corruption_error(errors, baseline), [50, 125], rtol=1e-14)
    # Minus clean errors: (1.5 - 0.5) / (3 - 1) and (2.5 - 0.5) / (2 - 1).
    relative = metrics.relative_corruption_error(errors, 0.1, baseline, 0.2)
    np.testing.assert_allclose(relative, [50, 200], rtol=1e-14)
    means = np.mean(baseline, axis=1)
    np.testing.assert_allclose(metrics.corruption_error(errors, means), [50, 125], rtol=1e-14)


def test_corruption_error_is_a_ratio_of_sums_not_a_mean_of_ratios():
    errors, baseline = [[0.1, 0.9]], [[0.2, 0.3]]
    assert metrics.corruption_error(errors, baseline)[0] == pytest.approx(200)  # ratios alone would give 175


@pytest.mark.parametrize(
    ("errors", "baseline", "message"),
    [
        ([0.1, 0.2], [0.1], "errors cover 2 corruptions, the baseline 1"),
        ([0.1], [0.0], r"makes no error on corruptions \[0\]"),
        ([1.2], [0.5], "errors must be shares between 0 and 1"),
        ([0.2], [float("nan")], "baseline must be shares"),
        ([[[0.1]]], [0.5], r"got shape \(1, 1, 1\)"),
    ],
)
def test_corruption_error_rejects(errors, baseline, message):
    with pytest.raises(ValueError, match=message):
        metrics.corruption_error(errors, baseline)


def test_relative_corruption_error_rejects():
    with pytest.raises(ValueError, match=r"corruptions \[1\] add nothing"):
        metrics.relative_corruption_error([0.5, 0.5], 0.1, [0.5, 0.2], 0.2)
    with pytest.raises(ValueError, match="baseline_clean_error must be a share"):
        metrics.relative_corruption_error([0.5], 0.1, [0.5], 43.5)
    with pytest.raises(ValueError, match="errors cover 1 corruptions, the baseline 2"):
        metrics.relative_corruption_error([0.5], 0.1, [0.5, 0.2], 0.2)


def test_flip_probability_by_hand():
    predictions = [0, 1, 1, 1]
    assert metrics.flip_probability(predictions, noise=True) == 1.0
    assert metrics.flip_probability(predictions, noise=False) == pytest.approx(1 / 3)
    assert metrics.flip_probability(predictions, noise=False, step=2) == 0.5  # pairs (0, 2) and (1, 3)
    assert metrics.flip_probability(predictions, noise=True, step=3) == 1.0  # noise has no step
    assert metrics.flip_probability([[0, 1, 1, 1], [2, 2, 2, 2]], noise=True) == 0.5


def test_top5_distance_by_hand():
    stay = [0, 1, 2, 3, 4, 5, 6, 7]
    swap = [1, 0, 2, 3, 4, 5, 6, 7]  # two classes move by one place: 2
    drop = [1, 2, 3, 4, 5, 6, 7, 0]  # the first falls to place 8, counted as 6: 5; four rise by one: 4
    assert metrics.top5_distance([stay, stay], noise=False) == 0
    assert metrics.top5_distance([stay, swap], noise=False) == 2
    assert metrics.top5_distance([stay, drop], noise=False) == 9
    assert metrics.top5_distance([stay, swap, drop], noise=True) == 5.5
    # swap to drop: class 1 stays first; 0 falls from 2nd to 8th, 1 -> 5: 4; 2, 3 and 4 rise by one each: 3.
    assert metrics.top5_distance([stay, swap, drop], noise=False) == (2 + 7) / 2
    outside = [0, 1, 2, 3, 4, 7, 6, 5]  # changes below the fifth place don't count
    assert metrics.top5_distance([stay, outside], noise=False) == 0


@pytest.mark.parametrize(("classes", "expected"), [(1, 0), (2, 2), (3, 4), (4, 8), (5, 12)])
def test_top5_distance_with_few_classes(classes, expected):
    order = np.arange(classes)
    # A full reversal of C places moves them by |C - 1 - 2i| in all.
    assert metrics.top5_distance([order, order[::-1]], noise=False) == expected


def ordinal_ranks(logits: np.ndarray) -> list[int]:
    """The rank of each class, from 1: how many classes come before it, by logit, then by number."""
    return [
        1 + sum(other > own or (other == own and j < i) for j, other in enumerate(logits))
        for i, own in enumerate(logits)
    ]


def literal_distance(first: np.ndarray, second: np.ndarray) -> int:
    """Section 4.3 word for word: ranks of both frames, the permutation between them, its double sum."""
    first_rank, second_rank = ordinal_ranks(first), ordinal_ranks(second)
    total = 0
    for i in range(1, min(5, len(first)) + 1):
        sigma = second_rank[first_rank.index(i)]
        for j in range(min(i, sigma) + 1, max(i, sigma) + 1):
            total += 1 <= j - 1 <= 5
    return total


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("classes", [3, 5, 6, 40])
def test_against_a_literal_second_method(noise, step, classes):
    rng = np.random.default_rng(classes + 10 * step)
    logits = rng.integers(0, 12, size=(3, 8, classes)).astype(float)  # many ties
    flips, distances = [], []
    for clip in logits:
        clip_flips, clip_distances = [], []
        for start in range(1 if noise else step):
            frames = clip if noise else clip[start::step]
            for t in range(1, len(frames)):
                before = frames[0] if noise else frames[t - 1]
                clip_flips.append(np.argmax(before) != np.argmax(frames[t]))
                clip_distances.append(literal_distance(before, frames[t]))
        flips.append(np.mean(clip_flips))
        distances.append(np.mean(clip_distances))
    order = metrics.ranking(logits)
    assert metrics.flip_probability(order[..., 0], noise, step) == pytest.approx(np.mean(flips), abs=1e-13)
    assert metrics.top5_distance(order, noise, step) == pytest.approx(np.mean(distances), abs=1e-13)


def test_ranking_settles_ties_by_class_number():
    assert metrics.ranking([1.0, 3.0, 3.0, 1.0]).tolist() == [1, 2, 0, 3]
    assert metrics.ranking(np.array([1, 3, 3], dtype=np.uint8)).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="NaN"):
        metrics.ranking([0.0, np.nan])


def test_top5_distance_takes_small_integer_types():
    order = metrics.ranking(np.random.default_rng(0).normal(size=(4, 300)))
    small = metrics.top5_distance(order.astype(np.int16), noise=False)
    assert small == metrics.top5_distance(order, noise=False) > 0


def test_frame_pairs_rejects():
    with pytest.raises(ValueError, match="step must be 1 or more; got 0"):
        metrics.frame_pairs(5, False, 0)
    with pytest.raises(ValueError, match="a clip of 2 frames has no two frames 2 apart"):
        metrics.frame_pairs(2, False, 2)
    with pytest.raises(ValueError, match="a clip of 1 frames"):
        metrics.frame_pairs(1, True)


def test_mean_ratio():
    assert metrics.mean_ratio([0.1, 0.3], [0.2, 0.2]) == pytest.approx(100)
    assert metrics.mean_ratio([0.07, 0.3], [0.07, 0.3]) == 100.0
    with pytest.raises(ValueError, match=r"never changes on perturbations \[1\]"):
        metrics.mean_ratio([0.1, 0.1], [0.1, 0])
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(1,\)"):
        metrics.mean_ratio([0.1, 0.1], [0.1])
