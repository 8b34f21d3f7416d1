"""Idle OpenMP threads are ended where the runtime is GNU's, and the next operation has threads again."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from timm_gcp.ops import idle_threads

TASKS = Path("/proc/self/task")


def tasks() -> int:
    return len(list(TASKS.iterdir()))


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fresh():
    idle_threads._pause.cache_clear()
    yield
    idle_threads._pause.cache_clear()


@pytest.mark.skipif(
    not TASKS.is_dir() or idle_threads._pause() is None,
    reason="threads are counted and ended on Linux, under GNU's OpenMP",
)
def test_idle_threads_end_and_come_back(two_threads) -> None:
    a = torch.randn(512, 512, dtype=torch.float64)
    expected = a @ a
    a.exp()  # torch's own parallel loop, whatever library multiplies matrices
    before = tasks()
    idle_threads.end_idle_threads()
    deadline = time.monotonic() + 10
    while tasks() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tasks() < before
    a.exp()
    assert tasks() == before
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
