"""K-FAC factors against the Fisher matrix itself, and the spectrum measures by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from timm_gcp.second_order.kfac import (
    Factors,
    condition,
    conv_factors,
    flatness,
    inverse_spectrum,
    kronecker_spectrum,
    overlap,
)


def test_factors_give_the_fisher_matrix_of_one_sample_at_one_position():
    """There the weight's gradient is g·aᵀ, and its outer product is exactly G ⊗ A."""
    conv = nn.Conv2d(2, 4, 3, bias=False).double()
    images = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    output = conv(images)
    (weight_gradient, output_gradient) = torch.autograd.grad(output.tanh().sum(), [conv.weight, output])
    factors = conv_factors(conv, images, output_gradient)
    fisher = torch.outer(weight_gradient.flatten(), weight_gradient.flatten())
    torch.testing.assert_close(torch.kron(factors.outputs, factors.inputs), fisher)


def test_factors_of_a_batch_are_sums_over_positions_by_loop():
    conv = nn.Conv2d(3, 2, 3, stride=2, padding=1)
    images, gradients = torch.randn(4, 3, 6, 6), torch.randn(4, 2, 3, 3)
    factors = conv_factors(conv, images, gradients)
    padded = nn.functional.pad(images, [1] * 4)
    a, g = torch.zeros(27, 27), torch.zeros(2, 2)
    for b in range(4):
        for row in range(3):
            for column in range(3):
                patch = padded[b, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].flatten()
                a += torch.outer(patch, patch) / 4
                gradient = 4 * gradients[b, :, row, column]  # of the sample's own loss, not of the batch's mean
                g += torch.outer(gradient, gradient) / (4 * 9)
    torch.testing.assert_close(factors.inputs, a)
    torch.testing.assert_close(factors.outputs, g)


def test_kronecker_spectrum_is_that_of_the_inverse():
    a, g = (m @ m.T for m in (torch.randn(3, 3, dtype=torch.float64), torch.randn(2, 2, dtype=torch.float64)))
    damped = [m + 0.1 * m.trace() / len(m) * torch.eye(len(m), dtype=torch.float64) for m in (a, g)]
    expected = torch.linalg.eigvalsh(0.5 * torch.kron(*[torch.linalg.inv(m) for m in damped])).flip(0)
    torch.testing.assert_close(kronecker_spectrum(Factors(a, g), 0.5, damping=0.01), expected)


def test_inverse_spectrum_of_nothing_is_finite():
    assert torch.isfinite(inverse_spectrum(torch.zeros(3, 3), 1e-3)).all()


def test_condition_and_flatness():
    assert condition(torch.tensor([4.0, 2.0, 0.0])) == 2.0
    assert condition(torch.zeros(3)) == float("inf")
    assert flatness(torch.ones(5)) == pytest.approx(1.0)
    assert flatness(torch.tensor([0.0, 0, 3, 0])) == pytest.approx(0.25)
    assert flatness(torch.zeros(2)) == 0.0


def test_overlap_of_eigenspaces():
    first, second = torch.diag(torch.tensor([4.0, 3, 1, 0])), torch.diag(torch.tensor([4.0, 0, 3, 1]))
    assert overlap(first, first, 2) == pytest.approx(1.0)
    assert overlap(first, second, 2) == pytest.approx(0.5)


def test_bad_input_is_named():
    gradients = torch.ones(1, 2, 3, 3)
    with pytest.raises(ValueError, match="plain convolution: groups=1"):
        conv_factors(nn.Conv2d(2, 2, 1, groups=2), torch.ones(1, 2, 3, 3), gradients)
    with pytest.raises(ValueError, match="do not belong to Conv2d"):
        conv_factors(nn.Conv2d(2, 2, 1), torch.ones(1, 2, 4, 4), gradients)
    with pytest.raises(ValueError, match=r"damping must be positive.*got 0"):
        inverse_spectrum(torch.eye(2), 0)
    with pytest.raises(ValueError, match=r"1 <= count <= D; got .* and count=3"):
        overlap(torch.eye(2), torch.eye(2), 3)
