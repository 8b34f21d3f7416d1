"""A bound on memory for the whole suite: a test that asks for 40 GB fails, and the machine goes on."""

from __future__ import annotations

import memory


def pytest_configure() -> None:
    memory.limit(memory.SUITE)
