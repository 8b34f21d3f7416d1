"""`timm-gcp quickstart`: train the GAP and the GCP twin of ShuffleNetV2 on real digits, compare them, save and reload.

The data are scikit-learn's bundled digits (1,797 scans of 8×8 pixels), so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from timm_gcp.common.device import pick_device
from timm_gcp.common.ranges import SEED, whole
from timm_gcp.datasets.digits import write_digits
from timm_gcp.train.options import resolve_args
from timm_gcp.train.quickstart import TWINS, Narrator, check_reload, save_weights, side_by_side
from timm_gcp.train.ranges import RANGES
from timm_gcp.train.run import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp quickstart`."""
    parser.add_argument(
        "--output", default="quickstart_output", metavar="DIR", help="folder of everything that is made"
    )
    parser.add_argument("--force", action="store_true", help="replace what an earlier quick start made there")
    parser.add_argument(
        "--epochs", type=whole(RANGES["epochs"]), metavar="N", help="epochs of each twin; the recipe's when left out"
    )
    parser.add_argument("--device", metavar="NAME", help="device; the recipe's when left out")
    parser.add_argument("--seed", type=whole(SEED), metavar="N", help="random seed; the recipe's when left out")


def main(args: argparse.Namespace) -> int:
    """Train both twins, compare them, draw the curves, save the GCP twin and load it again."""
    from timm_gcp.plots.convergence import draw_convergence
    from timm_gcp.train.curves import read_runs

    started = time.perf_counter()
    output = Path(args.output)
    made = [name for name in ("digits", *map(str.lower, TWINS), "weights") if (output / name).exists()]
    if made and not args.force:
        raise FileExistsError(
            f"{args.output!r} has {', '.join(made)} already: choose another --output, or replace them by --force."
        )
    if args.device:
        pick_device(args.device)
    output.mkdir(parents=True, exist_ok=True)
    data = write_digits(output / "digits")
    counts = {split: len(list((data / split).rglob("*.png"))) for split in ("train", "validation")}
    print(f"{counts['train']} digits to train on, {counts['validation']} held out, in {data}", flush=True)
    given = {name: value for name in ("epochs", "device", "seed") if (value := getattr(args, name)) is not None}
    folders: dict[str, Path] = {}
    for name, model in TWINS.items():
        settings = {**given, "model": model, "data_dir": str(data), "output": str(output), "experiment": name.lower()}
        resolved = resolve_args("quickstart", settings)
        run = train(resolved, [Narrator(name)], force=args.force)
        folders[name] = run.folder
    print("\n" + side_by_side(folders))
    runs = read_runs([f"{name}={folder}" for name, folder in folders.items()])
    title = "Digits: ShuffleNetV2 ×1.0 with average and covariance pooling"
    picture = draw_convergence(output / "curves.png", runs, baseline="GAP", title=title)
    print(f"Curves: {picture}")
    weights = save_weights(run, resolved, output / "weights")
    print(f"Weights: {weights}; load them with timm.create_model('local-dir:{weights}', pretrained=True)")
    print(f"Loaded again: {check_reload(run, resolved, weights)}.")
    print(f"Done in {time.perf_counter() - started:.0f} s.")
    return 0
