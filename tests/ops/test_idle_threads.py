"""Idle OpenMP threads are ended where the runtime is GNU's, and the next operation has threads again."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace

import pytest
import torch
from threads import CAN_COUNT, count_threads

from timm_gcp.ops import idle_threads


@pytest.fixture
def fresh():
    idle_threads._pause.cache_clear()
    yield
    idle_threads._pause.cache_clear()


@pytest.mark.skipif(
    not CAN_COUNT or idle_threads._pause() is None,
    reason="threads are counted and ended on Linux, under GNU's OpenMP",
)
def test_idle_threads_end_and_come_back(two_threads) -> None:
    a = torch.randn(512, 512, dtype=torch.float64)
    expected = a @ a
    a.exp()  # torch's own parallel loop, whatever library multiplies matrices
    before = count_threads()
    idle_threads.end_idle_threads()
    deadline = time.monotonic() + 10
    while count_threads() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count_threads() < before
    a.exp()
    assert count_threads() == before
    assert torch.equal(a @ a, expected)


def test_other_runtimes_are_left_alone(fresh, monkeypatch) -> None:
    def refuse(kind: int) -> int:
        raise AssertionError(kind)

    process = SimpleNamespace(__kmpc_fork_call=None, omp_pause_resource_all=refuse)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: process)
    idle_threads.end_idle_threads()


@pytest.mark.parametrize(("name", "process"), [("nt", None), ("posix", SimpleNamespace())])
def test_nothing_happens_without_the_call(fresh, monkeypatch, name, process) -> None:
    monkeypatch.setattr(idle_threads.os, "name", name)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: process)
    idle_threads.end_idle_threads()


def test_gnu_runtime_is_asked_for_a_soft_pause(fresh, monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(omp_pause_resource_all=asked.append))
    idle_threads.end_idle_threads()
    assert asked == [1]
