"""For the whole suite: a bound on memory, and no network; and what several tests ask for.

A test that asks for 40 GB fails, and the machine goes on. `pretrained=True` downloads nothing, here and in the
processes that tests start, unless a test says so, and then from a server on loopback.
"""

from __future__ import annotations

import os

import memory
import pytest


def pytest_configure() -> None:
    memory.limit(memory.SUITE)
    os.environ["TIMM_GCP_OFFLINE"] = "1"
    os.environ.pop("TIMM_GCP_MIRROR", None)


@pytest.fixture
def two_threads():
    """Torch computes on two threads, whatever it was set to."""
    import torch  # not before the bound on memory is set

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_allocator_settings(monkeypatch):
    """The environment without settings of glibc's allocator."""
    from timm_gcp.common.freed_memory import SETTINGS  # not before the bound on memory is set

    for name in (*SETTINGS, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
