"""Values of the pooling functions against numpy, agreement of all ways to compute them, and every refusal."""

from __future__ import annotations

import numpy as np
import pooling_oracles as oracles
import pytest
import torch
from pooling_oracles import WAYS, distance, features, value_and_grad

from timm_gcp.functional import NORMALIZATIONS, covariance, global_cov_pool, matrix_sqrt, triu_vector
from timm_gcp.ops.choice import SPECTRAL_MIN_SIDE, SPECTRAL_MIN_SIDE_FORWARD, choose_form

SHAPES = [(2, 8, 3, 3), (2, 6, 5, 4), (3, 9, 9), (2, 12, 2, 2), (1, 1, 4), (2, 5, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_covariance_is_centred_and_divided_by_n(shape):
    x = features(*shape)
    np.testing.assert_allclose(covariance(x).numpy(), oracles.covariance(x), rtol=0, atol=1e-14)


@pytest.mark.parametrize("n_iter", [1, 2, 5, 9])
def test_matrix_sqrt_is_the_coupled_iteration(n_iter):
    a = oracles.covariance(features(2, 7, 20))
    torch.testing.assert_close(
        matrix_sqrt(torch.from_numpy(a), n_iter), torch.from_numpy(oracles.newton_schulz(a, n_iter)), rtol=0, atol=1e-12
    )


def test_matrix_sqrt_takes_any_batch_shape():
    a = covariance(features(6, 5, 9))
    expected = matrix_sqrt(a)
    torch.testing.assert_close(matrix_sqrt(a.view(2, 3, 5, 5)), expected.view(2, 3, 5, 5), rtol=0, atol=1e-14)
    torch.testing.assert_close(matrix_sqrt(a[0]), expected[0], rtol=0, atol=1e-14)


def test_triu_vector_is_row_major():
    a = torch.arange(16.0).view(1, 4, 4)
    assert triu_vector(a).tolist() == [[0, 1, 2, 3, 5, 6, 7, 10, 11, 15]]
    assert triu_vector(torch.zeros(3, 2, 7, 7)).shape == (3, 2, 28)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("form", "side"), WAYS)
@pytest.mark.parametrize("n_iter", [1, 2, 5])
def test_newton_schulz_pool(shape, form, side, n_iter):
    x = features(*shape)
    expected = oracles.triangle(oracles.newton_schulz(oracles.covariance(x), n_iter))
    torch.testing.assert_close(global_cov_pool(x, n_iter=n_iter, form=form, side=side), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 24, 3, 3), (2, 16, 4, 4), (2, 8, 6, 6)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_all_ways_agree_in_value_and_gradient(shape, dtype, tolerance):
    x = features(*shape, dtype=dtype)
    reference, reference_grad = value_and_grad(
        lambda y: global_cov_pool(y, form="compose", side="covariance"), x.double()
    )
    for form, side in [("auto", "auto"), *WAYS]:
        value, grad = value_and_grad(lambda y, form=form, side=side: global_cov_pool(y, form=form, side=side), x)
        assert value.dtype == grad.dtype == dtype
        assert distance(value, reference) < tolerance, (form, side)
        assert distance(grad, reference_grad) < tolerance, (form, side)


@pytest.mark.parametrize("size", [7, 14])
def test_both_sides_agree_at_the_size_of_the_networks(size):
    """The tolerance that the package promises, at D = 256 and the 7×7 and 14×14 maps of its models, in float32."""
    x = features(2, 256, size, size, dtype=torch.float32).relu()
    by_covariance = global_cov_pool(x, side="covariance")
    by_gram = global_cov_pool(x, side="gram")
    assert distance(by_gram, by_covariance) < 1e-5


@pytest.mark.parametrize("side", ["auto", "covariance", "gram"])
@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 9, 2, 2)])
@pytest.mark.parametrize(
    ("normalization", "options", "function"),
    [  # an eigenvalue of 1e-17 is a rounded zero, and its root is not
        ("eigh", {}, lambda lam: np.sqrt(np.where(lam > 1e-12, lam, 0))),
        ("power", {"exponent": 0.3}, lambda lam: np.where(lam > 1e-12, lam, 0) ** 0.3),
        ("power", {"exponent": 1.0}, lambda lam: lam),
        ("power", {"exponent": 1.7}, lambda lam: lam**1.7),
        ("log", {}, lambda lam: np.log(lam + 1e-3) - np.log(1e-3)),
        ("log", {"eps": 0.5}, lambda lam: np.log(lam + 0.5) - np.log(0.5)),
    ],
)
def test_spectral_normalizations(normalization, options, function, shape, side):
    x = features(*shape)
    expected = oracles.triangle(oracles.spectral_map(oracles.covariance(x), function))
    value = global_cov_pool(x, normalization, side=side, **options)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)


