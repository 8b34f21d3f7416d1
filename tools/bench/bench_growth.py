"""How time and memory of the pooling grow with N, D and B, beside the reference, with the rule of choice drawn over it.

    python tools/bench/bench_growth.py [--device cuda] [--rounds 10] [--max-gb 8] [--max-seconds 20] [--quick]

One size is swept at a time, the others stay at B = 8, D = 256, 14×14. Both algorithms are timed in turns, forward and
backward. A point whose memory is estimated above `--max-gb`, or that follows one of more than `--max-seconds` a run, is
left out, and the table says so. `--quick` takes the smallest sizes, with an `--output` of its own. The table is written
after every point.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from bench_common import both, interleaved, machine, markdown, saved_bytes, seconds_of, write_csv
from bench_modes import device_of
from reference_pooling import reference_pool
from torch import Tensor

from timm_gcp.common.files import write_text
from timm_gcp.functional import global_cov_pool
from timm_gcp.ops.choice import choose_form, use_gram

ITERATIONS = 5  # of both algorithms
POOLS: dict[str, Callable[[Tensor], Tensor]] = {"ours": global_cov_pool, "reference": reference_pool}


class Size(NamedTuple):
    """Size of the features `(B, D, side, side)`."""

    batch: int
    dim: int
    side: int


class Sweep(NamedTuple):
    """What is swept, the sizes, and how an axis shows them."""

    name: str
    sizes: list[Size]
    of: Callable[[Size], int]
    label: str


def sweeps(base: Size, sides: list[int], dims: list[int], batches: list[int]) -> tuple[Size, list[Sweep]]:
    """`base` and the three sweeps around it, each in growing order."""
    return base, [
        Sweep("N", [base._replace(side=s) for s in sides], lambda size: size.side**2, "positions N"),
        Sweep("D", [base._replace(dim=d) for d in dims], lambda size: size.dim, "channels D"),
        Sweep("B", [base._replace(batch=b) for b in batches], lambda size: size.batch, "batch B"),
    ]


FULL = sweeps(
    Size(8, 256, 14),
    [7, 10, 14, 20, 28, 40, 56, 80, 112],
    [32, 64, 128, 192, 256, 384, 512, 768, 1024],
    [2**k for k in range(10)],
)
QUICK = sweeps(Size(2, 16, 4), [3, 4, 5], [8, 16, 24], [1, 2, 4])


def choice(dim: int, positions: int, device: torch.device) -> tuple[str, str]:
    """Side and form that the package takes in training."""
    gram = use_gram(dim, positions)
    probe = torch.empty(1, device=device, requires_grad=True)
    return "N×N" if gram else "D×D", choose_form(probe, positions if gram else dim)


def estimated_bytes(name: str, size: Size, device: torch.device) -> int:
    """What forward and backward hold in float32, to within a factor of 2.5: an estimate to stop before memory ends."""
    positions = size.side**2
    features = size.dim * positions
    if name == "reference":  # every Y and Z and the products of backward; the centring matrix and its copies
        return 4 * size.batch * ((2 * ITERATIONS + 10) * size.dim**2 + 2 * positions**2 + 4 * features)
    smaller = min(size.dim, positions)
    residuals = ITERATIONS - 1 if choice(size.dim, positions, device)[1] == "products" else 1
    return 4 * size.batch * ((residuals + 8) * smaller**2 + 3 * size.dim**2 + 4 * features)


def point(sweep: Sweep, size: Size, stopped: dict[str, str], args: Any) -> dict[str, Any]:
    """One row. `stopped` holds why a pool is no longer run in this sweep, and gets what this point adds."""
    positions = size.side**2
    side, form = choice(size.dim, positions, args.device)
    row: dict[str, Any] = {"swept": sweep.name, "B": size.batch, "D": size.dim, "N": positions}
    row |= {"side": side, "form": form}
    left: dict[str, str] = {}
    runs: dict[str, Callable[[], Any]] = {}
    for name in POOLS:
        gigabytes = estimated_bytes(name, size, args.device) / 2**30
        if name in stopped:
            left[name] = stopped[name]
        elif gigabytes > args.max_gb:
            left[name] = f"{gigabytes:.3g} GB, more than {args.max_gb:g}"
    x = torch.empty(0)
    if len(left) < len(POOLS):
        x = torch.randn(size.batch, size.dim, size.side, size.side, device=args.device).relu().requires_grad_()
    for name, pool in POOLS.items():
        if name not in left:
            grad = torch.randn_like(pool(x.detach()))
            runs[name] = both(pool, x, grad)
            if (took := seconds_of(runs[name], args.device)) > args.max_seconds:
                stopped[name] = f"a smaller size took {took:.3g} s, more than {args.max_seconds:g}"
                left[name] = f"{took:.3g} s, more than {args.max_seconds:g}"
                del runs[name]
    title = f"{sweep.name}: {size.batch}, {size.dim}, {size.side}×{size.side}"
    times = interleaved(runs, args.rounds, args.device, title) if runs else {}
    for name in POOLS:
        row[f"{name} ms"] = times.get(name)
    for name, pool in POOLS.items():
        row[f"{name} saved MB"] = saved_bytes(lambda pool=pool: pool(x)) / 2**20 if name in runs else None
    row["left out"] = "; ".join(f"{name}: {reason}" for name, reason in left.items()) or None
    return row


def regions(sweep: Sweep, device: torch.device) -> Iterator[tuple[float, float, str]]:
    """Stretches of the axis with one side and form: from, to, and their name."""
    low, high = sweep.of(sweep.sizes[0]), sweep.of(sweep.sizes[-1])
    base = sweep.sizes[0]
    values = np.arange(low, high + 1)
    names = []
    for value in values.tolist():
        dim, positions = (value if sweep.name == "D" else base.dim), (value if sweep.name == "N" else base.side**2)
        names.append(", ".join(choice(dim, positions, device)))
    start = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[start]:
            yield values[start].item(), (values[end] if end < len(names) else values[-1]).item(), names[start]
            start = end


def figure(path: Path, rows: list[dict[str, Any]], plan: list[Sweep], device: torch.device, title: str) -> None:
    """Time above, memory below, one column per sweep, logarithmic axes, the chosen side and form shaded."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(2, len(plan), figsize=(13, 7), sharex="col", layout="constrained")
    colours: dict[str, Any] = {}
    for column, sweep in enumerate(plan):
        mine = [row for row in rows if row["swept"] == sweep.name]
        for ax, unit in zip(axes[:, column], ("ms", "saved MB"), strict=True):
            for low, high, name in regions(sweep, device):
                colour = colours.setdefault(name, plt.get_cmap("Pastel1")(len(colours)))
                ax.axvspan(low, high, color=colour, zorder=0)
            for marker, pool in zip("os", POOLS, strict=True):
                points = [(row[sweep.name], row[f"{pool} {unit}"]) for row in mine if row[f"{pool} {unit}"]]
                ax.plot(*(zip(*points, strict=True) if points else ([], [])), marker=marker, label=pool)
            ax.set(xscale="log", yscale="log")
            ax.grid(alpha=0.3)
        axes[1, column].set_xlabel(sweep.label)
    axes[0, 0].set_ylabel("forward and backward, ms")
    axes[1, 0].set_ylabel("kept for backward, MB")
    lines, labels = axes[0, 0].get_legend_handles_labels()
    lines += [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    fig.legend(lines, [*labels, *colours], loc="outside lower center", ncols=len(lines))
    fig.suptitle(title, fontsize="medium")
    part = path.with_suffix(".part")
    fig.savefig(part, dpi=110, format="png")
    plt.close(fig)
    part.replace(path)


def main() -> int:
    """Run the sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=device_of)
    parser.add_argument("--rounds", default=10, type=int)
    parser.add_argument("--max-gb", default=8.0, type=float, help="leave out what is estimated to take more")
    parser.add_argument("--max-seconds", default=20.0, type=float, help="leave out what follows a longer run")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to try the script")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    if args.quick and args.output == parser.get_default("output"):
        parser.error(f"--quick measures nothing worth a page; give another --output than {args.output}")
    base, plan = QUICK if args.quick else FULL
    name = f"growth_{args.device.type}"
    about = (
        f"{machine(args.device)}; median of {args.rounds}; around B = {base.batch}, D = {base.dim}, "
        f"{base.side}×{base.side}; at most {args.max_gb:g} GB and {args.max_seconds:g} s a run"
    )
    rows: list[dict[str, Any]] = []
    for sweep in plan:
        stopped: dict[str, str] = {}
        for size in sweep.sizes:
            rows.append(point(sweep, size, stopped, args))
            write_csv(args.output / f"{name}.csv", rows)
    figure(args.output / f"{name}.png", rows, plan, args.device, about)
    text = f"{about}\n\n{markdown(rows)}"
    print(text)
    write_text(args.output / f"{name}.md", text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
