"""Two networks of the fine-tuning study -> a pair of weight folders inside the package, measured as they are shipped.

    python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories --nets output/studies/fine_tuned
    python tools/release/make_model_cards.py
    python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories

The first command takes the GCP network and its twin that `tools/studies/fine_tuned_ends.py` kept, stores each in
float16 unless that costs more than 0.05 points of accuracy on the test images, and prints the rows for
`timm_gcp/weights/bundled.py`. The second writes the cards from these rows. The third, without networks, only
measures the weights that are in the package.

Which images are tested follows from the study's file (`--config`) and from the draw that the networks were trained on.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bundling import NARROW, WIDE, chosen_dtype, left_out, of_file, put, told_size, validated, write_record, written
from safetensors import safe_open
from timm.utils.misc import natural_key

from timm_gcp.weights import catalog as table
from timm_gcp.weights.importing import import_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from fine_tuned_ends import read_study
from frozen_heads import slug
from image_tensors import files_to_test

STUDIES = Path(__file__).resolve().parents[1] / "studies"
ROOT = STUDIES.parents[1]
PHOTOS = ROOT / "samples" / "photos"
RECORD = ROOT / "tests" / "data" / "bundled_photos.json"
TAG = "caltech101"
MODELS = {"GCP, D = 128": "mobilenetv2_100_gcp_d128", "GAP": "mobilenetv2_100"}  # by the name of the head
TRAINED = "started_mobilenetv2_gcp"  # the study's model behind both
DATASET = "HuggingFaceM4/Caltech-101"


@dataclass(frozen=True)
class Net:
    """A trained network: its file, its head's name, and the draw and the rates that it was trained with."""

    file: Path
    head: str
    seed: int
    lr: float
    head_lr: float

    @property
    def model(self) -> str:
        """Name of the model that it becomes."""
        return MODELS[self.head]

    @property
    def rates(self) -> str:
        """What was chosen for it, in words."""
        return f"lr {self.lr:g} for the stages, {self.head_lr:g} for the head"


