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

import torch
from torch import Tensor

from timm_gcp.evaluate import Evaluation, evaluate
from timm_gcp.files import replacing, write_text
from timm_gcp.loading import Loaded, add_model_arguments, load_model, load_weights
from timm_gcp.paired import Pair

_SHOWN = 20  # classes in the printed table; the CSV has them all


def confusion_matrix(evaluation: Evaluation, num_classes: int) -> Tensor:
    """Counts `(num_classes, num_classes)`, int64: rows are true classes, columns predicted ones."""
    pairs = evaluation.targets * num_classes + evaluation.predictions[:, 0]
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class(confusion: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per class: images, recall and precision in percent, and what it is most often taken for."""
    rows = []
    for index, name in enumerate(names):
        images, predicted, right = (
            int(n) for n in (confusion[index].sum(), confusion[:, index].sum(), confusion[index, index])
        )
        wrong = confusion[index].clone()
        wrong[index] = 0
        most = int(wrong.argmax())
        rows.append(
            {
                "class": index,
                "name": name,
                "images": images,
                "recall": 100 * right / images if images else None,
                "precision": 100 * right / predicted if predicted else None,
                "taken_for": f"{names[most]} ({int(wrong[most])})" if wrong[most] else "",
            }
        )
    return rows


def validate(
    loaded: Loaded, data_dir: str, dataset: str = "", split: str = "validation", batch_size: int = 128, workers: int = 2
) -> Evaluation:
    """Evaluate a loaded model on a data set read and pre-processed by timm.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: The data set can't be opened, or its classes are not the model's.
    """
    from timm.data import create_dataset, create_loader

    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"no folder {data_dir!r}: give the data set's folder with --data-dir.")
    config = loaded.data_config
    channels = config["input_size"][0]
    try:
        images = create_dataset(
            dataset, root=data_dir, split=split, is_training=False, input_img_mode="RGB" if channels == 3 else "L"
        )
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"data set {dataset or 'image folder'!r} in {data_dir!r}: {error}") from error
    loader = create_loader(
        images,
        batch_size=batch_size,
        is_training=False,
        num_workers=workers,
        persistent_workers=workers > 0,
        device=loaded.device,
        use_prefetcher=True,
        **config,
    )
    return evaluate(loaded.model, loader, loaded.device, autocast=loaded.autocast)


def compare(first: Evaluation, second: Evaluation) -> Pair:
    """Count the images on which the top-1 classes of two evaluations are not both right or both wrong.

    Args:
        first: Evaluation on N images.
        second: Evaluation on the same N images, in the same order.

    Raises:
        ValueError: The two were not made on the same images in the same order.
    """
    if first.targets.shape != second.targets.shape or not first.targets.equal(second.targets):
        raise ValueError(
            f"the models saw different images ({len(first.targets)} and {len(second.targets)}, or another order): "
            "evaluate both on one split of one data set."
        )
    right = [evaluation.predictions[:, 0] == evaluation.targets for evaluation in (first, second)]
    return Pair(int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum()))


def draw_confusion(confusion: Tensor, names: Sequence[str], title: str, path: Path) -> None:
    """Draw the row-normalised matrix as a PNG; counts are written in for up to 20 classes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shares = confusion.double() / confusion.sum(dim=1, keepdim=True).clamp(min=1)
    count = len(names)
    labelled = count <= 20
    side = min(12.0, 3.5 + 0.5 * count) if labelled else 9.0
    figure, axes = pyplot.subplots(figsize=(side + 1.2, side), layout="constrained")
    picture = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    if labelled:
        axes.set_xticks(range(count), names, rotation=45, ha="right")
        axes.set_yticks(range(count), names)
        for (row, column), number in zip(
            ((r, c) for r in range(count) for c in range(count)), confusion.flatten().tolist(), strict=True
        ):
            if number:
                dark = shares[row, column] > 0.5
                axes.text(column, row, number, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title)
    figure.colorbar(picture, label="share of the true class", shrink=0.8)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=120, format="png")
    pyplot.close(figure)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp validate`."""
    add_model_arguments(parser)
    parser.add_argument("--pretrained", action="store_true", help="load the model's pretrained weights")
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
    other = _load_other(args, loaded) if args.compare else None
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
    if other is not None:
        second = validate(other, args.data_dir, dataset, args.val_split, args.batch_size, args.workers)
        pair = compare(evaluation, second)
        report["compare"] = {
            "model": args.compare,
            **second.metrics,
            "only_first": pair.only_first,
            "only_second": pair.only_second,
            "mcnemar_p": pair.p_value,
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
    if other is not None:
        found = report["compare"]
        print(f"{args.compare}: top-1 {found['top1']:.2f}%, top-5 {found['top5']:.2f}%, loss {found['loss']:.4f}")
        print(
            f"right by the first alone: {pair.only_first} images, by the second alone: {pair.only_second}; "
            f"McNemar's exact test, two-sided: p = {pair.p_value:.2g}"
        )
    print(_table(rows))
    if args.output:
        print(f"wrote validate.json, per_class.csv and confusion.png to {args.output}")
    return 0


def _load_other(args: argparse.Namespace, first: Loaded) -> Loaded:
    """The model of `--compare`, made and fed as it says itself; device and precision are the first model's."""
    name: str = args.compare
    is_file = Path(name).is_file() or name.endswith((".tar", ".pth", ".pt", ".safetensors"))
    if is_file and not load_weights(name)[1].get("model"):
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


def _dataset_of(args: argparse.Namespace) -> str:
    """The data set that the checkpoint was trained on, or an image folder."""
    if not args.checkpoint:
        return ""
    return load_weights(args.checkpoint)[1].get("dataset") or ""


def _table(rows: list[dict[str, Any]]) -> str:
    shown, note = rows, ""
    if len(rows) > _SHOWN:
        present = [row for row in rows if row["recall"] is not None]
        shown = sorted(present, key=lambda row: row["recall"])[:_SHOWN]
        note = f"\nthe {len(shown)} classes of lowest recall of {len(rows)}; --output DIR writes all"
    width = max(len(row["name"]) for row in shown) if shown else 4
    lines = [f"{'class':{width}}  images  recall  precision  most often taken for"]
    for row in shown:
        recall, precision = (f"{v:.2f}" if v is not None else "-" for v in (row["recall"], row["precision"]))
        lines.append(
            f"{row['name']:{width}}  {row['images']:6d}  {recall:>6}  {precision:>9}  {row['taken_for']}".rstrip()
        )
    return "\n".join(lines) + note


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
