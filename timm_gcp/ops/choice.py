"""Which form computes a pooling, and on which side: the one place where that is decided."""

from __future__ import annotations

import torch
from torch import Tensor

FORMS = ("auto", "spectral", "products", "compose")
SIDES = ("auto", "covariance", "gram")

# Smallest side from which one LAPACK eigendecomposition is cheaper than the products of a forward and a backward pass,
# and than those of a forward alone (see docs/performance.md).
SPECTRAL_MIN_SIDE = 80
SPECTRAL_MIN_SIDE_FORWARD = 196

_torch_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def is_exporting() -> bool:
    """Whether `torch.export` is capturing the code (torch 2.7 and newer tell)."""
    return bool(_torch_is_exporting())


def use_gram(dim: int, positions: int, side: str = "auto") -> bool:
    """Whether to work on the N×N side: when asked to, or when it is the smaller one.

    A program exported with dynamic height and width has one side for all sizes: N×N if that is the smaller one over
    their whole range, else D×D. Asking whether `positions < dim` would restrict the range to one answer.
    """
    if side != "auto":
        return side == "gram"
    if is_exporting():
        from torch.fx.experimental.symbolic_shapes import statically_known_true  # imports sympy

        return bool(statically_known_true(positions < dim))
    return positions < dim


def choose_form(x: Tensor, smaller: int, form: str = "auto") -> str:
    """Form for `x` whose chosen side is `smaller` × `smaller`.

    Graph capture (export, ONNX, compile, tracing) takes plain differentiable operations. Eager CPU code takes the
    eigendecomposition where the side is at least `SPECTRAL_MIN_SIDE` or, without a gradient,
    `SPECTRAL_MIN_SIDE_FORWARD`; all else, GPUs included, takes batched products.
    """
    if form != "auto":
        return form
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "compose"
    wants_gradient = torch.is_grad_enabled() and x.requires_grad
    least = SPECTRAL_MIN_SIDE if wants_gradient else SPECTRAL_MIN_SIDE_FORWARD
    return "spectral" if x.device.type == "cpu" and smaller >= least else "products"
