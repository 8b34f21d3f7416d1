"""Time and memory of covariance pooling against the reference algorithm, the exact root, and the machine's limits.

    python tools/bench/bench_pooling.py [--device cuda] [--reference PATH/MPNCOV.py] [--modes float32 tf32 bfloat16]

All columns of a row are timed in turns in one process; the table is printed and written as CSV, with a bar chart. The
modes are those of bench_modes.py. `float16` and `bfloat16` take features of that type, as a network under autocast
makes them; `compiled` adds a column; `graphs` replays ours and the average, and runs the rest, which copy from the
host, as they are.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
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
    peak_bytes,
    product_rate,
    saved_bytes,
)
from bench_modes import Mode, add_options, captured, collect, modes_of
from reference_pooling import reference_pool
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from timm_gcp.functional import covariance, global_cov_pool, triu_vector
from timm_gcp.ops.triangle import triangle_size

SHAPES = [(32, 256, 7), (32, 256, 14), (32, 128, 7), (32, 128, 14), (8, 256, 28), (2, 256, 56), (1, 256, 7)]
CUDA_SHAPES = [(128, 256, 7), (128, 256, 14), (128, 128, 7), (128, 128, 14), (256, 256, 7), (256, 256, 14)]


def exact_root(x: Tensor) -> Tensor:
    """Square root by `torch.linalg.eigh` on the D×D side with autograd's own backward."""
    lam, u = torch.linalg.eigh(covariance(x.float()))
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


def measure(shape: tuple[int, int, int], mode: Mode, pools: dict[str, Callable], rates: Any, args: Any) -> dict:
    """One row: median ms of each pool forward and forward+backward, floor, saved and peak megabytes."""
    with mode.products():
        return _measure(shape, mode, pools, rates, args)


def _measure(shape: tuple[int, int, int], mode: Mode, pools: dict[str, Callable], rates: Any, args: Any) -> dict:
    batch, dim, side = shape
    torch.compiler.reset()  # every row is compiled for its own shape
    skipped = {*args.without, *(() if mode.compiled else ("compiled",))}
    every = list(pools)

    def cast(pool: Callable) -> Callable:
        def run(features: Tensor) -> Tensor:
            with mode.autocast(args.device):
                return pool(features)

        return run

    pools = {name: cast(pool) for name, pool in pools.items() if name not in skipped}
    x = torch.randn(batch, dim, side, side, device=args.device).relu()
    x = x.to(mode.dtype, memory_format=mode.memory_format).requires_grad_()
    grads = {name: torch.randn_like(pool(x)) for name, pool in pools.items()}

    def wrap(name: str, run: Callable[[], Any]) -> Callable[[], Any]:
        return captured(run) if mode.graphs and name in ("ours", "average") else run

    title = f"{batch}, {dim}, {side}×{side}"
    runs = {n: wrap(n, forward(p, x)) for n, p in pools.items()}
    ms_forward = interleaved(runs, args.rounds, args.device, f"{title} forward")
    steps = {n: both(p, x, grads[n]) for n, p in pools.items()}
    runs = {n: wrap(n, step) for n, step in steps.items()}
    ms_both = interleaved(runs, args.rounds, args.device, f"{title} both")
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place_flop}) as counter:
        steps["ours"]()
    # read the features and the incoming gradient, write the vector and the features' gradient
    traffic = 2 * batch * (x.element_size() * dim * side * side + 4 * triangle_size(dim))
    row: dict[str, Any] = {"B, D, map": title, "mode": mode.name}
    row |= {f"{name} fwd": ms_forward.get(name) for name in every} | {
        f"{name} f+b": ms_both.get(name) for name in every
    }
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
    add_options(parser, ["compiled"])
    parser.add_argument("--reference", type=Path, help="the authors' MPNCOV.py, timed too")
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the rows to run (default: all)")
    parser.add_argument("--shape", type=int, nargs=3, metavar=("B", "D", "SIDE"), help="this row instead")
    parser.add_argument("--without", nargs="*", default=[], choices=("eigh", "average"), help="columns to leave out")
    args = parser.parse_args()
    if args.shape and args.rows:
        parser.error("--rows picks from the list of shapes, which --shape replaces; give one of the two")
    modes = modes_of(parser, args)
    pools: dict[str, Callable] = {"ours": global_cov_pool, "reference": reference_pool}
    if args.reference:
        pools["authors"] = authors_pool(args.reference)
    pools["eigh"] = exact_root
    if any(mode.compiled for mode in modes):
        pools["compiled"] = torch.compile(global_cov_pool, backend=args.compile_backend, fullgraph=True, dynamic=False)
    pools["average"] = average
    shapes = [tuple(args.shape)] if args.shape else SHAPES + (CUDA_SHAPES if args.device.type == "cuda" else [])
    rates = product_rate(args.device), copy_rate(args.device)
    jobs = [
        ("{}, {}, {}×{} {}".format(*shape, shape[2], mode.name), partial(measure, shape, mode, pools, rates, args))
        for mode in modes
        for shape in [shapes[i] for i in (args.rows or range(len(shapes)))]
    ]
    about = (
        f"{machine(args.device)}; products {rates[0] / 1e9:.0f} GFLOP/s, copies {rates[1] / 1e9:.1f} GB/s; "
        f"median ms of {args.rounds}"
    )
    name = f"pooling_{args.device.type}"
    rows = collect(jobs, name, about, args)
    columns = [f"{column} f+b" for column in pools if column not in args.without] + ["floor f+b"]
    bars = [{**row, "row": f"{row['B, D, map']}\n{row['mode']}"} for row in rows]
    bar_chart(args.output / f"{name}.png", bars, "row", columns, "Forward and backward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
