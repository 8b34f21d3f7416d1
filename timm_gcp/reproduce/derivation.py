"""Appendix II: each step from Eq. (6) to Eq. (7), computed in float64 on random features. No data, no network."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from timm_gcp.common.files import write_text
from timm_gcp.reproduce.item import Column, Item, Row, Value
from timm_gcp.reproduce.jobs import Job, measure_job, shown
from timm_gcp.reproduce.setup import Setup
from timm_gcp.second_order.gradient import agreement, exact_gradient, preconditioner, trimmed_gradient

RESULT = "derivation.json"
POSITIONS, CHANNELS, SAMPLES = 49, 16, 8  # N, D and how many feature maps
FEW = 9  # positions of a covariance that is singular, N - 1 < D


def _random(positions: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features `(B, N, D)` and a gradient ∂L/∂Z `(B, D, D)`."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, positions, CHANNELS, dtype=torch.float64, generator=generator)
    return x, torch.randn(SAMPLES, CHANNELS, CHANNELS, dtype=torch.float64, generator=generator)


def root(x: Tensor) -> Tensor:
    """(XᵀJX)^½ of Eqs. (1) and (2), `(B, D, D)`, by the singular values of JX, which a rank below D leaves accurate.

    Differentiable where the singular values differ.
    """
    _, singular, right = torch.linalg.svd((x - x.mean(dim=1, keepdim=True)) / x.shape[1] ** 0.5, full_matrices=False)
    return right.mT @ torch.diag_embed(singular) @ right


def _relative(estimate: Tensor, truth: Tensor) -> float:
    return float((estimate - truth).norm() / truth.norm())


def against_autograd() -> float:
    """Eq. (6), as Appendix II derives it, against autograd through the root: relative difference."""
    x, grad_z = _random(POSITIONS, seed=0)
    leaf = x.clone().requires_grad_()
    (truth,) = torch.autograd.grad((root(leaf) * grad_z).sum(), leaf)
    return _relative(exact_gradient(x, grad_z), truth)


def against_differences() -> float:
    """Eq. (6) for a singular covariance against central differences along random directions: relative difference."""
    x, grad_z = _random(FEW, seed=1)
    direction, _ = _random(FEW, seed=2)
    step = 1e-5
    ends = [(root(x + sign * step * direction) * grad_z).sum(dim=(1, 2)) for sign in (1, -1)]
    truth = (ends[0] - ends[1]) / (2 * step)
    return _relative((exact_gradient(x, grad_z) * direction).sum(dim=(1, 2)), truth)


def at_equal_eigenvalues() -> float:
    """Eq. (7) against Eq. (6) where all eigenvalues are equal and ∂L/∂Z is symmetric: relative difference."""
    x, grad_z = _random(POSITIONS, seed=3)
    whitened, _ = torch.linalg.qr(x - x.mean(dim=1, keepdim=True))
    symmetric = grad_z + grad_z.mT
    return _relative(trimmed_gradient(whitened, symmetric), exact_gradient(whitened, symmetric))


def _cosine(basis: str) -> float:
    x, grad_z = _random(POSITIONS, seed=4)
    spread = torch.logspace(0, 1, CHANNELS, dtype=torch.float64)  # unequal eigenvalues, as real features have
    mixing, _ = torch.linalg.qr(_random(CHANNELS, seed=6)[0][0])  # whose eigenvectors are not the channels
    features, symmetric = x * spread @ mixing, grad_z + grad_z.mT
    estimate, truth = trimmed_gradient(features, symmetric, basis=basis), exact_gradient(features, symmetric)
    return agreement(estimate, truth)[0].mean().item()


def whitening() -> float:
    """F⁻¹ of Eq. (8) in the eigenbasis: largest over smallest singular value, less one."""
    singular = torch.linalg.svdvals(preconditioner(_random(POSITIONS, seed=5)[0], 1.0, basis="eigen"))
    return float((singular.max() / singular.min()) - 1)


CHECKS: dict[str, tuple[str, str, Callable[[], float]]] = {
    "autograd": ("Eq. (6) is the gradient of Z = (XᵀJX)^½", "relative difference from autograd", against_autograd),
    "singular": ("the same where N − 1 < D", "relative difference from central differences", against_differences),
    "equal": ("Eq. (7) is Eq. (6) where Λ is a multiple of I", "relative difference", at_equal_eigenvalues),
    "printed": ("Eq. (7) ≈ Eq. (6) as printed, eigenvalues 1 to 100", "cosine", lambda: _cosine("printed")),
    "eigen": ("Eq. (7) ≈ Eq. (6) in the eigenbasis, the same", "cosine", lambda: _cosine("eigen")),
    "whitens": ("F⁻¹ in the eigenbasis has equal singular values", "largest over smallest, less 1", whitening),
}


def _folder(setup: Setup) -> Path:
    return setup.output / "derivation" / "appendix2"


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    def measure() -> None:
        found = {name: check() for name, (_, _, check) in CHECKS.items()}
        write_text(_folder(setup) / RESULT, json.dumps(found, indent=1) + "\n")

    command = ("timm-gcp", "reproduce", "appendix2", "--output", shown(setup.output))
    settings = {"positions": [POSITIONS, FEW], "channels": CHANNELS, "samples": SAMPLES}
    return [measure_job(_folder(setup), command, settings, RESULT, measure)]


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    path = _folder(setup) / RESULT
    return (json.loads(path.read_text(encoding="utf-8"))[row.source] if path.is_file() else None,)


ITEMS = (
    Item(
        name="appendix2",
        title="Appendix II",
        what="derivation of Eqs. (6) and (7)",
        data=(),
        labels=("statement", "measured by"),
        columns=(Column("float64", ".2g", printed=False),),
        rows=tuple(Row((said, by), "any", "any", (), name) for name, (said, by, _) in CHECKS.items()),
        plan=_plan,
        measure=_measure,
        cost=lambda: "seconds, any machine",
        claim="Eq. (6) exactly, Eq. (7) with assumptions that the paper calls simplifications",
        here=lambda: "proven by tests, and by this command in a second: [derivation](optimization.md)",
        notes=("Features are random, 49 (or 9) positions of 16 channels. Eq. (7) is read with the literal mask.",),
    ),
)
