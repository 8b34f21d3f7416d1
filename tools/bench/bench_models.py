"""Training step and inference of every `*_gcp` model against its twin with average pooling and the same strides.

    python tools/bench/bench_models.py [--device cuda] [--batch-size 128 256] [--modes channels_last bfloat16]

Both twins of a row are timed in turns in one process, at 224 px, SGD with momentum included in the step. On a CPU the
process keeps freed memory, as the commands do (bench_allocator.py has both ways). The modes: bench_modes.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from bench_common import bar_chart, interleaved, machine, peak_bytes
from bench_modes import Mode, add_options, captured, collect, modes_of
from torch.nn.functional import cross_entropy

import timm_gcp
from timm_gcp.common.freed_memory import keep_freed_memory

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("resnet18_gcp", {}),
    ("resnet18_gcp", {"last_stage": "stride2"}),
    ("resnet34_gcp", {}),
    ("resnet50_gcp", {}),
    ("resnet50_gcp", {"last_stage": "stride2"}),
    ("resnet101_gcp", {}),
    ("mobilenetv2_100_gcp", {}),
    ("mobilenetv2_100_gcp_d128", {}),
    ("shufflenet_v2_x1_0_gcp", {}),
]


def runs_of(
    name: str, kwargs: dict[str, Any], batch: int, mode: Mode, args: Any, fused: bool | None = None
) -> tuple[Callable, Callable]:
    """A training step, with SGD as torch chooses its kernel or with the fused one, and an inference pass of a model."""
    model = timm.create_model(name, num_classes=args.num_classes, **kwargs).to(
        args.device, memory_format=mode.memory_format
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4, fused=fused)
    scaler = torch.amp.GradScaler(args.device.type, enabled=mode.precision == "float16")
    x = torch.randn(batch, 3, args.img_size, args.img_size, device=args.device).to(memory_format=mode.memory_format)
    y = torch.randint(0, args.num_classes, (batch,), device=args.device)
    network = torch.compile(model, backend=args.compile_backend, dynamic=False) if mode.compiled else model

    def step() -> None:
        network.train()
        with mode.autocast(args.device):
            loss = cross_entropy(network(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    def infer() -> None:
        network.eval()
        with torch.inference_mode(), mode.autocast(args.device):
            network(x)

    return step, infer


def measure(name: str, kwargs: dict[str, Any], batch: int, mode: Mode, args: Any) -> dict[str, Any]:
    """One row: ms per image of both twins, their ratios, peak megabytes of a step."""
    with mode.products():
        return _measure(name, kwargs, batch, mode, args)


def _measure(name: str, kwargs: dict[str, Any], batch: int, mode: Mode, args: Any) -> dict[str, Any]:
    torch.compiler.reset()
    step, infer = runs_of(name, kwargs, batch, mode, args)
    step_gap, infer_gap = runs_of(name, {**kwargs, "global_pool": "avg"}, batch, mode, args)
    label = label_of(name, kwargs)
    wrap = captured if mode.graphs else (lambda run: run)
    title = f"{label} {mode.name}"
    train = interleaved({"gcp": wrap(step), "gap": wrap(step_gap)}, args.rounds, args.device, f"{title} train")
    test = interleaved({"gcp": wrap(infer), "gap": wrap(infer_gap)}, args.rounds, args.device, f"{title} inference")
    # the accounting on a CPU sees operations one by one, which a compiled program does not run
    peaks = [
        None if mode.compiled and args.device.type == "cpu" else peak_bytes(run, args.device) / 2**20
        for run in (step, step_gap)
    ]
    return {
        "model": label,
        "mode": mode.name,
        "batch": batch,
        "GCP train": train["gcp"] / batch,
        "GAP train": train["gap"] / batch,
        "train ratio": train["gcp"] / train["gap"],
        "GCP infer": test["gcp"] / batch,
        "GAP infer": test["gap"] / batch,
        "infer ratio": test["gcp"] / test["gap"],
        "GCP peak MB": peaks[0],
        "GAP peak MB": peaks[1],
    }


def label_of(name: str, kwargs: dict[str, Any]) -> str:
    """Name of a row's model."""
    return name + "".join(f" {value}" for value in kwargs.values())


def make_known(name: str) -> None:
    """Register the covariance variant of a timm model under `name`, NAME_gcp, if there is none; else ValueError."""
    if not timm.is_model(name):
        timm_gcp.register(name.removesuffix("_gcp"), name)


def models_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """The models of `--model`, those of `--rows`, or all."""
    if args.model and args.rows:
        parser.error("--rows picks from the list of models, which --model replaces; give one of the two")
    for name in args.model or ():
        try:
            make_known(name)
        except ValueError as error:
            parser.error(str(error))
    if args.model:
        return [(name, {}) for name in args.model]
    return [MODELS[i] for i in (args.rows or range(len(MODELS)))]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, ["channels_last"])
    parser.add_argument("--batch-size", nargs="+", default=[8], type=int)
    parser.add_argument("--img-size", default=224, type=int)
    parser.add_argument("--num-classes", default=1000, type=int)
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the rows to run (default: all)")
    parser.add_argument("--model", nargs="+", help="these models instead; X_gcp of any timm model X is registered")
    parser.add_argument("--name", default="models", help="first word of the files' names (default: models)")
    args = parser.parse_args()
    kept = "; freed memory kept" if args.device.type == "cpu" and keep_freed_memory() else ""
    models = models_of(parser, args)
    jobs = [
        (f"{label_of(*model)} {mode.name} batch {batch}", partial(measure, *model, batch, mode, args))
        for mode in modes_of(parser, args)
        for batch in args.batch_size
        for model in models
    ]
    about = (
        f"{machine(args.device)}; {args.img_size} px, {args.num_classes} classes; median ms per image of {args.rounds}"
        f"{kept}"
    )
    name = f"{args.name}_{args.device.type}"
    rows = collect(jobs, name, about, args)
    bars = [{**row, "model": f"{row['model']}\n{row['mode']}, {row['batch']}"} for row in rows]
    bar_chart(args.output / f"{name}.png", bars, "model", ["GCP train", "GAP train", "GCP infer", "GAP infer"], about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
