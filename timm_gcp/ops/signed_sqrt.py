"""Element-wise signed square root, then unit length: the normalisation of B-CNN (Lin et al., 2015)."""

from __future__ import annotations

import torch
from torch import Tensor


def signed_sqrt_l2(v: Tensor) -> Tensor:
    """sign(v)·√|v| over its length, `(B, n)`; zeros have a zero gradient."""
    live = v != 0
    root_abs = torch.where(live, v, torch.ones_like(v)).abs().sqrt()
    return torch.nn.functional.normalize(torch.where(live, v.sign() * root_abs, torch.zeros_like(v)), dim=-1)
