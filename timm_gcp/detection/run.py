"""One training run of a detector, from options to checkpoint, table of results and summary; resumable."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timm_gcp.common.files import write_text
from timm_gcp.common.interrupt import on_interrupt
from timm_gcp.common.messages import one_line
from timm_gcp.detection.backbone import NUM_GROUPS
from timm_gcp.detection.checkpoint import describe_detector, read_checkpoint, save_checkpoint
from timm_gcp.detection.coco_data import CocoDataset, CocoFiles, find_split
from timm_gcp.detection.coco_eval import IOU_TYPES, evaluate, format_metrics
from timm_gcp.detection.loop import (
    Precision,
    Processes,
    Schedule,
    detect,
    join_processes,
    train_loader,
    train_one_epoch,
)
from timm_gcp.detection.models import build_detector
from timm_gcp.weights.fit import load_whole

LAST = "last.pth"
SUMMARY = "summary.csv"
METRICS_FILE = "metrics.json"
RESULTS_FILE = "results.json"
TWO_STAGE = ("fasterrcnn", "maskrcnn")


def split_files(options: argparse.Namespace, split: str) -> CocoFiles:
    """Files of `train` or `val`: `{split}_json` with `{split}_images`, or `{split}_split` in `data_dir`.

    Raises:
        ValueError: Neither is given, or one file without the other.
    """
    annotations, images = getattr(options, f"{split}_json"), getattr(options, f"{split}_images")
    if (annotations is None) != (images is None):
        raise ValueError(f"--{split}-json and --{split}-images belong together: give both.")
    if annotations is not None:
        return CocoFiles(Path(annotations), Path(images))
    if options.data_dir is None:
        raise ValueError(f"no data: give --data-dir, or --{split}-json with --{split}-images.")
    return find_split(options.data_dir, getattr(options, f"{split}_split"))


def build_options(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `build_detector` among the options, the model and its weights apart."""
    names = ["last_stage", "trainable_layers", "norm", "in_chans", "fpn_channels", "min_size", "max_size"]
    names += ["anchor_sizes"]
    built = {name: getattr(options, name) for name in names}
    if options.detector in TWO_STAGE:
        built["head_channels"] = options.head_channels
        built["rpn_post_nms_top_n_train"] = options.rpn_proposals
        built["rpn_post_nms_top_n_test"] = min(options.rpn_proposals, 1000)
        built["box_batch_size_per_image"] = options.rois_per_image
    if options.detector == "maskrcnn":
        built["mask_channels"] = options.mask_channels
    return built


