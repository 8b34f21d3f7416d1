"""Upper triangle of a symmetric matrix as a vector, in row-major order, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor


def triangle_size(dim: int) -> int:
    """Number of entries on and above the diagonal of a `dim` × `dim` matrix."""
    return dim * (dim + 1) // 2


def triangle_index(dim: int, device: torch.device) -> Tensor:
    """Positions of the upper triangle in a flattened `(dim, dim)` matrix, row by row; int64, `(dim(dim+1)/2,)`."""
    rows_cols = torch.triu_indices(dim, dim, device=device)
    return rows_cols[0] * dim + rows_cols[1]


def gather_triangle(a: Tensor) -> Tensor:
    """`(..., D, D)` -> `(..., D(D+1)/2)`; one index of `D(D+1)/2` entries serves the whole batch."""
    return a.flatten(-2).index_select(-1, triangle_index(a.shape[-1], a.device))


def scatter_triangle(v: Tensor, dim: int) -> Tensor:
    """`(B, D(D+1)/2)` -> `(B, D, D)` with zeros below the diagonal; the adjoint of `gather_triangle`."""
    full = v.new_zeros(v.shape[0], dim * dim)
    return full.index_copy(1, triangle_index(dim, v.device), v).view(-1, dim, dim)


def scatter_symmetric(v: Tensor, dim: int) -> Tensor:
    """`(B, D(D+1)/2)` -> symmetric `(B, D, D)`: half of each value on either side, the whole on the diagonal.

    For a loss of the upper triangle of a symmetric matrix this is the symmetric gradient matrix.
    """
    upper = scatter_triangle(v, dim)
    return 0.5 * (upper + upper.mT)