def main() -> int:
    """Bundle the two networks, or measure what is bundled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="101_ObjectCategories, a folder a class")
    parser.add_argument(
        "--nets", metavar="DIR", help="fine_tuned_ends.py's --save; if left out, measure what is bundled"
    )
    default = STUDIES / "configs" / "fine_tuned" / "caltech101_mobilenetv2.yaml"
    parser.add_argument("--config", default=str(default), metavar="FILE", help="the study that trained them")
    parser.add_argument("--dtype", choices=["float16", "float32"], help="store both in this type, whatever it costs")
    parser.add_argument("--record", default=str(RECORD), metavar="FILE", help="answers on samples/photos, for a test")
    parser.add_argument("--to", default=str(table.BUNDLED), metavar="DIR", help="folder of the bundled weights")
    args = parser.parse_args()
    try:
        study = read_study(args.config)
        if study["frozen"]["model"]["model_name"] != TRAINED:
            raise ValueError(f"{args.config} trained {study['frozen']['model']['model_name']}; give one of {TRAINED}.")
        if not args.nets:
            return _measure(Path(args.to), args.data_dir, study)
        nets = [read_net(Path(args.nets), head) for head in MODELS]
        if len({net.seed for net in nets}) > 1:
            raise ValueError(f"the networks in {args.nets} were trained on different draws: give those of one.")
        _bundle(nets, study, args)
        write_record([Path(args.to) / f"{model}.{TAG}" for model in MODELS.values()], PHOTOS, Path(args.record))
    except (ValueError, FileNotFoundError) as error:
        print(f"bundle_caltech.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def read_net(folder: Path, head: str) -> Net:
    """A network as the study kept it.

    Raises:
        FileNotFoundError: It isn't there.
        ValueError: The file does not say how it was trained.
    """
    file = folder / f"{slug(head)}.safetensors"
    if not file.is_file():
        raise FileNotFoundError(
            f"no {file}: give the folder of tools/studies/fine_tuned_ends.py's networks with --nets."
        )
    with safe_open(file, "pt") as opened:
        told = opened.metadata() or {}
    if told.get("head") != head or not {"seed", "lr", "head_lr"} <= set(told):
        raise ValueError(f"{file} does not say that it has the head {head!r}: let fine_tuned_ends.py write it again.")
    return Net(file, head, int(told["seed"]), float(told["lr"]), float(told["head_lr"]))


def _bundle(nets: list[Net], study: dict[str, Any], args: argparse.Namespace) -> None:
    target = Path(args.to)
    with tempfile.TemporaryDirectory() as scratch, test_folder(args.data_dir, study, nets[0].seed) as images:
        made, measured = {}, {}
        for dtype in (WIDE, NARROW) if args.dtype is None else (getattr(torch, args.dtype),):
            made[dtype] = [
                weight_folder(net, study, Path(scratch) / str(dtype) / net.model, dtype, images) for net in nets
            ]
            measured[dtype] = pair_report(*made[dtype], images)
            for net, report in zip(nets, measured[dtype]["models"], strict=True):
                print(f"{net.head}, {dtype}: {report['top1']:.2f}", file=sys.stderr, flush=True)
        each = zip(*(report["models"] for report in measured.values()), strict=True)
        dtypes = [chosen_dtype(*(one["top1"] for one in both)) if len(both) > 1 else dtype for both in each]
        chosen = [made[dtype][place] for place, dtype in enumerate(dtypes)]
        report = measured[dtypes[0]] if len(set(dtypes)) == 1 else pair_report(*chosen, images)
        named = [(folder, f"{net.model}.{TAG}") for folder, net in zip(chosen, nets, strict=True)]
        for folder, name in named:
            excess = left_out(folder / "model.safetensors", name, target)
            if excess:
                raise ValueError(f"{excess.removeprefix('# ')}. Store both in --dtype float16.")
        for folder, name in named:
            put(folder, target / name)
    for net, dtype, scores in zip(nets, dtypes, report["models"], strict=True):
        print(written("Bundled", _row(net, study, args.config, scores, dtype, target / f"{net.model}.{TAG}")))
    first, second = nets
    pair = {
        "first": f"{first.model}.{TAG}",
        "second": f"{second.model}.{TAG}",
        "only_first": report["only_first"],
        "only_second": report["only_second"],
        "images": report["images"],
        "unequal": f"the rates, {first.rates} of the first and {second.rates} of the second, each chosen on held-out "
        "images",
        "counted": "python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories",
    }
    print(written("BundledPair", pair))
    print(told_size(target))


def weight_folder(net: Net, study: dict[str, Any], folder: Path, dtype: torch.dtype, images: Path) -> Path:
    """The weight folder of a network, under the model's own name and not the study's."""
    classes = sorted((path.name for path in (images / "validation").iterdir()), key=natural_key)
    shape = study["frozen"]["input"]
    import_file(
        net.file,
        f"{net.model}.{TAG}",
        triangle_order="row",
        model_args={"pad_type": study["frozen"]["model"]["pad_type"], "num_classes": len(classes)},
        target=folder,
        label_names=classes,
        dtype=dtype,
        data_config={
            "img_size": shape["size"],
            "mean": shape["mean"],
            "std": shape["std"],
            "interpolation": "bilinear",
            "crop_pct": shape["size"] / study["frozen"]["data"]["pixels"],
        },
        assume_preprocessing=False,
    )
    return folder


@contextlib.contextmanager
def test_folder(data_dir: str, study: dict[str, Any], seed: int) -> Iterator[Path]:
    """A temporary folder `validation/CLASS` of links to the test images of the draw."""
    data = study["frozen"]["data"]
    with tempfile.TemporaryDirectory() as folder:
        for path in files_to_test(data_dir, data["train_per_class"], data["exclude"], seed):
            link = Path(folder) / "validation" / path.parent.name / path.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        yield Path(folder)


def pair_report(first: Path, second: Path, images: Path) -> dict[str, Any]:
    """Scores of two weight folders on the test images, and how many images each alone classifies correctly."""
    report = validated(first, ["--data-dir", str(images), "--workers", "1", "--batch-size", "32"], second)
    other = report["compare"]
    return {"models": (report, other), **{key: other[key] for key in ("only_first", "only_second")}} | {
        "images": report["images"]
    }


def _scores(report: dict[str, Any]) -> dict[str, float]:
    return {key: round(report[key], 2) for key in ("top1", "top5", "mean_per_class")}


def _measure(target: Path, data_dir: str, study: dict[str, Any]) -> int:
    folders = [target / f"{model}.{TAG}" for model in MODELS.values()]
    with test_folder(data_dir, study, study["frozen"]["seeds"][0]) as images:
        report = pair_report(*folders, images)
    for folder, scores in zip(folders, report["models"], strict=True):
        print(folder.name, ", ".join(f"{key} {value:.2f}" for key, value in _scores(scores).items()))
    alone = f"by the first alone {report['only_first']}, by the second {report['only_second']}"
    print(f"of {report['images']} images right {alone}")
    return 0


def _row(
    net: Net, study: dict[str, Any], config: str, report: dict[str, Any], dtype: torch.dtype, folder: Path
) -> dict[str, Any]:
    """Fields of the row of one weight folder; see `timm_gcp.weights.bundled.Bundled`."""
    first = study["frozen"]
    stages = f"the head for {first['train']['epochs']} epochs, then {', '.join(study['end'])} and the head"
    return {
        "arch": net.model,
        "tag": TAG,
        **_scores(report),
        "stages": f"{stages} with {net.rates}",
        "epochs": study["train"]["epochs"],
        "images": json.loads((folder / "config.json").read_text())["num_classes"] * first["data"]["train_per_class"],
        "seed": net.seed,
        "study": f"python tools/studies/fine_tuned_ends.py {_shown(config)} --data-dir 101_ObjectCategories "
        f"--weights DIR --heads DIR --record docs/frozen_heads/{Path(first['file']).stem}.json "
        "--docs docs/fine_tuned_ends --save DIR",
        "dtype": str(dtype).removeprefix("torch."),
        "dataset": DATASET,
        "start": first["model"]["start"],
        **of_file(folder),
    }


def _shown(config: str) -> str:
    """A file of this repository by its path in it."""
    path = Path(config).resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)


if __name__ == "__main__":
    sys.exit(main())
