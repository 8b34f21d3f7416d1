"""What fusing the triangle's gather into the classifier could win at inference.

    python tools/bench/bench_classifier.py [--device cuda] [--output docs/performance]

The classifier reads D(D+1)/2 × classes weights once per batch; the gather in front of it touches D(D+1)/2 numbers per
image. A fused kernel can save at most the gather's own time; the table shows it beside the product's and beside the
time that reading the weights alone takes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from bench_common import copy_rate, interleaved, machine, write_table
from torch import nn

from timm_gcp.functional import triu_vector
from timm_gcp.ops.triangle import triangle_size


def measure(batch: int, dim: int, classes: int, rate: float, args: Any) -> dict[str, Any]:
    """One row: ms of the gather, the product, both, and of reading the weights at the copy rate."""
    matrix = torch.randn(batch, dim, dim, device=args.device)
    vector = triu_vector(matrix)
    classifier = nn.Linear(triangle_size(dim), classes, device=args.device)
    runs = {
        "gather": lambda: triu_vector(matrix),
        "product": lambda: classifier(vector),
        "both": lambda: classifier(triu_vector(matrix)),
    }
    with torch.inference_mode():
        times = interleaved(runs, args.rounds, args.device, f"batch {batch}")
    row: dict[str, Any] = {"batch": batch, "D": dim, "classes": classes} | times
    row["weights at the copy rate"] = 1e3 * classifier.weight.numel() * 4 / rate
    row["most to win, %"] = 100 * times["gather"] / times["both"]
    return row


def main() -> int:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--rounds", default=50, type=int)
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    rate = copy_rate(args.device)
    table = [measure(batch, 256, 1000, rate, args) for batch in (1, 8, 32)]
    about = f"{machine(args.device)}; copies {rate / 1e9:.1f} GB/s; median ms of {args.rounds}"
    write_table(args.output, f"classifier_{args.device.type}", about, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
