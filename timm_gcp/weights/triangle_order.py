"""Order of the upper triangle in a GCP classifier: find out which order a file uses, bring it into ours.

A GCP head flattens the upper triangle of a symmetric D×D matrix. This package does so row by row, as
`torch.triu_indices` does. fast-MPN-COV first went column by column and changed to rows after its first models had been
trained (its commit e68a5ee, 2018-12-26): such a file has the right names and sizes, loads, and scores at chance.

The classifier itself tells the order. The D diagonal entries (variances) behave unlike the D(D-1)/2 off-diagonal ones:
they are positive and far larger, so a trained classifier's column norms differ there from those elsewhere. Under the
wrong order the same positions fall on ordinary off-diagonal entries and nothing stands out.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

Order = Literal["row", "column"]

# Standard errors by which the mean column norm at the diagonal must leave the overall mean before an order counts as
# seen: for an untrained classifier the statistic is a standard normal variable, so 6 never happens by chance.
SIGNIFICANT = 6.0


def triangle_dim(features: int) -> int | None:
    """D for which D(D+1)/2 equals `features`, or None if there is none."""
    dim = (math.isqrt(8 * features + 1) - 1) // 2
    return dim if dim * (dim + 1) // 2 == features else None


def diagonal_positions(dim: int, order: Order) -> torch.Tensor:
    """Positions, shape (D,), of the diagonal entries in the flattened upper triangle of a D×D matrix."""
    i = torch.arange(dim)
    return i * dim - i * (i - 1) // 2 if order == "row" else i * (i + 3) // 2


def column_to_row(dim: int) -> torch.Tensor:
    """Index p, shape (D(D+1)/2,), such that `old[..., p]` is in row order when `old` is in column order."""
    rows, columns = torch.triu_indices(dim, dim)
    return columns * (columns + 1) // 2 + rows


def diagonal_contrast(weight: torch.Tensor, order: Order) -> float:
    """How far the column norms at the diagonal positions of `order` stand out, in standard errors.

    Args:
        weight: Classifier weight, shape (classes, D(D+1)/2).
        order: Order of the triangle to look under.

    Returns:
        (mean norm at the diagonal - mean norm) / (standard deviation of the norms / √D).

    Raises:
        ValueError: The number of columns is no D(D+1)/2.
    """
    dim = triangle_dim(weight.shape[1])
    if dim is None:
        raise ValueError(
            f"A GCP classifier has D(D+1)/2 input features for some D. Got a weight of shape {tuple(weight.shape)}."
        )
    norms = weight.float().norm(dim=0).double()
    spread = norms.std().item() if dim > 1 else 0.0
    if not spread > 0:  # also when it is NaN: a file with NaN weights is refused elsewhere
        return 0.0
    difference = norms[diagonal_positions(dim, order)].mean() - norms.mean()
    return difference.item() / (spread / math.sqrt(dim))


def triangle_order(weight: torch.Tensor) -> tuple[Order, bool]:
    """Order that a classifier of shape (classes, D(D+1)/2) was trained in, and whether that is certain.

    Returns:
        `("row" | "column", certain)`. A classifier without any structure (fresh, synthetic) gives `("row", False)`.

    Raises:
        ValueError: The number of columns is no D(D+1)/2.
    """
    if weight.is_meta:  # sizes without values
        return "row", False
    row, column = (abs(diagonal_contrast(weight, order)) for order in ("row", "column"))
    if column > SIGNIFICANT and column > 2 * row:
        return "column", True
    return "row", row > SIGNIFICANT and row > 2 * column
