"""Trained runs of the Fashion-MNIST study -> weight folders inside the package, each measured as it is shipped.

    python tools/release/bundle_fmnist.py --data-dir FMNIST --runs output/fmnist
    python tools/release/make_model_cards.py

The first command takes the last epoch of each run, stores it in float16 unless that costs more than 0.05 points of
test accuracy, and prints the rows for `timm_gcp/weights/bundled.py`; what would take all of them above 25 MB is left
out. The second writes the cards from these rows.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from bundling import NARROW, WIDE, chosen_dtype, left_out, of_file, put, told_size, validated, written

from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES, prepare_fashion_mnist
from timm_gcp.weights import catalog as table
from timm_gcp.weights.importing import import_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from fmnist_cells import POOLINGS, STUDIED, Cell, at_its_rate, larger
from fmnist_study import finished

TAG = "adju_fmnist"
STATED = ("sched", "model_kwargs")  # in the row or in config.json


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
    print(told_size(Path(args.to)))
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


def _is_complete(run: Path) -> bool:
    keys = run / "args.yaml"
    return keys.is_file() and finished(run, yaml.safe_load(keys.read_text())["epochs"])


def bundle(cell: Cell, run: Path, target: Path, data_dir: str, images: int) -> str:
    """Make the weight folder of one run; its row for `weights/bundled.py`, or a comment where it takes too much."""
    keys = yaml.safe_load((run / "args.yaml").read_text())
    name = f"{keys['model']}.{TAG}"
    data = ["--data-dir", data_dir, "--dataset", "torch/fashion_mnist"]
    with tempfile.TemporaryDirectory() as scratch:
        found = {}
        for dtype in (WIDE, NARROW):
            folder = Path(scratch) / str(dtype)
            import_file(
                run / "last.pth.tar",
                name,
                model_args=keys["model_kwargs"],
                target=folder,
                label_names=list(FASHION_MNIST_CLASSES),
                dtype=dtype,
            )
            found[dtype] = folder, validated(folder, data)
            print(f"{run.name}, {dtype}: {found[dtype][1]['top1']:.2f}", file=sys.stderr, flush=True)
        dtype = chosen_dtype(found[WIDE][1]["top1"], found[NARROW][1]["top1"])
        folder, report = found[dtype]
        excess = left_out(folder / "model.safetensors", name, target)
        if excess:
            return excess
        put(folder, target / name)
    row = {
        "arch": keys["model"],
        "tag": TAG,
        "top1": round(report["top1"], 2),
        "top5": round(report["top5"], 2),
        "recipe": "fmnist_adju.yaml",
        "schedule": keys["sched"],
        "epochs": keys["epochs"],
        "images": images,
        "seed": keys["seed"],
        "study": _study(cell, images),
        "keys": ", ".join(f"{key}: {value}" for key, value in cell.keys.items() if key not in STATED),
        "dtype": str(dtype).removeprefix("torch."),
        "dataset": "fashion_mnist",
        **of_file(target / name),
    }
    return written("Bundled", row)


def _study(cell: Cell, images: int) -> str:
    """The command that trains this model on so many images."""
    whole = images == 60000
    part = "resolution" if "img_size" in cell.keys else "weights" if whole else "schedules"
    subset = "" if whole else f" --train-images {images}"
    return f"python tools/studies/reproduce_fmnist.py --data-dir FMNIST --parts {part}{subset}"


if __name__ == "__main__":
    sys.exit(main())
