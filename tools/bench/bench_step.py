"""One training step of a GCP model and of its twin, part by part, beside what each part must cost at least.

    python tools/bench/bench_step.py [--rows 8 6 1] [--batch-size 32] [--seconds 60] [--keep]

The parts, each behind a barrier: the backbone, the same network in both; 1×1 reduction, pooling, and the classifier
with its loss, forward and backward, from features of the backbone's shape; SGD's update of all parameters, by torch's
default and by its fused kernel, clearing the head's gradients included. The heads take turns; medians are printed. A
step is the sum of its parts, with the twin's backbone in both.

The floor of a part is the larger of two times. Its matrix products and convolutions are counted and divided by the rate
of one large product; the bytes that it must read and write are counted and divided by the rate of one large copy:
input, parameters and output forward; input, parameters, both gradients and the parameters' gradients backward; in an
update five numbers a parameter (parameter, gradient and momentum read, parameter and momentum written). Both rates are
measured in the same process. `new memory` is what a gradient of the classifier's size costs to get from the system and
to touch for the first time, beyond filling it: it is part of the classifier's backward.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import timm
import torch
from bench_common import copy_rate, machine, markdown, product_rate, seconds_of, synchronize, write_csv
from bench_models import label_of, models_of
from bench_modes import device_of
from performance_page import read
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import timm_gcp  # noqa: F401
from timm_gcp.common.files import write_text

HEAD = tuple(f"{part} {way}" for part in ("reduction", "pooling", "classifier") for way in ("forward", "backward"))
UPDATES: dict[str, dict[str, Any]] = {"update": {}, "fused update": {"fused": True}}


def size(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of them all."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def without_reduction(pool: nn.Module) -> nn.Module:
    """The pooling alone: a shallow copy of the layer that takes features which are reduced already."""
    bare = copy.copy(pool)
    bare.__dict__["_modules"] = {**pool._modules, "reduction": nn.Identity()}
    return bare


class Step:
    """A model's training step in parts: `backbone` and `head` time one, `floors` counts what the head must do."""

    def __init__(self, name: str, kwargs: dict[str, Any], args: Any) -> None:
        self.device = args.device
        model: Any = timm.create_model(name, num_classes=args.num_classes, **kwargs).to(self.device).train()
        self.model, self.classifier, pool = model, model.get_classifier(), model.global_pool
        self.x = torch.randn(args.batch_size, 3, args.img_size, args.img_size, device=self.device)
        y = torch.randint(0, args.num_classes, (args.batch_size,), device=self.device)
        self.of_head = [p for module in (pool, self.classifier) for p in module.parameters()]
        mine = set(map(id, self.of_head))
        for parameter in model.parameters():
            if id(parameter) not in mine:
                parameter.grad = torch.zeros_like(parameter)  # the update of the backbone's parameters reads one
        with torch.no_grad():
            one = model.eval().forward_features(self.x[:1])
            model.train()
        self.maps = torch.randn(args.batch_size, *one.shape[1:], device=self.device).relu()
        self.parts: dict[str, tuple[Callable[[Tensor], Tensor], list[nn.Parameter]]] = {}
        if hasattr(pool, "reduction"):
            self.parts["reduction"] = pool.reduction, list(pool.reduction.parameters())
            pool = without_reduction(pool)
        fc = self.classifier
        self.parts["pooling"] = pool, []
        self.parts["classifier"] = lambda v: cross_entropy(fc(v), y), list(fc.parameters())
        self.updates = {
            label: torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4, **options)
            for label, options in UPDATES.items()
        }

    def backbone(self) -> float:
        """Milliseconds of the backbone, forward and backward."""
        times: dict[str, float] = {}
        features = self._timed(times, "forward", lambda: self.model.forward_features(self.x), [])
        self._timed(times, "backward", lambda: features.backward(self.maps), [])
        return sum(times.values())

    def _timed(self, times: dict[str, float], part: str, run: Callable[[], Any], _: Any) -> Any:
        synchronize(self.device)
        start = time.perf_counter()
        value = run()
        synchronize(self.device)
        times[part] = 1e3 * (time.perf_counter() - start)
        return value

    def _clear(self) -> None:
        for parameter in self.of_head:
            parameter.grad = None

    def head(self, around: Callable[..., Any] | None = None) -> dict[str, float]:
        """Milliseconds of each part; `around(times, part, run, tensors)` sees each call in place of the clock."""
        call: Any = around or self._timed
        times: dict[str, float] = {}
        call(times, "clear", self._clear, [])
        value, kept = self.maps, []
        for part, (forward, parameters) in self.parts.items():
            start = value.detach().requires_grad_()
            value = call(times, f"{part} forward", lambda f=forward, v=start: f(v), [start, *parameters])
            kept.append((part, start, value, parameters))
        grad: Tensor | None = None
        while kept:
            part, start, value, parameters = kept.pop()
            touched = [start, value, *parameters, *parameters]
            call(times, f"{part} backward", lambda v=value, g=grad: v.backward(g), touched)
            grad = start.grad
        for part, optimizer in self.updates.items():
            call(times, part, optimizer.step, 5 * list(self.model.parameters()))
        return times

    def floors(self, flops: float, bandwidth: float) -> dict[str, float]:
        """Milliseconds that each part takes at least, at `flops` a second and `bandwidth` bytes a second."""

        def count(times: dict[str, float], part: str, run: Callable[[], Any], tensors: list[Tensor]) -> Any:
            with FlopCounterMode(display=False) as counter:
                value = run()
            of_input = tensors[0].grad if part.endswith("backward") else None
            moved = size([*tensors, of_input, value if isinstance(value, Tensor) else None])
            times[part] = 1e3 * max(counter.get_total_flops() / flops, moved / bandwidth)
            return value

        return self.head(count)


