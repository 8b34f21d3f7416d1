"""What the quick start does around its two training runs: compare the twins, save the GCP twin and load it again."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from timm_gcp.train.callback import Callback
from timm_gcp.train.run import Run

TWINS = {"GAP": "shufflenet_v2_x1_0", "GCP": "shufflenet_v2_x1_0_gcp"}


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
    from timm_gcp.train.curves import matching_epoch, read_runs

    gap, gcp = read_runs([f"{name}={folder}" for name, folder in folders.items()])
    lines = ["| epoch | GAP top-1 | GCP top-1 |", "| ---: | ---: | ---: |"]
    lines += [f"| {e + 1} | {a:.2f} | {b:.2f} |" for e, a, b in zip(gap.epochs, gap.top1, gcp.top1, strict=True)]
    reached = matching_epoch(gcp, gap.top1[-1])
    when = f"first reaches it at epoch {reached} of {len(gcp.epochs)}" if reached else "does not reach it"
    return "\n".join(lines) + f"\n\nGAP ends at {gap.top1[-1]:.2f}%. GCP {when} and ends at {gcp.top1[-1]:.2f}%."


def save_weights(run: Run, args: argparse.Namespace, folder: Path) -> Path:
    """Save the model of a run as a weight folder that `timm.create_model('local-dir:…')` loads."""
    from timm.data import resolve_data_config

    from timm_gcp.weights.folder import write_folder

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
