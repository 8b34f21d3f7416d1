"""Scalar functions of your own from a value and a derivative: values, gradients, both sides, degenerate features."""

from __future__ import annotations

import numpy as np
import pooling_oracles as oracles
import pytest
import torch
from pooling_oracles import distance, features, value_and_grad
from saturate import Saturate
from torch.autograd import gradcheck

from timm_gcp.functional import ScalarFunction, global_cov_pool
from timm_gcp.ops.scalar_functions import CLOSE, Log1p, NewtonSchulz, Power

SHAPES = [(2, 4, 3, 2), (2, 5, 3)]
SIDES = ["covariance", "gram"]


class Root(ScalarFunction):
    """The square root, of trace one."""

    degree = 0.5

    def value(self, lam):
        return lam.sqrt()

    def derivative(self, lam):
        return 0.5 * lam.rsqrt()


class Entropy(ScalarFunction):
    """−λ log λ of trace one, times the trace squared: no homogeneous function."""

    degree = 2

    def value(self, lam):
        return -lam * lam.log()

    def derivative(self, lam):
        return -lam.log() - 1


OWN = [Root(), Saturate(), Saturate(0.01), Entropy()]


@pytest.mark.parametrize("side", ["auto", *SIDES])
@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 9, 2, 2)])
@pytest.mark.parametrize("fn", OWN, ids=repr)
def test_value(fn, shape, side):
    x = features(*shape)
    covariance = oracles.covariance(x)
    trace = np.trace(covariance, axis1=1, axis2=2)[:, None, None] if fn.degree is not None else 1.0

    def function(lam):
        live = lam > 1e-12
        return np.where(live, fn.value(torch.from_numpy(np.where(live, lam, 1.0))).numpy(), 0)

    wanted = oracles.spectral_map(covariance / trace, function) * trace ** (fn.degree or 0)
    torch.testing.assert_close(global_cov_pool(x, fn, side=side), oracles.triangle(wanted), rtol=0, atol=1e-10)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fn", OWN, ids=repr)
def test_first_derivative(fn, shape, side):
    assert gradcheck(lambda x: global_cov_pool(x, fn, side=side), features(*shape).requires_grad_())


@pytest.mark.parametrize("side", SIDES)
def test_as_the_one_that_comes_with_the_package(side):
    for shape in [(2, 24, 3, 3), (2, 8, 6, 6)]:
        for dtype, tolerance in [(torch.float32, 1e-4), (torch.float64, 1e-12)]:
            x = features(*shape, dtype=dtype)
            value, grad = value_and_grad(lambda y: global_cov_pool(y, Root(), side=side), x)
            wanted, wanted_grad = value_and_grad(lambda y: global_cov_pool(y, "eigh", side=side), x.double())
            assert value.dtype == dtype
            assert distance(value, wanted) < tolerance
            assert distance(grad, wanted_grad) < tolerance


@pytest.mark.parametrize("ratio", [1.0, 1 + 1e-12, 1 + 1e-6, 1.01, 1 + 0.9 * CLOSE, 1 + 1.1 * CLOSE, 4.0, 1e9])
@pytest.mark.parametrize("own", [Root()])
def test_divided_differences_at_every_distance(ratio, own):
    """Against closed forms in which nothing cancels: 1/(√a + √b), and that less 1/√b, over a."""
    lam = torch.tensor([[0.3, 0.3 / ratio]], dtype=torch.float64)
    a, b = lam[0, 0].sqrt(), lam[0, 1].sqrt()
    _, f_div = own.divided(lam)
    h, h_div = own.quotient_divided(lam)
    torch.testing.assert_close(f_div[0, 0, 1], 1 / (a + b), rtol=1e-13, atol=0)
    torch.testing.assert_close(h_div[0, 0, 1], -1 / (a * b * (a + b)), rtol=1e-12, atol=0)
    torch.testing.assert_close(h, lam.rsqrt(), rtol=1e-13, atol=0)
    assert torch.equal(f_div, f_div.mT)
    assert torch.equal(h_div, h_div.mT)


def test_vanishing_eigenvalues_count_as_zero():
    lam = torch.tensor([[2.0, 1e-9, 0.0, 0.01], [0.0, 0.0, 0.0, 0.0]])
    f, f_div = Root().divided(lam)
    h, h_div = Root().quotient_divided(lam)
    assert f[0].tolist() == pytest.approx([2**0.5, 0, 0, 0.1])
    assert f_div[0, 0].tolist() == pytest.approx([0.5 * 2**-0.5, 2**-0.5, 2**-0.5, 1 / (2**0.5 + 0.1)])
    assert f_div[0, 1].tolist() == pytest.approx([2**-0.5, 0, 0, 10])
    assert torch.count_nonzero(h_div[0, 1:3]) == 0
    for tensor in (f[1], f_div[1], h[1], h_div[1]):
        assert torch.count_nonzero(tensor) == 0


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fn", OWN, ids=repr)
def test_constant_and_broken_samples(fn, side):
    """Zeros without gradient, and NaN in its own sample only; rank one beside them."""
    x = features(4, 6, 3, 3, dtype=torch.float32)
    expected, wanted = value_and_grad(lambda y: global_cov_pool(y, fn, side=side), x)
    x[1], x[2, 0, 0, 0] = 1.5, torch.nan
    value, grad = value_and_grad(lambda y: global_cov_pool(y, fn, side=side), x)
    assert torch.count_nonzero(value[1]) == torch.count_nonzero(grad[1]) == 0
    assert value[2].isnan().any()
    for i in (0, 3):
        torch.testing.assert_close(value[i], expected[i])
        torch.testing.assert_close(grad[i], wanted[i])
    single = torch.zeros(1, 6, 3, 3)
    single[0, 2, 1, 1] = 3.0
    value, grad = value_and_grad(lambda y: global_cov_pool(y, fn, side=side), single)
    assert value.isfinite().all()
    assert grad.isfinite().all()


def test_trace_one_is_safe_from_underflow_and_overflow():
    """With a degree the eigenvalues are of trace one, whatever the scale of the features."""
    x = features(2, 6, 3, 3, dtype=torch.float32)
    expected = global_cov_pool(x, Root())
    for scale in (1e-15, 1e12):
        assert distance(global_cov_pool(x * scale, Root()) / scale, expected) < 1e-4


def test_second_derivative_is_refused():
    x = features(2, 4, 6).requires_grad_()
    (grad,) = torch.autograd.grad(global_cov_pool(x, Saturate()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivatives are .*; this layer uses Saturate\(c=0\.5\)"):
        grad.square().sum().backward()


@pytest.mark.parametrize("fn", [NewtonSchulz(5), Power(0.3), Log1p(0.1)], ids=repr)
def test_what_the_package_has_is_one_too(fn):
    """Its value is what the general rules make of it."""
    lam = torch.tensor([[0.6, 0.3, 0.1, 0.1]], dtype=torch.float64)
    assert isinstance(fn, ScalarFunction)
    torch.testing.assert_close(fn.divided(lam)[0], fn.value(lam))
    torch.testing.assert_close(fn.quotient(lam), fn.value(lam) / lam)


def test_without_a_derivative():
    class Bare(ScalarFunction):
        def value(self, lam):
            return lam

    with pytest.raises(NotImplementedError, match=r"Bare gives no derivative; define derivative\(lam\), or divided"):
        Bare().derivative(torch.ones(1, 3))
    with pytest.raises(TypeError, match="abstract"):
        ScalarFunction()


def test_printed_with_its_settings():
    assert repr(Saturate(0.01)) == "Saturate(c=0.01)"
    assert repr(Root()) == "Root()"
