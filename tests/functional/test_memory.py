"""What the pooling allocates: seen by a dispatch mode that looks at the result of every tensor operation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench_common import PeakBytes
from pooling_oracles import features
from torch.utils._python_dispatch import TorchDispatchMode

from timm_gcp.functional import NORMALIZATIONS, global_cov_pool
from timm_gcp.ops.products import KEEP_ALL

WAYS = [("auto", "auto"), ("spectral", "auto"), ("products", "auto"), ("compose", "auto")]


class Results(TorchDispatchMode):
    """Name, shape and storage of every result, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[str, tuple[int, ...]]] = []
        self.bytes = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.shapes.append((str(func), tuple(tensor.shape)))
                size = tensor.untyped_storage().nbytes()
                self.largest = max(self.largest, size)
                self.bytes += size
        return result


def run(dim: int, positions: int, **options) -> Results:
    x = features(2, dim, positions, dtype=torch.float32).requires_grad_()
    with Results() as results:
        global_cov_pool(x, **options).sum().backward()
    return results


def matrices(results: Results, size: int) -> list[str]:
    """Operations whose result holds `size` × `size` matrices, flattened or not."""
    return [name for name, shape in results.shapes if shape[-2:] == (size, size) or shape[-1:] == (size * size,)]


@pytest.mark.parametrize("n_iter", [1, 5])
@pytest.mark.parametrize(("form", "side"), WAYS)
def test_no_matrix_of_positions_when_positions_are_many(form, side, n_iter):
    results = run(6, 50, form=form, side=side, n_iter=n_iter)
    assert len(results.shapes) > 20
    assert not matrices(results, 50)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_no_matrix_of_positions_for_any_normalization(normalization):
    assert not matrices(run(6, 50, normalization=normalization), 50)


def test_the_watch_sees_such_matrices():
    assert matrices(run(6, 50, side="gram"), 50)
    assert matrices(run(50, 6, side="covariance"), 50)


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_no_matrix_of_channels_inside_the_iteration(form, side):
    """With fewer positions than channels D×D appears as the result and its gradient only, however many the steps."""
    run(50, 6, form=form, side=side)  # makes the triangle's indices, which are kept
    one, five = (run(50, 6, form=form, side=side, n_iter=k) for k in (1, 5))
    assert len(matrices(five, 50)) == len(matrices(one, 50)) > 0
    assert len(matrices(five, 6)) > len(matrices(one, 6)) or form in ("auto", "spectral")


@pytest.mark.parametrize(("form", "side"), WAYS)
def test_results_grow_linearly_with_the_map(form, side):
    """Four times the positions: at most four times the bytes, in all and in the largest single tensor."""
    small, large = (run(8, positions, form=form, side=side) for positions in (256, 1024))
    assert large.bytes <= 4 * small.bytes
    assert large.largest <= 4 * small.largest


def saved_shapes(x: torch.Tensor, **options: Any) -> list[tuple[int, ...]]:
    """Shapes of what autograd keeps for the backward of `global_cov_pool`."""
    saved: list[tuple[int, ...]] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        global_cov_pool(x.requires_grad_(), **options)
    return saved


@pytest.mark.parametrize(("form", "side"), WAYS)
@pytest.mark.parametrize(("dim", "positions"), [(32, 100), (100, 32)])
def test_saved_for_backward(form, side, dim, positions):
    """The input, features of its size, and a number of matrices of the smaller side; of the larger side, none."""
    smaller = min(dim, positions)
    saved = saved_shapes(features(2, dim, positions, dtype=torch.float32), form=form, side=side)
    assert saved
    larger = max(dim, positions)
    assert all(shape[-2:] != (larger, larger) for shape in saved)
    if form == "spectral":
        count = sum(torch.Size(shape).numel() for shape in saved)
        assert count <= 2 * (2 * dim * positions + smaller**2 + smaller) + 16


@pytest.mark.parametrize(("dim", "features_kept"), [(64, True), (65, False)])
def test_scaled_features_are_kept_where_the_residuals_take_more(dim, features_kept):
    """Five steps, 16 positions: four residuals of 16×16 take 1,024 numbers, as many as 64 channels do."""
    batch = KEEP_ALL // (dim * 16) + 1
    saved = saved_shapes(features(batch, dim, 16, dtype=torch.float32), form="products", side="gram")
    assert saved.count((batch, dim, 16)) == 1 + features_kept  # the input, and the features centred and scaled


def test_scaled_features_are_kept_of_a_small_batch():
    """So that backward needs fewer operations: 128 channels would else be made again."""
    saved = saved_shapes(features(2, 128, 16, dtype=torch.float32), form="products", side="gram")
    assert saved.count((2, 128, 16)) == 2


@pytest.mark.parametrize(("dim", "positions"), [(64, 40), (24, 60)])
def test_inference_holds_no_list_of_iterates(dim, positions):
    """More steps take more memory where a gradient is wanted, and none more in inference."""

    def peak(n_iter: int, wanted: bool) -> int:
        x = features(64, dim, positions, dtype=torch.float32).requires_grad_(wanted)
        with PeakBytes() as mode:
            global_cov_pool(x, n_iter=n_iter, form="products")
        return mode.peak

    assert peak(9, False) == peak(4, False)
    assert peak(9, True) > peak(4, True)
