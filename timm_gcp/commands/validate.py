"""`timm-gcp validate`: top-1, top-5, a table per class and the confusion matrix of a model on a data set."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from timm_gcp.commands.options import add_shared, check_weights
from timm_gcp.common.files import write_text
from timm_gcp.common.messages import counted
from timm_gcp.inference.classes import check_classifier, check_num_classes, own_names
from timm_gcp.inference.evaluate import class_table, compare, confusion_matrix, mean_per_class, per_class, validate
from timm_gcp.inference.model import Loaded, load_model
from timm_gcp.inference.options import add_model_arguments
from timm_gcp.plots.confusion import draw_confusion
from timm_gcp.weights.source import read_source

SHOWN = 20  # unreadable images named one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp validate`."""
    add_model_arguments(parser)
    add_shared(parser, "pretrained")
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder of the data set")
    parser.add_argument(
        "--dataset", metavar="NAME", help="torch/fashion_mnist and the like; an image folder if left out"
    )
    parser.add_argument("--val-split", default="validation", metavar="NAME", help="split to evaluate on")
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        help="second model, by name (its pretrained weights) or training checkpoint: also print how many images each "
        "of the two alone classifies correctly, and the p of McNemar's exact test",
    )
    parser.add_argument("--class-map", metavar="FILE", help="names of the class folders in the model's order")
    parser.add_argument(
        "--allow-unreadable", action="store_true", help="status 0 although images could not be read (and don't count)"
    )
    add_shared(parser, "batch_size", default=128)
    add_shared(parser, "workers")
    parser.add_argument("--output", metavar="DIR", help="write validate.json, per_class.csv and confusion.png here")
    add_shared(parser, "json")


def main(args: argparse.Namespace) -> int:
    """Evaluate and report."""
    if not (args.pretrained or args.checkpoint or str(args.model or "").startswith(("local-dir:", "hf-hub:"))):
        raise ValueError("untrained weights would be validated: add --pretrained or --checkpoint FILE.")
    check_weights(args)
    check_num_classes(args.num_classes)
    loaded = load_model(args, pretrained=True)
    check_classifier(loaded, args.checkpoint)
    other = _load_other(args, loaded) if args.compare else None
    dataset = args.dataset if args.dataset is not None else loaded.dataset
    started = time.perf_counter()
    evaluation = validate(
        loaded,
        args.data_dir,
        dataset,
        args.val_split,
        args.batch_size,
        args.workers,
        args.class_map,
        own_names(loaded, args.checkpoint),
    )
    seconds = time.perf_counter() - started
    count = int(loaded.model.num_classes)
    names = (
        loaded.label_names or _names(evaluation.class_names, count) or tuple(f"class {index}" for index in range(count))
    )
    confusion = confusion_matrix(evaluation, count)
    rows = per_class(confusion, names)
    report = {
        "model": loaded.name,
        "checkpoint": args.checkpoint,
        "dataset": dataset,
        "images": len(evaluation.targets),
        "unreadable": len(evaluation.unreadable),
        **evaluation.metrics,
        "mean_per_class": mean_per_class(confusion),
        "input_size": list(loaded.data_config["input_size"]),
    }
    if other is not None:
        second = validate(
            other,
            args.data_dir,
            dataset,
            args.val_split,
            args.batch_size,
            args.workers,
            args.class_map,
            other.stated_names or own_names(other),
        )
        pair = compare(evaluation, second)
        report["compare"] = {
            "model": args.compare,
            **second.metrics,
            "mean_per_class": mean_per_class(confusion_matrix(second, count)),
            "only_first": pair.only_first,
            "only_second": pair.only_second,
            "mcnemar_p": pair.p_value,
        }
    if args.output:
        _write(Path(args.output), report, rows, confusion, names)
    for sentence in evaluation.unreadable[:SHOWN]:
        print(f"timm-gcp validate: {sentence}", file=sys.stderr)
    if evaluation.unreadable:
        print(
            f"timm-gcp validate: {counted(len(evaluation.unreadable), 'image')} of {args.data_dir!r} can't be read and "
            "didn't count: replace or remove such files, or accept them with --allow-unreadable.",
            file=sys.stderr,
        )
    status = 1 if evaluation.unreadable and not args.allow_unreadable else 0
    if args.json:
        print(json.dumps({**report, "per_class": rows}, indent=2))
        return status
    top5 = f"top-5 {report['top5']:.2f}%, " if count > 5 else ""  # of five classes or fewer it says nothing
    print(
        f"{loaded.name}: top-1 {report['top1']:.2f}%, {top5}mean over the classes "
        f"{report['mean_per_class']:.2f}%, loss {report['loss']:.4f} on {report['images']} images "
        f"({report['images'] / seconds:.0f} images/s)"
    )
    if other is not None:
        found = report["compare"]
        print(
            f"{args.compare}: top-1 {found['top1']:.2f}%, top-5 {found['top5']:.2f}%, mean over the classes "
            f"{found['mean_per_class']:.2f}%, loss {found['loss']:.4f}"
        )
        print(
            f"right by the first alone: {pair.only_first} images, by the second alone: {pair.only_second}; "
            f"McNemar's exact test, two-sided: p = {pair.p_value:.2g}"
        )
    print(class_table(rows))
    if args.output:
        print(f"wrote validate.json, per_class.csv and confusion.png to {args.output}")
    return status


def _names(names: tuple[str, ...] | None, count: int) -> tuple[str, ...] | None:
    """Names of the data set's classes where there is one for each of the model's."""
    return names if names is not None and len(names) == count else None


def _load_other(args: argparse.Namespace, first: Loaded) -> Loaded:
    """The model of `--compare`, made and fed as it says itself; device and precision are the first model's."""
    name: str = args.compare
    is_file = Path(name).exists() or name.endswith((".tar", ".pth", ".pt", ".safetensors"))
    if is_file and not read_source(name).record.architecture:
        raise ValueError(
            f"--compare {name!r} says not which model it is of: give a training checkpoint, or a weight folder as "
            "local-dir:PATH."
        )
    own = argparse.Namespace(
        model=None if is_file else name,
        checkpoint=name if is_file else None,
        use_ema=args.use_ema and is_file,
        **{key: getattr(args, key) for key in ("device", "channels_last", "amp", "amp_dtype")},
    )
    other = load_model(own, pretrained=True)
    if other.model.num_classes != first.model.num_classes:
        raise ValueError(
            f"--compare {name!r} has {other.model.num_classes} classes, {first.name} has {first.model.num_classes}: "
            "compare models of the same classes."
        )
    return other


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
