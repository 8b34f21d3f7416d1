"""Watchers of a training run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from torch import Tensor, nn

from timm_gcp.train.progress import Progress, Start


class Callback:
    """Watches a training run. Override what is needed; `on_update` is called at updates 0, `every`, 2·`every`, ….

    A callback must leave parameters, buffers, gradients, training mode and random state as it found them; the run is
    then, number for number, the run without it.
    """

    every: int = 1

    def on_start(self, start: Start) -> None:
        """Called once everything is built, before the first update."""

    def on_progress(self, progress: Progress) -> None:
        """Called after the first update of an epoch, every `log_interval` updates, and after the last."""

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
    """Prints what the run is, its progress inside an epoch, and one line per epoch, each after `prefix`.

    Progress is printed where standard error is not a terminal; there a bar shows it.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.hidden = {"epoch"}
        self.started = time.perf_counter()

    def on_start(self, start: Start) -> None:
        """Print model, input, data and plan; top-5 of five classes or fewer is not printed afterwards."""
        if start.num_classes <= 5:
            self.hidden.add("eval_top5")
        for line in start.describe().splitlines():
            print(f"{self.prefix}{line}", flush=True)

    def on_progress(self, progress: Progress) -> None:
        """Print a line, unless a bar is drawn."""
        if not sys.stderr.isatty():
            print(f"{self.prefix}{progress.describe()}", flush=True)

    def on_epoch_end(self, epoch: int, epochs: int, row: dict[str, float], folder: Path) -> None:
        """Print the epoch's row of `summary.csv` and the seconds it took."""
        now = time.perf_counter()
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in self.hidden)
        print(f"{self.prefix}epoch {epoch + 1}/{epochs}: {values}, {now - self.started:.1f} s", flush=True)
        self.started = now
