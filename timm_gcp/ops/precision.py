"""Which precision a pooling is computed in: float32 or wider, whatever autocast says."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """float32, or float64 where `x` is; covariances of ordinary activations overflow float16."""
    return x if x.dtype == torch.float64 else x.float()


def autocast_off(device: torch.device) -> AbstractContextManager:
    """Switch autocast off for `device`; nothing where it is off, or on devices without it (meta)."""
    if not torch.amp.is_autocast_available(device.type) or not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def result_dtype(x: Tensor) -> torch.dtype:
    """Type of the pooled vector: that of `x`, but float32 for half types under autocast, as autocast's own sums."""
    available = torch.amp.is_autocast_available(x.device.type)
    if available and torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.float32
    return x.dtype
