"""Independent oracles for the pooling tests: numpy, float64, written from the formulas and not from the package."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Every way of computing the Newton–Schulz pooling; all are the same function.
WAYS = [(form, side) for form in ("spectral", "products", "compose") for side in ("covariance", "gram")]


def features(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Gaussian features with a mean of its own per channel, so that forgetting to centre shows."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    offset = torch.randn(shape[0], shape[1], *[1] * (len(shape) - 2), generator=generator, dtype=torch.float64)
    return (noise + offset).to(dtype)


def covariance(x: Tensor) -> np.ndarray:
    """(1/N) Σ (xᵢ − x̄)(xᵢ − x̄)ᵀ, sample by sample."""
    flat = x.detach().double().flatten(2).numpy()
    return np.stack([np.cov(sample, bias=True).reshape(len(sample), len(sample)) for sample in flat])


def newton_schulz(a: np.ndarray, n_iter: int) -> np.ndarray:
    """The coupled iteration as the paper prints it: pre-normalise by the trace, iterate Y and Z, compensate."""
    results = []
    for matrix in a:
        trace, identity = np.trace(matrix), np.eye(len(matrix))
        y, z = matrix / trace, identity
        for _ in range(n_iter):
            step = 0.5 * (3 * identity - z @ y)
            y, z = y @ step, step @ z
        results.append(y * np.sqrt(trace))
    return np.stack(results)


def spectral_map(a: np.ndarray, function) -> np.ndarray:
    """`function` applied to the eigenvalues of symmetric matrices."""
    lam, u = np.linalg.eigh(a)
    return (u * function(np.clip(lam, 0, None))[..., None, :]) @ np.swapaxes(u, -1, -2)


def triangle(a: np.ndarray) -> Tensor:
    """Upper triangle, row by row."""
    rows, columns = np.triu_indices(a.shape[-1])
    return torch.from_numpy(a[..., rows, columns])


def value_and_grad(function, x: Tensor, cotangent: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Value, and the gradient of ⟨value, cotangent⟩ (random but fixed where not given)."""
    x = x.detach().clone().requires_grad_()
    value = function(x)
    if cotangent is None:
        generator = torch.Generator().manual_seed(1)
        cotangent = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    (grad,) = torch.autograd.grad(value, x, cotangent.to(value.dtype))
    return value.detach(), grad


def distance(a: Tensor, b: Tensor) -> float:
    """‖a − b‖ / ‖b‖."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())
