"""Global covariance pooling as functions of tensors, without parameters.

`global_cov_pool` is the whole layer; `covariance`, `matrix_sqrt` and `triu_vector` are its steps, each usable alone.
`ScalarFunction` and `register_normalization` are for a normalisation of your own (docs/extend.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from timm_gcp.common.messages import check_choice
from timm_gcp.ops.centring import centre
from timm_gcp.ops.choice import FORMS, SIDES, choose_form, use_gram
from timm_gcp.ops.cross_covariance import CROSS_NORMALIZATIONS, cross_cov_pool
from timm_gcp.ops.direct import first_output
from timm_gcp.ops.dropcov import drop_channels
from timm_gcp.ops.features import as_positions
from timm_gcp.ops.low_precision import LOW_PRECISIONS
from timm_gcp.ops.newton_schulz import root
from timm_gcp.ops.normalization import (
    NORMALIZATIONS,
    Normalization,
    callable_pool,
    describe_normalization,
    register_normalization,
    resolve_normalization,
)
from timm_gcp.ops.onnx_refusal import in_onnx_export, no_onnx_form
from timm_gcp.ops.pool_options import pool_options
from timm_gcp.ops.precision import autocast_off, result_dtype, widen
from timm_gcp.ops.products import ProductPool, compose, product_value
from timm_gcp.ops.scalar_functions import Log1p, NewtonSchulz, Power, ScalarFunction
from timm_gcp.ops.signed_sqrt import signed_sqrt_l2
from timm_gcp.ops.sparse_inverse import sparse_inverse
from timm_gcp.ops.spectral import SpectralPool
from timm_gcp.ops.triangle import gather_triangle

__all__ = [
    "CROSS_NORMALIZATIONS",
    "NORMALIZATIONS",
    "Normalization",
    "ScalarFunction",
    "covariance",
    "cross_cov_pool",
    "global_cov_pool",
    "matrix_sqrt",
    "register_normalization",
    "triu_vector",
]


def _square(a: Tensor) -> Tensor:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"expected square matrices of shape (..., D, D), got shape {tuple(a.shape)}")
    return a


def check_steps(n_iter: int) -> None:
    """Raise ValueError unless `n_iter` is a whole number of at least 1."""
    if isinstance(n_iter, bool) or not isinstance(n_iter, int) or n_iter < 1:
        raise ValueError(f"n_iter is {n_iter!r}; give a whole number of Newton–Schulz steps, at least 1 (paper: 5)")


def covariance(x: Tensor) -> Tensor:
    """Sample covariance of Eq. (1): centred, divided by N.

    Args:
        x: Features `(B, D, H, W)` or `(B, D, N)`; half types are computed in float32.

    Returns:
        `(B, D, D)`, float32 or the wider type of `x`.

    Raises:
        ValueError: Another rank, or no channel or position.
        TypeError: Not a floating-point type.
    """
    with autocast_off(x.device):
        xc = centre(as_positions(x))
        return torch.bmm(xc, xc.mT) * (1.0 / xc.shape[-1])


def matrix_sqrt(a: Tensor, n_iter: int = 5) -> Tensor:
    """Matrix square root by `n_iter` trace-normalised Newton–Schulz steps (iSQRT-COV, Li et al. 2018).

    Five steps are what the paper's networks were trained with; at D = 256 the result is still far from the exact root
    of a rank-deficient covariance. The gradient is that of the iteration, for any square input.

    Args:
        a: `(..., D, D)`. A zero matrix gives zeros and a zero gradient.
        n_iter: Number of steps, at least 1.

    Returns:
        `(..., D, D)`, float32 or the wider type of `a`.

    Raises:
        ValueError: Not square, or `n_iter` below 1.
        TypeError: Not a floating-point type.
    """
    check_steps(n_iter)
    if not a.is_floating_point():
        raise TypeError(f"expected a floating-point matrix, got {a.dtype}; convert it with .float()")
    with autocast_off(a.device):
        flat = widen(_square(a)).reshape(-1, *a.shape[-2:])
        trace = flat.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
        dead = trace == 0
        safe = torch.where(dead, torch.ones_like(trace), trace)
        value = root(flat / safe, n_iter) * safe.sqrt()
        return torch.where(dead, torch.zeros_like(value), value).reshape(a.shape)


def triu_vector(a: Tensor) -> Tensor:
    """Upper triangle with the diagonal, row by row: `(..., D, D)` -> `(..., D(D+1)/2)`.

    Raises:
        ValueError: Not square.
    """
    return gather_triangle(_square(a))


def _scalar_function(normalization: str, n_iter: int, exponent: float, eps: float) -> ScalarFunction:
    if normalization == "newton_schulz":
        return NewtonSchulz(n_iter)
    if normalization == "eigh":
        return Power(0.5)
    return Power(exponent) if normalization == "power" else Log1p(eps)


def check_normalization(normalization: Normalization, n_iter: int, exponent: float, eps: float) -> None:
    """Raise ValueError for an unknown normalisation or a value that it can't take."""
    resolve_normalization(normalization)
    check_steps(n_iter)
    if not 0 < exponent <= 2:
        raise ValueError(f"exponent is {exponent!r}; give a number in (0, 2] (0.5 is the square root)")
    if not eps > 0:
        raise ValueError(f"eps is {eps!r}; give a positive number")


