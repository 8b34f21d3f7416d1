"""Does GCP pre-training help detection? Faster R-CNN on made-up images of Fashion-MNIST items, in one command.

    python tools/studies/detection_fmnist.py --data-dir FASHION_MNIST --output STUDY
    python tools/studies/detection_fmnist.py --table STUDY/record.json      # print the table of a finished study

By default ShuffleNetV2 from scratch, after average pooling and after GCP, with the Fashion-MNIST weights that the
models are registered with; other backbones by `--arm LABEL=MODEL[,checkpoint=FILE][,last_stage=STAGE]` (a MODEL.TAG
without a checkpoint is pretrained; the first arm is what the others are compared with). Every arm has the recipe
`recipes/detection/fmnist.yaml` and the same seeds. Mask R-CNN is trained once, on the last arm. Interrupted, the same
command goes on where it stopped. STUDY receives record.json, table.md, convergence.png, examples.png and masks.png.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from detection_report import draw_convergence, draw_examples, table
from make_fmnist_detection import build

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.common.files import write_text
from timm_gcp.detection.checkpoint import read_checkpoint
from timm_gcp.detection.options import resolve
from timm_gcp.detection.run import LAST, METRICS_FILE, run_training
from timm_gcp.detection.weights import read_classifier

GAP, GCP = "shufflenet_v2_x1_0", "shufflenet_v2_x1_0_gcp"
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

    def channels(self) -> int | None:
        """Channels of the images that the weights were trained on; None from scratch."""
        if self.checkpoint is not None:
            return next(
                iter(tensor.shape[1] for tensor in read_classifier(self.checkpoint).values() if tensor.ndim == 4)
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


def default_arms() -> list[Arm]:
    """From scratch, and the two twins with their Fashion-MNIST weights.

    Raises:
        ValueError: A twin is registered without such weights.
    """
    arms = [Arm("from scratch", GCP)]
    for label, model in (("after GAP", GAP), ("after GCP", GCP)):
        tagged = timm.list_pretrained(f"{model}.*fmnist*")
        if not tagged:
            raise ValueError(f"{model} has no Fashion-MNIST weights registered: name the backbones with --arm.")
        arms.append(Arm(label, tagged[0]))
    return arms


def run(arm: Arm, detector: str, seed: int, args: argparse.Namespace, in_chans: int) -> tuple[dict[str, Any], Path]:
    """Train one detector, or go on with it, or take what is there; returns its metrics and folder."""
    folder = args.output / "runs" / f"{detector}_{arm.label.replace(' ', '_')}_seed{seed}"
    given = {
        "detector": detector, "model": arm.model, "pretrained": arm.pretrained, "checkpoint": arm.checkpoint,
        "last_stage": arm.last_stage, "in_chans": in_chans, "data_dir": str(args.output / "data"), "seed": seed,
        "output": str(folder), "workers": args.workers, "min_size": args.canvas, "max_size": args.canvas,
    }  # fmt: skip
    given |= {"epochs": args.epochs} if args.epochs else {}
    given |= {"device": args.device} if args.device else {}
    given |= {"resume": "last"} if (folder / LAST).is_file() else {}
    options = resolve(given, "fmnist")
    if not (folder / LAST).is_file() or read_checkpoint(folder / LAST)["epoch"] < options.epochs:
        print(f"== {detector}, {arm.label}, seed {seed}", flush=True)
        run_training(options)
    metrics = json.loads((folder / METRICS_FILE).read_text())
    plain = {kind: {key: None if math.isnan(v) else v for key, v in values.items()} for kind, values in metrics.items()}
    history = read_checkpoint(folder / LAST)["history"]
    return {**plain, "seed": seed, "curve": [row["bbox_AP"] for row in history if "bbox_AP" in row]}, folder


def study(args: argparse.Namespace) -> None:
    """Make the data, train every arm with every seed and one Mask R-CNN, write record, table and figures."""
    arms = [parse_arm(text) for text in args.arm] if args.arm else default_arms()
    channels = {arm.channels() for arm in arms} - {None}
    if len(channels) > 1:
        raise ValueError(f"the arms' weights take images of {sorted(channels)} channels; they must agree.")
    in_chans = channels.pop() if channels else 1
    if not (args.output / "data" / "annotations" / "instances_val.json").is_file():
        build(args.data_dir, args.output / "data", {"train": args.train, "val": args.val}, args.canvas)
    record: dict[str, Any] = {
        "seeds": args.seeds,
        "arms": [],
        "canvas": args.canvas,
        "train": args.train,
        "val": args.val,
    }
    folders = []
    for arm in arms:
        runs = [run(arm, "fasterrcnn", seed, args, in_chans) for seed in args.seeds]
        record["arms"].append({"label": arm.label, "model": arm.model, "runs": [metrics for metrics, _ in runs]})
        folders.append((arm.label, runs[0][1] / LAST))
    draw_examples(args.output / "data", folders, args.output / "examples.png")
    if not args.no_masks:
        metrics, folder = run(arms[-1], "maskrcnn", args.seeds[0], args, in_chans)
        record["masks"] = {"label": arms[-1].label, **metrics}
        draw_examples(args.output / "data", [(arms[-1].label, folder / LAST)], args.output / "masks.png", masks=True)
    draw_convergence(record, args.output / "convergence.png")
    write_text(args.output / "record.json", json.dumps(record, indent=1))
    write_text(args.output / "table.md", table(record))
    print(table(record))


def main(argv: list[str] | None = None) -> int:
    """Parse the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of Fashion-MNIST's idx files")
    parser.add_argument("--output", type=Path, help="folder of the study")
    parser.add_argument("--arm", action="append", help="a backbone, see above; repeat")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds (default: 0 1)")
    parser.add_argument("--epochs", type=int, help="epochs (default: the recipe's)")
    parser.add_argument("--canvas", type=int, default=128, help="side of the pictures in pixels (default: 128)")
    parser.add_argument("--train", type=int, default=1000, help="training images (default: 1000)")
    parser.add_argument("--val", type=int, default=200, help="validation images (default: 200)")
    parser.add_argument("--workers", type=int, default=1, help="processes that read images (default: 1)")
    parser.add_argument("--device", help="device")
    parser.add_argument("--no-masks", action="store_true", help="leave Mask R-CNN out")
    parser.add_argument("--table", type=Path, metavar="RECORD", help="print the table of a record and stop")
    args = parser.parse_args(argv)
    if args.table:
        print(table(json.loads(args.table.read_text())), end="")
    elif args.data_dir is None or args.output is None:
        parser.error("a study needs --data-dir and --output")
    else:
        study(args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
