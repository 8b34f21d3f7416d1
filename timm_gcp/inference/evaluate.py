"""Run a classifier over a data set once: loss, top-k predictions and targets of every image, and figures per class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from timm_gcp.inference.model import Loaded


@dataclass(frozen=True)
class Evaluation:
    """Outcome of one pass over N images.

    Attributes:
        loss: Mean cross-entropy.
        predictions: `(N, k)` classes by falling logit, k = min(5, number of classes), int64 on the CPU.
        targets: `(N,)` true classes, int64 on the CPU.
    """

    loss: float
    predictions: Tensor
    targets: Tensor

    def accuracy(self, k: int) -> float:
        """Top-k accuracy in percent."""
        hits = (self.predictions[:, :k] == self.targets[:, None]).any(dim=1)
        return 100.0 * hits.sum().item() / max(len(hits), 1)

    @property
    def metrics(self) -> dict[str, float]:
        """Loss, top-1 and top-5 under the names of timm's `summary.csv`."""
        return {"loss": self.loss, "top1": self.accuracy(1), "top5": self.accuracy(5)}


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    *,
    channels_last: bool = False,
    autocast: AbstractContextManager[object] | None = None,
    title: str = "validate",
) -> Evaluation:
    """Evaluate `model` (left in evaluation mode) on every batch of `loader`.

    Args:
        model: Classifier, `(B, C, H, W) -> (B, classes)`.
        loader: Batches of normalised images and class indices, on any device.
        device: Where the model is.
        channels_last: Convert the images to that memory layout.
        autocast: Re-enterable context of the forward pass, e.g. `torch.autocast("cuda")`.
        title: Label of the progress bar (shown on a terminal only).

    Raises:
        ValueError: The loader is empty, or a target is not a class of the model.
    """
    context = nullcontext() if autocast is None else autocast
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64)
    predictions, targets = [], []
    for images, target in tqdm(loader, desc=title, leave=False, disable=None):
        images, target = images.to(device), target.to(device)
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with context:
            logits = model(images)
            if target.numel() and int(target.max()) >= logits.shape[1]:
                raise ValueError(
                    f"the data set has class {int(target.max())}, but the model has {logits.shape[1]} classes: "
                    "give --num-classes, or a model trained on this data set."
                )
            loss = F.cross_entropy(logits, target)
        loss_sum += loss.double().cpu() * len(target)
        predictions.append(logits.float().topk(min(5, logits.shape[1]), dim=1).indices.cpu())
        targets.append(target.cpu())
    if not targets:
        raise ValueError("the data set has no images: check --data-dir and the name of the split.")
    classes = torch.cat(targets)
    return Evaluation(loss_sum.item() / len(classes), torch.cat(predictions), classes)


_SHOWN = 20  # classes in the printed table; the CSV has them all


def confusion_matrix(evaluation: Evaluation, num_classes: int) -> Tensor:
    """Counts `(num_classes, num_classes)`, int64: rows are true classes, columns predicted ones."""
    pairs = evaluation.targets * num_classes + evaluation.predictions[:, 0]
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class(confusion: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """One row per class: images, recall and precision in percent, and what it is most often taken for."""
    rows = []
    for index, name in enumerate(names):
        images, predicted, right = (
            int(n) for n in (confusion[index].sum(), confusion[:, index].sum(), confusion[index, index])
        )
        wrong = confusion[index].clone()
        wrong[index] = 0
        most = int(wrong.argmax())
        rows.append(
            {
                "class": index,
                "name": name,
                "images": images,
                "recall": 100 * right / images if images else None,
                "precision": 100 * right / predicted if predicted else None,
                "taken_for": f"{names[most]} ({int(wrong[most])})" if wrong[most] else "",
            }
        )
    return rows


def validate(
    loaded: Loaded, data_dir: str, dataset: str = "", split: str = "validation", batch_size: int = 128, workers: int = 2
) -> Evaluation:
    """Evaluate a loaded model on a data set read and pre-processed by timm.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: The data set can't be opened, or its classes are not the model's.
    """
    from timm.data import create_dataset, create_loader

    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"no folder {data_dir!r}: give the data set's folder with --data-dir.")
    config = loaded.data_config
    channels = config["input_size"][0]
    try:
        images = create_dataset(
            dataset, root=data_dir, split=split, is_training=False, input_img_mode="RGB" if channels == 3 else "L"
        )
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"data set {dataset or 'image folder'!r} in {data_dir!r}: {error}") from error
    loader = create_loader(
        images,
        batch_size=batch_size,
        is_training=False,
        num_workers=workers,
        persistent_workers=workers > 0,
        device=loaded.device,
        use_prefetcher=True,
        **config,
    )
    return evaluate(loaded.model, loader, loaded.device, autocast=loaded.autocast)


def class_table(rows: list[dict[str, Any]]) -> str:
    """The rows of `per_class` as text: all of up to 20 classes, else the 20 of lowest recall."""
    shown, note = rows, ""
    if len(rows) > _SHOWN:
        present = [row for row in rows if row["recall"] is not None]
        shown = sorted(present, key=lambda row: row["recall"])[:_SHOWN]
        note = f"\nthe {len(shown)} classes of lowest recall of {len(rows)}; --output DIR writes all"
    width = max(len(row["name"]) for row in shown) if shown else 4
    lines = [f"{'class':{width}}  images  recall  precision  most often taken for"]
    for row in shown:
        recall, precision = (f"{v:.2f}" if v is not None else "-" for v in (row["recall"], row["precision"]))
        lines.append(
            f"{row['name']:{width}}  {row['images']:6d}  {recall:>6}  {precision:>9}  {row['taken_for']}".rstrip()
        )
    return "\n".join(lines) + note
