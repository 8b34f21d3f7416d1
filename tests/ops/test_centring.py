"""Centring, and the N − 1 columns that stand for N positions where that is the better shape."""

from __future__ import annotations

import pytest
import torch

from timm_gcp.functional import global_cov_pool
from timm_gcp.ops.centring import centre, fewer_columns, peak_scale, project, project_adjoint, recorded_peak_scale
from timm_gcp.ops.products import _fewer


def features(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def test_odd_square_maps_are_the_ones_with_fewer_columns():
    assert [n for n in range(230) if fewer_columns(n)][:6] == [9, 17, 25, 33, 41, 49]
    assert all(fewer_columns(side * side) for side in (3, 5, 7, 9, 11, 15))
    assert not any(fewer_columns(side * side) for side in (1, 2, 4, 8, 14, 28, 56))
    assert _fewer(features(1, 60, 49), gram=True)
    assert not _fewer(features(1, 60, 49), gram=False) and not _fewer(features(1, 60, 48), gram=True)


@pytest.mark.parametrize("positions", [2, 9, 49, 50, 81])
def test_projection_keeps_the_covariance(positions):
    x = features(3, 5, positions)
    reduced, centred = project(x), centre(x)
    assert reduced.shape == (3, 5, positions - 1)
    torch.testing.assert_close(reduced @ reduced.mT, centred @ centred.mT, rtol=1e-13, atol=1e-13)
    assert (project(torch.full((1, 4, positions), 0.1)) == 0).all()


def test_projection_is_the_reflection_it_says():
    n = 9
    ones = torch.full((n,), n**-0.5, dtype=torch.float64)
    v = ones - torch.eye(n, dtype=torch.float64)[0]
    reflection = torch.eye(n, dtype=torch.float64) - 2 * v[:, None] * v / (v @ v)
    x = features(2, 4, n)
    torch.testing.assert_close(project(x), (centre(x) @ reflection)[..., 1:], rtol=0, atol=1e-14)


@pytest.mark.parametrize("positions", [2, 9, 49])
def test_adjoint(positions):
    x, g = features(2, 3, positions), features(2, 3, positions - 1)
    back = project_adjoint(g, positions)
    torch.testing.assert_close((project(x) * g).sum(), (x * back).sum(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back.sum(-1), torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-13)


@pytest.mark.parametrize("fewer", [False, True])
def test_recorded_and_plain_scaling_agree(fewer):
    x = features(3, 6, 49, dtype=torch.float32) * 1e20 + 1e21
    x[1] = 7.0
    plain, peak = peak_scale(x, fewer)
    again, _ = peak_scale(x, fewer, peak)
    recorded, other = recorded_peak_scale(x.requires_grad_(), fewer)
    torch.testing.assert_close(plain * peak, recorded.detach() * other, rtol=1e-5, atol=1e15)
    assert torch.equal(plain, again) and peak[1] == 0 and (plain[1] == 0).all()
    assert plain[0].norm() ** 2 >= 0.5 and plain[0].abs().max() <= 2


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e6])
def test_pooling_in_fewer_columns_keeps_its_accuracy(offset):
    x = (features(2, 60, 49, dtype=torch.float32) + offset).requires_grad_()
    exact = x.detach().double().requires_grad_()
    value = global_cov_pool(x, form="products", side="gram")
    oracle = global_cov_pool(exact, form="compose", side="covariance")  # never in fewer columns
    cotangent = features(*value.shape)
    torch.testing.assert_close(value.double(), oracle, rtol=0, atol=3e-6 * oracle.abs().max().item())
    value.backward(cotangent.float())
    oracle.backward(cotangent)
    assert x.grad is not None and exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=0, atol=1e-5 * exact.grad.abs().max().item())


def test_nan_stays_in_its_sample():
    x = features(3, 60, 49, dtype=torch.float32)
    clean = global_cov_pool(x, form="products")
    x[1, 4, 0] = torch.nan  # the position that is subtracted from the others
    value = global_cov_pool(x, form="products")
    assert value[1].isnan().all() and torch.equal(value[[0, 2]], clean[[0, 2]])
