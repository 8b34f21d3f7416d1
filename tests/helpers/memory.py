"""Bounds on the address space of the test process. A GPU's driver reserves far more than it uses: none there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

SUITE = 48 << 30  # bytes beyond what is mapped when the tests begin
FAULTS = 6 << 30


def limit(more: int) -> tuple[int, int] | None:
    """Allow `more` bytes beyond what is mapped; what was allowed before, None where nothing is limited."""
    try:
        import resource
        from pathlib import Path

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):  # no Linux
        return None
    import torch

    if torch.cuda.is_available():
        return None
    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = pages * resource.getpagesize() + more
    if before[0] != resource.RLIM_INFINITY:
        wanted = min(wanted, before[0])
    resource.setrlimit(resource.RLIMIT_AS, (wanted, before[1]))
    return before


@contextlib.contextmanager
def limited(more: int = FAULTS) -> Iterator[None]:
    """A block that may map `more` bytes."""
    before = limit(more)
    try:
        yield
    finally:
        if before is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, before)