def check_iteration_dtype(name: str | None, normalization: Normalization) -> None:
    """Raise ValueError unless `iteration_dtype` is None, or one of `LOW_PRECISIONS` for Newton–Schulz."""
    if name is None:
        return
    check_choice("iteration_dtype", name, LOW_PRECISIONS)
    if normalization != "newton_schulz":
        described = describe_normalization(normalization)
        raise ValueError(f"iteration_dtype is for normalization 'newton_schulz'; {described} has no iteration")


def _signed_sqrt_l2_pool(x: Tensor) -> Tensor:
    xc = centre(x)
    peak = xc.detach().abs().amax(dim=(1, 2), keepdim=True)
    scaled = xc / torch.where(peak == 0, torch.ones_like(peak), peak)  # l2 normalisation removes the scale
    return signed_sqrt_l2(gather_triangle(torch.bmm(scaled, scaled.mT) * (1.0 / xc.shape[-1])))


def _covariance_pool(x: Tensor) -> Tensor:
    xc = centre(x)
    return gather_triangle(torch.bmm(xc, xc.mT) * (1.0 / xc.shape[-1]))


def _newton_schulz_pool(x: Tensor, n_iter: int, form: str, side: str, low: str | None) -> Tensor:
    dim, positions = x.shape[1], x.shape[2]
    gram = use_gram(dim, positions, side)
    if low is not None and form == "auto" and not torch.compiler.is_compiling():
        form = "products"
    form = choose_form(x, positions if gram else dim, form)
    if form == "compose":
        return compose(x, n_iter, gram, low)
    if form == "products":
        keeps = torch.is_grad_enabled() and x.requires_grad
        return first_output(ProductPool, x, n_iter, gram, low) if keeps else product_value(x, n_iter, gram, low)
    return first_output(SpectralPool, x, NewtonSchulz(n_iter), gram)


def _spectral_pool(x: Tensor, given: Normalization, function: ScalarFunction, form: str, side: str) -> Tensor:
    check_choice("form", form, ("auto", "spectral"))
    if in_onnx_export():
        raise no_onnx_form(
            f"normalization {describe_normalization(given)} is computed by an eigendecomposition",
            "export a model with 'newton_schulz', 'none', 'signed_sqrt_l2', 'dropcov' or 'isice'",
        )
    return first_output(SpectralPool, x, function, use_gram(x.shape[1], x.shape[2], side))


