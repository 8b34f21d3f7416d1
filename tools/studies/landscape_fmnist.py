"""The landscape study on Fashion-MNIST: GAP and GCP twins, same recipe and seeds, probed while they train (Fig. 2).

    python tools/studies/landscape_fmnist.py --data-dir FMNIST --seeds 0 1

Writes `docs/landscape/` (one CSV per run, the figure) and the tables of `docs/landscape.md`. A run that is complete is
not run again, one that was interrupted goes on from its last epoch. With the defaults about an hour per seed on two
CPU cores; `--tables` prints the tables from the CSV files alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmnist_study import add_study_arguments, fill, finished, keys_of, run, smaller_set, summary

from timm_gcp.common.files import copy, write_text
from timm_gcp.landscape import (
    LandscapeCallback,
    StableStepCallback,
    plot_landscape,
    range_table,
    read_records,
    step_range,
)
from timm_gcp.train.options import resolve_args

RECIPE = "fmnist_norm"
COMMAND = "python tools/studies/landscape_fmnist.py"
# The ResNet's and MobileNet's rates of Table 3 for a batch of 128; the recipe itself is ShuffleNetV2's.
_RESNET = {"sched": "gcp_resnet_norm:stretch", "sched_on_updates": False, "lr": 0.05, "weight_decay": 1e-4}
_MOBILENET = {"sched": "gcp_mobilenetv2_norm:stretch", "sched_on_updates": False, "lr": 0.06}


@dataclass(frozen=True)
class Backbone:
    """A backbone, its two poolings on the very same feature map, and where the recipe must be another."""

    gap: dict[str, Any]
    gcp: dict[str, Any]
    keys: dict[str, Any]


BACKBONES = {
    "shufflenet_v2_x1_0": Backbone({"model": "shufflenet_v2_x1_0"}, {"model": "shufflenet_v2_x1_0_gcp"}, {}),
    "resnet18": Backbone(
        {"model": "resnet18_gcp", "gp": "avg"}, {"model": "resnet18_gcp"}, {**_RESNET, "model_kwargs": {}}
    ),
    "mobilenetv2_100": Backbone(
        {"model": "mobilenetv2_100_gcp", "gp": "avg"}, {"model": "mobilenetv2_100_gcp"}, _MOBILENET
    ),
}


def main() -> int:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_arguments(parser, "output/landscape_fmnist")
    parser.add_argument("--models", nargs="+", choices=BACKBONES, default=["shufflenet_v2_x1_0", "resnet18"])
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="epochs; the schedule is stretched to them")
    parser.add_argument("--every", type=int, default=20, metavar="N", help="updates from probe to probe")
    parser.add_argument("--images", type=int, default=64, metavar="N", help="images of a batch that are probed")
    parser.add_argument("--points", type=int, default=50, metavar="N", help="step sizes")
    parser.add_argument("--linear", action="store_true", help="linear axes in the figure")
    args = parser.parse_args()
    docs = Path(args.docs)
    if args.tables:
        print(tables(docs / "landscape"), end="")
        return 0
    if not args.data_dir:
        parser.error("--data-dir is needed to train")
    output = Path(args.output)
    data = smaller_set(args.data_dir, output, args.train_images, args.test_images)
    for seed in args.seeds:
        for model in args.models:
            low, high = _range(args, model, data, output)
            for pooling in ("GAP", "GCP"):
                _probe(args, model, pooling, seed, (low, high), data, output, docs / "landscape")
    runs = load(docs / "landscape")
    first = {
        model: {pooling: records for (pooling, seed), records in of.items() if seed == min(s for _, s in of)}
        for model, of in runs.items()
    }
    plot_landscape(first, docs / "landscape" / "fmnist.png", log_scale=not args.linear)
    fill(docs / "landscape.md", COMMAND, tables(docs / "landscape"))
    print(f"wrote {docs / 'landscape.md'} and {docs / 'landscape'}")
    return 0


def _keys(args: argparse.Namespace, model: str, pooling: str, seed: int, data: Path, folder: Path) -> dict[str, Any]:
    backbone = BACKBONES[model]
    twin = backbone.gap if pooling == "GAP" else backbone.gcp
    return {**keys_of(args, data, folder), **backbone.keys, **twin, "epochs": args.epochs, "seed": seed}


def _range(args: argparse.Namespace, model: str, data: Path, output: Path) -> tuple[float, float]:
    """The paper's range, or up to what stays stable at every probe of a GAP run of its own."""
    folder = output / f"{model}-range"
    keys = _keys(args, model, "GAP", 0, data, folder)
    low, high = step_range(model, resolve_args(RECIPE, keys).lr)
    if high is None:
        path = folder / "range.json"
        if not path.is_file():
            callback = StableStepCallback(low, every=args.every, images=args.images)
            keys["output"], keys["experiment"] = str(output), folder.name
            for old in folder.glob("*.pth.tar"):  # the smallest step must come from the whole run
                old.unlink()
            run(RECIPE, keys, [callback])
            write_text(path, json.dumps({"low": low, "high": callback.high}))
        high = json.loads(path.read_text())["high"]
    return low, high


