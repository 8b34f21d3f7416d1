"""Table and figures of a detection study, from its record and its detectors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from timm_gcp.detection.checkpoint import load_detector
from timm_gcp.detection.coco_data import CocoDataset, find_split
from timm_gcp.detection.coco_eval import METRICS
from timm_gcp.detection.draw import draw_detections
from timm_gcp.plots.style import COLOURS, new_figure, plain, save

SHOWN = ("AP", "AP50", "AP75")
EXAMPLES = 4  # validation images in the figures


def table(record: Mapping[str, Any]) -> str:
    """Markdown table of a study: average precision by arm, mean over the seeds, and each seed's AP."""
    base = record["arms"][0]
    seeds = " / ".join(map(str, record["seeds"]))
    lines = [
        f"| Backbone | {' | '.join(SHOWN)} | AP with seed {seeds} | AP over {base['label']} |",
        "|---|" + "---|" * (len(SHOWN) + 2),
    ]
    reference = statistics.mean(run["bbox"]["AP"] for run in base["runs"])
    for arm in record["arms"]:
        means = [statistics.mean(run["bbox"][name] for run in arm["runs"]) for name in SHOWN]
        each = " / ".join(f"{run['bbox']['AP']:.1f}" for run in arm["runs"])
        gain = "" if arm is base else f"{means[0] - reference:+.1f}"
        lines.append(f"| {arm['label']} | {' | '.join(f'{mean:.1f}' for mean in means)} | {each} | {gain} |")
    if record.get("masks"):
        mask = record["masks"]
        lines += [
            "",
            f"Mask R-CNN, {mask['label']}:",
            "",
            f"| | {' | '.join(METRICS)} |",
            "|---|" + "---|" * len(METRICS),
        ]
        for kind, word in (("bbox", "boxes"), ("segm", "masks")):
            cells = ["n/a" if mask[kind][m] is None else f"{mask[kind][m]:.1f}" for m in METRICS]
            lines.append(f"| {word} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_convergence(record: Mapping[str, Any], path: Path) -> None:
    """AP after every epoch, one line per arm (mean over seeds) in a band from the lowest to the highest seed."""
    figure = new_figure(6.4, 4)
    axes = figure.subplots()
    for arm, color in zip(record["arms"], COLOURS, strict=False):
        curves = [run["curve"] for run in arm["runs"]]
        epochs = range(1, len(curves[0]) + 1)
        by_epoch = list(zip(*curves, strict=True))
        axes.plot(epochs, [statistics.mean(v) for v in by_epoch], marker="o", label=arm["label"], color=color)
        axes.fill_between(epochs, [min(v) for v in by_epoch], [max(v) for v in by_epoch], alpha=0.2, color=color)
    axes.set(xlabel="epoch", ylabel="AP of boxes (%)", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    plain(axes)
    axes.legend(frameon=False)
    save(figure, path)


def draw_examples(data: Path, detectors: Sequence[tuple[str, Path]], path: Path, masks: bool = False) -> None:
    """Validation images by row: the truth, then what each detector (label, checkpoint) finds."""
    loaded = [(label, load_detector(checkpoint)[0]) for label, checkpoint in detectors]
    in_chans = len(loaded[0][1].transform.image_mean)
    files = find_split(data, "val")
    dataset = CocoDataset(files.annotations, files.images, masks=masks, in_chans=in_chans)
    names = {label: dataset.categories[category] for label, category in dataset.category_of.items()}
    examples = [dataset[index] for index in range(min(EXAMPLES, len(dataset)))]
    height, width = examples[0][0].shape[-2:]
    figure = new_figure(3 * (1 + len(loaded)), (3 * height / width + 0.05) * len(examples))
    axes = figure.subplots(len(examples), 1 + len(loaded), squeeze=False)
    for row, (cells, (image, target)) in enumerate(zip(axes, examples, strict=True)):
        pictures = [("truth", draw_detections(image, target, names))]
        with torch.inference_mode():
            pictures += [(label, draw_detections(image, model([image])[0], names)) for label, model in loaded]
        for cell, (label, picture) in zip(cells, pictures, strict=True):
            cell.imshow(picture)
            cell.set_axis_off()
            if row == 0:
                cell.set_title(label)
    save(figure, path)
