"""McNemar's exact test against SciPy's binomial test."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from timm_gcp.common.paired import Pair


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (7, 7), (0, 12), (213, 185), (3, 40), (2500, 2700), (0, 1100)])
def test_p_is_the_two_sided_binomial_test(counts):
    expected = binomtest(counts[0], sum(counts), 0.5).pvalue if any(counts) else 1.0
    assert Pair(*counts).p_value == pytest.approx(expected, rel=1e-9, abs=0)
    assert Pair(*counts).p_value == Pair(*reversed(counts)).p_value