def new_memory(like: Tensor, rounds: int = 5) -> float:
    """Milliseconds beyond filling it that fresh memory of this size costs."""
    there = torch.empty_like(like)
    times: dict[str, list[float]] = {"fresh": [], "there": []}
    for _ in range(rounds):
        for name, run in {
            "fresh": lambda: torch.empty_like(like).fill_(1.0),
            "there": lambda: there.fill_(1.0),
        }.items():
            times[name].append(1e3 * seconds_of(run, like.device))
    return statistics.median(times["fresh"]) - statistics.median(times["there"])


def medians(gcp: Step, gap: Step, args: Any) -> tuple[float, dict[str, float], dict[str, float]]:
    """Median ms of the backbone, for half of `args.seconds` but once at least, and of the parts of both heads."""
    backbone: list[float] = []
    seen: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    start = time.monotonic()
    for turn in range(args.warm_up + args.rounds):
        counts = turn >= args.warm_up
        if counts and (not backbone or time.monotonic() - start < args.seconds / 2):
            backbone.append(gap.backbone())
        for step, kept in zip((gcp, gap), seen, strict=True):
            times = step.head()
            kept.extend([times] if counts else [])
        if counts and time.monotonic() - start > args.seconds:
            break
    of_gcp, of_gap = ({part: statistics.median(times[part] for times in kept) for part in kept[0]} for kept in seen)
    return statistics.median(backbone), of_gcp, of_gap


def step_ms(backbone: float, times: dict[str, float], update: str) -> float:
    """A whole step with this update."""
    return backbone + sum(times.get(part, 0.0) for part in ("clear", *HEAD, update))


def measure(name: str, kwargs: dict[str, Any], args: Any) -> dict[str, Any]:
    """One row: ms of both steps and their ratios, and what each part of the head adds, beside its floor."""
    flops, bandwidth = product_rate(args.device), copy_rate(args.device)
    steps = [Step(name, kwargs, args), Step(name, {**kwargs, "global_pool": "avg"}, args)]
    backbone, gcp, gap = medians(*steps, args)
    floor, floor_gap = (step.floors(flops, bandwidth) for step in steps)
    row: dict[str, Any] = {"model": label_of(name, kwargs), "allocator": allocator(args.device)}
    for update, suffix in zip(UPDATES, ("", ", fused"), strict=True):
        for who, times in {"GAP": gap, "GCP": gcp}.items():
            row[f"{who} step{suffix}"] = step_ms(backbone, times, update)
        row[f"ratio{suffix}"] = row[f"GCP step{suffix}"] / row[f"GAP step{suffix}"]
    for part in ("clear", *HEAD, *UPDATES):
        row[part] = gcp.get(part, 0.0) - gap.get(part, 0.0)
        row[f"{part} floor"] = floor.get(part, 0.0) - floor_gap.get(part, 0.0)
    least = sum(row[f"{part} floor"] for part in (*HEAD, "fused update"))
    row["ratio at the floors"] = 1 + least / row["GAP step, fused"]
    row["new memory"] = new_memory(steps[0].classifier.weight)
    return row | {"GFLOP/s": flops / 1e9, "GB/s": bandwidth / 1e9}


def allocator(device: torch.device) -> str:
    """How the process gets its memory, as far as its environment says."""
    if device.type != "cpu":
        return "torch's"
    if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1":
        return "huge pages"
    kept = "MALLOC_MMAP_THRESHOLD_" in os.environ or os.environ.get("MALLOC_MMAP_MAX_") == "0"
    return "heap" if kept else "system's"


COLUMNS = {
    "reduction": ("reduction forward", "reduction backward"),
    "pooling": ("pooling forward", "pooling backward"),
    "classifier forward": ("classifier forward",),
    "classifier backward": ("classifier backward",),
    "update": ("clear", "update"),
    "fused update": ("clear", "fused update"),
}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for reading: what a part adds, and its floor in brackets."""
    shown = []
    for row in rows:
        line = {
            key: row[key]
            for key in ("model", "allocator", "GAP step", "GCP step", "ratio", "GCP step, fused", "ratio, fused")
        }
        for column, parts in COLUMNS.items():
            more, floor = (sum(float(row[part + kind]) for part in parts) for kind in ("", " floor"))
            line[column] = f"{more:.0f} ({floor:.0f})"
        shown.append(line | {key: row[key] for key in ("new memory", "ratio at the floors", "GFLOP/s", "GB/s")})
    return markdown(shown)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=device_of)
    parser.add_argument("--batch-size", default=32, type=int)
    parser.add_argument("--img-size", default=224, type=int)
    parser.add_argument("--num-classes", default=1000, type=int)
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the models to run (default: all)")
    parser.add_argument("--model", nargs="+", help="these models instead")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--warm-up", default=1, type=int)
    parser.add_argument(
        "--seconds", default=60.0, type=float, help="of a model: start no round after them, but at least one"
    )
    parser.add_argument("--keep", action="store_true", help="keep the rows of other models that the file has")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    if args.rounds < 1 or args.warm_up < 0:
        parser.error(f"--rounds {args.rounds} --warm-up {args.warm_up}: give at least 1 and at least 0")
    path = args.output / f"step_{args.device.type}.csv"
    rows: list[dict[str, Any]] = read(path) if args.keep and path.is_file() else []
    for name, kwargs in models_of(parser, args):
        row = measure(name, kwargs, args)
        rows = [r for r in rows if (r["model"], r["allocator"]) != (row["model"], row["allocator"])] + [row]
        write_csv(path, rows)
        text = f"{machine(args.device)}; batch {args.batch_size}; ms a step, medians\n\n{table(rows)}"
        write_text(path.with_suffix(".md"), text + "\n")
        print(table([row]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
