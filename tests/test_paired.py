"""Pairs of classifiers: discordant images by hand, McNemar's exact test against SciPy's binomial test."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest

from timm_gcp.evaluate import Evaluation
from timm_gcp.paired import Pair, compare


def evaluation(predictions: list[int], targets: list[int]) -> Evaluation:
    return Evaluation(0.0, torch.tensor(predictions)[:, None], torch.tensor(targets))


def test_discordant_images_by_hand():
    targets = [0, 1, 2, 0, 1, 2]
    first, second = [0, 1, 2, 1, 0, 2], [0, 0, 0, 0, 2, 2]  # right: 0 1 2 5, and 0 3 5
    assert compare(evaluation(first, targets), evaluation(second, targets)) == Pair(2, 1)
    assert compare(evaluation(second, targets), evaluation(first, targets)) == Pair(1, 2)


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (7, 7), (0, 12), (213, 185), (3, 40), (2500, 2700), (0, 1100)])
def test_p_is_the_two_sided_binomial_test(counts):
    expected = binomtest(counts[0], sum(counts), 0.5).pvalue if any(counts) else 1.0
    assert Pair(*counts).p_value == pytest.approx(expected, rel=1e-9, abs=0)
    assert Pair(*counts).p_value == Pair(*reversed(counts)).p_value


@pytest.mark.parametrize("other", [[0, 1], [0, 1, 1]])
def test_other_images_are_refused(other):
    with pytest.raises(ValueError, match="saw different images"):
        compare(evaluation([0, 1, 0], [0, 1, 0]), evaluation(other, other))
