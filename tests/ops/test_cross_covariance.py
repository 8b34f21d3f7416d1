"""Cross-covariance of two maps: each normalisation against numpy, gradients, degenerate maps, refusals, captures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pooling_oracles import covariance, features, spectral_map

from timm_gcp.functional import CROSS_NORMALIZATIONS, cross_cov_pool, global_cov_pool

SHAPES = [(5, 4, 9), (4, 6, 3), (1, 3, 4)]  # C1, C2, N; in the second the N×N side is the smallest


def maps(c1: int, c2: int, n: int, dtype=torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return features(2, c1, n, dtype=dtype), features(2, c2, n, seed=1, dtype=dtype)


def cross(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """The off-diagonal block of the joint covariance."""
    joint = covariance(torch.cat((x, y), 1))
    return joint[:, : x.shape[1], x.shape[1] :]


def singular_power(q: np.ndarray, exponent: float) -> np.ndarray:
    u, s, vh = np.linalg.svd(q, full_matrices=False)
    s = np.where(s > 1e-12 * s.max(-1, keepdims=True), s, 0)
    return (u * s[:, None, :] ** exponent) @ vh


@pytest.mark.parametrize("shape", SHAPES)
def test_against_numpy(shape):
    x, y = maps(*shape)
    q = cross(x, y)

    def equals(wanted, *args, **kwargs):
        found = cross_cov_pool(x, y, *args, **kwargs)
        torch.testing.assert_close(found, torch.from_numpy(wanted).flatten(1), rtol=1e-10, atol=1e-12)

    equals(q, "none")
    equals(singular_power(q, 0.5))
    equals(singular_power(q, 0.3), "svd", exponent=0.3)
    root = np.sign(q) * np.sqrt(np.abs(q))
    equals(root / np.linalg.norm(root, axis=(1, 2), keepdims=True), "signed_sqrt_l2")
    equals(q / np.linalg.norm(q, 2, axis=(1, 2))[:, None, None] ** 0.7, "power_iteration", exponent=0.3, n_iter=300)


def test_power_iteration_finds_leading_singular_values():
    """Two by power iteration, the rest scaled by the second: SoT's formula from numpy's decomposition."""
    x, y = maps(6, 5, 40)
    q = cross(x, y)
    u, s, vh = np.linalg.svd(q, full_matrices=False)
    scaled = np.concatenate((s[:, :1] ** 0.5, s[:, 1:] / s[:, 1:2] ** 0.5), 1)
    wanted = torch.from_numpy((u * scaled[:, None]) @ vh).flatten(1)
    found = cross_cov_pool(x, y, "power_iteration", singular_values=2, n_iter=1000)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    every = cross_cov_pool(x, y, "power_iteration", singular_values=5, n_iter=1000)
    torch.testing.assert_close(every, cross_cov_pool(x, y), rtol=1e-6, atol=1e-8)


def test_start_of_the_power_iteration():
    x, y = maps(4, 3, 9)
    start = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    q = cross(x, y)
    u = q @ start.numpy()
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    size = np.linalg.norm(np.einsum("bij,bi->bj", q, u), axis=1)
    wanted = torch.from_numpy(q / np.sqrt(size)[:, None, None]).flatten(1)
    torch.testing.assert_close(cross_cov_pool(x, y, "power_iteration", start=start), wanted)


@pytest.mark.parametrize("size", [9, 3])
def test_two_equal_maps_give_the_covariance(size):
    x = features(2, 4, size)
    root = spectral_map(covariance(x), np.sqrt)
    torch.testing.assert_close(cross_cov_pool(x, x), torch.from_numpy(root).flatten(1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient(shape, normalization):
    x, y = (m.requires_grad_() for m in maps(*shape))
    options = {"exponent": 0.4, "singular_values": 2, "n_iter": 2}
    assert torch.autograd.gradcheck(lambda a, b: cross_cov_pool(a, b, normalization, **options), (x, y))


def test_gradient_at_equal_singular_values():
    """Two maps of orthonormal rows: all singular values are one."""
    rows = torch.linalg.qr(torch.cat((torch.ones(9, 1), features(1, 9, 3)[0].float()), 1).double())[0].T[1:]
    x = rows[None].clone().requires_grad_()
    y = rows[None].clone().requires_grad_()
    assert torch.autograd.gradcheck(cross_cov_pool, (x, y))


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
@pytest.mark.parametrize("bad", [0.0, 3.3, math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_dead_and_broken_samples(normalization, bad, side):
    """A constant map gives zeros without a gradient, NaN and Inf give NaN; the other samples keep their bits."""
    pair = [features(3, 4, 6), features(3, 5, 6, seed=1)]
    wanted = cross_cov_pool(*pair, normalization)
    if math.isfinite(bad):
        pair[side][1] = bad
    else:
        pair[side][1, 0, -1] = bad
    x, y = (m.requires_grad_() for m in pair)
    found = cross_cov_pool(x, y, normalization)
    for i in (0, 2):
        assert torch.equal(found[i], wanted[i])
    if math.isfinite(bad):
        assert torch.count_nonzero(found[1]) == 0
        found[1].sum().backward()
        if normalization != "none":
            assert torch.count_nonzero(x.grad) == torch.count_nonzero(y.grad) == 0
    else:
        assert found[1].isnan().any()
        found[0].sum().backward()
        assert x.grad[0].isfinite().all()


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
def test_one_position_and_no_sample(normalization):
    assert torch.count_nonzero(cross_cov_pool(*maps(4, 3, 1), normalization)) == 0
    assert cross_cov_pool(torch.zeros(0, 4, 2, 2), torch.zeros(0, 3, 2, 2), normalization).shape == (0, 12)


@pytest.mark.parametrize("normalization", ["svd", "power_iteration", "signed_sqrt_l2"])
def test_extreme_scales(normalization):
    x, y = maps(4, 3, 9, torch.float32)
    power = 0.0 if normalization == "signed_sqrt_l2" else 0.5
    wanted = cross_cov_pool(x, y, normalization)
    found = cross_cov_pool(x * 1e-25, y * 1e15, normalization)
    torch.testing.assert_close(found * (1e-25**-power * 1e15**-power), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
def test_types(normalization):
    x, y = maps(4, 3, 9, torch.float32)
    wanted = cross_cov_pool(x, y, normalization)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(cross_cov_pool(x, y, normalization), wanted)
    assert cross_cov_pool(x.bfloat16(), y.bfloat16(), normalization).dtype == torch.bfloat16
    assert cross_cov_pool(x, y.double(), normalization).dtype == torch.float64
    assert torch.equal(cross_cov_pool(x.view(2, 4, 3, 3), y.view(2, 3, 3, 3), normalization), wanted)


@pytest.mark.parametrize("normalization", CROSS_NORMALIZATIONS)
def test_compile_and_export(normalization):
    def pool(x, y):
        return cross_cov_pool(x, y, normalization)

    x, y = (m.requires_grad_() for m in maps(4, 3, 9))
    wanted = torch.autograd.grad(pool(x, y).square().sum(), (x, y))
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    for a, b in zip(torch.autograd.grad(compiled(x, y).square().sum(), (x, y)), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_second_derivatives_of_the_exact_power_are_refused():
    x, y = (m.requires_grad_() for m in maps(4, 3, 9))
    (grad,) = torch.autograd.grad(cross_cov_pool(x, y).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("shapes", "options", "error", "text"),
    [
        (((2, 4, 9), (2, 3, 8)), {}, ValueError, r"shapes \(2, 4, 9\) and \(2, 3, 8\); their batch and positions"),
        (((2, 4, 9), (3, 3, 9)), {}, ValueError, "their batch and positions must be the same"),
        (((2, 4, 3, 3), (2, 3, 9)), {}, ValueError, "their batch and positions must be the same"),
        (((2, 4), (2, 3)), {}, ValueError, r"expected features of shape \(B, D, H, W\)"),
        (((2, 4, 9), (2, 3, 9)), {"normalization": "eigh"}, ValueError, "normalization is 'eigh'; choose one of 'svd'"),
        (((2, 4, 9), (2, 3, 9)), {"exponent": 0}, ValueError, r"exponent is 0; give a number in \(0, 2\]"),
        (((2, 4, 9), (2, 3, 9)), {"n_iter": 0}, ValueError, "n_iter is 0; give a whole number from 1 to 1000"),
        (((2, 4, 9), (2, 3, 9)), {"singular_values": 1.5}, ValueError, "singular_values is 1.5; give a whole number"),
        (((2, 4, 9), (2, 3, 9)), {"start": torch.ones(4)}, ValueError, r"start has shape \(4,\); .* the 3 channels"),
    ],
)
def test_bad_input(shapes, options, error, text):
    with pytest.raises(error, match=text):
        cross_cov_pool(*(torch.zeros(shape) for shape in shapes), **options)


def test_other_bad_input():
    with pytest.raises(TypeError, match=r"expected floating-point features, got torch\.int64"):
        cross_cov_pool(torch.zeros(2, 4, 9, dtype=torch.int64), torch.zeros(2, 3, 9))
    with pytest.raises(ValueError, match="the two maps are on cpu and meta; move one"):
        cross_cov_pool(torch.zeros(2, 4, 9), torch.zeros(2, 3, 9, device="meta"))
    assert global_cov_pool(torch.zeros(2, 4, 9)).shape == (2, 10)
