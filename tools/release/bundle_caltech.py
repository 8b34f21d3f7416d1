"""Two runs of the Caltech-101 study -> a pair of weight folders inside the package, measured as they are shipped.

    python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories --runs output/studies/caltech101
    python tools/release/make_model_cards.py
    python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories

The first command takes the last epoch of a GCP run and of its twin, stores each in float16 unless that costs more
than 0.05 points of accuracy on the test images, and prints the rows for `timm_gcp/weights/bundled.py`. The second
writes the cards from these rows. The third, without runs, only measures the weights that are in the package.

Which images are tested follows from the study's file (`--config`) and from the seed of the draw.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from bundling import NARROW, WIDE, chosen_dtype, left_out, of_file, put, told_size, validated, written
from safetensors.torch import save_file
from timm.utils.misc import natural_key

from timm_gcp.cli import main as timm_gcp
from timm_gcp.common.files import write_text
from timm_gcp.weights import catalog as table
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.importing import import_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "studies"))

from compare import finished
from image_tensors import files_to_test
from study_config import Entry, Study, read_study

STUDIES = Path(__file__).resolve().parents[1] / "studies"
ROOT = STUDIES.parents[1]
RECORD = ROOT / "tests" / "data" / "bundled_photos.json"
TAG = "caltech101"
MODELS = {"gcp": "mobilenetv2_100_gcp_d128", "gap": "mobilenetv2_100"}
TRAINED = "started_mobilenetv2_gcp"  # the study's model behind both
DATASET = "HuggingFaceM4/Caltech-101"
DATA_KEYS = ("mean", "std", "interpolation", "crop_pct")


def main() -> int:
    """Bundle the two runs, or measure what is bundled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, metavar="DIR", help="101_ObjectCategories, a folder a class")
    parser.add_argument("--runs", metavar="DIR", help="folder of the runs; if left out, measure what is bundled")
    parser.add_argument("--gcp", default="gcp-d128-seed0", metavar="NAME", help="the run with GCP, D = 128")
    parser.add_argument("--gap", default="gap-seed0", metavar="NAME", help="the run with average pooling")
    parser.add_argument("--config", default=str(STUDIES / "configs" / "caltech101.yaml"), metavar="FILE", help="study")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="without --runs: seed of the draw")
    parser.add_argument("--dtype", choices=["float16", "float32"], help="store both in this type, whatever it costs")
    parser.add_argument("--record", default=str(RECORD), metavar="FILE", help="answers on samples/photos, for a test")
    parser.add_argument("--to", default=str(table.BUNDLED), metavar="DIR", help="folder of the bundled weights")
    args = parser.parse_args()
    try:
        study = read_study(args.config)
        if study.train_per_class is None:
            raise ValueError(f"{args.config!r} draws no training images (data.train_per_class): give Caltech-101's.")
        if not args.runs:
            return _measure(Path(args.to), args.data_dir, study, args.seed)
        runs = {kind: run_settings(Path(args.runs) / getattr(args, kind), kind) for kind in MODELS}
        if len({keys["seed"] for keys in runs.values()}) > 1:
            raise ValueError(f"{args.gcp} and {args.gap} drew other training images: give runs of one seed.")
        _bundle(runs, study, args)
        write_record([Path(args.to) / f"{model}.{TAG}" for model in MODELS.values()], Path(args.record))
    except (ValueError, FileNotFoundError) as error:
        print(f"bundle_caltech.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def run_settings(run: Path, kind: str) -> dict[str, Any]:
    """The settings of a run, `args.yaml`, with its folder under the key `run`.

    Raises:
        FileNotFoundError: There is no such run, or no checkpoint of it.
        ValueError: It is not complete, or of another model.
    """
    for name in ("args.yaml", "last.pth.tar"):
        if not (run / name).is_file():
            raise FileNotFoundError(f"no {run / name}: give the folder of tools/studies/compare.py's runs with --runs.")
    keys: dict[str, Any] = yaml.safe_load((run / "args.yaml").read_text(encoding="utf-8"))
    pooling = "gap" if keys["gp"] == "avg" else "gcp"
    width = (keys.get("model_kwargs") or {}).get("reduce_dim", 256)
    if keys["model"] != TRAINED or pooling != kind or (kind == "gcp" and width != 128):
        what = f"{keys['model']}, pooling {pooling}" + (f", D = {width}" if pooling == "gcp" else "")
        raise ValueError(f"{run} trained {what}; --{kind} takes a run of {TRAINED} that becomes {MODELS[kind]}.")
    if not finished(run, keys["epochs"]):
        raise ValueError(f"{run} is not complete: let tools/studies/compare.py finish it.")
    return {**keys, "run": run}


def _bundle(runs: dict[str, dict[str, Any]], study: Study, args: argparse.Namespace) -> None:
    seed, target = runs["gcp"]["seed"], Path(args.to)
    with tempfile.TemporaryDirectory() as scratch, test_folder(args.data_dir, study, seed) as images:
        made, measured = {}, {}
        for dtype in (WIDE, NARROW) if args.dtype is None else (getattr(torch, args.dtype),):
            made[dtype] = [
                weight_folder(keys, kind, Path(scratch) / str(dtype) / kind, dtype, images)
                for kind, keys in runs.items()
            ]
            measured[dtype] = pair_report(*made[dtype], images)
            for kind, report in zip(runs, measured[dtype]["models"], strict=True):
                print(f"{runs[kind]['run'].name}, {dtype}: {report['top1']:.2f}", file=sys.stderr, flush=True)
        each = zip(*(report["models"] for report in measured.values()), strict=True)
        dtypes = [chosen_dtype(*(one["top1"] for one in both)) if len(both) > 1 else dtype for both in each]
        chosen = [made[dtype][place] for place, dtype in enumerate(dtypes)]
        report = measured[dtypes[0]] if len(set(dtypes)) == 1 else pair_report(*chosen, images)
        named = [(folder, f"{MODELS[kind]}.{TAG}") for folder, kind in zip(chosen, runs, strict=True)]
        for folder, name in named:
            excess = left_out(folder / "model.safetensors", name, target)
            if excess:
                raise ValueError(f"{excess.removeprefix('# ')}. Store both in --dtype float16.")
        for folder, name in named:
            put(folder, target / name)
    for kind, dtype, scores in zip(runs, dtypes, report["models"], strict=True):
        folder = target / f"{MODELS[kind]}.{TAG}"
        print(written("Bundled", _row(runs[kind], study, args.config, scores, dtype, folder)))
    first, second = (f"`{_told(tuned(keys, study))}`" for keys in runs.values())
    pair = {
        "first": f"{MODELS['gcp']}.{TAG}",
        "second": f"{MODELS['gap']}.{TAG}",
        "only_first": report["only_first"],
        "only_second": report["only_second"],
        "images": report["images"],
        "unequal": f"the rates, {first} for the first and {second} for the second, each chosen on held-out images",
        "counted": "python tools/release/bundle_caltech.py --data-dir 101_ObjectCategories",
    }
    print(written("BundledPair", pair))
    print(told_size(target))


def weight_folder(keys: dict[str, Any], kind: str, folder: Path, dtype: torch.dtype, images: Path) -> Path:
    """The weight folder of a run, under the model's own name and not the study's."""
    classes = sorted((path.name for path in (images / "validation").iterdir()), key=natural_key)
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch) / f"{keys['run'].name}.safetensors"
        tensors = read_checkpoint(keys["run"] / "last.pth.tar")["state_dict"]
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, state)
        import_file(
            state,
            f"{MODELS[kind]}.{TAG}",
            triangle_order="row",
            model_args={"pad_type": keys["model_kwargs"]["pad_type"], "num_classes": keys["num_classes"]},
            target=folder,
            label_names=classes,
            dtype=dtype,
            data_config={"img_size": keys["img_size"], **{key: keys[key] for key in DATA_KEYS}},
            assume_preprocessing=False,
        )
    return folder


