"""Cross-covariance of two feature maps, normalised and as a vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from timm_gcp.common.messages import check_choice
from timm_gcp.ops.centring import centre, recorded_peak_scale
from timm_gcp.ops.features import as_positions
from timm_gcp.ops.onnx_refusal import in_onnx_export, no_onnx_form
from timm_gcp.ops.precision import autocast_off, result_dtype
from timm_gcp.ops.scalar_functions import Power
from timm_gcp.ops.signed_sqrt import signed_sqrt_l2
from timm_gcp.ops.singular_power import SingularPower, power_iteration

CROSS_NORMALIZATIONS = ("svd", "power_iteration", "none", "signed_sqrt_l2")


def check_cross(normalization: str, exponent: float, singular_values: int, n_iter: int) -> None:
    """Check the settings of `cross_cov_pool`.

    Raises:
        ValueError: An unknown normalisation, or a number out of range.
    """
    check_choice("normalization", normalization, CROSS_NORMALIZATIONS)
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)) or not 0 < exponent <= 2:
        raise ValueError(f"exponent is {exponent!r}; give a number in (0, 2] (0.5 is the square root)")
    for name, value in (("singular_values", singular_values), ("n_iter", n_iter)):
        if type(value) is not int or not 1 <= value <= 1000:
            raise ValueError(f"{name} is {value!r}; give a whole number from 1 to 1000 (SoT: 1)")


def _pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both maps as `(B, C1, N)` and `(B, C2, N)`, of one type."""
    left, right = as_positions(x), as_positions(y)
    if x.shape[0] != y.shape[0] or x.shape[2:] != y.shape[2:]:
        raise ValueError(
            f"the two maps have shapes {tuple(x.shape)} and {tuple(y.shape)}; their batch and positions must be the "
            "same (resize one with torch.nn.functional.interpolate)"
        )
    if x.device != y.device:
        raise ValueError(f"the two maps are on {x.device} and {y.device}; move one with .to()")
    wide = torch.promote_types(left.dtype, right.dtype)
    return left.to(wide), right.to(wide)


def cross_cov_pool(
    x: Tensor,
    y: Tensor,
    normalization: str = "svd",
    *,
    exponent: float = 0.5,
    singular_values: int = 1,
    n_iter: int = 1,
    start: Tensor | None = None,
) -> Tensor:
    """Global cross-covariance pooling: Q = (1/N) Σ (xᵢ − x̄)(yᵢ − ȳ)ᵀ, its normalisation, all entries as a vector.

    Of two maps that are the same, `'svd'` at 0.5 gives the exact root of the covariance, here with both triangles. A
    map without variance over its positions gives zeros with zero gradient; NaN or Inf makes its own sample NaN and no
    other. Half types and autocast are computed in float32.

    `'svd'` decomposes the smallest of C1×C1, C2×C2 and (N−1)×(N−1); it has a first derivative and no ONNX form.
    `'power_iteration'` works on the C1×C2 matrix that the result is.

    Source: SoT (Xie et al., arXiv:2104.10935) for the singular-value power normalisation; B-CNN (Lin et
    al., 2015) for pooling two maps and for `'signed_sqrt_l2'`.

    Args:
        x: `(B, C1, H, W)` or `(B, C1, N)`.
        y: `(B, C2, H, W)` or `(B, C2, N)`, on the same positions.
        normalization: `'svd'` (U sᵅ Vᵀ, exact), `'power_iteration'` (SoT's approximation of it), `'none'` or
            `'signed_sqrt_l2'`.
        exponent: α, in (0, 2].
        singular_values: How many `'power_iteration'` finds one by one.
        n_iter: Its rounds for each.
        start: Its first vector, `(C2,)`, learned in SoT; None takes ones.

    Returns:
        `(B, C1·C2)`, row by row; float32 for half inputs under autocast, else the wider type of the two.

    Raises:
        ValueError: Wrong rank, batches or positions that differ, an unknown choice or a number out of range.
        TypeError: Not a floating-point type.
        RuntimeError: `'svd'` in an ONNX export.
    """
    check_cross(normalization, exponent, singular_values, n_iter)
    if start is not None and start.shape != y.shape[1:2]:
        raise ValueError(f"start has shape {tuple(start.shape)}; give one number for each of the {y.shape[1]} channels")
    left, right = _pair(x, y)
    out_dtype = torch.promote_types(result_dtype(x), result_dtype(y))
    with autocast_off(x.device):
        value = _pool(left, right, normalization, exponent, singular_values, n_iter, start)
    return value.flatten(1).to(out_dtype)


def _pool(
    x: Tensor, y: Tensor, normalization: str, exponent: float, singular_values: int, n_iter: int, start: Tensor | None
) -> Tensor:
    if normalization == "none":
        return torch.bmm(centre(x), centre(y).mT) * (1.0 / x.shape[-1])
    fewer = x.shape[-1] > 1  # N − 1 columns have the same product, and full rank
    (x, x_peak), (y, y_peak) = recorded_peak_scale(x, fewer), recorded_peak_scale(y, fewer)
    peak = x_peak * y_peak
    finite = torch.isfinite(x_peak) & torch.isfinite(y_peak)
    x, y = torch.where(finite, x, torch.zeros_like(x)), torch.where(finite, y, torch.zeros_like(y))
    if normalization == "signed_sqrt_l2":
        value = signed_sqrt_l2(torch.bmm(x, y.mT).flatten(1)).view(x.shape[0], x.shape[1], y.shape[1])
    else:
        if normalization == "svd":
            if in_onnx_export():
                raise no_onnx_form(
                    "normalization 'svd' is computed by a singular value decomposition",
                    "export a model with 'power_iteration', 'none' or 'signed_sqrt_l2'",
                )
            value = SingularPower.apply(x, y, Power(exponent))[0]
        else:
            begin = torch.ones(y.shape[1], dtype=y.dtype, device=y.device) if start is None else start
            value = power_iteration(torch.bmm(x, y.mT), begin, exponent, singular_values, n_iter)
        value = value * (x_peak.pow(exponent) * y_peak.pow(exponent) * _positions(x, fewer) ** -exponent)
    return torch.where(finite, value, torch.full_like(peak, math.nan))


def _positions(x: Tensor, fewer: bool) -> int:
    return x.shape[-1] + int(fewer)
