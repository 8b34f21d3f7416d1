"""Checks of timm's other scripts, which lie beside train.py: run over our models by `python -m timm_gcp.run`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from train_py_bench import Bench, CheckFailed, summary
from train_py_checks import check

MODEL = ("--model", "shufflenet_v2_x1_0_gcp", "--model-kwargs", "reduce_dim=16")
SMALL = ("--num-classes", "4", "--img-size", "64")
CPU = ("--device", "cpu")


def run(bench: Bench, script: str, *arguments: str) -> str:
    """Run a script of timm's repository through the launcher, and return what it printed.

    Raises:
        CheckFailed: It is not there, or it failed.
    """
    path = bench.scripts / script
    if not path.is_file():
        raise CheckFailed(f"no {script} beside train.py: give the train.py of a clone of timm's repository")
    done = bench.python("-m", "timm_gcp.run", str(path), *arguments)
    if done.returncode:
        raise CheckFailed(f"{script} ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout + done.stderr


def trained(bench: Bench) -> Path:
    """The folder of a run of two epochs, trained once."""
    if bench.trained is None:
        bench.trained = bench.start(*bench.arguments("shufflenetv2_adju", *MODEL, "--checkpoint-hist", "2"))
    return bench.trained


def last(bench: Bench) -> str:
    """Its last checkpoint."""
    return str(trained(bench) / "last.pth.tar")


def top1(bench: Bench, weights: str) -> float:
    """What validate.py says of weights on the validation images."""
    preprocessing = ("--crop-pct", "0.875", "--interpolation", "bilinear", "--workers", "0", "-b", "6")
    data = ("--data-dir", str(bench.images), "--split", "validation")
    results = bench.scratch / "validated.json"
    run(bench, "validate.py", *MODEL, *SMALL, *CPU, *data, *preprocessing, "--checkpoint", weights,
        "--results-file", str(results), "--results-format", "json")  # fmt: skip
    found = json.loads(results.read_text())
    return float((found[0] if isinstance(found, list) else found)["top1"])


@check("validate.py")
def validate(bench: Bench) -> str:
    """It measures the accuracy that train.py wrote."""
    measured, written = top1(bench, last(bench)), summary(trained(bench))[-1]["eval_top1"]
    if abs(measured - written) > 0.01:
        raise CheckFailed(f"validate.py says {measured}, summary.csv {written}")
    return f"top-1 {measured:g} as in summary.csv"


@check("inference.py")
def inference(bench: Bench) -> str:
    """It names a class for every image."""
    folder = bench.scratch / "predictions"
    run(bench, "inference.py", *MODEL, *SMALL, *CPU, "--data-dir", str(bench.images / "validation"), "--workers", "0",
        "--checkpoint", last(bench), "--topk", "2", "--label-type", "none", "--results-dir", str(folder),
        "--results-format", "csv", "--no-console-results")  # fmt: skip
    (table,) = folder.glob("*.csv")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) != 12:
        raise CheckFailed(f"{len(rows)} rows for 12 images")
    return "a row for each image"


@check("benchmark.py")
def benchmark(bench: Bench) -> str:
    """It times inference and training."""
    results = bench.scratch / "benchmark.json"
    run(bench, "benchmark.py", *MODEL, *SMALL, *CPU, "--bench", "both", "--precision", "float32", "--batch-size", "4",
        "--num-warm-iter", "1", "--num-bench-iter", "10",
        "--results-file", str(results), "--results-format", "json")  # fmt: skip
    found = json.loads(results.read_text())
    found = found[0] if isinstance(found, list) else found
    for key in ("infer_samples_per_sec", "train_samples_per_sec"):
        if not found.get(key, 0) > 0:
            raise CheckFailed(f"no {key} in {sorted(found)}")
    return "inference and training timed"


@check("clean_checkpoint.py")
def clean(bench: Bench) -> str:
    """What it writes has the same accuracy."""
    target = bench.scratch / "clean.safetensors"
    run(
        bench, "clean_checkpoint.py", "--checkpoint", last(bench), "--output", str(target), "--safetensors", "--no-hash"
    )
    if top1(bench, str(target)) != top1(bench, last(bench)):
        raise CheckFailed("the cleaned weights have another accuracy")
    return "same accuracy as the checkpoint"


@check("avg_checkpoints.py")
def average(bench: Bench) -> str:
    """The mean of two checkpoints loads."""
    target = bench.scratch / "averaged.safetensors"
    run(bench, "avg_checkpoints.py", "--input", str(trained(bench)), "--filter", "checkpoint-*.pth.tar", "-n", "2",
        "--output", str(target), "--safetensors")  # fmt: skip
    return f"top-1 {top1(bench, str(target)):g}"


@check("onnx_export.py")
def onnx(bench: Bench) -> str:
    """The file runs in onnxruntime. The script takes no --model-kwargs: D is the default."""
    target = bench.scratch / "model.onnx"
    weights = bench.weight_folder("shufflenet_v2_x1_0_gcp", num_classes=4) / "model.safetensors"
    run(bench, "onnx_export.py", str(target), *MODEL[:2], *SMALL, "--checkpoint", str(weights), "--dynamo")
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    (logits,) = session.run(None, {entry.name: np.zeros((1, 3, 64, 64), np.float32)})
    if logits.shape != (1, 4) or not np.isfinite(logits).all():
        raise CheckFailed(f"onnxruntime gives {logits}")
    return "onnxruntime runs it"
