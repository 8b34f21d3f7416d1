"""Time and memory of covariance pooling against the reference algorithm, the exact root, and the machine's limits.

    python tools/bench/bench_pooling.py [--device cuda] [--reference PATH/MPNCOV.py] [--output docs/performance]

All columns of a row are timed in turns in one process; the table is printed and written as CSV, with a bar chart.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bench_common import (
    alone,
    bar_chart,
    both,
    copy_rate,
    forward,
    interleaved,
    machine,
    markdown,
    peak_bytes,
    product_rate,
    saved_bytes,
    write_csv,
)
from reference_pooling import reference_pool
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from timm_gcp.functional import covariance, global_cov_pool, triu_vector
from timm_gcp.ops.triangle import triangle_size

SHAPES = [(32, 256, 7), (32, 256, 14), (32, 128, 7), (32, 128, 14), (8, 256, 28), (2, 256, 56), (1, 256, 7)]
CUDA_SHAPES = [(128, 256, 7), (128, 256, 14), (128, 128, 7), (128, 128, 14)]


def exact_root(x: Tensor) -> Tensor:
    """Square root by `torch.linalg.eigh` on the D×D side with autograd's own backward."""
    lam, u = torch.linalg.eigh(covariance(x))
    return triu_vector((u * lam.clamp_min(1e-12).sqrt().unsqueeze(-2)) @ u.mT)


def average(x: Tensor) -> Tensor:
    """Global average pooling."""
    return x.mean((2, 3))


def authors_pool(path: Path) -> Callable[[Tensor], Tensor]:
    """The pooling of an `MPNCOV.py` as released by the authors of iSQRT-COV."""
    spec = importlib.util.spec_from_file_location("authors_mpncov", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"--reference {path} is not a Python file; name the authors' MPNCOV.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda x: module.TriuvecLayer(module.SqrtmLayer(module.CovpoolLayer(x), 5)).flatten(1)


def in_place_flop(total: Any, a: tuple[int, ...], b: tuple[int, ...], out_shape: Any = None, **_: Any) -> int:
    """Operations of `baddbmm_` from the shapes of its factors: torch counts the form that is not in place alone."""
    return 2 * a[0] * a[1] * a[2] * b[2]


def measure(shape: tuple[int, int, int], pools: dict[str, Callable], rates: tuple[float, float], args: Any) -> dict:
    """One row: median ms of each pool forward and forward+backward, floor, saved and peak megabytes."""
    batch, dim, side = shape
    torch.compiler.reset()  # every row is compiled for its own shape
    x = torch.randn(batch, dim, side, side, device=args.device).relu().requires_grad_()
    grads = {name: torch.randn_like(pool(x)) for name, pool in pools.items()}

    title = f"{batch}, {dim}, {side}×{side}"
    steps = {name: both(pool, x, grads[name]) for name, pool in pools.items()}
    ms_forward = interleaved({n: forward(p, x) for n, p in pools.items()}, args.rounds, args.device, f"{title} forward")
    ms_both = interleaved(steps, args.rounds, args.device, f"{title} both")
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place_flop}) as counter:
        steps["ours"]()
    # read the features and the incoming gradient, write the vector and the features' gradient
    traffic = 4 * 2 * batch * (dim * side * side + triangle_size(dim))
    row: dict[str, Any] = {"B, D, map": title}
    row |= {f"{name} fwd": ms for name, ms in ms_forward.items()} | {f"{name} f+b": ms for name, ms in ms_both.items()}
    row["floor f+b"] = 1e3 * max(counter.get_total_flops() / rates[0], traffic / rates[1])
    each = alone(steps["ours"], args.rounds, args.device)
    row |= {"kernels f+b": each.kernels_ms, "operations f+b": each.all_ms, "operations": each.calls}
    row["faster"] = ms_both["reference"] / ms_both["ours"]
    for name in ("ours", "reference"):
        row[f"{name} saved MB"] = saved_bytes(lambda name=name: pools[name](x)) / 2**20
        row[f"{name} peak MB"] = peak_bytes(steps[name], args.device) / 2**20
    row["saved 1/"] = row["reference saved MB"] / row["ours saved MB"]
    return row


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--reference", type=Path, help="the authors' MPNCOV.py, timed too")
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the rows to run (default: all)")
    parser.add_argument("--no-compile", action="store_true", help="leave out the column of torch.compile")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    pools: dict[str, Callable] = {"ours": global_cov_pool, "reference": reference_pool}
    if args.reference:
        pools["authors"] = authors_pool(args.reference)
    pools["eigh"] = exact_root
    if not args.no_compile:
        pools["compiled"] = torch.compile(global_cov_pool, fullgraph=True, dynamic=False)
    pools["average"] = average
    shapes = SHAPES + (CUDA_SHAPES if args.device.type == "cuda" else [])
    rates = product_rate(args.device), copy_rate(args.device)
    rows = [measure(shapes[i], pools, rates, args) for i in (args.rows or range(len(shapes)))]
    name = f"pooling_{args.device.type}"
    table = markdown(rows)
    about = (
        f"{machine(args.device)}; products {rates[0] / 1e9:.0f} GFLOP/s, copies {rates[1] / 1e9:.1f} GB/s; "
        f"median ms of {args.rounds}"
    )
    print(f"{about}\n\n{table}")
    write_csv(args.output / f"{name}.csv", rows)
    (args.output / f"{name}.md").write_text(f"{about}\n\n{table}\n", encoding="utf-8")
    columns = [f"{column} f+b" for column in pools] + ["floor f+b"]
    bar_chart(args.output / f"{name}.png", rows, "B, D, map", columns, "Forward and backward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
