"""Synthetic checkpoints in the authors' layout: the same tensors, made anew, that `golden.npz` holds the logits of.

`schema.txt` lists, per architecture of the authors' release, every tensor of its state dict: `NAME SHAPE`, or
`NAME norm CHANNELS` for the five tensors of a batch normalisation. Each tensor depends on the seed and its name alone.
`golden.npz` holds the logits, (2, 1000) float32, that the authors' own model gave in float64 for these tensors (seed 0)
and `image(0)`. `checkpoints.json` lists what they released.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parents[1] / "data" / "authors"
NORM_LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def schema() -> dict[str, dict[str, tuple[int, ...]]]:
    """Architecture -> tensor name -> shape."""
    tables: dict[str, dict[str, tuple[int, ...]]] = {}
    for line in (HERE / "schema.txt").read_text().splitlines():
        if line.startswith("["):
            table = tables.setdefault(line.strip("[]"), {})
        elif " norm " in line:
            name, channels = line.split(" norm ")
            shapes = {leaf: (int(channels),) for leaf in NORM_LEAVES} | {"num_batches_tracked": ()}
            table.update({f"{name}.{leaf}": shape for leaf, shape in shapes.items()})
        else:
            name, *shape = line.split()
            table[name] = tuple(int(size) for size in shape)
    return tables


def tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """One tensor: float32, or an int64 zero for a batch counter."""
    leaf = name.rsplit(".", 1)[-1]
    if leaf == "num_batches_tracked":
        return np.zeros((), np.int64)
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    if leaf == "running_var":
        draw = 1 + 0.2 * np.abs(draw)
    elif leaf in ("running_mean", "bias"):
        draw = 0.1 * draw
    elif len(shape) == 1:  # scale of a norm
        draw = 0.5 + 0.1 * draw
    elif len(shape) > 2:  # a convolution keeps the variance; a classifier is left large, so that its input shows
        draw = draw * np.sqrt(2 / math.prod(shape[1:]))
    return draw.astype(np.float32)


def state_dict(arch: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """State dict of `arch`, in the authors' names."""
    return {name: torch.from_numpy(tensor(name, shape, seed)) for name, shape in schema()[arch].items()}


def image(seed: int = 0, batch: int = 2, size: int = 224) -> torch.Tensor:
    """Images, (batch, 3, size, size) float32: tiles of 32 pixels, so that deep features vary over space, and noise."""
    rng = np.random.default_rng(seed)
    tiles = rng.standard_normal((batch, 3, size // 32, size // 32))
    coarse = np.kron(tiles, np.ones((32, 32)))
    return torch.from_numpy((coarse + 0.3 * rng.standard_normal(coarse.shape)).astype(np.float32))


def golden(arch: str) -> torch.Tensor:
    """Logits, (2, 1000) float32."""
    with np.load(HERE / "golden.npz") as logits:
        return torch.from_numpy(logits[arch])
