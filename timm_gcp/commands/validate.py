"""`timm-gcp validate`: top-1, top-5, a table per class and the confusion matrix of a model on a data set."""

from __future__ import annotations

import argparse
import csv
import io
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from timm_gcp.common.files import write_text
from timm_gcp.inference.evaluate import class_table, confusion_matrix, per_class, validate
from timm_gcp.inference.model import add_model_arguments, load_model
from timm_gcp.plots.confusion import draw_confusion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp validate`."""
    add_model_arguments(parser)
    parser.add_argument("--pretrained", action="store_true", help="load the model's pretrained weights")
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder of the data set")
    parser.add_argument(
        "--dataset", metavar="NAME", help="torch/fashion_mnist and the like; an image folder if left out"
    )
    parser.add_argument("--val-split", default="validation", metavar="NAME", help="split to evaluate on")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images per forward pass")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that load images")
    parser.add_argument("--output", metavar="DIR", help="write validate.json, per_class.csv and confusion.png here")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")


def main(args: argparse.Namespace) -> int:
    """Evaluate and report."""
    if not (args.pretrained or args.checkpoint or str(args.model or "").startswith(("local-dir:", "hf-hub:"))):
        raise ValueError("untrained weights would be validated: add --pretrained or --checkpoint FILE.")
    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {args.batch_size}.")
    loaded = load_model(args, pretrained=True)
    dataset = args.dataset if args.dataset is not None else _dataset_of(args)
    started = time.perf_counter()
    evaluation = validate(loaded, args.data_dir, dataset, args.val_split, args.batch_size, args.workers)
    seconds = time.perf_counter() - started
    count = int(loaded.model.num_classes)
    names = loaded.label_names or tuple(f"class {index}" for index in range(count))
    confusion = confusion_matrix(evaluation, count)
    rows = per_class(confusion, names)
    report = {
        "model": loaded.name,
        "checkpoint": args.checkpoint,
        "dataset": dataset,
        "images": len(evaluation.targets),
        **evaluation.metrics,
        "input_size": list(loaded.data_config["input_size"]),
    }
    if args.output:
        _write(Path(args.output), report, rows, confusion, names)
    if args.json:
        print(json.dumps({**report, "per_class": rows}, indent=2))
        return 0
    print(
        f"{loaded.name}: top-1 {report['top1']:.2f}%, top-5 {report['top5']:.2f}%, loss {report['loss']:.4f} on "
        f"{report['images']} images ({report['images'] / seconds:.0f} images/s)"
    )
    print(class_table(rows))
    if args.output:
        print(f"wrote validate.json, per_class.csv and confusion.png to {args.output}")
    return 0


def _dataset_of(args: argparse.Namespace) -> str:
    """The data set that the checkpoint was trained on, or an image folder."""
    if not args.checkpoint:
        return ""
    from timm_gcp.inference.model import load_weights

    return load_weights(args.checkpoint)[1].get("dataset") or ""


def _write(
    folder: Path, report: dict[str, Any], rows: list[dict[str, Any]], confusion: Tensor, names: Sequence[str]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    for name, text in (("validate.json", json.dumps(report, indent=2) + "\n"), ("per_class.csv", table.getvalue())):
        write_text(folder / name, text)
    title = f"{report['model']}: top-1 {report['top1']:.2f}%"
    draw_confusion(confusion, names, title, folder / "confusion.png")
