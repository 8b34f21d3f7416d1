"""Trained runs of the Fashion-MNIST study -> weight folders inside the package, each measured as it is shipped.

    python tools/release/bundle_fmnist.py --data-dir FMNIST --runs output/fmnist
    python tools/release/make_model_cards.py

The first command takes the last epoch of each run, stores it in float16 unless that changes the test accuracy by more
than 0.05 points, and prints the rows for `timm_gcp/weights/bundled.py`; what would take all of them above 25 MB is left
out. The second writes the cards from these rows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
import yaml

from timm_gcp.cli import main as timm_gcp
from timm_gcp.common.files import file_sha256
from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES, prepare_fashion_mnist
from timm_gcp.weights import catalog as table
from timm_gcp.weights.importing import import_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from fmnist_cells import MOBILENET, POOLINGS, STUDIED, Cell, at_its_rate, larger, twins
from fmnist_study import finished

TAG = "adju_fmnist"
TOLERANCE = 0.05  # points of top-1
STATED = ("sched", "model_kwargs")  # in the row or in config.json
LIMIT = 25e6  # bytes of all bundled weights together


def main() -> int:
    """Bundle every finished run whose architecture has tags of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder of Fashion-MNIST")
    parser.add_argument("--runs", default="output/fmnist", metavar="DIR", help="folder of the runs")
    parser.add_argument(
        "--train-images", type=int, default=60000, metavar="N", help="images of the runs that took a part of the set"
    )
    parser.add_argument("--to", default=str(table.BUNDLED), metavar="DIR", help="folder of the bundled weights")
    args = parser.parse_args()
    prepare_fashion_mnist(args.data_dir)
    done = finished_cells(Path(args.runs))
    if not done:
        raise SystemExit(
            f"{args.runs!r} has no finished run. Train: python tools/studies/reproduce_fmnist.py --parts weights."
        )
    for cell in done:
        images = 60000 if cell.all_images else args.train_images
        print(bundle(cell, Path(args.runs) / cell.name, Path(args.to), args.data_dir, images), flush=True)
    size = sum(path.stat().st_size for path in Path(args.to).glob("*/model.safetensors"))
    print(f"{size / 1e6:.1f} MB in all")
    return 0


def finished_cells(folder: Path) -> list[Cell]:
    """The runs in `folder` to bundle, the most wanted first; of a model, the first complete one of its candidates."""
    found = []
    for candidates in _candidates():
        complete = (cell for cell in candidates if _is_complete(folder / cell.name))
        found += itertools.islice(complete, 1)
    return found


def _candidates() -> Iterator[list[Cell]]:
    """Per model the runs that may become its weights: all images before a part, larger images before the recipe's,
    then GCP's own rate before the recipe's."""
    for pool in reversed(POOLINGS):
        kinds = [
            (larger(pool, 0, whole), at_its_rate(pool, 0, whole), Cell(STUDIED, pool, "adju", 0, all_images=whole))
            for whole in (True, False)
        ]
        yield list(dict.fromkeys(cell for kind in kinds for cell in kind))
    for name in (MOBILENET, "resnet18"):
        yield [cell for cell in twins("adju", 0, name) if cell.pooling == "GCP"]


def _is_complete(run: Path) -> bool:
    keys = run / "args.yaml"
    return keys.is_file() and finished(run, yaml.safe_load(keys.read_text())["epochs"])


def bundle(cell: Cell, run: Path, target: Path, data_dir: str, images: int) -> str:
    """Make the weight folder of one run; its row for `weights/bundled.py`, or a comment where it takes too much."""
    keys = yaml.safe_load((run / "args.yaml").read_text())
    name = f"{keys['model']}.{TAG}"
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for dtype in (torch.float32, torch.float16):
            folder = Path(scratch) / str(dtype)
            import_file(
                run / "last.pth.tar",
                name,
                model_args=keys["model_kwargs"],
                target=folder,
                label_names=list(FASHION_MNIST_CLASSES),
                dtype=dtype,
            )
            _state_licence(folder / "config.json")
            found[dtype] = folder, _accuracy(folder, data_dir)
            print(f"{run.name}, {dtype}: {found[dtype][1]}", file=sys.stderr, flush=True)
        narrow = abs(found[torch.float16][1][0] - found[torch.float32][1][0]) <= TOLERANCE
        dtype = torch.float16 if narrow else torch.float32
        folder, (top1, top5) = found[dtype]
        excess = left_out(folder / "model.safetensors", name, target)
        if excess:
            return excess
        target.mkdir(exist_ok=True)
        incoming = target / f".{name}"
        shutil.rmtree(incoming, ignore_errors=True)
        shutil.copytree(folder, incoming)
        shutil.rmtree(target / name, ignore_errors=True)
        incoming.rename(target / name)
    model = timm.create_model(f"local-dir:{target / name}")
    row = {
        "arch": keys["model"],
        "tag": TAG,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "top1": top1,
        "top5": top5,
        "recipe": "fmnist_adju.yaml",
        "schedule": keys["sched"],
        "epochs": keys["epochs"],
        "images": images,
        "seed": keys["seed"],
        "sha256": file_sha256(target / name / "model.safetensors"),
        "part": _part(cell, images),
        "keys": ", ".join(f"{key}: {value}" for key, value in cell.keys.items() if key not in STATED),
        "dtype": str(dtype).removeprefix("torch."),
    }
    return "Bundled(" + ", ".join(f"{key}={value!r}" for key, value in row.items()) + "),"


def left_out(weights: Path, name: str, target: Path) -> str:
    """Why `weights` can't be bundled as `name` beside the others in `target`; empty where they can."""
    others = sum(path.stat().st_size for path in target.glob("*/model.safetensors") if path.parent.name != name)
    size = weights.stat().st_size
    if others + size <= LIMIT:
        return ""
    megabytes = f"{size / 1e6:.1f} MB beside {others / 1e6:.1f} MB of others, {LIMIT / 1e6:.0f} at most"
    return f"# {name} is left out: {megabytes}"


def _part(cell: Cell, images: int) -> str:
    """Part of the study that trains this model on so many images."""
    if cell.backbone != STUDIED:
        return "backbones"
    if "img_size" in cell.keys:
        return "resolution"
    return "weights" if images == 60000 else "schedules"


def _state_licence(path: Path) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    config["pretrained_cfg"]["license"] = "apache-2.0"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _accuracy(folder: Path, data_dir: str) -> tuple[float, float]:
    """Top-1 and top-5 in percent, by `timm-gcp validate`."""
    command = ["validate", "--model", f"local-dir:{folder}", "--data-dir", data_dir, "--dataset", "torch/fashion_mnist"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        status = timm_gcp([*command, "--json"])
    if status:
        raise SystemExit(f"timm-gcp validate failed on {folder}.")
    report = json.loads(printed.getvalue())
    return round(report["top1"], 2), round(report["top5"], 2)


if __name__ == "__main__":
    sys.exit(main())
