"""What a training run tells its watchers: what it is about to do, and where an epoch stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Start:
    """What a run is about to do.

    Attributes:
        model: Its name.
        parameters: Their number.
        num_classes: Classes of the classifier.
        data_config: timm's data configuration: `input_size` `(C, H, W)`, `mean`, `std`, ….
        weights_size: Height and width that the weights were trained on, None for random weights.
        train_images: Images to train on.
        val_images: Images to validate on, None without validation.
        batch_size: Images per batch.
        updates: Optimizer updates per epoch.
        first_epoch: First epoch of this call, counted from 0.
        epochs: Epochs in all.
        lr: Base learning rate.
        device: Device.
        resumed: The checkpoint that it goes on from, or an empty string.
    """

    model: str
    parameters: int
    num_classes: int
    data_config: dict[str, Any]
    weights_size: tuple[int, int] | None
    train_images: int
    val_images: int | None
    batch_size: int
    updates: int
    first_epoch: int
    epochs: int
    lr: float
    device: str
    resumed: str

    def describe(self) -> str:
        """All of it in one line, and a second one for a resumed run."""
        channels, height, width = self.data_config["input_size"]
        size = f"{channels}×{height}×{width}"
        if self.weights_size and self.weights_size != (height, width):
            size += f" (the weights were trained on {self.weights_size[0]}×{self.weights_size[1]})"
        mean, std = (" ".join(f"{value:.3g}" for value in self.data_config[key]) for key in ("mean", "std"))
        validated = "no validation" if self.val_images is None else f"{self.val_images} to validate"
        line = (
            f"{self.model}: {self.parameters / 1e6:.2f} M parameters, input {size}, mean {mean}, std {std}, "
            f"{self.num_classes} classes; {self.train_images} images to train on, {validated}; {self.epochs} epochs of "
            f"{self.updates} updates, batches of {self.batch_size}, rate {self.lr:g}; {self.device}"
        )
        if self.resumed:
            line += f"\nresumed from {self.resumed} at epoch {self.first_epoch + 1} of {self.epochs}"
        return line


@dataclass(frozen=True)
class Progress:
    """Where an epoch stands, after update `update` (from 0) of `updates`; epochs are counted from 0, too.

    Attributes:
        epoch: Epoch.
        epochs: Epochs in all.
        update: Updates made in this epoch, less one.
        updates: Updates of an epoch.
        loss: Loss of the last batch.
        mean_loss: Mean over the epoch so far.
        lr: Learning rate of the last update, mean of the parameter groups.
        images_per_second: Mean over the epoch so far.
        seconds_left: Of this epoch's training, at that pace.
    """

    epoch: int
    epochs: int
    update: int
    updates: int
    loss: float
    mean_loss: float
    lr: float
    images_per_second: float
    seconds_left: float

    def describe(self) -> str:
        """One line in the form of timm's train.py."""
        minutes, seconds = divmod(round(self.seconds_left), 60)
        share = 100 * (self.update + 1) / self.updates
        return (
            f"Train: {self.epoch + 1}/{self.epochs} [{self.update + 1:>4d}/{self.updates} ({share:>3.0f}%)]  "
            f"Loss: {self.loss:#.3g} ({self.mean_loss:#.3g})  LR: {self.lr:.3e}  "
            f"{self.images_per_second:.1f} images/s  {minutes}:{seconds:02d} left"
        )
