"""Error of the pooling against float64, by number of steps, in each precision of its products.

    python tools/bench/bench_precision.py [--device cuda] [--output docs/performance]

Relative Frobenius norm of the difference, of the pooled vector and of the features' gradient. On a GPU the TF32 columns
follow `torch.backends.cuda.matmul.allow_tf32`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from bench_common import machine, write_table
from torch import Tensor

from timm_gcp.functional import global_cov_pool
from timm_gcp.ops.triangle import triangle_size

STEPS = (1, 2, 3, 4, 5, 7)
MAPS = (7, 14)


def value_and_gradient(x: Tensor, grad: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Pooled vector, and the features' gradient for the incoming `grad`."""
    x = x.clone().requires_grad_()
    value = global_cov_pool(x, **options)
    return value.detach().double(), torch.autograd.grad(value, x, grad.to(value.dtype))[0].double()


def relative(a: Tensor, b: Tensor) -> float:
    """‖a − b‖/‖b‖."""
    return ((a - b).norm() / b.norm()).item()


def rows(device: torch.device, batch: int, dim: int) -> list[dict[str, Any]]:
    """One row per map and number of steps."""
    generator = torch.Generator().manual_seed(0)
    table = []
    for side in MAPS:
        x = torch.randn(batch, dim, side, side, generator=generator).relu().to(device)
        grad = torch.randn(batch, triangle_size(dim), generator=generator).to(device)
        for steps in STEPS:
            exact = value_and_gradient(x.double(), grad.double(), n_iter=steps)
            row: dict[str, Any] = {"map": f"{side}×{side}", "steps": steps}
            columns: dict[str, dict[str, Any]] = {
                "products": {"form": "products"},
                "spectral": {"form": "spectral"},
                "bfloat16 products": {"iteration_dtype": "bfloat16"},
                "bfloat16x2 products": {"iteration_dtype": "bfloat16x2"},
            }
            for name, options in columns.items():
                value, gradient = value_and_gradient(x, grad, n_iter=steps, **options)
                row |= {name: relative(value, exact[0]), f"{name}, gradient": relative(gradient, exact[1])}
            if device.type == "cuda":
                torch.backends.cuda.matmul.allow_tf32 = True
                value, gradient = value_and_gradient(x, grad, n_iter=steps)
                torch.backends.cuda.matmul.allow_tf32 = False
                row |= {"TF32": relative(value, exact[0]), "TF32, gradient": relative(gradient, exact[1])}
            table.append({k: f"{v:.1e}" if isinstance(v, float) else v for k, v in row.items()})
    return table


def main() -> int:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--batch-size", default=4, type=int)
    parser.add_argument("--dim", default=256, type=int)
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    table = rows(args.device, args.batch_size, args.dim)
    about = f"{machine(args.device)}; D = {args.dim}; float32 features"
    write_table(args.output, f"precision_{args.device.type}", about, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
