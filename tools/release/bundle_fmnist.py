"""Runs of `timm-gcp train` on Fashion-MNIST -> weight folders inside the package, each measured as it is shipped.

    timm-gcp train -c fmnist_adju --data-dir FMNIST --img-size 96 --lr 0.125 --output RUNS --experiment gcp
    python tools/release/bundle_fmnist.py --data-dir FMNIST RUNS/gcp [RUN ...]
    python tools/release/make_model_cards.py

The second command takes the last epoch of each run, stores it in float16 unless that costs more than 0.05 points of
test accuracy, and prints the rows for `timm_gcp/weights/bundled.py`; what would take all of them above 25 MB is left
out. The third writes the cards from these rows.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from bundling import NARROW, WIDE, chosen_dtype, left_out, of_file, put, told_size, validated, written

from timm_gcp.datasets.fashion_mnist import FASHION_MNIST_CLASSES, prepare_fashion_mnist
from timm_gcp.reproduce.jobs import words
from timm_gcp.train.curves import read_summary
from timm_gcp.train.options import resolve_args
from timm_gcp.weights import catalog as table
from timm_gcp.weights.importing import import_file

IMAGES = 60_000
# Keys that say where, on what and how fast a run was computed, and those that the row has in fields of their own.
_ELSEWHERE = (
    *("data_dir", "output", "experiment", "device", "workers", "resume", "checkpoint_hist", "log_interval", "seed"),
    *("model", "sched", "epochs", "model_kwargs", "channels_last", "pin_mem", "no_prefetcher", "recovery_interval"),
)


def main() -> int:
    """Bundle the runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run of `timm-gcp train`")
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="folder of Fashion-MNIST")
    parser.add_argument("--recipe", default="fmnist_adju", metavar="NAME", help="recipe of the runs")
    parser.add_argument("--to", default=str(table.BUNDLED), metavar="DIR", help="folder of the bundled weights")
    args = parser.parse_args()
    try:
        read = [(Path(run), read_run(Path(run))) for run in args.runs]
    except (ValueError, FileNotFoundError) as error:
        print(f"bundle_fmnist.py: error: {error}", file=sys.stderr)
        return 1
    prepare_fashion_mnist(args.data_dir)
    for run, keys in read:
        print(bundle(run, keys, args.recipe, Path(args.to), args.data_dir), flush=True)
    print(told_size(Path(args.to)))
    return 0


def read_run(run: Path) -> dict[str, Any]:
    """The keys of a finished run.

    Raises:
        FileNotFoundError: No run there.
        ValueError: It has not finished.
    """
    if not (run / "args.yaml").is_file() or not (run / "summary.csv").is_file():
        raise FileNotFoundError(f"{str(run)!r} is no run of timm-gcp train: it lacks args.yaml or summary.csv.")
    keys: dict[str, Any] = yaml.safe_load((run / "args.yaml").read_text())
    done = len(read_summary(run / "summary.csv", "").epochs)
    if done < keys["epochs"]:
        raise ValueError(f"{str(run)!r} has {done} of {keys['epochs']} epochs: let it finish with --resume.")
    return keys


def changes(keys: dict[str, Any], recipe: str) -> dict[str, Any]:
    """The keys in which a run differs from its recipe and which change what it learns."""
    plain = vars(resolve_args(recipe, {"model": keys["model"]}))
    return {key: value for key, value in keys.items() if key not in _ELSEWHERE and plain.get(key) != value}


def command(keys: dict[str, Any], recipe: str) -> str:
    """The command that trains such a run."""
    options = words({"model": keys["model"], **changes(keys, recipe)})
    return shlex.join(("timm-gcp", "train", "-c", recipe, "--data-dir", "FMNIST", *options))


def bundle(run: Path, keys: dict[str, Any], recipe: str, target: Path, data_dir: str) -> str:
    """Make the weight folder of one run; its row for `weights/bundled.py`, or a comment where it takes too much."""
    tag = f"{recipe.removeprefix('fmnist_')}_fmnist"
    name = f"{keys['model']}.{tag}"
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
        "tag": tag,
        "top1": round(report["top1"], 2),
        "top5": round(report["top5"], 2),
        "recipe": f"{recipe}.yaml",
        "schedule": keys["sched"],
        "epochs": keys["epochs"],
        "images": IMAGES,
        "seed": keys["seed"],
        "study": command(keys, recipe),
        "keys": ", ".join(f"{key}: {value}" for key, value in changes(keys, recipe).items()),
        "dtype": str(dtype).removeprefix("torch."),
        "dataset": "fashion_mnist",
        **of_file(target / name),
    }
    return written("Bundled", row)


if __name__ == "__main__":
    sys.exit(main())
