"""Samples without variance, extreme scales, NaN and Inf: each stays its own sample's affair."""

from __future__ import annotations

import pytest
import torch
from pooling_oracles import WAYS, features
from torch import Tensor

from timm_gcp.functional import NORMALIZATIONS, covariance, global_cov_pool, matrix_sqrt

DTYPES = [torch.float32, torch.float64]
# Every normalisation as dispatched, and every way to compute Newton–Schulz.
POOLS = [{"normalization": name} for name in NORMALIZATIONS] + [{"form": form, "side": side} for form, side in WAYS]
POOLS += [{"normalization": name, "side": side} for name in ("eigh", "power", "log") for side in ("covariance", "gram")]


def name_of(options: dict) -> str:
    return "-".join(options.values())


def pool(x: Tensor, options: dict, live: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """Value, and the gradient of a smooth loss of the samples `live` (all if None)."""
    x = x.detach().clone().requires_grad_()
    value = global_cov_pool(x, **options)
    chosen = value if live is None else value[live]
    weights = torch.linspace(-1, 1, value.shape[1], dtype=value.dtype)
    (grad,) = torch.autograd.grad((chosen * weights).sum(), x)
    return value.detach(), grad


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 6, 4, 4), (3, 9, 2, 2)])
def test_dead_sample_among_live_ones(options, dtype, shape):
    """An all-zero or constant map gives exact zeros, and the other samples get the same bits as without it."""
    x = features(*shape, dtype=dtype)
    constants = {"zero": 0.0, "constant": 3.3, "constant per channel": torch.randn(shape[1], 1, 1, dtype=dtype) * 7}
    expected, expected_grad = pool(x, options)
    for name, constant in constants.items():
        mixed = x.clone()
        mixed[1] = constant
        value, grad = pool(mixed, options)
        assert torch.count_nonzero(value[1]) == 0, name
        assert torch.count_nonzero(grad[1]) == 0, name
        for i in (0, 2):
            assert torch.equal(value[i], expected[i]), name
            assert torch.equal(grad[i], expected_grad[i]), name


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 3])
def test_nothing_but_dead_samples(options, dtype, batch):
    """1×1 maps (a single position has no variance), zero batches, and a batch of one."""
    for x in (
        features(batch, 6, 1, 1, dtype=dtype),
        features(batch, 6, 1, dtype=dtype),
        torch.zeros(batch, 6, 4, 4, dtype=dtype),
        features(batch, 6, 1, 1, dtype=dtype).expand(-1, -1, 5, 5),
    ):
        value, grad = pool(x, options)
        assert value.shape == (batch, 21)
        assert torch.count_nonzero(value) == 0
        assert torch.count_nonzero(grad) == 0


@pytest.mark.parametrize("options", POOLS, ids=name_of)
def test_empty_batch(options):
    """What a sampler's last shard may hold: no sample."""
    assert global_cov_pool(torch.zeros(0, 6, 4, 4), **options).shape == (0, 21)