def test_eigh_squares_to_the_covariance():
    x = features(2, 6, 30)
    upper = torch.zeros(2, 6, 6, dtype=torch.float64)
    rows, columns = torch.triu_indices(6, 6)
    upper[:, rows, columns] = global_cov_pool(x, "eigh")
    root = upper + upper.triu(1).mT
    torch.testing.assert_close(root @ root, covariance(x), rtol=0, atol=1e-13)


def test_none_is_the_covariance_itself():
    x = features(2, 6, 5)
    torch.testing.assert_close(global_cov_pool(x, "none"), oracles.triangle(oracles.covariance(x)), rtol=0, atol=1e-14)


def test_signed_sqrt_l2_is_elementwise():
    x = features(2, 6, 5)
    vector = oracles.triangle(oracles.covariance(x)).numpy()
    signed = np.sign(vector) * np.sqrt(np.abs(vector))
    expected = signed / np.linalg.norm(signed, axis=1, keepdims=True)
    torch.testing.assert_close(global_cov_pool(x, "signed_sqrt_l2"), torch.from_numpy(expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("smaller", "training", "form"),
    [
        (SPECTRAL_MIN_SIDE - 1, True, "products"),
        (SPECTRAL_MIN_SIDE, True, "spectral"),
        (SPECTRAL_MIN_SIDE_FORWARD - 1, False, "products"),
        (SPECTRAL_MIN_SIDE_FORWARD, False, "spectral"),
    ],
)
def test_the_form_hangs_on_the_side_and_on_the_gradient(smaller, training, form):
    x = torch.empty(1, requires_grad=training)
    assert choose_form(x, smaller) == form
    with torch.no_grad():
        assert choose_form(x, smaller) == ("spectral" if smaller >= SPECTRAL_MIN_SIDE_FORWARD else "products")
    assert choose_form(x.to("meta"), smaller) == "products"


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_five_steps_are_not_the_root(form, side):
    """Five steps are the trained definition: 42% from the exact root at D = 256, N = 196; more steps come nearer."""
    x = features(1, 256, 14, 14)
    exact = global_cov_pool(x, "eigh")
    errors = {k: distance(global_cov_pool(x, n_iter=k, form=form, side=side), exact) for k in (5, 7, 9, 12, 16)}
    assert errors[5] == pytest.approx(0.42, abs=0.02)
    assert errors[5] > errors[7] > errors[9] > errors[12] > errors[16]
    assert errors[12] < 0.05
    assert errors[16] < 1e-3


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_invariances(normalization):
    """The order and a common offset of the positions do not matter; samples are independent."""
    x = features(3, 6, 4, 4)
    value = global_cov_pool(x, normalization)
    shuffled = x.flatten(2)[..., torch.randperm(16)].view_as(x)
    torch.testing.assert_close(global_cov_pool(shuffled, normalization), value, rtol=0, atol=1e-12)
    offset = features(3, 6, 1, 1, seed=5)
    torch.testing.assert_close(global_cov_pool(x + offset, normalization), value, rtol=0, atol=1e-12)
    for i in range(3):
        torch.testing.assert_close(global_cov_pool(x[i : i + 1], normalization)[0], value[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_any_strides(normalization, grad):
    """channels_last, transposed, sliced, expanded and stepped views give what their contiguous copies give."""
    base = features(4, 8, 6, 6)
    views = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(2, 3),
        "channels permuted with space": base.permute(0, 2, 1, 3),
        "sliced channels": base[:, 1::2],
        "sliced space": base[:, :, 1:4, ::2],
        "sliced batch": base[1::2],
        "flipped": base.flip(3)[:, :, 1:],
        "expanded batch": base[:1].expand(3, -1, -1, -1),
        "transposed rank 3": base.flatten(2).mT,
    }
    for name, view in views.items():
        copy = view.clone(memory_format=torch.contiguous_format)
        if grad:
            (value, found), (expected, wanted) = (
                value_and_grad_of_view(view, normalization),
                value_and_grad_of_view(copy, normalization),
            )
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12, msg=name)
        else:
            value, expected = global_cov_pool(view, normalization), global_cov_pool(copy, normalization)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12, msg=name)


