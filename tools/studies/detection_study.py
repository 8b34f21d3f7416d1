"""Does GCP pre-training help detection? The same detector after several classifiers, in one command.

    python tools/studies/detection_study.py --data-dir COCO --recipe bccd --output STUDY \\
        --arm "from scratch=resnet18_gcp" --arm "after GAP=resnet18,checkpoint=gap-seed{seed}.pth.tar" \\
        --arm "after GCP=resnet18_gcp,checkpoint=gcp-seed{seed}.pth.tar"
    python tools/studies/detection_study.py --table STUDY/record.json      # print the table of a finished study

COCO is a data set in COCO's layout with the splits train and val (tools/studies/voc_to_coco.py and
make_fmnist_detection.py write such). An arm reads LABEL=MODEL[,checkpoint=FILE][,last_stage=STAGE]: a MODEL.TAG without
a checkpoint is pretrained, `{seed}` in FILE is the seed, and the first arm is what the others are compared with. Every
arm has the recipe (one of recipes/detection/) and the same seeds. `--masks` trains Mask R-CNN once, on the last arm.
Interrupted, the same command goes on where it stopped. STUDY receives record.json, table.md, convergence.png,
examples.png and, with --masks, masks.png.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from detection_report import draw_convergence, draw_examples, table

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.common.files import write_text
from timm_gcp.detection.checkpoint import read_checkpoint
from timm_gcp.detection.coco_data import find_split
from timm_gcp.detection.options import resolve
from timm_gcp.detection.run import LAST, METRICS_FILE, run_training
from timm_gcp.detection.weights import read_classifier

ARM_KEYS = ("checkpoint", "last_stage")


@dataclass(frozen=True)
class Arm:
    """One backbone: a model with its tag or a checkpoint (pre-trained), or with neither (from scratch)."""

    label: str
    model: str
    checkpoint: str | None = None
    last_stage: str | None = None

    @property
    def pretrained(self) -> bool:
        """Whether the weights are those that the model is registered with."""
        return "." in self.model and self.checkpoint is None

    def start(self, seed: int) -> str | None:
        """Checkpoint for a seed."""
        return self.checkpoint and self.checkpoint.replace("{seed}", str(seed))

    def channels(self, seed: int) -> int | None:
        """Channels of the images that the weights were trained on; None from scratch."""
        if self.checkpoint is not None:
            return next(
                iter(tensor.shape[1] for tensor in read_classifier(self.start(seed)).values() if tensor.ndim == 4)
            )
        return timm.get_pretrained_cfg(self.model).input_size[0] if self.pretrained else None


def parse_arm(text: str) -> Arm:
    """`LABEL=MODEL[,checkpoint=FILE][,last_stage=STAGE]`.

    Raises:
        ValueError: It does not read so.
    """
    label, _, rest = text.partition("=")
    model, *pairs = rest.split(",")
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if not label or not model or not set(options) <= set(ARM_KEYS):
        raise ValueError(f"an arm reads LABEL=MODEL[,checkpoint=FILE][,last_stage=STAGE]. Got {text!r}.")
    return Arm(label, model, **options)


def run(arm: Arm, detector: str, seed: int, args: argparse.Namespace, in_chans: int) -> tuple[dict[str, Any], Path]:
    """Train one detector, or go on with it, or take what is there; returns its metrics and folder."""
    folder = args.output / "runs" / f"{detector}_{arm.label.replace(' ', '_')}_seed{seed}"
    given = {
        "detector": detector, "model": arm.model, "pretrained": arm.pretrained, "checkpoint": arm.start(seed),
        "last_stage": arm.last_stage, "in_chans": in_chans, "data_dir": str(args.data_dir), "seed": seed,
        "output": str(folder), "workers": args.workers,
    }  # fmt: skip
    given |= {"epochs": args.epochs} if args.epochs else {}
    given |= {"device": args.device} if args.device else {}
    given |= {"resume": "last"} if (folder / LAST).is_file() else {}
    options = resolve(given, args.recipe)
    if not (folder / LAST).is_file() or read_checkpoint(folder / LAST)["epoch"] < options.epochs:
        print(f"== {detector}, {arm.label}, seed {seed}", flush=True)
        run_training(options)
    metrics = json.loads((folder / METRICS_FILE).read_text())
    plain = {kind: {key: None if math.isnan(v) else v for key, v in values.items()} for kind, values in metrics.items()}
    history = read_checkpoint(folder / LAST)["history"]
    return {**plain, "seed": seed, "curve": [row["bbox_AP"] for row in history if "bbox_AP" in row]}, folder


def study(args: argparse.Namespace) -> None:
    """Train every arm with every seed, write record, table and figures."""
    arms = [parse_arm(text) for text in args.arm]
    for split in ("train", "val"):
        find_split(args.data_dir, split)
    channels = {arm.channels(seed) for arm in arms for seed in args.seeds} - {None}
    if len(channels) > 1:
        raise ValueError(f"the arms' weights take images of {sorted(channels)} channels; they must agree.")
    in_chans = channels.pop() if channels else 3
    record: dict[str, Any] = {"recipe": args.recipe, "seeds": args.seeds, "arms": []}
    folders = []
    for arm in arms:
        runs = [run(arm, "fasterrcnn", seed, args, in_chans) for seed in args.seeds]
        record["arms"].append({"label": arm.label, "model": arm.model, "runs": [metrics for metrics, _ in runs]})
        folders.append((arm.label, runs[0][1] / LAST))
    draw_examples(args.data_dir, folders, args.output / "examples.png")
    if args.masks:
        metrics, folder = run(arms[-1], "maskrcnn", args.seeds[0], args, in_chans)
        record["masks"] = {"label": arms[-1].label, **metrics}
        draw_examples(args.data_dir, [(arms[-1].label, folder / LAST)], args.output / "masks.png", masks=True)
    draw_convergence(record, args.output / "convergence.png")
    write_text(args.output / "record.json", json.dumps(record, indent=1))
    write_text(args.output / "table.md", table(record))
    print(table(record))


def main(argv: list[str] | None = None) -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="data set in COCO's layout, splits train and val")
    parser.add_argument("--recipe", default="bccd", metavar="NAME", help="one of recipes/detection/ (default: bccd)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the study")
    parser.add_argument("--arm", action="append", metavar="LABEL=MODEL", help="a backbone, see above; repeat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], metavar="N", help="seeds (default: 0 1)")
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs (default: the recipe's)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that read images (default: 1)")
    parser.add_argument("--device", metavar="NAME", help="device")
    parser.add_argument("--masks", action="store_true", help="train Mask R-CNN too, where the set has masks")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="print the table of a record and stop")
    args = parser.parse_args(argv)
    if args.table:
        print(table(json.loads(args.table.read_text())), end="")
        return 0
    if args.data_dir is None or args.output is None or not args.arm:
        parser.error("a study needs --data-dir, --output and one --arm or more")
    try:
        study(args)
    except (ValueError, FileNotFoundError) as error:
        print(f"detection_study.py: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
