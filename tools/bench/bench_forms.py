"""The two ways to compute Newton–Schulz pooling against each other, in training and in inference, by side and batch.

    python tools/bench/bench_forms.py [--device cuda] [--output docs/performance]

The table shows where the numbers of `timm_gcp/ops/choice.py` come from: the smallest sides from which the spectral form
takes less time than products. `auto` is the form that the package takes.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_common import both, forward, interleaved, machine, write_table

from timm_gcp.functional import global_cov_pool
from timm_gcp.ops.choice import choose_form
from timm_gcp.ops.triangle import triangle_size

DIM = 256
SIDES = (7, 8, 9, 10, 12, 14, 15, 16)
BATCHES = (1, 2, 8, 32)


def measure(side: int, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row: ms of both forms with and without a gradient, and what the package takes."""
    x = torch.randn(batch, DIM, side, side, device=args.device, requires_grad=True)
    grad = torch.randn(batch, triangle_size(DIM), device=args.device)
    forms = {form: partial(global_cov_pool, form=form) for form in ("products", "spectral")}
    row: dict[str, Any] = {"map": f"{side}×{side}", "B": batch}
    for what, probe, made in (
        ("training", x, {form: both(pool, x, grad) for form, pool in forms.items()}),
        ("inference", x.detach(), {form: forward(pool, x) for form, pool in forms.items()}),
    ):
        times = interleaved(made, args.rounds, args.device, f"{side}×{side}, batch {batch}, {what}")
        row |= {f"{what}, {form}": times[form] for form in forms}
        row[f"{what}, spectral / products"] = times["spectral"] / times["products"]
        row[f"{what}, auto"] = choose_form(probe, side * side)
    return row


def main() -> int:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    table = [measure(side, batch, args) for side in SIDES for batch in BATCHES]
    about = f"{machine(args.device)}; D = {DIM}; median ms of {args.rounds}"
    write_table(args.output, f"forms_{args.device.type}", about, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
