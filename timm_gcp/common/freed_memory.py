"""Freed memory that stays with the process, for programs that run networks on a CPU.

glibc takes blocks of more than 32 MB from the system and gives them back as soon as they are freed. A network frees its
large activations and gradients in every step and needs the same sizes in the next one, for which the system then maps
and clears them again, page by page. docs/performance.md has what keeping them saves.
"""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt(3), by their numbers in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1  # as a threshold of trimming: the largest number there is

# Somebody else's settings of the same allocator, which stay as they are.
SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def has_settings() -> bool:
    """Whether the environment sets glibc's allocator already, by its variables or by `GLIBC_TUNABLES`."""
    return any(name in os.environ for name in SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")


def keep_freed_memory() -> bool:
    """Let glibc keep what the process frees, of any size, until it ends; results stay the same.

    The process then holds as much as it needed at one time, and some percent more, for freed blocks do not fit every
    new one. Nothing is done on other C libraries or where the environment has settings of its own (`has_settings`).

    Returns:
        Whether freed memory is kept from now on.
    """
    if os.name != "posix" or has_settings():
        return False
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version"):
        return False
    return process.mallopt(_MMAP_MAX, 0) == 1 and process.mallopt(_TRIM_THRESHOLD, _NEVER) == 1
