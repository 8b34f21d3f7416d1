"""Training step and inference of every `*_gcp` model against its twin with average pooling and the same strides.

    python tools/bench/bench_models.py [--device cuda --amp] [--batch-size 8] [--output docs/performance]

Both twins of a row are timed in turns in one process, at 224 px, SGD with momentum included in the step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from bench_common import bar_chart, interleaved, machine, markdown, peak_bytes, write_csv
from torch.nn.functional import cross_entropy

import timm_gcp  # noqa: F401  registers the models

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


def runs_of(name: str, kwargs: dict[str, Any], args: Any) -> tuple[Callable, Callable]:
    """A training step and an inference pass of one model."""
    model = timm.create_model(name, **kwargs).to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    x = torch.randn(args.batch_size, 3, 224, 224, device=args.device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (args.batch_size,), device=args.device)
    amp = torch.autocast(args.device.type, dtype=torch.bfloat16, enabled=args.amp)

    def step() -> None:
        model.train()
        with amp:
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def infer() -> None:
        model.eval()
        with torch.inference_mode(), amp:
            model(x)

    return step, infer


def measure(name: str, kwargs: dict[str, Any], args: Any) -> dict[str, Any]:
    """One row: ms per image of both twins, their ratios, peak megabytes of a step."""
    step, infer = runs_of(name, kwargs, args)
    step_gap, infer_gap = runs_of(name, {**kwargs, "global_pool": "avg"}, args)
    label = name + "".join(f" {value}" for value in kwargs.values())
    train = interleaved({"gcp": step, "gap": step_gap}, args.rounds, args.device, f"{label} train")
    test = interleaved({"gcp": infer, "gap": infer_gap}, args.rounds, args.device, f"{label} inference")
    return {
        "model": label,
        "GCP train": train["gcp"] / args.batch_size,
        "GAP train": train["gap"] / args.batch_size,
        "train ratio": train["gcp"] / train["gap"],
        "GCP infer": test["gcp"] / args.batch_size,
        "GAP infer": test["gap"] / args.batch_size,
        "infer ratio": test["gcp"] / test["gap"],
        "GCP peak MB": peak_bytes(step, args.device) / 2**20,
        "GAP peak MB": peak_bytes(step_gap, args.device) / 2**20,
    }


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--amp", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--batch-size", default=8, type=int)
    parser.add_argument("--rounds", default=20, type=int)
    parser.add_argument("--rows", type=int, nargs="*", help="indices of the rows to run (default: all)")
    parser.add_argument("--output", default=Path("docs/performance"), type=Path)
    args = parser.parse_args()
    rows = [measure(*MODELS[i], args) for i in (args.rows or range(len(MODELS)))]
    table = markdown(rows)
    about = f"{machine(args.device)}; batch {args.batch_size}; median ms per image of {args.rounds}"
    print(f"{about}\n\n{table}")
    name = f"models_{args.device.type}"
    write_csv(args.output / f"{name}.csv", rows)
    (args.output / f"{name}.md").write_text(f"{about}\n\n{table}\n", encoding="utf-8")
    bar_chart(args.output / f"{name}.png", rows, "model", ["GCP train", "GAP train", "GCP infer", "GAP infer"], about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