@pytest.mark.parametrize("options", POOLS, ids=name_of)
def test_dead_channels_of_a_live_sample(options):
    """Dead ReLUs make rows of zeros: a singular covariance, finite in value and gradient."""
    x = features(2, 8, 5, 5, dtype=torch.float32)
    x[0, 2:6] = 0
    value, grad = pool(x, options)
    assert value.isfinite().all()
    assert grad.isfinite().all()
    assert torch.count_nonzero(value[0]) > 0


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-25, 1e15])
@pytest.mark.parametrize("shape", [(2, 6, 4, 4), (2, 9, 2, 2)])
def test_extreme_scales(options, dtype, scale, shape):
    """Finite value and gradient at 1e-25 and 1e+15, where squares leave float32's range."""
    x = features(*shape, dtype=dtype)
    value, grad = pool(x * scale, options)
    assert value.isfinite().all()
    assert grad.isfinite().all()
    if options.get("normalization", "newton_schulz") in ("newton_schulz", "eigh"):
        # square roots scale with the input and their gradient does not
        expected, expected_grad = pool(x, options)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(value / scale, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(grad, expected_grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("scale", [1e-25, 1e15])
def test_extreme_sample_beside_an_ordinary_one(options, scale):
    x = features(3, 6, 4, 4, dtype=torch.float32)
    expected, expected_grad = pool(x, options)
    mixed = x.clone()
    mixed[1] *= scale
    value, grad = pool(mixed, options)
    for i in (0, 2):
        assert torch.equal(value[i], expected[i])
        assert torch.equal(grad[i], expected_grad[i])


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("shape", [(3, 6, 4, 4), (3, 9, 2, 2)])
@pytest.mark.parametrize("position", [0, -1])
def test_nan_and_inf_stay_in_their_sample(options, bad, shape, position):
    """A bad number shows in its own sample's output and leaves the others' values and gradients as they were."""
    x = features(*shape, dtype=torch.float32)
    expected, expected_grad = pool(x, options, live=[0, 2])
    mixed = x.clone()
    mixed.flatten(2)[1, 2, position] = bad
    value, grad = pool(mixed, options, live=[0, 2])
    assert not value[1].isfinite().all()
    assert not global_cov_pool(mixed[1:2], **options).isfinite().all()
    for i in (0, 2):
        assert torch.equal(value[i], expected[i])
        assert torch.equal(grad[i], expected_grad[i])


@pytest.mark.parametrize("side", ["covariance", "gram"])
@pytest.mark.parametrize("normalization", ["newton_schulz", "eigh"])
def test_degenerate_samples_when_the_batch_is_split_over_threads(two_threads, normalization, side):
    """Large enough for eigendecompositions to run in parallel: dead, NaN and ordinary samples side by side."""
    options = {"normalization": normalization, "side": side}
    options |= {"form": "spectral"} if normalization == "newton_schulz" else {}
    x = features(16, 40, 6, 6, dtype=torch.float32)
    ordinary = [i for i in range(16) if i not in (3, 7, 15)]
    expected, expected_grad = pool(x, options, live=ordinary)
    mixed = x.clone()
    mixed[3], mixed[15] = 0, 5.5
    mixed[7, 2, 1, 1] = float("nan")
    value, grad = pool(mixed, options, live=ordinary)
    assert torch.get_num_threads() == 2
    assert torch.count_nonzero(value[[3, 15]]) == 0
    assert value[7].isnan().all()
    assert torch.equal(value[ordinary], expected[ordinary])
    assert torch.equal(grad[ordinary], expected_grad[ordinary])


@pytest.mark.parametrize("options", POOLS, ids=name_of)
def test_nan_reaches_the_gradient_of_its_sample_only(options):
    x = features(3, 6, 4, 4, dtype=torch.float32)
    _, expected = pool(x, options)
    x[1, 2, 1, 1] = float("nan")
    _, grad = pool(x, options)
    assert not grad[1].isfinite().all()
    assert torch.equal(grad[0], expected[0])
    assert torch.equal(grad[2], expected[2])


@pytest.mark.parametrize("side", ["covariance", "gram"])
def test_repeated_eigenvalues(side):
    """A multiple of the identity: every eigenvalue is the same; root, power and logarithm keep a finite gradient."""
    hadamard = torch.tensor([[1.0, 1], [1, -1]], dtype=torch.float64)
    rows = torch.kron(torch.kron(hadamard, hadamard), hadamard)[1:6]  # five orthogonal rows of mean zero, N = 8
    x = torch.stack([rows, 2 * rows])
    diagonal = torch.eye(5, dtype=torch.float64)[tuple(torch.triu_indices(5, 5))]
    for options, first in [
        ({"normalization": "eigh"}, 1.0),
        ({"normalization": "power", "exponent": 0.3}, 1.0),
        ({"normalization": "log"}, torch.log(torch.tensor(1.001 / 0.001, dtype=torch.float64))),
    ]:
        value, grad = pool(x, {**options, "side": side})
        torch.testing.assert_close(value[0], first * diagonal, rtol=0, atol=1e-12)
        assert grad.isfinite().all()
        function = lambda y, options=options: global_cov_pool(y, side=side, **options)  # noqa: E731
        assert torch.autograd.gradcheck(function, x.clone().requires_grad_(), atol=1e-7)


def test_convention_of_the_exact_root_at_zero():
    """Directions without variance get neither value nor gradient from themselves.

    Both channels of the second sample vary along one line: the covariance has rank one, and its root is the
    covariance over the root of its trace, smooth along the line.
    """
    line = torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None] * torch.tensor([-1.0, 0.5, 0.5], dtype=torch.float64)
    x = line[None].clone()
    value, grad = pool(x, {"normalization": "eigh", "side": "covariance"})
    sigma = covariance(x)[0]
    expected = (sigma / sigma.trace().sqrt())[tuple(torch.triu_indices(2, 2))]
    torch.testing.assert_close(value[0], expected, rtol=0, atol=1e-14)
    _, by_gram = pool(x, {"normalization": "eigh", "side": "gram"})
    torch.testing.assert_close(grad, by_gram, rtol=0, atol=1e-12)
    step = 1e-6 * line
    plus, _ = pool(x + step, {"normalization": "eigh"})
    minus, _ = pool(x - step, {"normalization": "eigh"})
    weights = torch.linspace(-1, 1, 3, dtype=torch.float64)
    slope = ((plus - minus) @ weights) / 2e-6
    torch.testing.assert_close((grad[0] * line).sum()[None], slope, rtol=1e-8, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_sqrt_of_zero_and_beside_it(dtype):
    a = covariance(features(3, 6, 20, dtype=dtype))
    mixed = a.clone()
    mixed[1] = 0
    for matrices in (a, mixed):
        matrices.requires_grad_()
    value, expected = matrix_sqrt(mixed), matrix_sqrt(a)
    (grad,) = torch.autograd.grad(value.square().sum(), mixed)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), a)
    assert torch.count_nonzero(value[1]) == 0
    assert torch.count_nonzero(grad[1]) == 0
    for i in (0, 2):
        assert torch.equal(value[i], expected[i])
        assert torch.equal(grad[i], expected_grad[i])


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_matrix_sqrt_scales(scale):
    a = covariance(features(2, 6, 20, dtype=torch.float32))
    scaled = (a * scale).requires_grad_()
    value = matrix_sqrt(scaled)
    torch.testing.assert_close(value / scale**0.5, matrix_sqrt(a), rtol=1e-5, atol=1e-6)
    (grad,) = torch.autograd.grad(value.sum(), scaled)
    assert grad.isfinite().all()


def test_matrix_sqrt_shows_nan_in_its_matrix_only():
    a = covariance(features(3, 6, 20, dtype=torch.float32))
    expected = matrix_sqrt(a)
    a[1, 2, 3] = float("nan")
    value = matrix_sqrt(a)
    assert not value[1].isfinite().all()
    assert torch.equal(value[0], expected[0])
    assert torch.equal(value[2], expected[2])
