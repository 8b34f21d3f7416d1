"""Half precision: computed in float32 whatever autocast says, and within 1e-2 of float32 at activations of 300."""

from __future__ import annotations

import pytest
import torch
from pooling_oracles import WAYS, distance, features, value_and_grad
from torch import Tensor

from timm_gcp.functional import NORMALIZATIONS, covariance, global_cov_pool, matrix_sqrt

HALF = [torch.float16, torch.bfloat16]
# The logarithm's eps is in the units of the covariance: for features of scale 300 it belongs above the rounding of
# their largest eigenvalue, about 1e6 · 6e-8, below which it would show the noise of directions without variance.
POOLS = [{"normalization": name, **({"eps": 1.0} if name == "log" else {})} for name in NORMALIZATIONS]
POOLS += [{"form": form, "side": side} for form, side in WAYS]


def name_of(options: dict) -> str:
    return "-".join(map(str, options.values()))


def activations(size: int = 7) -> Tensor:
    """ReLU outputs of scale 300: their squares, 90000, are beyond float16."""
    return 300 * features(2, 64, size, size, dtype=torch.float32).relu()


def under_autocast(x: Tensor, dtype: torch.dtype, options: dict) -> tuple[Tensor, Tensor]:
    """Forward inside the autocast region, backward outside, as PyTorch asks for."""

    def forward(y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return global_cov_pool(y, **options)

    return value_and_grad(forward, x)


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("size", [7, 10])
def test_autocast_is_float32(options, dtype, size):
    x = activations(size)
    expected, expected_grad = value_and_grad(lambda y: global_cov_pool(y, **options), x)
    value, grad = under_autocast(x, dtype, options)
    of_half, half_grad = under_autocast(x.to(dtype), dtype, options)
    assert torch.equal(value, expected)  # nothing of it in the half type
    assert torch.equal(grad, expected_grad)
    assert of_half.dtype == torch.float32
    assert distance(of_half, expected) < 1e-2
    assert half_grad.dtype == dtype
    if options.get("normalization") == "isice":  # an inverse magnifies the rounding of its input: compare at that input
        _, expected_grad = value_and_grad(lambda y: global_cov_pool(y, **options), x.to(dtype).float())
        assert distance(half_grad, expected_grad) < 5e-3
    elif options.get("normalization") != "signed_sqrt_l2":  # whose gradient is unbounded at covariances near zero
        assert distance(half_grad, expected_grad) < 5e-2


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "options",
    [{"normalization": "eigh"}, *({"form": form, "side": side} for form, side in WAYS if form != "compose")],
    ids=name_of,
)
def test_backward_inside_the_autocast_region(options, dtype):
    """PyTorch advises against it and plain operations lose precision there; the pooling's own gradients do not."""
    x = activations()
    _, expected = value_and_grad(lambda y: global_cov_pool(y, **options), x)
    with torch.autocast("cpu", dtype=dtype):
        _, grad = value_and_grad(lambda y: global_cov_pool(y, **options), x)
    assert torch.equal(grad, expected)


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize("dtype", HALF)
def test_half_input_gives_half_output(options, dtype):
    """The covariance itself ('none', 'dropcov') at this scale is more than float16 holds; bfloat16 carries it."""
    x = activations()
    value = global_cov_pool(x.to(dtype), **options)
    assert value.dtype == dtype
    if options.get("normalization") in ("none", "dropcov") and dtype == torch.float16:
        assert value.isinf().any()
    else:
        assert distance(value, global_cov_pool(x, **options)) < 1e-2


@pytest.mark.parametrize("dtype", HALF)
def test_covariance_of_half_features(dtype):
    x = activations()
    value = covariance(x.to(dtype))
    assert value.dtype == torch.float32
    assert value.abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(value, covariance(x.to(dtype).float()), rtol=0, atol=0)
    assert distance(value, covariance(x)) < 1e-2
    with torch.autocast("cpu", dtype=dtype):
        torch.testing.assert_close(covariance(x), covariance(x.double()).float(), rtol=1e-5, atol=1)


@pytest.mark.parametrize("dtype", HALF)
def test_matrix_sqrt_of_half_matrices(dtype):
    a = covariance(features(2, 16, 30, dtype=torch.float32))
    value = matrix_sqrt(a.to(dtype))
    assert value.dtype == torch.float32
    assert distance(value, matrix_sqrt(a)) < 1e-2
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(matrix_sqrt(a), matrix_sqrt(a.clone()))
        assert distance(matrix_sqrt(a), matrix_sqrt(a.double())) < 1e-6


def test_double_stays_double_under_autocast():
    x = features(2, 8, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = global_cov_pool(x)
    assert value.dtype == torch.float64
    assert torch.equal(value, global_cov_pool(x))


def test_float32_is_good_to_five_digits():
    """Against the same pooling in float64, with a common offset 1000 times the deviations."""
    x = features(2, 64, 14, 14)
    for offset in (0.0, 1000.0):
        shifted = (x + offset).float()
        for options in POOLS:
            found, grad = value_and_grad(lambda y, o=options: global_cov_pool(y, **o), shifted)
            wanted, wanted_grad = value_and_grad(lambda y, o=options: global_cov_pool(y, **o), shifted.double())
            assert distance(found, wanted) < 1e-5, (options, offset)
            if options.get("normalization") != "signed_sqrt_l2":
                assert distance(grad, wanted_grad) < 1e-4, (options, offset)
