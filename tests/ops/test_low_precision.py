"""Products in bfloat16, of one term a factor and of two: errors against float64, gradients, compiled and exported."""

from __future__ import annotations

import pytest
import timm
import torch
from pooling_oracles import distance, value_and_grad
from torch import Tensor

from timm_gcp import GlobalCovPool2d, swap_pooling
from timm_gcp.functional import global_cov_pool
from timm_gcp.ops import low_precision
from timm_gcp.ops.low_precision import LOW_PRECISIONS, TwoTermProduct, low_product

BOUND = 2**-16  # of |a||b|, element by element: two factors off by 2⁻¹⁷ each, less what lₐ l_b adds at worst
SHAPES = {"gram": (96, 49), "covariance": (48, 100)}


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_singular_values(values: Tensor, dim: int, positions: int) -> Tensor:
    """Three samples of centred features with these singular values."""
    left = torch.linalg.qr(gaussian(3, dim, len(values)))[0]
    ones = torch.ones(3, positions, 1, dtype=torch.float64)
    right = torch.linalg.qr(torch.cat((ones, gaussian(3, positions, len(values), seed=1)), -1))[0][..., 1:]
    return (left * values) @ right.mT


SPECTRA = {
    "random": lambda dim, n: gaussian(3, dim, n),
    "relu": lambda dim, n: gaussian(3, dim, n).relu(),
    "rank 5": lambda dim, n: with_singular_values(torch.ones(5).double(), dim, n),
    "ill-conditioned": lambda dim, n: with_singular_values(torch.logspace(0, -4, 40).double(), dim, n),
    "one large": lambda dim, n: with_singular_values(torch.tensor([1000.0] + 39 * [1.0]).double(), dim, n),
    "all equal": lambda dim, n: with_singular_values(torch.ones(40).double(), dim, n),
}


def split_pool(x: Tensor) -> Tensor:
    return global_cov_pool(x, iteration_dtype="bfloat16x2")


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("side", SHAPES)
def test_error_of_pooling_and_gradient(spectrum, side):
    """Against float64: below 5e-5 by two terms, and at most a hundredth of the error that one term has."""
    x = SPECTRA[spectrum](*SHAPES[side])
    exact = value_and_grad(global_cov_pool, x)
    for form in ("auto", "compose"):
        errors = {}
        for low in LOW_PRECISIONS:
            found = value_and_grad(lambda y, f=form, p=low: global_cov_pool(y, form=f, iteration_dtype=p), x.float())
            errors[low] = [distance(a, b) for a, b in zip(found, exact, strict=True)]
        for one, two in zip(errors["bfloat16"], errors["bfloat16x2"], strict=True):
            assert two < 5e-5
            assert two < one / 100


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_error_by_steps(steps):
    x = gaussian(2, 64, 49)
    exact = value_and_grad(lambda y: global_cov_pool(y, n_iter=steps), x)
    found = value_and_grad(lambda y: global_cov_pool(y, n_iter=steps, iteration_dtype="bfloat16x2"), x.float())
    assert all(distance(a, b) < 1e-4 for a, b in zip(found, exact, strict=True))


def test_no_gradient_gives_the_same_value():
    x = gaussian(2, 40, 30).float()
    with torch.no_grad():
        value = split_pool(x)
    assert torch.equal(value, split_pool(x.requires_grad_()))


def test_error_of_one_product():
    a, b = gaussian(4, 30, 50), gaussian(4, 50, 20, seed=1)
    scale = 10.0 ** torch.arange(-6, 14).double()  # columns of very different size keep their own digits
    b = b * scale
    found = low_product(a.float(), b.float(), "bfloat16x2")
    assert found.dtype == torch.float32
    error = (found.double() - a @ b).abs() / (a.abs() @ b.abs())
    assert error.max() < BOUND
    plain = (low_product(a.float(), b.float(), "bfloat16").double() - a @ b).abs() / (a.abs() @ b.abs())
    assert plain.max() > 50 * error.max()


def test_product_is_the_three_products():
    """hₐh_b + hₐl_b + lₐh_b in float64, of terms rounded by torch's own conversion; lₐl_b is not in it."""
    a, b = gaussian(2, 20, 30).float(), gaussian(2, 30, 20, seed=1).float()
    (ha, la), (hb, lb) = (((h := x.bfloat16().double()), (x.double() - h).bfloat16().double()) for x in (a, b))
    wanted = ha @ hb + ha @ lb + la @ hb
    assert distance(low_product(a, b, "bfloat16x2"), wanted) < 3e-7
    assert distance(wanted + la @ lb, wanted) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_one_product(dtype):
    a, b, grad = gaussian(2, 20, 30), gaussian(2, 30, 10, seed=1), gaussian(2, 20, 10, seed=2)
    factors = [x.to(dtype).requires_grad_() for x in (a, b)]
    value = TwoTermProduct.apply(*factors)
    assert value.dtype == dtype
    found = torch.autograd.grad(value, factors, grad.to(dtype))
    for one, wanted in zip(found, (grad @ b.mT, a.mT @ grad), strict=True):
        assert one.dtype == dtype
        assert distance(one, wanted) < 2e-5
    (only,) = torch.autograd.grad(TwoTermProduct.apply(factors[0], b.to(dtype)), factors[0], grad.to(dtype))
    assert torch.equal(only, found[0])
    square = factors[0] @ factors[0].mT
    (found_square,) = torch.autograd.grad(low_product(square, square, "bfloat16x2").sum(), factors[0])
    wide = a.clone().requires_grad_()
    gram = wide @ wide.mT
    assert distance(found_square, torch.autograd.grad((gram @ gram).sum(), wide)[0]) < 2e-5


