"""Singular-value power: the two ways to decompose agree, and a zero matrix has neither value nor gradient."""

from __future__ import annotations

import pytest
import torch
from pooling_oracles import features

from timm_gcp.ops.scalar_functions import Power
from timm_gcp.ops.singular_power import SingularPower, power_iteration


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0, 1.6])
def test_both_sides_agree(exponent):
    """The same product from few columns, and from those columns padded with zeros, which takes the other side."""
    x, y = (features(2, width, 3, seed=width).requires_grad_() for width in (6, 5))
    cotangent = features(2, 6, 5, seed=9)
    results = []
    for pad in (0, 9):
        wide = [torch.nn.functional.pad(m, (0, pad)) for m in (x, y)]
        value = SingularPower.apply(*wide, Power(exponent))[0]
        results.append((value, *torch.autograd.grad(value, (x, y), cotangent)))
    for few, many in zip(*results, strict=True):
        torch.testing.assert_close(few, many, rtol=1e-9, atol=1e-10)


def test_the_first_power_is_the_matrix():
    x, y = features(2, 6, 3), features(2, 5, 3, seed=1)
    torch.testing.assert_close(SingularPower.apply(x, y, Power(1.0))[0], x @ y.mT)


@pytest.mark.parametrize("columns", [2, 9])
def test_a_zero_matrix(columns):
    x = torch.zeros(2, 4, columns, dtype=torch.float64, requires_grad=True)
    value = SingularPower.apply(x, x, Power(0.5))[0]
    value.sum().backward()
    assert torch.count_nonzero(value) == torch.count_nonzero(x.grad) == 0
    q = torch.zeros(2, 4, 3, requires_grad=True)
    value = power_iteration(q, torch.ones(3), 0.5, 2, 2)
    value.sum().backward()
    assert torch.count_nonzero(value) == torch.count_nonzero(q.grad) == 0


def test_one_round_for_several_singular_values():
    """The second search does not start where the first left zero."""
    q = features(2, 6, 5)
    found = power_iteration(q, torch.ones(5, dtype=torch.float64), 0.5, 3, 1)
    assert found.isfinite().all()
    nudged = power_iteration(q * (1 + 1e-9), torch.ones(5, dtype=torch.float64), 0.5, 3, 1)
    torch.testing.assert_close(found, nudged, rtol=1e-6, atol=1e-6)
