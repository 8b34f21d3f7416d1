"""`timm-gcp quickstart`: train the GAP and the GCP twin of ShuffleNetV2 on real digits, compare them, save and reload.

The data are scikit-learn's bundled digits (1,797 scans of 8×8 pixels), so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

from timm_gcp.train import Callback, Run, resolve_args, train

TWINS = {"GAP": "shufflenet_v2_x1_0", "GCP": "shufflenet_v2_x1_0_gcp"}
FOLDS = 5  # one fifth is held out


def write_digits(folder: Path) -> Path:
    """Write the digits as an image folder: every fifth scan of each class to `validation`, the others to `train`.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("The digits come with scikit-learn: pip install 'timm-gcp[quickstart]'.") from error
    from PIL import Image

    digits = load_digits()
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    seen: dict[int, int] = {}
    for index, (pixels, label) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        seen[label] = seen.get(label, 0) + 1
        split = "train" if seen[label] % FOLDS else "validation"
        path = partial / split / str(label) / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * (255 / 16)).round().astype("uint8")).save(path)  # 17 grey levels
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


class Narrator(Callback):
    """Prints a line per epoch, with the twin's name in front."""

    def __init__(self, name: str):
        self.name = name

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Print losses and accuracy."""
        print(
            f"{self.name} epoch {epoch + 1}/{epochs}: train loss {row['train_loss']:.3f}, "
            f"validation loss {row['eval_loss']:.3f}, top-1 {row['eval_top1']:.2f}%",
            flush=True,
        )


def side_by_side(folders: dict[str, Path]) -> str:
    """Top-1 per epoch of the twins as a Markdown table, and the epoch at which GCP first reaches GAP's final top-1."""
    from timm_gcp.plot_convergence import matching_epoch, read_runs

    gap, gcp = read_runs([f"{name}={folder}" for name, folder in folders.items()])
    lines = ["| epoch | GAP top-1 | GCP top-1 |", "| ---: | ---: | ---: |"]
    lines += [f"| {e + 1} | {a:.2f} | {b:.2f} |" for e, a, b in zip(gap.epochs, gap.top1, gcp.top1, strict=True)]
    reached = matching_epoch(gcp, gap.top1[-1])
    when = f"first reaches it at epoch {reached} of {len(gcp.epochs)}" if reached else "does not reach it"
    return "\n".join(lines) + f"\n\nGAP ends at {gap.top1[-1]:.2f}%. GCP {when} and ends at {gcp.top1[-1]:.2f}%."


def save_weights(run: Run, args: argparse.Namespace, folder: Path) -> Path:
    """Save the model of a run as a weight folder that `timm.create_model('local-dir:…')` loads."""
    from timm.data import resolve_data_config

    from timm_gcp.weight_import import write_folder

    model = run.model.eval()
    config = resolve_data_config(vars(args), model=model)
    model.pretrained_cfg.update(
        {key: config[key] for key in ("input_size", "mean", "std", "interpolation", "crop_pct")}
    )
    model.pretrained_cfg.update(num_classes=args.num_classes, test_input_size=None)
    metadata = {"arch": args.model, "tag": "digits", "source": "timm-gcp quickstart, scikit-learn's digits"}
    labels = [str(digit) for digit in range(args.num_classes)]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_folder(folder, model, model.state_dict(), metadata, labels, {**args.model_kwargs, "in_chans": args.in_chans})
    return folder


def check_reload(run: Run, args: argparse.Namespace, folder: Path) -> str:
    """Load the weight folder through timm and compare its predictions with the trained model's on the held-out fifth.

    Raises:
        RuntimeError: They differ.
    """
    import timm
    import torch
    from timm.data import create_dataset, create_transform, resolve_data_config

    loaded: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = create_dataset("", root=args.data_dir, split="validation", input_img_mode="L")
    images.transform = create_transform(**resolve_data_config({}, model=loaded), is_training=False)
    batch = torch.stack([images[index][0] for index in range(len(images))])
    with torch.inference_mode():
        model = run.model.cpu().eval()
        ours, theirs = (torch.cat([m(part) for part in batch.split(64)]) for m in (model, loaded))
    difference = (ours - theirs).abs().max().item()
    same = int((ours.argmax(1) == theirs.argmax(1)).sum())
    if same < len(batch) or difference > 1e-4 * ours.abs().max().item():
        raise RuntimeError(
            f"the model loaded from {str(folder)!r} predicts otherwise than the one saved: {len(batch) - same} of "
            f"{len(batch)} classes differ, the logits by up to {difference:.3g}."
        )
    return f"{same} of {len(batch)} predictions agree, logits to {difference:.1e}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `timm-gcp quickstart`."""
    parser.add_argument(
        "--output", default="quickstart_output", metavar="DIR", help="folder of everything that is made"
    )
    parser.add_argument("--epochs", type=int, metavar="N", help="epochs of each twin; the recipe's when left out")
    parser.add_argument("--device", metavar="NAME", help="device; the recipe's when left out")
    parser.add_argument("--seed", type=int, metavar="N", help="random seed; the recipe's when left out")


def main(args: argparse.Namespace) -> int:
    """Train both twins, compare them, draw the curves, save the GCP twin and load it again."""
    from timm_gcp.plot_convergence import draw_convergence, read_runs

    started = time.perf_counter()
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    data = write_digits(output / "digits")
    counts = {split: len(list((data / split).rglob("*.png"))) for split in ("train", "validation")}
    print(f"{counts['train']} digits to train on, {counts['validation']} held out, in {data}", flush=True)
    given = {name: value for name in ("epochs", "device", "seed") if (value := getattr(args, name)) is not None}
    folders: dict[str, Path] = {}
    for name, model in TWINS.items():
        settings = {**given, "model": model, "data_dir": str(data), "output": str(output), "experiment": name.lower()}
        resolved = resolve_args("quickstart", settings)
        run = train(resolved, [Narrator(name)])
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
