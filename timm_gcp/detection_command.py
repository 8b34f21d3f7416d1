"""`timm-gcp detect train|eval|predict`: train a detector, measure it on COCO-format data, draw its detections."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the three actions and their options."""
    from timm_gcp.detection_options import add_options

    actions = parser.add_subparsers(dest="action", required=True, metavar="train|eval|predict")
    add_options(
        actions.add_parser("train", help="train a detector (several GPUs: torchrun -m timm_gcp.cli detect train)")
    )

    measure = actions.add_parser("eval", help="COCO's average precision of a trained detector")
    _add_common(measure)
    measure.add_argument("--data-dir", help="folder with annotations/instances_*.json and the image folders")
    measure.add_argument("--val-split", default="val", help="split to evaluate on (default: val, or val2017)")
    measure.add_argument("--val-json", help="annotation file, instead of a split")
    measure.add_argument("--val-images", help="folder of its images")
    measure.add_argument(
        "--bad-boxes", choices=("error", "drop"), default="error", help="what to do about boxes without area"
    )
    measure.add_argument("--workers", type=int, default=4, help="processes that read images (default: 4)")
    measure.add_argument("--output", help="folder for results.json and metrics.json")

    predict = actions.add_parser("predict", help="run a trained detector on images and draw what it finds")
    _add_common(predict)
    predict.add_argument("images", nargs="+", help="image files, or folders of them")
    predict.add_argument("--output", required=True, help="folder for the pictures and results.json")
    predict.add_argument(
        "--score-threshold", type=float, default=0.5, help="draw detections from this score up (default: 0.5)"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, help="a detector that `detect train` wrote")
    parser.add_argument("--batch-size", type=_positive, default=8, help="images per batch (default: 8)")
    parser.add_argument("--device", help="device (cuda when there is one, when left out)")
    parser.add_argument("--amp", action="store_true", help="mixed precision")
    parser.add_argument("--amp-dtype", choices=("float16", "bfloat16"), help="lower precision")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up. Got {text!r}.")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Run one action; returns the exit status."""
    return {"train": _train, "eval": _evaluate, "predict": _predict}[args.action](args)


def _train(args: argparse.Namespace) -> int:
    from timm_gcp.detection_options import OPTIONS, resolve
    from timm_gcp.detection_train import run_training

    given = {name: value for name, value in vars(args).items() if name in OPTIONS}
    run_training(resolve(given, args.config))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from timm_gcp.detection_checkpoint import load_detector
    from timm_gcp.detection_data import CocoDataset
    from timm_gcp.detection_engine import Precision, join_processes
    from timm_gcp.detection_eval import format_metrics
    from timm_gcp.detection_train import evaluate_detector, split_files

    files = split_files(args, "val")
    model, content = load_detector(args.checkpoint)
    dataset = CocoDataset(
        files.annotations, files.images, in_chans=content["detector"]["in_chans"], bad_boxes=args.bad_boxes
    )
    if dataset.categories != content["categories"]:
        raise ValueError(
            f"{str(files.annotations)!r} has the categories {list(dataset.categories.values())}, the detector was "
            f"trained on {list(content['categories'].values())}."
        )
    processes = join_processes(args.device)
    try:
        metrics = evaluate_detector(
            model.to(processes.device), dataset, args.batch_size, args.workers,
            Precision(processes.device, args.amp, args.amp_dtype), processes,
            masks=content["detector"]["detector"] == "maskrcnn", output=Path(args.output) if args.output else None,
        )  # fmt: skip
    finally:
        if processes.count > 1:
            torch.distributed.destroy_process_group()
    if processes.is_first:
        print(json.dumps(metrics) if args.json else format_metrics(metrics))
    return 0


def _predict(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from timm_gcp.detection_checkpoint import load_detector
    from timm_gcp.detection_data import read_image
    from timm_gcp.detection_draw import draw_detections, save_png
    from timm_gcp.detection_engine import Precision, join_processes
    from timm_gcp.detection_eval import coco_results
    from timm_gcp.detection_train import RESULTS_FILE
    from timm_gcp.files import write_text

    paths = find_images(args.images)
    model, content = load_detector(args.checkpoint)
    processes = join_processes(args.device)
    precision = Precision(processes.device, args.amp, args.amp_dtype)
    model.to(processes.device)
    category_of = dict(enumerate(content["categories"], start=1))
    names = {label: content["categories"][category] for label, category in category_of.items()}
    results: list[dict[str, Any]] = []
    pictures = []
    for start in tqdm(range(0, len(paths), args.batch_size), desc="detect", leave=False):
        chosen = paths[start : start + args.batch_size]
        images = [read_image(path, content["detector"]["in_chans"]).to(processes.device) for path in chosen]
        with torch.inference_mode(), precision.context():
            outputs = model(images)
        for i, (path, image, output) in enumerate(zip(chosen, images, outputs, strict=True)):
            picture = Path(args.output) / f"{start + i:05d}_{path.stem}.png"
            save_png(draw_detections(image, output, names, score_threshold=args.score_threshold), picture)
            found = coco_results([output], [start + i], category_of)
            results += [{**result, "file_name": str(path)} for result in found]
            pictures.append(str(picture))
    write_text(Path(args.output) / RESULTS_FILE, json.dumps(results))
    shown = sum(result["score"] >= args.score_threshold for result in results)
    if args.json:
        print(json.dumps({"images": len(paths), "detections": shown, "pictures": pictures}))
    else:
        print(f"{len(paths)} images, {shown} detections of score {args.score_threshold} and up, in {args.output}")
    return 0


def find_images(names: list[str]) -> list[Path]:
    """Image files among `names`; folders stand for the images in them.

    Raises:
        FileNotFoundError: If a name is neither file nor folder, or a folder holds no image.
    """
    paths = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES)
            if not inside:
                raise FileNotFoundError(f"no image ({', '.join(IMAGE_SUFFIXES)}) in folder {name!r}.")
            paths += inside
        elif path.is_file():
            paths.append(path)
        else:
            raise FileNotFoundError(f"no image file or folder {name!r}.")
    return paths
