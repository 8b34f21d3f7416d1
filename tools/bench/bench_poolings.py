"""Time and memory of every pooling, side by side.

    python tools/bench/bench_poolings.py [--device cuda] [--output docs/performance]

The map is `(B, D, side, side)`; SoT's heads take its positions as tokens, the cross-covariance takes its two halves of
channels. All poolings of a map are timed in turns in one process; the table is printed and written as CSV.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_common import both, forward, interleaved, machine, peak_bytes, saved_bytes, write_table
from torch import Tensor

from timm_gcp.functional import CROSS_NORMALIZATIONS, NORMALIZATIONS, cross_cov_pool, global_cov_pool
from timm_gcp.models import MultiheadCrossCovPool

SHAPES = [(8, 256, 7), (8, 256, 14)]


def poolings(dim: int, device: torch.device) -> dict[str, Callable[[Tensor], Tensor]]:
    """Every pooling by name, as it works in training."""
    pools: dict[str, Callable[[Tensor], Tensor]] = {"average": lambda x: x.mean((2, 3))}
    for name in NORMALIZATIONS:
        options = {"training": True, "beta": 1.0} if name == "dropcov" else None
        pools[name] = lambda x, name=name, options=options: global_cov_pool(x, name, pool_kwargs=options)  # type: ignore[misc]
    for name in CROSS_NORMALIZATIONS:
        pools[f"cross {name}"] = lambda x, name=name: cross_cov_pool(*x.chunk(2, 1), name)  # type: ignore[misc]
    heads = MultiheadCrossCovPool(dim, 6, 24).to(device)
    pools["SoT, 6 heads of 24"] = lambda x: heads(x.flatten(2).mT)
    return pools


def measure(shape: tuple[int, int, int], rounds: int, device: torch.device) -> list[dict[str, Any]]:
    """One row a pooling: width, median ms forward and forward with backward, saved and peak megabytes."""
    batch, dim, side = shape
    x = torch.randn(batch, dim, side, side, device=device).relu().requires_grad_()
    pools = poolings(dim, device)
    grads = {name: torch.randn_like(pool(x)) for name, pool in pools.items()}

    title = f"{batch}, {dim}, {side}×{side}"
    steps = {name: both(pool, x, grads[name]) for name, pool in pools.items()}
    ms_forward = interleaved({n: forward(p, x) for n, p in pools.items()}, rounds, device, f"{title} forward")
    ms_both = interleaved(steps, rounds, device, f"{title} both")
    return [
        {
            "B, D, map": title,
            "pooling": name,
            "numbers": grads[name].shape[1],
            "fwd": ms_forward[name],
            "f+b": ms_both[name],
            "saved MB": saved_bytes(lambda name=name: pools[name](x)) / 2**20,
            "peak MB": peak_bytes(steps[name], device) / 2**20,
        }
        for name in pools
    ]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the maps to take (default: all)")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    rows = []
    for i in range(len(SHAPES)) if args.rows is None else args.rows:
        rows += measure(SHAPES[i], args.rounds, args.device)
    about = f"{machine(args.device)}; median ms of {args.rounds}"
    write_table(args.output, f"poolings_{args.device.type}", about, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
