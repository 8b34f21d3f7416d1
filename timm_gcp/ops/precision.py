"""Which precision a pooling is computed in: float32 or wider, whatever autocast says."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """float32, or float64 where `x` is; covariances of ordinary activations overflow float16."""
    return x if x.dtype == torch.float64 else x.float()


@torch.compiler.assume_constant_result
def _has_autocast(device_type: str) -> bool:
    """`torch.amp.is_autocast_available`, which torch.compile takes from torch 2.6 on only."""
    return torch.amp.is_autocast_available(device_type)


def _in_autocast(device: torch.device) -> bool:
    return _has_autocast(device.type) and torch.is_autocast_enabled(device.type)


def autocast_off(device: torch.device) -> AbstractContextManager:
    """Switch autocast off for `device`; nothing where it is off, or on devices without it (meta)."""
    return torch.autocast(device.type, enabled=False) if _in_autocast(device) else contextlib.nullcontext()


def result_dtype(x: Tensor) -> torch.dtype:
    """Type of the pooled vector: that of `x`, but float32 for half types under autocast, as autocast's own sums."""
    if x.dtype in (torch.float32, torch.float64):
        return x.dtype
    return torch.float32 if _in_autocast(x.device) else x.dtype
