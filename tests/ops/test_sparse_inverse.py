"""Sparse inverse covariance: the algorithm against numpy, the optimum that it approaches, degenerate features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pooling_oracles import covariance, features, triangle, value_and_grad

from timm_gcp.functional import global_cov_pool
from timm_gcp.ops import sparse_inverse
from timm_gcp.ops.sparse_inverse import Isice


def inverse(a: np.ndarray, n_iter: int, ridge: float) -> np.ndarray:
    """Z² of the coupled iteration as printed, Y and Z both carried."""
    a = a + ridge * np.eye(len(a))
    trace, identity = np.trace(a), np.eye(len(a))
    y, z = a / trace, identity
    for _ in range(n_iter):
        step = 0.5 * (3 * identity - z @ y)
        y, z = y @ step, step @ z
    return z @ z / trace


def oracle(sigma: np.ndarray, o: Isice) -> np.ndarray:
    c = sigma / np.trace(sigma)
    p = inverse(c, o.inverse_iter, o.ridge)
    for i in range(o.steps):
        eta = o.learning_rate * (1 - i / (o.steps - 1) if o.steps > 1 else 1)
        g = c - inverse(p, o.inverse_iter, o.ridge)
        up = np.maximum(np.maximum(p, 0) - eta * (g + o.sparsity), 0)
        down = np.maximum(np.maximum(-p, 0) - eta * (-g + o.sparsity), 0)
        p = up - down
        p = (p + p.T) / 2
    return p / np.sqrt(np.trace(p))


@pytest.mark.parametrize("shape", [(2, 6, 5, 5), (2, 9, 4)])
@pytest.mark.parametrize(
    "options",
    [{}, {"sparsity": 0.3, "learning_rate": 0.5, "steps": 3}, {"steps": 1, "inverse_iter": 3, "ridge": 0.01}],
)
def test_against_numpy(shape, options):
    x = features(*shape)
    wanted = triangle(np.stack([oracle(sigma, Isice(**options)) for sigma in covariance(x)]))
    found = global_cov_pool(x, "isice", pool_kwargs=options)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_many_steps_meet_the_optimality_conditions():
    """C − P⁻¹ = −λ sign(P) where P is not zero, |C − P⁻¹| ≤ λ where it is: the graphical lasso's solution."""
    x = features(1, 5, 400)
    x[0, 1] += 0.8 * x[0, 0]
    lam = 0.02
    options = {"sparsity": lam, "learning_rate": 3.0, "steps": 900, "inverse_iter": 12}
    found = global_cov_pool(x, "isice", pool_kwargs=options)[0]
    p = np.zeros((5, 5))
    p[np.triu_indices(5)] = found.numpy()
    p = p + np.triu(p, 1).T
    p *= np.trace(p)  # the result is P/√tr P
    sigma = covariance(x)[0]
    slope = sigma / np.trace(sigma) - np.linalg.inv(p)
    zero = p == 0
    assert 2 <= zero.sum() <= 18
    assert p[0, 1] != 0
    assert np.abs(slope[zero]).max() <= lam * (1 + 1e-6)
    np.testing.assert_allclose(slope[~zero], -lam * np.sign(p[~zero]), atol=1e-5)


def test_more_sparsity_gives_more_zeros():
    x = features(2, 8, 60)
    zeros = [int((global_cov_pool(x, "isice", pool_kwargs={"sparsity": s}) == 0).sum()) for s in (0.0, 0.05, 0.5)]
    assert zeros[0] < zeros[1] < zeros[2]


def test_the_scale_of_the_features_changes_nothing():
    x = features(2, 6, 9, dtype=torch.float32)
    for scale in (1e-25, 1e15):
        torch.testing.assert_close(global_cov_pool(x * scale, "isice"), global_cov_pool(x, "isice"))


def test_recomputed_steps_have_the_same_gradient(monkeypatch):
    x = features(2, 6, 9)
    value, grad = value_and_grad(lambda y: global_cov_pool(y, "isice"), x)
    monkeypatch.setattr(sparse_inverse, "_may_recompute", lambda x: False)
    kept, kept_grad = value_and_grad(lambda y: global_cov_pool(y, "isice"), x)
    torch.testing.assert_close(value, kept, rtol=0, atol=0)
    torch.testing.assert_close(grad, kept_grad, rtol=1e-12, atol=1e-12)


def test_autocast_and_half_types():
    x = features(2, 6, 9, dtype=torch.bfloat16)
    wanted = global_cov_pool(x.float(), "isice")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(global_cov_pool(x, "isice"), wanted)
    assert global_cov_pool(x, "isice").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sparsity": -0.1}, r"sparsity is -0\.1; give a number of at least 0 \(default: 0\.01\)"),
        ({"learning_rate": 0}, r"learning_rate is 0; give a number above 0 \(default: 1\)"),
        ({"ridge": math.nan}, r"ridge is nan; give a number of at least 0 \(default: 1e-09\)"),
        ({"steps": 0}, r"steps is 0; give a whole number from 1 to 1000 \(default: 5\)"),
        ({"inverse_iter": 2.5}, r"inverse_iter is 2\.5; give a whole number from 1 to 1000 \(default: 7\)"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        Isice(**options)
