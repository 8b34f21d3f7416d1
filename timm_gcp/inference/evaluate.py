"""Run a classifier over a data set once: loss, top-k predictions and targets of every image, and figures per class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from timm_gcp.common.paired import Pair
from timm_gcp.datasets.class_map import read_class_map
from timm_gcp.inference.classes import check_order
from timm_gcp.inference.image_data import UNREADABLE, class_names, open_data
from timm_gcp.inference.model import Loaded


@dataclass(frozen=True)
class Evaluation:
    """Outcome of one pass over N images.

    Attributes:
        loss: Mean cross-entropy.
        predictions: `(N, k)` classes by falling logit, k = min(5, number of classes), int64 on the CPU.
        targets: `(N,)` true classes, int64 on the CPU.
        unreadable: One sentence on each image that could not be read; none of the N.
        class_names: Names of the data set's classes by index, where they are known.
    """

    loss: float
    predictions: Tensor
    targets: Tensor
    unreadable: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None

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
        ValueError: The loader is empty or none of its images can be read, or a target is not a class of the model.
    """
    context = nullcontext() if autocast is None else autocast
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64)
    predictions, targets = [], []
    seen, unread = 0, []
    for images, target in tqdm(loader, desc=title, leave=False, disable=None):
        images, target = images.to(device), target.to(device)
        readable = target != UNREADABLE
        if not readable.all():
            unread += [seen + index for index in torch.nonzero(~readable).flatten().tolist()]
            images, target = images[readable], target[readable]
        seen += len(readable)
        if not len(target):
            continue
        if channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with context:
            logits = model(images)
            if int(target.max()) >= logits.shape[1]:
                raise ValueError(
                    f"the data set has class {int(target.max())}, but the model has {logits.shape[1]} classes: "
                    "choose a model trained on this data set."
                )
            loss = F.cross_entropy(logits, target)
        loss_sum += loss.double().cpu() * len(target)
        predictions.append(logits.float().topk(min(5, logits.shape[1]), dim=1).indices.cpu())
        targets.append(target.cpu())
    why = getattr(getattr(loader, "dataset", None), "why_unreadable", "image {} can't be read".format)
    unreadable = tuple(map(why, unread))
    if unreadable and not targets:
        raise ValueError(f"none of {len(unreadable)} images can be read, the first: {unreadable[0]}")
    if not targets:
        raise ValueError("the data set has no images: check --data-dir and the name of the split.")
    classes = torch.cat(targets)
    return Evaluation(loss_sum.item() / len(classes), torch.cat(predictions), classes, unreadable)


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


def mean_per_class(confusion: Tensor) -> float:
    """Mean over the classes that have images of the share that is classified correctly, in percent."""
    images = confusion.sum(dim=1)
    return float((100 * confusion.diag() / images)[images > 0].mean())


def validate(
    loaded: Loaded,
    data_dir: str,
    dataset: str = "",
    split: str = "validation",
    batch_size: int = 128,
    workers: int = 2,
    class_map: str | Path | None = None,
    names: tuple[str, ...] | None = None,
) -> Evaluation:
    """Evaluate a loaded model on a data set with timm's pre-processing.

    Images that can't be read are left out and named in `Evaluation.unreadable`. `class_map` is a file, `names` are the
    model's own class names by index, to be compared with the data's.

    Raises:
        FileNotFoundError: No such folder, split or class map.
        ValueError: The data set can't be opened, its layout is wrong, or its classes are not the model's.
    """
    from timm.data import create_loader

    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"no folder {data_dir!r}: give the data set's folder with --data-dir.")
    config = loaded.data_config
    indices = read_class_map(class_map, data_dir)
    check_order(indices, names)
    if indices is None and names is None and not dataset:
        indices = loaded.class_map  # of some of the classes
    images = open_data(
        dataset,
        data_dir,
        split,
        config["input_size"][0],
        whole=True,
        class_map=indices,
        num_classes=int(loaded.model.num_classes),
        names=names,
    )
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
    evaluation = evaluate(loaded.model, loader, loaded.device, autocast=loaded.autocast)
    return replace(evaluation, class_names=class_names(images))


def compare(first: Evaluation, second: Evaluation) -> Pair:
    """Count the images on which the top-1 classes of two evaluations are not both right or both wrong.

    Args:
        first: Evaluation on N images.
        second: Evaluation on the same N images, in the same order.

    Raises:
        ValueError: The two were not made on the same images in the same order.
    """
    if first.targets.shape != second.targets.shape or not first.targets.equal(second.targets):
        raise ValueError(
            f"the models saw different images ({len(first.targets)} and {len(second.targets)}, or another order): "
            "evaluate both on one split of one data set."
        )
    right = [evaluation.predictions[:, 0] == evaluation.targets for evaluation in (first, second)]
    return Pair(int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum()))


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