def _probe(
    args: argparse.Namespace,
    model: str,
    pooling: str,
    seed: int,
    ends: tuple[float, float],
    data: Path,
    output: Path,
    docs: Path,
) -> None:
    """One probed training run; its CSV and its accuracy go to the page's folder."""
    name = f"{model}-{pooling.lower()}-{seed}"
    folder = output / name
    probes = folder / "landscape.csv"
    if not finished(folder, args.epochs):
        if not (folder / "last.pth.tar").is_file():
            probes.unlink(missing_ok=True)  # of a try that ended before its first checkpoint
        callback = LandscapeCallback(probes, *ends, args.points, every=args.every, images=args.images)
        run(RECIPE, _keys(args, model, pooling, seed, data, folder), [callback])
    copy(probes, docs / f"{name}.csv")
    rows = [row for row in _accuracies(docs) if row["run"] != name]
    last = summary(folder)[-1]
    rows.append({"run": name, "epochs": str(int(last["epoch"]) + 1), "top1": f"{float(last['eval_top1']):.2f}"})
    lines = [",".join(("run", "epochs", "top1")), *(",".join(row.values()) for row in rows)]
    write_text(docs / "accuracy.csv", "\n".join(lines) + "\n")


def _accuracies(docs: Path) -> list[dict[str, str]]:
    path = docs / "accuracy.csv"
    return list(csv.DictReader(path.open(newline=""))) if path.is_file() else []


def load(docs: Path) -> dict[str, dict[tuple[str, int], Any]]:
    """Records by backbone, then by pooling and seed."""
    runs: dict[str, dict[tuple[str, int], Any]] = {}
    for model in BACKBONES:
        for path in sorted(docs.glob(f"{model}-*.csv")):
            pooling, seed = path.stem.removeprefix(f"{model}-").split("-")
            runs.setdefault(model, {})[pooling.upper(), int(seed)] = read_records(path)
    return runs


def tables(docs: Path) -> str:
    """The generated part of the page: one table of range ratios per backbone."""
    accuracy = {row["run"]: row for row in _accuracies(docs)}
    parts = [f"<!-- written by `{COMMAND}` -->\n"]
    for model, of in load(docs).items():
        lines: list[str] = []
        for seed in sorted({seed for _, seed in of}):
            runs = {f"{pooling}, seed {seed}": of[pooling, seed] for pooling in ("GAP", "GCP") if (pooling, seed) in of}
            header, rule, *rows = range_table(runs).replace(f"GAP, seed {seed} / run", "GAP / run").splitlines()
            if not lines:
                lines += [f"{header} top-1 |", f"{rule}---:|"]
            names = [f"{model}-{label[:3].lower()}-{seed}" for label in runs]
            lines += [f"{row} {accuracy[name]['top1']} |" for row, name in zip(rows, names, strict=True)]
        first = next(iter(of.values()))[0]
        epochs = accuracy[next(name for name in accuracy if name.startswith(model))]["epochs"]
        parts.append(
            f"\n**{model}**: {epochs} epochs, {first.points} step sizes in [{first.low:.4g}, {first.high:.4g}]\n"
        )
        parts.append("\n" + "\n".join(lines) + "\n")
    return "".join(parts) + ("\n![Bands of the loss and of the change of the gradient](landscape/fmnist.png)\n")


if __name__ == "__main__":
    sys.exit(main())
