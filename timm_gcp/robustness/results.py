"""Result files: one JSON per model and benchmark, saved after every finished part, so that a run can go on later."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from timm_gcp.common.files import write_text

ALEXNET = "alexnet"  # name of the baseline that the package holds


def result_path(output: Path, benchmark: str, label: str) -> Path:
    """Return where the results of one model are kept."""
    return output / f"{re.sub(r'[^A-Za-z0-9._@-]+', '_', label)}_{benchmark}.json"


def read_result(path: Path, benchmark: str) -> dict[str, Any]:
    """Return a result file.

    Args:
        path: JSON file.
        benchmark: "c" or "p"; decides which entries must be there.

    Raises:
        FileNotFoundError: It isn't there.
        ValueError: It isn't a result file of this benchmark.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no result file at {path}")
    wanted = {"c": ["corruption_error"], "p": ["flip_probability", "top5_distance"]}[benchmark]
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ["model", *wanted] if key not in content]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a JSON object: {error}") from error
    if missing:
        raise ValueError(f"{path} is not a result file of `timm-gcp robustness {benchmark}`: no {', '.join(missing)}")
    return dict(content)


def open_result(path: Path, benchmark: str, label: str, settings: dict[str, Any], restart: bool) -> dict[str, Any]:
    """Return the results so far of a run with these settings, or an empty record.

    Raises:
        ValueError: The file holds the results of other settings, which must not be mixed.
    """
    empty: dict[str, Any] = {"model": label, "benchmark": benchmark, "settings": settings, "images": {}}
    if benchmark == "c":
        empty |= {"clean_error": None, "corruption_error": {}}
    else:
        empty |= {"flip_probability": {}, "top5_distance": {}}
    if restart or not path.is_file():
        return empty
    found = read_result(path, benchmark)
    old = found.get("settings", {})
    changed = [key for key in sorted({*old, *settings}) if old.get(key) != settings.get(key)]
    if changed:
        told = "; ".join(f"{key} was {old.get(key)!r}, now {settings.get(key)!r}" for key in changed)
        raise ValueError(f"{path} holds results of another run ({told}): choose another --output, or --restart")
    return found


def save_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result file."""
    write_text(path, json.dumps(result, indent=1) + "\n")


def read_baseline(name: str, benchmark: str) -> dict[str, Any] | None:
    """Return the baseline called `name`: a path, "alexnet" (ImageNet-C, published figures) or "none".

    Raises:
        ValueError: "alexnet" with ImageNet-P, for which there are no published figures here.
    """
    if name == "none":
        return None
    if name == ALEXNET:
        if benchmark == "p":
            raise ValueError(
                "AlexNet's figures on ImageNet-P are measured, not shipped: run `timm-gcp robustness p --model "
                "torchvision:alexnet --pretrained --data-dir DIR` once and give its alexnet_p.json as --baseline"
            )
        table = resources.files(__package__) / "alexnet_imagenet_c.json"
        return dict(json.loads(table.read_text(encoding="utf-8")))
    return read_result(Path(name), benchmark)
