"""Adaptive channel dropout: the probability and the scaling against numpy, its random stream, degenerate features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pooling_oracles import covariance, features, triangle

from timm_gcp.functional import global_cov_pool
from timm_gcp.ops.dropcov import DropCov, drop_channels, drop_probability

FILTER = [0.3, -0.2, 0.5]


def importance(x: np.ndarray, weights: list[float] | None) -> np.ndarray:
    """Softmax over channels of the filtered channel means."""
    means = x.mean(-1)
    if weights is not None:
        means = np.stack([np.convolve(np.pad(row, 1), weights[::-1], "valid") for row in means])
    powers = np.exp(means)
    return powers / powers.sum(-1, keepdims=True)


def probability(x: np.ndarray, omega: np.ndarray, beta: float) -> float:
    """The cosine of importance and the row sums of the full D×D covariance, averaged over the batch."""
    cosines = []
    for sample, weight in zip(x, omega, strict=True):
        rows = np.cov(sample, bias=True).sum(1)
        cosines.append(rows @ weight / np.linalg.norm(rows) / np.linalg.norm(weight))
    return float(np.clip(1 - beta / math.log2(x.shape[1]) * np.mean(cosines), 0, 1))


@pytest.mark.parametrize("weights", [None, FILTER])
@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(4, 6, 20), (3, 12, 4)])
def test_against_numpy(weights, beta, shape):
    """Every channel is X(1 + ω)/(1 − ρ) or zero; the covariance is of that."""
    x = features(*shape).abs()
    tensor = None if weights is None else torch.tensor(weights)
    options = {"beta": beta, "channel_filter": tensor}
    torch.manual_seed(3)
    found = drop_channels(x, DropCov(training=True, **options))
    omega = importance(x.numpy(), None if weights is None else np.float32(weights).astype(float).tolist())
    larger = x.numpy() * (1 + omega[..., None])
    rho = probability(larger, omega, beta)
    torch.manual_seed(3)
    kept = torch.rand(shape[:2], dtype=x.dtype).numpy() < 1 - rho
    wanted = np.where(kept[..., None], larger / max(1 - rho, 1e-300), 0.0)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-14)
    torch.manual_seed(3)
    pooled = global_cov_pool(x, "dropcov", pool_kwargs={"training": True, **options})
    torch.testing.assert_close(pooled, triangle(covariance(torch.from_numpy(wanted))), rtol=1e-11, atol=1e-13)


def test_dropped_share_is_the_probability():
    x = features(400, 64, 9).abs()
    options = DropCov(beta=2.0, training=True)
    dropped = (drop_channels(x, options).abs().sum(-1) == 0).double().mean()
    omega = x.mean(-1).softmax(-1)
    rho = drop_probability(x * (1 + omega[..., None]), omega, 2.0)
    assert 0.05 < rho < 0.97
    assert abs(dropped - rho) < 0.01


def test_evaluation_is_the_plain_covariance():
    x = features(2, 6, 4, 4)
    assert torch.equal(global_cov_pool(x, "dropcov"), global_cov_pool(x, "none"))
    assert drop_channels(x.flatten(2), DropCov()) is not None


def test_seeds_reproduce():
    x = features(4, 32, 9)

    def pool(**options):
        return global_cov_pool(x, "dropcov", pool_kwargs={"training": True, "beta": 1.0, **options})

    torch.manual_seed(0)
    first, second = pool(), pool()
    torch.manual_seed(0)
    assert torch.equal(pool(), first)
    assert not torch.equal(second, first)
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    state = torch.get_rng_state()
    assert torch.equal(pool(generator=generators[0]), pool(generator=generators[1]))
    assert torch.equal(torch.get_rng_state(), state)


def test_gradient():
    """Through the kept channels and the importance; the probability is a constant."""
    x = features(2, 5, 6).requires_grad_()
    weights = torch.tensor(FILTER, dtype=torch.float64, requires_grad=True)

    def pool(y, w):
        options = {"training": True, "beta": 0.0, "channel_filter": w, "generator": torch.Generator().manual_seed(1)}
        return global_cov_pool(y, "dropcov", pool_kwargs={**options, "beta": 1e9})  # ρ is 0 whatever the features

    assert torch.autograd.gradcheck(pool, (x, weights))
    dropped = global_cov_pool(x, "dropcov", pool_kwargs={"training": True, "beta": 0.0})
    (grad,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.count_nonzero(dropped) == torch.count_nonzero(grad) == 0


@pytest.mark.parametrize("shape", [(2, 6, 1), (1, 1, 4), (0, 6, 4), (2, 12, 3)])
@pytest.mark.parametrize("value", [None, 0.0, 2.5])
def test_degenerate_features(shape, value):
    x = (features(*shape) if value is None else torch.full(shape, value, dtype=torch.float64)).requires_grad_()
    pooled = global_cov_pool(x, "dropcov", pool_kwargs={"training": True})
    pooled.sum().backward()
    assert pooled.isfinite().all()
    assert x.grad.isfinite().all()


def test_a_sample_that_is_not_finite_decides_nothing():
    x = features(3, 8, 9)
    omega = x.mean(-1).softmax(-1)
    wanted = drop_probability(x[:2], omega[:2], 1.0)
    x[2, 0, 0] = math.nan
    omega[2] = math.nan
    torch.testing.assert_close(drop_probability(x, omega, 1.0), wanted)


@pytest.mark.parametrize("scale", [1e-25, 1e15])
def test_the_cosine_has_no_scale(scale):
    x, omega = features(3, 8, 9, dtype=torch.float32), torch.rand(3, 8)
    torch.testing.assert_close(drop_probability(x * scale, omega, 1.0), drop_probability(x, omega, 1.0))


def test_autocast():
    x = features(2, 6, 9, dtype=torch.float32)
    options = {"training": True, "beta": 1.0}
    torch.manual_seed(0)
    wanted = global_cov_pool(x, "dropcov", pool_kwargs=options)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(global_cov_pool(x, "dropcov", pool_kwargs=options), wanted)


@pytest.mark.parametrize("beta", [-1, math.nan, math.inf, True, "10"])
def test_bad_beta(beta):
    with pytest.raises(ValueError, match=r"beta is .*; give a number of at least 0 \(the authors': 10\)"):
        DropCov(beta=beta)


@pytest.mark.parametrize("shape", [(2,), (3, 1), ()])
def test_bad_filter(shape):
    with pytest.raises(ValueError, match=r"channel_filter has shape .*; give an odd number of weights, \(k,\)"):
        DropCov(channel_filter=torch.zeros(shape))
