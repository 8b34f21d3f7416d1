"""Eqs. (6) to (8) against autograd, a linear solve and finite differences, on spectra of every kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from timm_gcp.functional import global_cov_pool, matrix_sqrt
from timm_gcp.second_order.gradient import (
    agreement,
    exact_gradient,
    from_triangle,
    mask_k,
    preconditioner,
    spectrum,
    trimmed_factor,
    trimmed_gradient,
)

torch.manual_seed(0)


def features(values: list[float], positions: int, seed: int = 0) -> torch.Tensor:
    """`(N, D)` features whose covariance has exactly the given eigenvalues, with a mean of their own."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, dtype=torch.float64, generator=generator)  # noqa: E731
    channels = len(values)
    scores = draw(positions, min(channels, positions - 1))
    left = torch.linalg.qr(scores - scores.mean(0)).Q
    right = torch.linalg.qr(draw(channels, channels)).Q[:, : left.shape[1]]
    roots = torch.tensor(values, dtype=torch.float64).sqrt()[: left.shape[1]]
    return positions**0.5 * left @ torch.diag(roots) @ right.T + draw(1, channels)


def free(channels: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(channels, channels, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def root_by_eigh(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(centred.mT @ centred / x.shape[-2])
    return vectors @ torch.diag_embed(values.clamp(min=0).sqrt()) @ vectors.mT


def by_autograd(root, x: torch.Tensor, grad_z: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad((root(x) * grad_z).sum(), x)[0]


def by_linear_solve(x: torch.Tensor, grad_z: torch.Tensor) -> torch.Tensor:
    """dZ·Z + Z·dZ = dΣ as one D²×D² system: knows nothing of eigenvectors."""
    z = root_by_eigh(x).numpy()
    eye = np.eye(len(z))
    system = np.kron(z, eye) + np.kron(eye, z)
    grad_sigma = np.linalg.solve(system, grad_z.numpy().ravel()).reshape(z.shape)
    centred = x - x.mean(0)
    return centred / len(x) @ torch.from_numpy(grad_sigma + grad_sigma.T)


DISTINCT = [3.0, 2.0, 1.3, 0.6, 0.1]
REPEATED = [2.0, 2.0, 2.0, 0.5, 0.5]


def test_equals_autograd_through_the_exact_root():
    x, grad_z = features(DISTINCT, 12), free(5)
    assert relative(exact_gradient(x, grad_z), by_autograd(root_by_eigh, x, grad_z)) < 1e-8


def test_batch_equals_its_samples():
    x = torch.stack([features(DISTINCT, 12, seed) for seed in range(3)])
    grad_z = torch.stack([free(5, seed) for seed in range(3)])
    for sample, one, grad in zip(exact_gradient(x, grad_z), x, grad_z, strict=True):
        assert relative(sample, exact_gradient(one, grad)) < 1e-12


@pytest.mark.parametrize("values", [DISTINCT, REPEATED, [1.0] * 5, [1.0, 1.0 + 1e-13, 1.0 - 1e-9, 0.2, 0.2 + 3e-7]])
def test_equals_the_linear_solve_for_distinct_repeated_and_almost_repeated_eigenvalues(values):
    x, grad_z = features(values, 12), free(5)
    assert relative(exact_gradient(x, grad_z), by_linear_solve(x, grad_z)) < 1e-8


def test_the_mask_alone_would_be_wrong_for_repeated_eigenvalues():
    """What the completed pairs are for: with K = 0 inside an eigenspace the gradient misses a part."""
    x, grad_z = features(REPEATED, 12), free(5)
    eigen = spectrum(x)
    u, k = eigen.vectors, mask_k(eigen.values, 1e-6)
    inner = k.mT * (u.mT @ (grad_z + grad_z.mT) @ u * eigen.roots) + torch.diag(
        0.5 * eigen.inverse_roots * (u.mT @ grad_z @ u).diagonal()
    )
    literal = u @ inner @ u.mT
    assert relative(eigen.jx @ (literal + literal.mT), by_linear_solve(x, grad_z)) > 0.1


def test_singular_covariance_of_few_positions_is_exact():
    """N − 1 < D: the root is X̂ᵀ(X̂X̂ᵀ)^(−½)X̂ in a basis of the centred space, smooth, and autograd can do it."""
    x, grad_z = features([3.0, 2.0, 1.0, 0, 0, 0, 0], 4), free(7)
    basis = torch.linalg.qr(torch.cat([torch.ones(4, 1), torch.eye(4)[:, :3]], dim=1).double()).Q[:, 1:]

    def root(x):
        y = basis.T @ x / len(x) ** 0.5
        values, vectors = torch.linalg.eigh(y @ y.T)
        return y.T @ vectors @ torch.diag(values.rsqrt()) @ vectors.T @ y

    torch.testing.assert_close(root(x), root_by_eigh(x), atol=1e-7, rtol=0)
    assert relative(exact_gradient(x, grad_z), by_autograd(root, x, grad_z)) < 1e-8


def test_zero_eigenvalues_below_full_rank_give_the_central_difference():
    """A dead direction although N > D: the root has a kink there, and its one-sided parts cancel."""
    x, grad_z = features([2.0, 1.0, 0.5, 0.0, 0.0], 12), free(5)
    step, direction = 1e-6, torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def root(x):  # by singular values: eigh would lose half of the digits of the small ones
        _, singular, right = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        return right.T @ torch.diag(singular) @ right / len(x) ** 0.5

    change = (root(x + step * direction) - root(x - step * direction)) / (2 * step)
    assert (exact_gradient(x, grad_z) * direction).sum().item() == pytest.approx((change * grad_z).sum().item(), 1e-5)


def test_constant_features_have_zero_gradient():
    assert torch.equal(exact_gradient(torch.ones(6, 3), torch.ones(3, 3)), torch.zeros(6, 3))


def test_the_layer_comes_to_it_as_its_iterations_grow():
    x, grad = features(DISTINCT, 12), torch.randn(15, dtype=torch.float64)
    truth = exact_gradient(x, from_triangle(grad, 5))
    errors = []
    for n_iter in (5, 10, 20, 30):
        maps = x.T.unsqueeze(0).clone().requires_grad_()
        (global_cov_pool(maps, n_iter=n_iter)[0] @ grad).backward()
        errors.append(relative(maps.grad[0].T, truth))
    assert errors[0] > errors[1] > errors[2] and errors[0] > 1e-3 and errors[-1] < 1e-8


def test_matrix_sqrt_comes_to_it_for_repeated_eigenvalues():
    x, grad_z = features(REPEATED, 12), free(5)
    maps = x.clone().requires_grad_()
    centred = maps - maps.mean(0)
    (matrix_sqrt(centred.mT @ centred / 12, n_iter=30) * grad_z).sum().backward()
    assert relative(maps.grad, exact_gradient(x, grad_z)) < 1e-8


def test_mask_by_hand():
    k = mask_k(torch.tensor([0.0, 1.0, 1.0, 3.0]))
    half, third = 1 / 2, 1 / 3
    expected = [[0, -1, -1, -third], [1, 0, 0, -half], [1, 0, 0, -half], [third, half, half, 0]]
    torch.testing.assert_close(k, torch.tensor(expected))


def test_trimmed_form_by_hand():
    """Two channels, diagonal covariance diag(1, 4): every factor can be written down."""
    x = torch.tensor([[1.0, 2], [1, -2], [-1, 2], [-1, -2]], dtype=torch.float64)
    eigen = spectrum(x)
    literal = torch.diag(torch.tensor([0.5, 0.25], dtype=torch.float64))
    torch.testing.assert_close(trimmed_factor(eigen), literal)
    # Kᵀ has 1/(λ₂ − λ₁) = 1/3 at (1, 2) and −1/3 at (2, 1); its columns are scaled by √λ = 1, 2 and doubled
    columns = literal + torch.tensor([[0, 4 / 3], [-2 / 3, 0]], dtype=torch.float64)
    torch.testing.assert_close(trimmed_factor(eigen, "columns"), columns)
    grad_z = torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64)
    torch.testing.assert_close(trimmed_gradient(x, grad_z), 2 * x / 4 @ literal @ grad_z)
    torch.testing.assert_close(preconditioner(x, 0.1, "columns"), 0.1 * 2 * x / 4 @ columns)


def test_trimmed_form_is_exact_where_its_assumptions_hold():
    """All eigenvalues equal and a symmetric gradient: everything commutes and K is zero."""
    x, grad_z = features([1.5] * 4, 9), free(4)
    grad_z = grad_z + grad_z.T
    torch.testing.assert_close(trimmed_gradient(x, grad_z), exact_gradient(x, grad_z))


@pytest.mark.parametrize("positions", [12, 4])
def test_preconditioner_whitens_in_the_eigenbasis(positions):
    x = features(DISTINCT, positions)
    singular = torch.linalg.svdvals(preconditioner(x, 0.3, basis="eigen"))
    rank = min(5, positions - 1)
    torch.testing.assert_close(singular[:rank], torch.full_like(singular[:rank], 0.3 / positions**0.5))
    assert (singular[rank:] < 1e-7).all()


def test_from_triangle_is_the_gradient_of_the_pooled_vector():
    torch.testing.assert_close(from_triangle(torch.arange(3.0), 2), torch.tensor([[0.0, 1], [0, 2]]))


def test_agreement():
    a = torch.tensor([[[3.0, 0]], [[0, 2]], [[1, 1]]])
    b = torch.tensor([[[1.5, 0]], [[2, 0]], [[0, 0]]])
    cosine, ratio = agreement(a, b)
    torch.testing.assert_close(cosine, torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(ratio, torch.tensor([2.0, 1, 0]))


def test_bad_input_is_named():
    x, grad_z = torch.randn(6, 3), torch.randn(3, 3)
    with pytest.raises(ValueError, match=r"float32 or float64 features \(\.\.\., N, D\)"):
        spectrum(torch.ones(3))
    with pytest.raises(ValueError, match=r"got torch.int64"):
        exact_gradient(torch.ones(3, 2, dtype=torch.int64), grad_z)
    with pytest.raises(ValueError, match=r"grad_z must be .*\(3, 3\).*from_triangle"):
        exact_gradient(x, torch.randn(6))
    with pytest.raises(ValueError, match=r"one of literal, columns; got 'full'"):
        trimmed_gradient(x, grad_z, mask="full")
    with pytest.raises(ValueError, match=r"one of printed, eigen; got 'own'"):
        preconditioner(x, 0.1, basis="own")
    with pytest.raises(ValueError, match=r"3 channels give vectors of 6; got 5"):
        from_triangle(torch.ones(5), 3)
