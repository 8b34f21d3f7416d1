"""How wide a pooled matrix may be before its memory has to be asked for."""

from __future__ import annotations

MAX_DIM = 1024  # the widest side of a pooled matrix that a layer takes unasked; the paper's is 256


def check_width(dim: int, out_features: int, max_dim: int | None, remedy: str) -> None:
    """Check a layer's width before memory is taken for it.

    Args:
        dim: The widest side of the pooled matrix.
        out_features: Numbers that the layer gives for an image.
        max_dim: The limit; None for no limit.
        remedy: What to give instead, and how to raise the limit.

    Raises:
        ValueError: `dim` is above the limit, or the limit is not a whole number of at least 1.
    """
    if max_dim is None:
        return
    if type(max_dim) is not int or max_dim < 1:
        raise ValueError(f"max_dim is {max_dim!r}; give a whole number of at least 1 (default: {MAX_DIM}), or None")
    if dim > max_dim:
        each = f"{_bytes(4 * dim * dim)} for the matrix, {_bytes(4 * out_features)} for the vector"
        raise ValueError(
            f"a covariance of width {dim} gives {out_features:,} numbers an image: in float32 {each}, and "
            f"{_bytes(4000 * out_features)} for a classifier of 1000 classes; {remedy}"
        )


def _bytes(count: int) -> str:
    for power, unit in ((3, "GB"), (2, "MB"), (1, "kB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.1f} {unit}"
    return f"{count} bytes"
