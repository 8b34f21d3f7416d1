"""Eigendecomposition of a batch of symmetric matrices, made fit for the pooling: NaN-safe, and parallel on a CPU.

`torch.linalg.eigh` decomposes the matrices of a batch one after another, and LAPACK's own threads lose more than they
gain at the sizes met here. On a CPU the batch is therefore cut into parts that as many threads as torch has take in
turn, and each decomposition uses one thread. Idle threads of the operation before are ended first, and a thread that
starts late does fewer parts. The decomposition of a matrix does not depend on the split.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from timm_gcp.ops.idle_threads import end_idle_threads

# Below this many rows in all, handing work to a thread costs more than it saves.
PARALLEL_MIN_ROWS = 256

PARTS_PER_THREAD = 8

_one_thread_lock = threading.Lock()


@lru_cache(maxsize=1)
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "timm_gcp_eigh")


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """One thread per operation of the calling thread meanwhile; the lock is for what torch keeps for all threads."""
    with _one_thread_lock:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


if hasattr(os, "register_at_fork"):  # a forked child has no worker threads: it makes its own
    os.register_at_fork(after_in_child=_workers.cache_clear)


def _can_split(a: Tensor, threads: int) -> bool:
    """Whether `a` may be handed to threads: functorch's and fake tensors belong to the thread that made them."""
    if a.device.type != "cpu" or threads < 2 or a.shape[0] < 2 or a.shape[0] * a.shape[-1] < PARALLEL_MIN_ROWS:
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(a)
    return type(a) is Tensor and not wrapped and not torch.compiler.is_compiling()


def _eigh_in_parts(a: Tensor, threads: int) -> tuple[Tensor, Tensor]:
    """`torch.linalg.eigh` of a batch by this thread and the workers, who write into one result."""
    lam, u = a.new_empty(a.shape[:-1]), torch.empty_like(a, memory_format=torch.contiguous_format).mT  # LAPACK's layout
    count = threads * PARTS_PER_THREAD
    waiting = deque(zip(a.chunk(count), lam.chunk(count), u.chunk(count), strict=True))

    inference = torch.is_inference_mode_enabled()  # which is a thread's own, as whether gradients are recorded

    def take_parts() -> None:
        # A worker has its own setting. Were it to start threads, OpenMP would count more of them than there are cores,
        # and from then on let those of the whole process sleep between operations, which makes small ones slow.
        torch.set_num_threads(1)
        with torch.inference_mode(inference), torch.no_grad():
            while waiting:
                try:
                    part, *result = waiting.popleft()
                except IndexError:  # another thread took the last one
                    return
                torch.linalg.eigh(part, out=tuple(result))

    end_idle_threads()
    with _one_thread_each():
        pending = [_workers(threads).submit(take_parts) for _ in range(threads - 1)]
        take_parts()
        for future in pending:
            future.result()
    return lam, u


def batched_eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues `(B, n)`, not below zero, and eigenvectors `(B, n, n)` of positive semi-definite `(B, n, n)`.

    A matrix with NaN or Inf, for which LAPACK refuses the whole batch, gets NaN eigenvalues; products X Xᵀ, which come
    here, then have one on the diagonal, the only place that is looked at. Not differentiable.
    """
    finite = torch.isfinite(a.diagonal(dim1=-2, dim2=-1).sum(-1))[:, None]
    threads = 1 if torch.compiler.is_compiling() else torch.get_num_threads()  # a graph can't ask for it
    plain = _can_split(a, threads)
    if not plain or not finite.all():
        a = torch.where(finite.unsqueeze(-1), a, torch.zeros_like(a))
    if plain:
        lam, u = _eigh_in_parts(a, threads)
    else:
        lam, u = torch.linalg.eigh(a)
    return torch.where(finite, lam.clamp_min(0), torch.full_like(lam, torch.nan)), u
