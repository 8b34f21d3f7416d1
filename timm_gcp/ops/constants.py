"""Tensors that depend on sizes alone, made once per size, type and device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


@functools.lru_cache(maxsize=128)
def kept(make: Callable[..., Tensor], *args: Any) -> Tensor:
    """`make(*args)`, made at the first call with these arguments; callers must not write to it."""
    with torch.inference_mode(False):
        return make(*args)


def is_plain(like: Tensor) -> bool:
    """Whether what goes with `like` may be kept: not in a graph capture or for tensor subclasses, as fake ones are."""
    return type(like) is Tensor and not torch.compiler.is_compiling()


def constant(make: Callable[..., Tensor], like: Tensor, *sizes: int) -> Tensor:
    """`make(*sizes, dtype, device)` with the type and device of `like`, from the cache where that is possible."""
    args = (*sizes, like.dtype, like.device)
    return kept(make, *args) if is_plain(like) else make(*args)


def _eye(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.eye(n, dtype=dtype, device=device)


def identity(like: Tensor) -> Tensor:
    """The identity `(n, n)` for `like` `(..., n, n)`; read it, never write it."""
    return constant(_eye, like, like.shape[-1])
