"""Batched eigendecomposition: parallel equals serial, NaN stays in its matrix, the caller's settings are left alone."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from threads import CAN_COUNT, count_threads

from timm_gcp.ops.eigh import PARALLEL_MIN_ROWS, _workers, batched_eigh


def semi_definite(batch: int, n: int) -> torch.Tensor:
    x = torch.randn(batch, n, max(n // 2, 1), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x @ x.mT


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("n", [1, 5, PARALLEL_MIN_ROWS // 2])
def test_rebuilds_its_input(two_threads, batch, n):
    a = semi_definite(batch, n)
    lam, u = batched_eigh(a)
    assert lam.shape == (batch, n) and (lam >= 0).all()
    torch.testing.assert_close((u * lam.unsqueeze(-2)) @ u.mT, a, atol=1e-11, rtol=0)


def test_parallel_equals_one_by_one(two_threads):
    a = semi_definite(5, PARALLEL_MIN_ROWS // 2)
    lam, _ = batched_eigh(a)
    single = torch.cat([batched_eigh(matrix[None])[0] for matrix in a])
    torch.testing.assert_close(lam, single, atol=1e-11, rtol=1e-12)


def test_inference_mode_reaches_the_workers(two_threads):
    a = semi_definite(4, PARALLEL_MIN_ROWS // 2)
    expected, _ = batched_eigh(a)
    with torch.inference_mode():
        lam, u = batched_eigh(a)
        assert torch.equal(batched_eigh(a.clone())[0], expected)
    assert torch.equal(lam, expected)
    assert lam.is_inference() and u.is_inference()


def test_the_callers_thread_count_stays(two_threads):
    batched_eigh(semi_definite(4, PARALLEL_MIN_ROWS))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_matrix_is_nan_alone(two_threads, bad):
    a = semi_definite(4, PARALLEL_MIN_ROWS // 2)
    good, _ = batched_eigh(a)
    a[2, 3, :] = bad
    lam, _ = batched_eigh(a)
    assert lam[2].isnan().all()
    assert torch.equal(lam[[0, 1, 3]], good[[0, 1, 3]])


@pytest.mark.skipif(not CAN_COUNT, reason="threads are counted on Linux")
def test_a_worker_starts_no_threads_of_its_own(two_threads):
    def counted() -> int:
        torch.ones(2**20).exp()  # so that the threads of this one are there
        return count_threads()

    kept = _workers(2)  # its threads stay while they are counted
    _workers.cache_clear()
    before = counted()
    batched_eigh(semi_definite(4, PARALLEL_MIN_ROWS // 2))
    assert counted() == before + 1
    assert kept is not _workers(2)


def _pools_of_a_child(queue):
    queue.put(_workers.cache_info().currsize)


def test_a_forked_child_does_not_inherit_worker_threads(two_threads):
    batched_eigh(semi_definite(4, PARALLEL_MIN_ROWS // 2))
    assert _workers.cache_info().currsize == 1
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_pools_of_a_child, args=(queue,))
    child.start()
    child.join(60)
    assert child.exitcode == 0 and queue.get() == 0