@contextlib.contextmanager
def test_folder(data_dir: str, study: Study, seed: int) -> Iterator[Path]:
    """A temporary folder `validation/CLASS` of links to the test images of the draw."""
    with tempfile.TemporaryDirectory() as folder:
        for path in files_to_test(data_dir, int(study.train_per_class or 0), study.exclude, seed):
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


def _measure(target: Path, data_dir: str, study: Study, seed: int) -> int:
    folders = [target / f"{model}.{TAG}" for model in MODELS.values()]
    with test_folder(data_dir, study, seed) as images:
        report = pair_report(*folders, images)
    for folder, scores in zip(folders, report["models"], strict=True):
        print(folder.name, ", ".join(f"{key} {value:.2f}" for key, value in _scores(scores).items()))
    alone = f"by the first alone {report['only_first']}, by the second {report['only_second']}"
    print(f"of {report['images']} images right {alone}")
    return 0


def write_record(folders: list[Path], path: Path) -> None:
    """Write what `timm-gcp predict` says of samples/photos with each weight folder."""
    found = {}
    for folder in folders:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            timm_gcp(["predict", str(ROOT / "samples" / "photos"), "--model", f"local-dir:{folder}", "--json"])
        found[folder.name] = {
            Path(entry["image"]).name: {top["name"]: round(top["probability"], 4) for top in entry["top"]}
            for entry in json.loads(printed.getvalue())
        }
    write_text(path, json.dumps(found, indent=1) + "\n")


def tuned(keys: dict[str, Any], study: Study) -> dict[str, Any]:
    """What the study chose for this run on the held-out images."""
    entry = _entry(keys, study)
    by = study.entry(entry.tuned_as) if entry.tuned_as else entry
    return {name: keys[name] for name in by.tune if name != "epochs"}


def _entry(keys: dict[str, Any], study: Study) -> Entry:
    return study.entry(keys["run"].name.rpartition("-seed")[0])


def _row(
    keys: dict[str, Any], study: Study, config: str, report: dict[str, Any], dtype: torch.dtype, folder: Path
) -> dict[str, Any]:
    """Fields of the row of one weight folder; see `timm_gcp.weights.bundled.Bundled`."""
    drawn = int(study.train_per_class or 0)
    entry = _entry(keys, study)
    return {
        "arch": folder.name.rpartition(".")[0],
        "tag": TAG,
        **_scores(report),
        "recipe": f"{entry.recipe}.yaml",
        "schedule": keys["sched"],
        "epochs": keys["epochs"],
        "images": keys["num_classes"] * (drawn - round(study.held_out * drawn)),
        "seed": keys["seed"],
        "study": f"python tools/studies/compare.py {_shown(config)} --data-dir 101_ObjectCategories --weights DIR "
        f"--runs {entry.name}",
        "keys": _told(tuned(keys, study)),
        "dtype": str(dtype).removeprefix("torch."),
        "dataset": DATASET,
        "start": keys["model_kwargs"]["start"],
        **of_file(folder),
    }


def _told(keys: dict[str, Any]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in keys.items())


def _shown(config: str) -> str:
    """A file of this repository by its path in it."""
    path = Path(config).resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)


if __name__ == "__main__":
    sys.exit(main())
