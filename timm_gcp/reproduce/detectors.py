"""The jobs that train detectors: `timm-gcp detect train`, on several GPUs under torchrun."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from timm_gcp.common.recipe import read_recipe
from timm_gcp.reproduce import trial
from timm_gcp.reproduce.jobs import SUMMARY, Job, checkpoint, data_settings, epochs_in, share, shown, words
from timm_gcp.reproduce.runs import Run
from timm_gcp.reproduce.setup import Setup


def detect_folder(recipe: str, setup: Setup) -> Path:
    """Where a detector's run lies; those that start from published weights have folders of their own."""
    return setup.output / "detect" / (f"{recipe}-published" if setup.published else recipe)


def detect_job(recipe: str, start: Run | None, setup: Setup) -> Job:
    """The training of a detector by a shipped recipe.

    Args:
        recipe: Name of the recipe.
        start: The classifier that it starts from; None for the recipe's own pretrained weights.
        setup: The plan's.

    Raises:
        ValueError: A batch that several GPUs can't share.
    """
    from timm_gcp.detection.options import find_detection_recipe
    from timm_gcp.detection.run import LAST, METRICS_FILE

    folder = detect_folder(recipe, setup)
    content = read_recipe(find_detection_recipe(recipe))
    keys: dict[str, Any] = {}
    if start is not None:
        keys = {"model": start.model, "pretrained": False}
        keys = {key: value for key, value in keys.items() if value != content[key]}
        keys["checkpoint"] = shown(checkpoint(start, setup))
    keys |= trial.DETECTOR if setup.limit is not None else {}
    settings = {**content, **keys, **data_settings(setup, setup.coco_source)}
    if start is not None:
        settings["checkpoint"] = start.name  # the output folder may move
    line = ["-c", recipe, "--data-dir", shown(setup.coco), *words(keys), "--output", shown(folder)]
    workers = 0 if setup.limit is not None else setup.workers
    line += ["--workers", str(workers)] if workers is not None else []
    line += ["--device", setup.device] if setup.device else []
    program = ["timm-gcp"]
    if setup.gpus > 1:
        program = ["torchrun", f"--nproc-per-node={setup.gpus}", "-m", "timm_gcp.cli"]
        line += ["--batch-size", str(share(settings["batch_size"], setup.gpus, recipe))]
    return Job(
        folder,
        (*program, "detect", "train", *line),
        settings,
        lambda: epochs_in(folder / SUMMARY, 1) >= settings["epochs"] and (folder / METRICS_FILE).is_file(),
        lambda: ("--resume", "last") if (folder / LAST).is_file() else (),
    )


def precision(recipe: str, setup: Setup) -> dict[str, dict[str, float]]:
    """COCO's metrics at the end of a detector's run by kind (`bbox`, `segm`), in %.

    Empty where the run is not finished; a metric that is not defined, such as APL without large objects, is left out.
    """
    from timm_gcp.detection.run import METRICS_FILE

    path = detect_folder(recipe, setup) / METRICS_FILE
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {
        kind: {name: value for name, value in metrics.items() if not math.isnan(value)}
        for kind, metrics in found.items()
    }