def value_and_grad_of_view(view, normalization):
    x = view.detach().requires_grad_()
    value = global_cov_pool(x, normalization)
    weights = torch.linspace(-1, 1, value.numel(), dtype=value.dtype).view_as(value)
    (grad,) = torch.autograd.grad((value * weights).sum(), x)
    return value.detach(), grad


def test_the_input_is_left_alone():
    x = features(2, 4, 3, 3)
    before = x.clone()
    for normalization in NORMALIZATIONS:
        global_cov_pool(x, normalization)
    covariance(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("function", [covariance, global_cov_pool])
@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (torch.zeros(3, 4), ValueError, r"\(B, D, H, W\) or \(B, D, N\), got shape \(3, 4\)"),
        (torch.zeros(3, 4, 2, 2, 2), ValueError, r"got shape \(3, 4, 2, 2, 2\)"),
        (torch.zeros(3, 0, 2, 2), ValueError, r"at least one channel and one position, got shape \(3, 0, 2, 2\)"),
        (torch.zeros(3, 4, 0, 2), ValueError, r"at least one channel and one position, got shape \(3, 4, 0, 2\)"),
        (torch.zeros(3, 4, 2, 2, dtype=torch.int64), TypeError, r"got torch\.int64; convert"),
        (torch.zeros(3, 4, 2, 2, dtype=torch.bool), TypeError, r"got torch\.bool"),
        (torch.zeros(3, 4, 2, 2, dtype=torch.complex64), TypeError, r"got torch\.complex64"),
    ],
)
def test_bad_features(function, x, error, text):
    with pytest.raises(error, match=text) as caught:
        function(x)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("function", [matrix_sqrt, triu_vector])
@pytest.mark.parametrize("a", [torch.zeros(3), torch.zeros(2, 3, 4)])
def test_bad_matrices(function, a):
    with pytest.raises(ValueError, match=r"square matrices of shape \(\.\.\., D, D\), got shape"):
        function(a)


def test_matrix_sqrt_refuses_integers():
    with pytest.raises(TypeError, match=r"got torch\.int64; convert it with \.float\(\)"):
        matrix_sqrt(torch.eye(3, dtype=torch.int64))


@pytest.mark.parametrize("n_iter", [0, -1, 2.0, True, None])
def test_bad_number_of_steps(n_iter):
    with pytest.raises(ValueError, match=r"n_iter is .*at least 1"):
        global_cov_pool(torch.zeros(1, 2, 2), n_iter=n_iter)
    with pytest.raises(ValueError, match=r"n_iter is .*at least 1"):
        matrix_sqrt(torch.eye(3), n_iter)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"normalization": "svd"}, "normalization is 'svd'; choose one of 'newton_schulz', 'eigh', 'power', 'log'"),
        ({"exponent": 0.0}, r"exponent is 0\.0; give a number in \(0, 2\]"),
        ({"exponent": 2.5}, r"exponent is 2\.5"),
        ({"exponent": float("nan")}, "exponent is nan"),
        ({"eps": 0.0}, r"eps is 0\.0; give a positive number"),
        ({"eps": float("nan")}, "eps is nan"),
        ({"form": "fast"}, "form is 'fast'; choose one of 'auto', 'spectral', 'products', 'compose'"),
        ({"side": "left"}, "side is 'left'; choose one of 'auto', 'covariance', 'gram'"),
        ({"normalization": "eigh", "form": "products"}, "form is 'products'; choose one of 'auto', 'spectral'"),
        ({"normalization": "eigh", "side": "left"}, "side is 'left'"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(ValueError, match=text):
        global_cov_pool(torch.zeros(1, 3, 4), **options)
