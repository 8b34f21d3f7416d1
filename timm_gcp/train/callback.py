"""Watchers of a training run."""

from __future__ import annotations

import time
from pathlib import Path

from torch import Tensor, nn


class Callback:
    """Watches a training run. Override what is needed; `on_update` is called at updates 0, `every`, 2·`every`, ….

    A callback must leave parameters, buffers, gradients, training mode and random state as it found them; the run is
    then, number for number, the run without it.
    """

    every: int = 1

    def on_update(self, step: int, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        """Called before update `step` (counted from 0 over the run).

        Args:
            step: Number of updates made so far.
            model: The model, in training mode.
            batch: Normalised images `(B, C, H, W)` and their targets, on the model's device: the batch that the
                update is about to use (its last one, under gradient accumulation).
        """

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Called after epoch `epoch` of `epochs` (from 0) with its row of `summary.csv` and the run's folder."""


class PrintEpochs(Callback):
    """Prints one line per epoch, after `prefix`."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Print the epoch's row of `summary.csv` and the seconds it took."""
        now = time.perf_counter()
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.items() if name != "epoch")
        print(f"{self.prefix}epoch {epoch + 1}/{epochs}: {values}, {now - self.started:.1f} s", flush=True)
        self.started = now
