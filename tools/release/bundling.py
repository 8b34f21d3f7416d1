"""What the tools that bundle weights share: measuring a folder, the type of its numbers, the room in the package."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import timm
import torch

from timm_gcp.cli import main as timm_gcp
from timm_gcp.common.files import file_sha256, write_text

WIDE, NARROW = torch.float32, torch.float16
TOLERANCE = 0.05  # points of top-1 that float16 may cost
LIMIT = 25e6  # bytes of all bundled weights together


def chosen_dtype(wide: float, narrow: float) -> torch.dtype:
    """float16, unless it costs too much of the accuracy in float32, both in %."""
    return NARROW if narrow >= wide - TOLERANCE else WIDE


def validated(folder: Path, data: Sequence[str], other: Path | None = None) -> dict[str, Any]:
    """What `timm-gcp validate --json` reports of a weight folder, and of another beside it.

    Args:
        folder: Weight folder.
        data: Options that name the images.
        other: Second weight folder.

    Raises:
        SystemExit: The command failed.
    """
    compared = ["--compare", f"local-dir:{other}"] if other is not None else []
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = timm_gcp(["validate", "--model", f"local-dir:{folder}", *data, *compared, "--json"])
    if status:
        raise SystemExit(f"timm-gcp validate failed on {folder}.")
    return json.loads(printed.getvalue())  # type: ignore[no-any-return]


def left_out(weights: Path, name: str, target: Path) -> str:
    """Why `weights` can't be bundled as `name` beside the others in `target`; empty where they can."""
    others = sum(path.stat().st_size for path in target.glob("*/model.safetensors") if path.parent.name != name)
    size = weights.stat().st_size
    if others + size <= LIMIT:
        return ""
    megabytes = f"{size / 1e6:.1f} MB beside {others / 1e6:.1f} MB of others, {LIMIT / 1e6:.0f} at most"
    return f"# {name} is left out: {megabytes}"


def put(folder: Path, target: Path) -> None:
    """Copy a weight folder to `target`, whole, in the place of what is there."""
    _state_licence(folder / "config.json")
    target.parent.mkdir(parents=True, exist_ok=True)
    incoming = target.with_name(f".{target.name}")
    shutil.rmtree(incoming, ignore_errors=True)
    shutil.copytree(folder, incoming)
    shutil.rmtree(target, ignore_errors=True)
    incoming.rename(target)


def _state_licence(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["pretrained_cfg"]["license"] = "apache-2.0"
    write_text(path, json.dumps(config, indent=2))


def of_file(folder: Path) -> dict[str, Any]:
    """Fields of a row that its weight folder tells: number of parameters, digest."""
    model = timm.create_model(f"local-dir:{folder}")
    params = sum(parameter.numel() for parameter in model.parameters())
    return {"params": params, "sha256": file_sha256(folder / "model.safetensors")}


def written(kind: str, fields: Mapping[str, Any]) -> str:
    """A row of `timm_gcp/weights/bundled.py`, in lines as ruff leaves them."""
    lines = [f"    {kind}("]
    for key, value in fields.items():
        room = 100 - len(key)
        parts = wrap(value, room, drop_whitespace=False) if isinstance(value, str) and len(value) > room else [value]
        head, *rest = (json.dumps(part) if isinstance(part, str) else f"{part!r}" for part in parts)
        lines += [f"        {key}={head}", *(f"        {part}" for part in rest)]
        lines[-1] += ","
    return "\n".join([*lines, "    ),"])


def write_record(folders: Sequence[Path], photos: Path, path: Path) -> None:
    """Write what `timm-gcp predict` says of photos with each weight folder."""
    found = {}
    for folder in folders:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            timm_gcp(["predict", str(photos), "--model", f"local-dir:{folder}", "--json"])
        found[folder.name] = {
            Path(entry["image"]).name: {top["name"]: round(top["probability"], 4) for top in entry["top"]}
            for entry in json.loads(printed.getvalue())
        }
    write_text(path, json.dumps(found, indent=1) + "\n")


def told_size(target: Path) -> str:
    """What all the weights in a folder take."""
    return f"{sum(path.stat().st_size for path in target.glob('*/model.safetensors')) / 1e6:.1f} MB in all"
