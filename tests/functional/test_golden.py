"""Values and gradients of the reference's pooling layer, recorded by running the reference itself in float64.

Each case of `pooling_golden.npz` holds features `x`, the reference's output `vec`, an incoming gradient `gvec` and the
gradient `gx` that the reference returned for the features.

The reference centres by a matrix J = (I − 11ᵀ/N)/N whose two constants, −1/N/N and 1/N, it makes in float32 and only
then casts to the type of the features. Its output therefore differs from exact centring by about 1e-8, except where N
is a power of two and both constants are exact. Hence three comparisons: the iteration, the triangle and their gradients
with that rounded J (1e-10, all cases); the whole pooling with its exact centring against the file (1e-10 where N is a
power of two, 1e-7 elsewhere); and the whole pooling against the composition of steps with exact centring (1e-12).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pooling_oracles import WAYS, value_and_grad
from torch import Tensor

from timm_gcp.functional import global_cov_pool, matrix_sqrt, triu_vector

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "authors" / "pooling_golden.npz")
CASES = range(len(GOLDEN.files) // 4)


def case(index: int) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(GOLDEN[f"{name}{index}"]) for name in ("x", "vec", "gvec", "gx"))


def by_steps(x: Tensor, constants: torch.dtype) -> Tensor:
    """Pooling as the product X J Xᵀ, its square root and triangle, with J's two constants rounded to `constants`."""
    positions = x.shape[2] * x.shape[3]
    ones, identity = torch.ones(positions, positions, dtype=constants), torch.eye(positions, dtype=constants)
    centring = ((-1.0 / positions / positions) * ones + (1.0 / positions) * identity).to(x.dtype)
    flat = x.flatten(2)
    return triu_vector(matrix_sqrt(flat @ centring @ flat.mT))


def test_the_file_holds_five_cases():
    assert len(CASES) == 5
    assert any(is_exact(case(i)[0]) for i in CASES)


def is_exact(x: Tensor) -> bool:
    positions = x.shape[2] * x.shape[3]
    return positions & (positions - 1) == 0


@pytest.mark.parametrize("index", CASES)
def test_steps_with_the_rounded_centring(index):
    x, vec, gvec, gx = case(index)
    value, grad = value_and_grad(lambda y: by_steps(y, torch.float32), x, gvec)
    torch.testing.assert_close(value, vec, rtol=0, atol=1e-10)
    torch.testing.assert_close(grad, gx, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("form", "side"), [("auto", "auto"), *WAYS])
@pytest.mark.parametrize("index", CASES)
def test_pooling(index, form, side):
    x, vec, gvec, gx = case(index)
    value, grad = value_and_grad(lambda y: global_cov_pool(y, form=form, side=side), x, gvec)
    tolerance = 1e-10 if is_exact(x) else 1e-7
    torch.testing.assert_close(value, vec, rtol=0, atol=tolerance)
    torch.testing.assert_close(grad, gx, rtol=0, atol=tolerance)
    exact_value, exact_grad = value_and_grad(lambda y: by_steps(y, torch.float64), x, gvec)
    torch.testing.assert_close(value, exact_value, rtol=0, atol=1e-12)
    torch.testing.assert_close(grad, exact_grad, rtol=0, atol=1e-12)
