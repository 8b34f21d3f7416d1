"""Measure a trained detector on COCO-format data, or run it on images and draw what it finds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch


def evaluate(args: argparse.Namespace) -> int:
    """Measure a detector by the options of `timm-gcp detect eval` and print its average precision.

    Raises:
        ValueError: The data set has other categories than the detector.
    """
    from timm_gcp.detection.checkpoint import load_detector
    from timm_gcp.detection.coco_data import CocoDataset
    from timm_gcp.detection.coco_eval import format_metrics
    from timm_gcp.detection.loop import Precision, join_processes
    from timm_gcp.detection.run import evaluate_detector, split_files

    files = split_files(args, "val")
    model, content = load_detector(args.checkpoint)
    masks = content["detector"]["detector"] == "maskrcnn"
    dataset = CocoDataset(
        files.annotations, files.images,
        in_chans=content["detector"]["in_chans"], bad_boxes=args.bad_boxes, segmentations=masks,
    )  # fmt: skip
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
            masks=masks, output=Path(args.output) if args.output else None,
        )  # fmt: skip
    finally:
        if processes.count > 1:
            torch.distributed.destroy_process_group()
    if processes.is_first:
        print(json.dumps(metrics) if args.json else format_metrics(metrics))
    return 0


def predict(args: argparse.Namespace) -> int:
    """Run a detector by the options of `timm-gcp detect predict`; writes the drawn images and `results.json`."""
    from tqdm import tqdm

    from timm_gcp.common.files import write_text
    from timm_gcp.detection.checkpoint import load_detector
    from timm_gcp.detection.coco_data import read_image
    from timm_gcp.detection.coco_eval import coco_results
    from timm_gcp.detection.draw import draw_detections, save_png
    from timm_gcp.detection.loop import Precision, join_processes
    from timm_gcp.detection.run import RESULTS_FILE
    from timm_gcp.inference.images import find_images

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
