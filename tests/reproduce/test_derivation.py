"""Appendix II: which steps are exact and which are not; and that the checks can fail."""

from __future__ import annotations

import pytest
import torch

from timm_gcp.reproduce import derivation
from timm_gcp.reproduce.derivation import CHECKS, root


def test_exact_steps_are_exact_and_the_trimmed_ones_are_not():
    found = {name: check() for name, (_, _, check) in CHECKS.items()}
    for name in ("autograd", "singular", "equal", "whitens"):
        assert found[name] < 1e-8, name
    assert found["printed"] < found["eigen"] < 0.99


def test_the_root_is_a_root():
    x, _ = derivation._random(9, 0)
    centred = x - x.mean(dim=1, keepdim=True)
    torch.testing.assert_close(root(x) @ root(x), centred.mT @ centred / 9)


def test_a_wrong_formula_is_seen(monkeypatch):
    exact = derivation.exact_gradient
    monkeypatch.setattr(derivation, "exact_gradient", lambda x, grad_z: 1.01 * exact(x, grad_z))
    assert derivation.against_autograd() == pytest.approx(0.01)
    assert derivation.against_differences() == pytest.approx(0.01, rel=1e-3)
    assert derivation.at_equal_eigenvalues() > 0.009