def test_backward_inside_autocast():
    x = gaussian(2, 24, 9).float()

    def compose(y: Tensor) -> Tensor:
        return global_cov_pool(y, form="compose", side="gram", iteration_dtype="bfloat16x2")

    factors = [gaussian(2, 6, 6, seed=i).float().requires_grad_() for i in range(2)]
    grads = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            grads.append(torch.autograd.grad(TwoTermProduct.apply(*factors), factors, torch.ones(2, 6, 6)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(compose(x), compose(x.clone()))


def test_rounding_by_bits(monkeypatch):
    """What compiled code does: the nearest bfloat16 number, also for infinities, NaN and tiny numbers."""
    x = torch.cat((gaussian(5000).float(), gaussian(500).float() * 1e-38, torch.tensor([torch.inf, -torch.inf, 0.0])))
    wanted = low_precision._nearest(x).float()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    found = low_precision._nearest(x)
    assert torch.equal(found, wanted)
    assert torch.equal(found, found.bfloat16().float())
    high, low = low_precision._two_terms(torch.tensor([torch.nan, 1.5]), torch.float32)
    assert (high + low).isnan().tolist() == [True, False]


def test_compiled():
    x = gaussian(2, 24, 9).float()
    torch.compiler.reset()
    exact = value_and_grad(global_cov_pool, x.double())
    compiled = torch.compile(split_pool, fullgraph=True, backend="aot_eager")
    assert all(distance(a, b) < 5e-5 for a, b in zip(value_and_grad(compiled, x), exact, strict=True))


def test_exported_and_vmapped():
    x = gaussian(3, 24, 9).float()
    pool = GlobalCovPool2d(24, None, iteration_dtype="bfloat16x2").eval()
    maps = x.unflatten(2, (3, 3))
    exported = torch.export.export(pool, (maps,)).module()
    assert distance(exported(maps), global_cov_pool(x.double())) < 5e-5

    def loss(y: Tensor) -> Tensor:
        return split_pool(y[None]).square().sum()

    wanted = torch.stack([torch.func.grad(loss)(y) for y in x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(x), wanted)


def test_products_of_cuda(monkeypatch):
    """bfloat16 factors and `out_dtype=float32` go to torch.bmm where it takes them."""
    x = gaussian(2, 24, 9).float()
    wanted = value_and_grad(split_pool, x)
    bmm = torch.bmm
    seen = []

    def as_on_cuda(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        if out_dtype is None:
            return bmm(a, b)
        seen.append((a.dtype, b.dtype, out_dtype))
        return bmm(a.float(), b.float())

    monkeypatch.setattr(torch, "bmm", as_on_cuda)
    monkeypatch.setattr(low_precision, "_sums_in_float32", lambda a: True)
    found = value_and_grad(split_pool, x)
    assert set(seen) == {(torch.bfloat16, torch.bfloat16, torch.float32)}
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda():
    x = gaussian(3, 96, 49)
    exact = value_and_grad(global_cov_pool, x)
    found = value_and_grad(split_pool, x.float().cuda())
    assert all(distance(a.cpu(), b) < 5e-5 for a, b in zip(found, exact, strict=True))


def test_broken_samples_stay_their_own():
    x = gaussian(4, 12, 9).float()
    wanted = value_and_grad(split_pool, x)
    x[1], x[2, 0, 0] = 1.5, torch.inf
    value, grad = value_and_grad(split_pool, x)
    assert torch.count_nonzero(value[1]) == torch.count_nonzero(grad[1]) == 0
    assert value[2].isnan().all()
    for i in (0, 3):
        assert torch.equal(value[i], wanted[0][i])
        assert torch.equal(grad[i], wanted[1][i])


def test_models_take_it():
    for model in (
        timm.create_model("shufflenet_v2_x1_0_gcp", reduce_dim=16, num_classes=3, iteration_dtype="bfloat16x2"),
        swap_pooling(timm.create_model("test_resnet", num_classes=3), 16, iteration_dtype="bfloat16x2"),
    ):
        pool = model.eval().global_pool
        maps = torch.randn(2, model.num_features, 4, 4)
        found = pool(maps)
        pool.iteration_dtype = None
        assert 0 < distance(found, pool(maps)) < 5e-5


@pytest.mark.parametrize("given", ["bfloat16x3", "float16", "", 16])
def test_bad_values(given):
    text = r"iteration_dtype is .*; choose one of 'bfloat16', 'bfloat16x2'"
    for use in (
        lambda: global_cov_pool(torch.zeros(1, 3, 4), iteration_dtype=given),
        lambda: GlobalCovPool2d(4, 2, iteration_dtype=given),
    ):
        with pytest.raises(ValueError, match=text):
            use()
    for low in LOW_PRECISIONS:
        with pytest.raises(ValueError, match="iteration_dtype is for normalization 'newton_schulz'; 'log' has no iter"):
            global_cov_pool(torch.zeros(1, 3, 4), "log", iteration_dtype=low)