def run_training(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Train, evaluate and write everything to `options.output`; returns the last evaluation (first process only).

    The folder receives `last.pth` after every epoch, `summary.csv` (one row per epoch) and, after every evaluation,
    `results.json` (COCO's results form) and `metrics.json`.

    Raises:
        ValueError: Options that do not go together, or a checkpoint of another detector.
        FileNotFoundError: Data or checkpoints are missing.
        RuntimeError: The loss is not finite.
        FileExistsError: The output folder holds another run.
    """
    _check(options)
    processes = join_processes(options.device)
    try:
        with on_interrupt(lambda: _kept(Path(options.output))):
            return _train(options, processes)
    finally:
        if processes.count > 1:
            torch.distributed.destroy_process_group()


def _check(options: argparse.Namespace) -> None:
    if options.output is None:
        raise ValueError("no folder for the results: give --output.")
    weights = options.pretrained or options.checkpoint or options.resume
    if not weights and (options.norm in ("frozen_bn", "eval_bn") or options.trainable_layers < NUM_GROUPS):
        raise ValueError(
            f"without --pretrained or --checkpoint the backbone starts at random, and norm={options.norm!r} with "
            f"trainable_layers={options.trainable_layers} would keep parts of it so. "
            f"Use --norm bn --trainable-layers {NUM_GROUPS} to train from scratch."
        )


def _kept(output: Path) -> str:
    """One sentence on what an interrupted run leaves, and how to go on."""
    if (output / LAST).is_file():
        return f"{output / LAST} holds the run as of its newest epoch: go on with --resume last."
    return f"{output} has no checkpoint of it: start again."


def _begin(options: argparse.Namespace) -> None:
    """Check that no other run lies in the output folder, or remove its files where they are to be replaced.

    Raises:
        FileExistsError: One does.
    """
    output = Path(options.output)
    there = [output / name for name in (LAST, SUMMARY, RESULTS_FILE, METRICS_FILE) if (output / name).is_file()]
    resumed = options.resume == "last" or (options.resume and Path(options.resume).resolve().parent == output.resolve())
    if not there or resumed:
        return
    if not options.force:
        raise FileExistsError(
            f"{str(output)!r} holds a run already: go on with it by --resume last, choose another --output, or replace "
            "it by --force."
        )
    for path in there:
        path.unlink()


def _train(options: argparse.Namespace, processes: Processes) -> dict[str, dict[str, float]]:
    output = Path(options.output)
    masks = options.detector == "maskrcnn"
    if processes.is_first and not options.force:
        _begin(options)
    train_files, val_files = split_files(options, "train"), split_files(options, "val")
    common = {"in_chans": options.in_chans, "bad_boxes": options.bad_boxes}
    train_set = CocoDataset(
        train_files.annotations, train_files.images,
        masks=masks, hflip=options.hflip, keep_empty=options.keep_empty, **common,
    )  # fmt: skip
    val_set = CocoDataset(val_files.annotations, val_files.images, segmentations=masks, **common)
    if val_set.categories != train_set.categories:
        raise ValueError("training and validation data have different categories: use one list for both.")
    torch.manual_seed(options.seed)  # the parts without pretrained weights
    resumed = _read_resumed(options)
    source = {} if resumed else {"pretrained": options.pretrained, "checkpoint": options.checkpoint}
    built = build_options(options)
    model = build_detector(options.detector, options.model, train_set.num_classes, **source, **built)
    spec = describe_detector(options.detector, options.model, train_set.num_classes, model, **built)
    model.to(processes.device)
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay,
    )  # fmt: skip
    precision = Precision(processes.device, options.amp, options.amp_dtype)
    rate = Schedule(options.lr, options.decay_milestones, options.decay_rate, options.warmup_iters)
    history: list[dict[str, float]] = []
    start = 0
    if resumed:
        _compare(resumed["detector"], spec, options.resume)
        load_whole(model, resumed["model"], options.resume)
        try:
            optimizer.load_state_dict(resumed["optimizer"])
            precision.scaler.load_state_dict(resumed["scaler"])
        except Exception as error:  # whatever torch trips over in a state that is not of this optimizer
            raise ValueError(
                f"{str(options.resume)!r}: its optimizer state is not one of this run ({one_line(error)}). Resume with "
                "the settings that it was trained with."
            ) from error
        start, history = resumed["epoch"], resumed["history"]
    if processes.is_first:
        _begin(options)
        print(
            f"{options.detector} on {options.model}: {len(train_set)} training images ({_left_out(train_set)}), "
            f"{len(val_set)} validation images, {train_set.num_classes - 1} categories; "
            f"{options.batch_size * processes.count} images per step on {processes.count} × {processes.device.type}"
        )
    wrapped: nn.Module = model
    if processes.count > 1:
        wrapped = DistributedDataParallel(
            model, device_ids=[processes.device] if processes.device.type == "cuda" else None
        )
    metrics: dict[str, dict[str, float]] = {}
    for epoch in range(start, options.epochs):
        loader = train_loader(train_set, options.batch_size, epoch, options.seed, options.workers, processes)
        row = {"epoch": epoch + 1.0, "lr": rate(epoch, (epoch + 1) * len(loader) - 1)}
        row |= train_one_epoch(wrapped, loader, optimizer, rate, epoch, precision, processes, options.clip_grad)
        last = epoch + 1 == options.epochs
        if last or (options.eval_interval and (epoch + 1) % options.eval_interval == 0):
            metrics = evaluate_detector(
                model, val_set, options.batch_size, options.workers, precision, processes, masks, output
            )
            row |= {f"{kind}_{name}": value for kind, values in metrics.items() for name, value in values.items()}
        history.append(row)
        if processes.is_first:
            state = {"detector": spec, "categories": train_set.categories, "model": model.state_dict()}
            state |= {"epoch": epoch + 1, "history": history, "optimizer": optimizer.state_dict()}
            save_checkpoint(output / LAST, {**state, "scaler": precision.scaler.state_dict()})
            write_text(output / SUMMARY, _as_csv(history))
            print(f"epoch {epoch + 1}/{options.epochs}: loss {row['loss']:.4f}, lr {row['lr']:.2g}")
            if last:
                print(format_metrics(metrics))
    if start >= options.epochs:
        metrics = evaluate_detector(
            model, val_set, options.batch_size, options.workers, precision, processes, masks, output
        )
    return metrics


def evaluate_detector(
    model: nn.Module,
    dataset: CocoDataset,
    batch_size: int,
    workers: int,
    precision: Precision,
    processes: Processes,
    masks: bool,
    output: Path | None = None,
) -> dict[str, dict[str, float]]:
    """COCO's metrics of a detector on `dataset`, results and metrics written to `output`; empty on other processes."""
    results = detect(model, dataset, batch_size, workers, precision, processes)
    if not processes.is_first:
        return {}
    metrics = evaluate(dataset.annotation_file, results, kinds=IOU_TYPES if masks else IOU_TYPES[:1])
    if output is not None:
        write_text(output / RESULTS_FILE, json.dumps(results))
        write_text(output / METRICS_FILE, json.dumps(metrics, indent=1))
    return metrics


def _read_resumed(options: argparse.Namespace) -> dict[str, Any] | None:
    if not options.resume:
        return None
    content = read_checkpoint(Path(options.output) / LAST if options.resume == "last" else options.resume)
    if "optimizer" not in content:
        raise ValueError(f"{options.resume!r} holds no training state; take a {LAST} of timm-gcp detect train.")
    return content


def _compare(stored: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Refuse to resume one detector's training with another."""
    different = [
        f"{key} is {stored.get(key)!r} there and {wanted.get(key)!r} here"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key) and key not in ("image_mean", "image_std")
    ]
    if different:
        raise ValueError(f"cannot resume from {path!r}: {'; '.join(different)}. Give the options of that run.")


def _left_out(dataset: CocoDataset) -> str:
    counts = [f"{count} {name}" for name, count in dataset.dropped.items() if count]
    return f"left out: {', '.join(counts)}" if counts else "none left out"


def _as_csv(history: list[dict[str, float]]) -> str:
    columns = list(dict.fromkeys(key for row in history for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()
