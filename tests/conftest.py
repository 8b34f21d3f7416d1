"""For the whole suite: a bound on memory, and no network.

A test that asks for 40 GB fails, and the machine goes on. `pretrained=True` downloads nothing, here and in the
processes that tests start, unless a test says so, and then from a server on loopback.
"""

from __future__ import annotations

import os

import memory


def pytest_configure() -> None:
    memory.limit(memory.SUITE)
    os.environ["TIMM_GCP_OFFLINE"] = "1"
    os.environ.pop("TIMM_GCP_MIRROR", None)