def global_cov_pool(
    x: Tensor,
    normalization: Normalization = "newton_schulz",
    n_iter: int = 5,
    *,
    exponent: float = 0.5,
    eps: float = 1e-3,
    form: str = "auto",
    side: str = "auto",
    iteration_dtype: str | None = None,
    pool_kwargs: Mapping[str, Any] | None = None,
) -> Tensor:
    """Global covariance pooling: covariance, normalisation, upper triangle.

    Args:
        x: Features `(B, D, H, W)` or `(B, D, N)`, any strides. Half types and autocast are computed in float32.
        normalization: `'newton_schulz'` (the paper's), `'eigh'` (exact square root, Eq. (2)), `'power'`
            (Σ to the `exponent`, MPN-COV), `'log'` (log(Σ + eps·I) − log(eps)·I, after DeepO2P; eigenvalues below
            1e-7 of the largest are noise in float32, so choose `eps` above that), `'none'` (the covariance itself,
            which overflows in float16), `'signed_sqrt_l2'` (element-wise, after B-CNN), `'dropcov'` (the covariance of
            features whose channels are dropped in training) or `'isice'` (sparse inverse covariance). Or your own: a
            `ScalarFunction` of the eigenvalues; a callable from covariances `(B, D, D)`, symmetric, float32 or float64,
            to symmetric or upper triangular matrices `(B, D, D)`, differentiated by autograd; or the name that either
            is registered under (`register_normalization`).
        n_iter: Newton–Schulz steps.
        exponent: Exponent of `'power'`, in (0, 2].
        eps: Regulariser of `'log'`, in the units of the covariance.
        form: `'auto'`, or `'spectral'`, `'products'`, `'compose'` to force how Newton–Schulz is computed.
        side: `'auto'` (the smaller; D×D in a program exported for a range of sizes that spans both), or
            `'covariance'` (D×D), `'gram'` (N×N); the same to `'none'`, `'signed_sqrt_l2'`, `'dropcov'` and `'isice'`,
            which work on the entries of the D×D matrix itself.
        iteration_dtype: Precision of the products inside Newton–Schulz, for hardware that multiplies bfloat16 faster:
            `'bfloat16'` rounds their factors to it; `'bfloat16x2'` splits each factor into two bfloat16 terms and sums
            three products in float32, the same gradient included. None computes them in the working precision.
            docs/performance.md has the errors.
        pool_kwargs: Options by name that one normalisation alone has: those of `timm_gcp.ops.dropcov.DropCov` for
            `'dropcov'` (`training`, `beta`, `generator`, `channel_filter`), those of
            `timm_gcp.ops.sparse_inverse.Isice` for `'isice'` (`sparsity`, `learning_rate`, `steps`, …).

    Returns:
        `(B, D(D+1)/2)` in row-major triangle order; float32 for half inputs under autocast, else of the type of `x`.
        A sample without variance over its positions gives zeros with zero gradient; NaN or Inf makes its own
        sample NaN and no other.

    Raises:
        ValueError: Wrong rank, unknown choice, or a number out of range; the message lists what is allowed. Or a
            callable that returns another shape.
        TypeError: Not a floating-point type, of the features or of what a callable returns.
        RuntimeError: `'eigh'`, `'power'`, `'log'` or a `ScalarFunction` in an ONNX export.
    """
    check_normalization(normalization, n_iter, exponent, eps)
    check_iteration_dtype(iteration_dtype, normalization)
    check_choice("form", form, FORMS)
    check_choice("side", side, SIDES)
    options = pool_options(normalization, pool_kwargs)
    out_dtype = result_dtype(x)
    with autocast_off(x.device):
        features = as_positions(x)
        found = resolve_normalization(normalization)
        if not isinstance(found, (str, ScalarFunction)):
            check_choice("form", form, ("auto",))
            value = callable_pool(features, found)
        elif isinstance(found, ScalarFunction):
            value = _spectral_pool(features, found, found, form, side)
        elif found == "newton_schulz":
            value = _newton_schulz_pool(features, n_iter, form, side, iteration_dtype)
        elif found == "none":
            value = _covariance_pool(features)
        elif found == "dropcov":
            value = _covariance_pool(drop_channels(features, options))
        elif found == "isice":
            value = sparse_inverse(features, options)
        elif found == "signed_sqrt_l2":
            value = _signed_sqrt_l2_pool(features)
        else:
            value = _spectral_pool(features, found, _scalar_function(found, n_iter, exponent, eps), form, side)
    return value.to(out_dtype)
