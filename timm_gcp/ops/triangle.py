"""Upper triangle of symmetric matrices as vectors, in row-major order: gather, its adjoint, and the fused product.

Indices are made once per size and device. Each has at most D² entries, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from timm_gcp.ops.constants import is_plain, kept

# Rows per block of `product_triangle`: blocks skip most of the lower triangle and still fill a matrix product.
BLOCK = 64

# Entries `B·D²` up to which one product and one gather take less than those of the blocks.
WHOLE_MAX_ENTRIES = 2**18


def triangle_size(dim: int) -> int:
    """Number of entries on and above the diagonal of a `dim` × `dim` matrix."""
    return dim * (dim + 1) // 2


def _upper_index(rows: int, cols: int, device: torch.device) -> Tensor:
    """Flat positions of the upper triangle of a `rows` × `cols` matrix."""
    pairs = torch.triu_indices(rows, cols, device=device)
    return pairs[0] * cols + pairs[1]


def _mirror_index(dim: int, device: torch.device) -> Tensor:
    """Position in the triangle vector of every entry of the symmetric `dim` × `dim` matrix, flat."""
    i = torch.arange(dim, device=device)
    low, high = torch.minimum(i[:, None], i), torch.maximum(i[:, None], i)
    return (low * dim - low * (low + 1) // 2 + high).flatten()


def _index(make: Callable[..., Tensor], like: Tensor, *sizes: int) -> Tensor:
    """Index for the device of `like`, from the cache where that is possible."""
    return kept(make, *sizes, like.device) if is_plain(like) else make(*sizes, like.device)


def _take(flat: Tensor, index: Tensor) -> Tensor:
    """Columns `index` of every row of `(B, n)`; the expanded index takes no memory, and gather beats index_select."""
    return flat.gather(1, index.expand(flat.shape[0], -1))


def gather_triangle(a: Tensor) -> Tensor:
    """`(..., D, D)` -> `(..., D(D+1)/2)`; one index of `D(D+1)/2` entries serves the whole batch."""
    if torch.jit.is_scripting():
        index = _upper_index(a.shape[-1], a.shape[-1], a.device)
    else:
        index = _index(_upper_index, a, a.shape[-1], a.shape[-1])
    return a.flatten(-2).index_select(-1, index)


def product_triangle(a: Tensor, b: Tensor) -> Tensor:
    """Upper triangle of `a bᵀ` for `(B, D, n)` each, in row blocks that start at the diagonal: `(B, D(D+1)/2)`."""
    dim = a.shape[1]
    # Two blocks save a quarter of the product, less than their handling costs.
    if dim <= 2 * BLOCK or a.shape[0] * dim * dim <= WHOLE_MAX_ENTRIES:
        return _take(torch.bmm(a, b.mT).flatten(1), _index(_upper_index, a, dim, dim))
    parts = []
    for start in range(0, dim, BLOCK):
        block = torch.bmm(a[:, start : start + BLOCK], b[:, start:].mT)
        index = _index(_upper_index, block, block.shape[1], block.shape[2])
        parts.append(_take(block.flatten(1), index))
    return torch.cat(parts, 1)


def twice_symmetric(v: Tensor, dim: int) -> Tensor:
    """`(B, D(D+1)/2)` -> `G + Gᵀ` with `G` the upper triangular `(B, D, D)`: the adjoint of the gather, symmetrised.

    A loss of the upper triangle of a symmetric matrix has the symmetric gradient `(G + Gᵀ)/2`; the half is left to the
    caller's scale.
    """
    full = _take(v, _index(_mirror_index, v, dim)).view(-1, dim, dim)
    full.diagonal(dim1=1, dim2=2).mul_(2)
    return full
