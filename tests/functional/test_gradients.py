"""First and second derivatives against finite differences, in float64, with free input and on both sides."""

from __future__ import annotations

import pytest
import torch
from pooling_oracles import WAYS, features
from torch.autograd import gradcheck, gradgradcheck

from timm_gcp.functional import NORMALIZATIONS, covariance, global_cov_pool, matrix_sqrt
from timm_gcp.ops import products

# More positions than channels, and fewer: full rank, and singular always.
SHAPES = [(2, 4, 3, 2), (2, 5, 3)]
SMOOTH = ["newton_schulz", "none", "signed_sqrt_l2", "dropcov", "isice"]


def leaf(*shape: int):
    return features(*shape).requires_grad_()


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize(("form", "side"), WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_first_derivative(shape, form, side, n_iter):
    assert gradcheck(lambda x: global_cov_pool(x, n_iter=n_iter, form=form, side=side), leaf(*shape))


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize("dim", [5, 17])  # four residuals of 3×3 take more than the scaled features, and less
def test_first_derivative_of_a_batch_above_keep_all(dim, n_iter, monkeypatch):
    """There backward makes again what that of a smaller batch keeps."""
    monkeypatch.setattr(products, "KEEP_ALL", 0)
    assert gradcheck(lambda x: global_cov_pool(x, n_iter=n_iter, form="products", side="gram"), leaf(2, dim, 3))


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize(("form", "side"), WAYS)
@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 4, 3)])
def test_newton_schulz_second_derivative(shape, form, side, n_iter):
    assert gradgradcheck(lambda x: global_cov_pool(x, n_iter=n_iter, form=form, side=side), leaf(*shape))


@pytest.mark.parametrize("side", ["covariance", "gram"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {"normalization": "eigh"},
        {"normalization": "power", "exponent": 0.3},
        {"normalization": "power", "exponent": 1.0},
        {"normalization": "power", "exponent": 1.7},
        {"normalization": "log", "eps": 0.1},
        {"normalization": "none"},
        {"normalization": "signed_sqrt_l2"},
        {"normalization": "isice"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_other_normalizations_first_derivative(shape, options, side):
    assert gradcheck(lambda x: global_cov_pool(x, side=side, **options), leaf(*shape))


@pytest.mark.parametrize("normalization", ["none", "signed_sqrt_l2", "isice"])
def test_elementwise_normalizations_second_derivative(normalization):
    assert gradgradcheck(lambda x: global_cov_pool(x, normalization), leaf(1, 3, 4))


@pytest.mark.parametrize("side", ["covariance", "gram"])
@pytest.mark.parametrize("normalization", [name for name in NORMALIZATIONS if name not in SMOOTH])
def test_other_second_derivatives_are_refused(normalization, side):
    """Never silently wrong: the spectral normalisations say that they have none."""
    x = leaf(2, 4, 6)
    (grad,) = torch.autograd.grad(global_cov_pool(x, normalization, side=side).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivatives are implemented for normalization 'newton_schulz'"):
        grad.square().sum().backward()


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_second_derivative_of_a_dead_sample_is_zero(form, side):
    """A gradient penalty over a batch with a constant map: zeros there, the same bits elsewhere."""

    def second(x):
        x = x.clone().requires_grad_()
        value = global_cov_pool(x, form=form, side=side)
        weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view_as(value)
        (grad,) = torch.autograd.grad((value.square() + value * weights).sum(), x, create_graph=True)
        (grad * torch.linspace(-1, 1, grad.numel(), dtype=grad.dtype).view_as(grad)).sum().backward()
        return x.grad

    x = features(3, 4, 3, 3)
    expected = second(x)
    x[1] = 1.5
    found = second(x)
    assert torch.count_nonzero(found[1]) == 0
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("n_iter", [1, 2, 5])
def test_matrix_sqrt_of_a_free_matrix(n_iter):
    """The gradient is the iteration's for any square matrix, symmetric or not."""
    a = (covariance(features(2, 4, 9)) + 0.2 * features(2, 4, 4, seed=3)).requires_grad_()
    assert not torch.equal(a, a.mT)
    assert gradcheck(lambda m: matrix_sqrt(m, n_iter), a)
    assert gradgradcheck(lambda m: matrix_sqrt(m, n_iter), a[:1].detach().requires_grad_())


def test_covariance_derivatives():
    assert gradcheck(covariance, leaf(2, 4, 3, 2))
    assert gradgradcheck(covariance, leaf(1, 3, 4))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_gradient_adds_up(normalization):
    """Two uses of one input, and a loss that leaves a sample out, accumulate as everything in autograd does."""
    x = leaf(2, 4, 9)
    value = global_cov_pool(x, normalization)
    (once,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
    (twice,) = torch.autograd.grad((value + global_cov_pool(x, normalization)).sum(), x)
    torch.testing.assert_close(twice, 2 * once, rtol=0, atol=1e-12)
    (first_only,) = torch.autograd.grad(global_cov_pool(x, normalization)[0].sum(), x)
    torch.testing.assert_close(first_only[0], once[0], rtol=0, atol=1e-12)
    assert torch.count_nonzero(first_only[1]) == 0


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_forward_mode_is_right_or_refused(form, side):
    x, direction = features(2, 4, 6), features(2, 4, 6, seed=4)

    def pool(y):
        return global_cov_pool(y, form=form, side=side)

    try:
        _, tangent = torch.func.jvp(pool, (x,), (direction,))
    except (NotImplementedError, RuntimeError) as error:
        assert "jvp" in str(error)
        return
    step = 1e-6
    expected = (pool(x + step * direction) - pool(x - step * direction)) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_without_grad_nothing_is_kept(form, side):
    with torch.no_grad():
        assert global_cov_pool(leaf(2, 4, 9), form=form, side=side).grad_fn is None
    with torch.inference_mode():
        assert not global_cov_pool(features(2, 4, 9), form=form, side=side).requires_grad
