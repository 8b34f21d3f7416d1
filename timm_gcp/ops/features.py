"""Features as every pooling takes them: `(B, D, N)` in float32 or wider."""

from __future__ import annotations

from torch import Tensor

from timm_gcp.ops.choice import is_exporting
from timm_gcp.ops.precision import widen


def as_positions(x: Tensor) -> Tensor:
    """`(B, D, H, W)` or `(B, D, N)` as `(B, D, N)` in float32 or wider.

    Raises:
        ValueError: Another rank, or no channel or position.
        TypeError: Not a floating-point type.
    """
    if x.ndim not in (3, 4):
        raise ValueError(f"expected features of shape (B, D, H, W) or (B, D, N), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"expected floating-point features, got {x.dtype}; convert them with .float()")
    if not is_exporting() and 0 in x.shape[1:]:  # a dynamic size compared with 0 would restrict its range
        raise ValueError(f"expected at least one channel and one position, got shape {tuple(x.shape)}")
    return widen(x.flatten(2))
