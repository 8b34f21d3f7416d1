"""Ends the idle threads that an operation of torch leaves behind, where threads of Python are about to work.

GNU's OpenMP, which torch's builds for Linux use, lets a thread without work spin for some milliseconds, in case the
next operation comes soon. Until then it holds a core that another thread could use. OpenMP 5.0 has a call that ends
such threads; the next operation makes new ones.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache

_SOFT = 1  # omp_pause_soft


@lru_cache(maxsize=1)
def _pause() -> Callable[[int], int] | None:
    """OpenMP's `omp_pause_resource_all` where the process runs GNU's OpenMP, else None."""
    if os.name != "posix":
        return None
    process = ctypes.CDLL(None)
    if hasattr(process, "__kmpc_fork_call"):  # LLVM's or Intel's, where it was not measured
        return None
    return getattr(process, "omp_pause_resource_all", None)


def end_idle_threads() -> None:
    """End the idle OpenMP threads that serve the calling thread; nothing happens inside a parallel region."""
    pause = _pause()
    if pause is not None:
        pause(_SOFT)
