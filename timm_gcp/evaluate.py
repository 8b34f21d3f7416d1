"""Run a classifier over a loader once: loss, top-k predictions and targets of every image."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm


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
