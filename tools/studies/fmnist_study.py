"""What `second_order_fmnist.py` stands on: a smaller copy of the set, resumable runs, a generated part of a page."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.common.files import replacing, write_text
from timm_gcp.datasets.fashion_mnist import prepare_fashion_mnist
from timm_gcp.train.callback import Callback, PrintEpochs
from timm_gcp.train.options import resolve_args
from timm_gcp.train.run import Run, train

# Stronger crops and stretches than the recipes'.
STRONG_CROPS: dict[str, Any] = {"scale": [0.7, 1.0], "ratio": [0.9, 1.1111]}
DOCS = Path(__file__).resolve().parents[2] / "docs"
_IMAGES, _LABELS = 784, 1  # bytes per item
_HEADERS = {"images": 16, "labels": 8}


def add_study_arguments(parser: argparse.ArgumentParser, output: str) -> None:
    """Options of the study; the defaults fit two CPU cores."""
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the set; laid out there when missing")
    parser.add_argument("--output", default=output, metavar="DIR", help="folder of runs and the smaller set")
    parser.add_argument("--docs", default=str(DOCS), metavar="DIR", help="folder of the pages")
    parser.add_argument("--tables", action="store_true", help="only print the page's tables from its CSV files")
    parser.add_argument("--train-images", type=int, default=12800, metavar="N", help="images to train on")
    parser.add_argument("--test-images", type=int, default=10000, metavar="N", help="images to test on")
    parser.add_argument("--img-size", type=int, default=64, metavar="N", help="height and width of the input")
    parser.add_argument("--batch-size", type=int, default=128, metavar="N", help="images per update")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that load images")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="device")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="random seeds")


def smaller_set(data_dir: str, folder: Path, train_images: int, test_images: int) -> Path:
    """The first images of each split in a folder of their own, laid out for the same reader.

    Raises:
        ValueError: More images are asked for than there are.
    """
    source = prepare_fashion_mnist(data_dir)
    target = folder / f"data-{train_images}-{test_images}"
    raw = target / "FashionMNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train_images), ("t10k", test_images)):
        for kind, size in (("images", _IMAGES), ("labels", _LABELS)):
            name = f"{split}-{kind}-idx{3 if kind == 'images' else 1}-ubyte"
            content = (source / name).read_bytes()
            header = _HEADERS[kind]
            if not 0 < count <= (len(content) - header) // size:
                raise ValueError(f"{name} has {(len(content) - header) // size} items, not {count}. Ask for fewer.")
            cut = content[:4] + count.to_bytes(4, "big") + content[8 : header + count * size]
            with replacing(raw / name) as partial:
                partial.write_bytes(cut)
    return target


def keys_of(args: argparse.Namespace, data: Path, folder: Path) -> dict[str, Any]:
    """Keys of a training run that follow from a study's options, and its crops."""
    return {
        **STRONG_CROPS,
        "data_dir": str(data),
        "output": str(folder.parent),
        "experiment": folder.name,
        "img_size": args.img_size,
        "batch_size": args.batch_size,
        "workers": args.workers,
        "device": args.device,
        "checkpoint_hist": 1,
    }


def finished(folder: Path, epochs: int) -> bool:
    """Whether a run's `summary.csv` has all its epochs."""
    return len(summary(folder)) >= epochs


def summary(folder: Path) -> list[dict[str, str]]:
    """Rows of a run's `summary.csv`; none when there is no such file."""
    path = folder / "summary.csv"
    return list(csv.DictReader(path.open(newline=""))) if path.is_file() else []


def run(recipe: str, keys: dict[str, Any], callbacks: Sequence[Callback]) -> Run:
    """Train by a recipe with other values for some keys, going on where an earlier try stopped."""
    last = Path(keys["output"]) / keys["experiment"] / "last.pth.tar"
    print(f"== {keys['experiment']}", flush=True)
    return train(
        resolve_args(recipe, {**keys, **({"resume": str(last)} if last.is_file() else {})}),
        [*callbacks, PrintEpochs()],
    )


def fill(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` on a page.

    Raises:
        ValueError: The page lacks these lines.
    """
    content = page.read_text(encoding="utf-8") if page.is_file() else ""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    if begin not in content or end not in content.split(begin, 1)[1]:
        raise ValueError(f"{page} needs the lines {begin.strip()} and {end} around the part to be written.")
    before, rest = content.split(begin, 1)
    write_text(page, before + begin + text + end + rest.split(end, 1)[1])
