"""A small image data set held as one tensor on the training device, augmented there batch by batch.

For sets of small images such as Fashion-MNIST, where decoding and resizing image by image would take longer than the
network. The recipe's own keys (`scale`, `ratio`, `hflip`, `img_size`, `crop_pct`, `mean`, `std`) drive it; it draws
other random numbers than timm's loader, so runs agree with train.py's in distribution, not digit for digit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from timm_gcp.train.build import Loaders

_TRIES = 10  # as torchvision's and timm's RandomResizedCrop
# Keys that would change the images and the value that leaves them alone.
_NEUTRAL: dict[str, Any] = {
    "vflip": 0.0,
    "aa": None,
    "reprob": 0.0,
    "mixup": 0.0,
    "cutmix": 0.0,
    "grayscale_prob": None,
    "gaussian_blur_prob": None,
    "train_crop_mode": None,
    "epoch_repeats": 0.0,
}


def random_crops(
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Boxes of RandomResizedCrop: area share uniform in `scale`, aspect ratio log-uniform in `ratio`.

    Args:
        count: Number of boxes B.
        height: Of the images, in pixels.
        width: Of the images, in pixels.
        scale: Range of the area as a share of the image's.
        ratio: Range of width over height.
        generator: Source of randomness, on the CPU.

    Returns:
        `(B, 4)` int64: top, left, height, width; the whole image where ten tries gave no box inside it.
    """
    shape = (_TRIES, count)
    area = height * width * torch.empty(shape).uniform_(*scale, generator=generator)
    aspect = torch.empty(shape).uniform_(math.log(ratio[0]), math.log(ratio[1]), generator=generator).exp()
    wide, high = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
    first = fits.byte().argmax(dim=0)  # the first try that fits
    wide, high, fits = (t.gather(0, first[None])[0] for t in (wide, high, fits))
    wide, high = torch.where(fits, wide, width), torch.where(fits, high, height)
    top = (torch.rand(count, generator=generator) * (height - high + 1)).long()
    left = (torch.rand(count, generator=generator) * (width - wide + 1)).long()
    return torch.stack((top, left, high, wide), dim=1)


def crop_resize(images: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Cut a box out of each image and resize it to `size` × `size`, bilinear, without looking outside the box.

    Args:
        images: `(B, C, H, W)`, floating.
        boxes: `(B, 4)`: top, left, height, width in pixels.
        flip: `(B,)` bool: mirror left to right.
        size: Height and width of the result.

    Returns:
        `(B, C, size, size)`. Boxes larger than `size` are not low-pass filtered.
    """
    height, width = images.shape[-2:]
    top, left, high, wide = boxes.to(images).unbind(1)
    steps = (torch.arange(size, device=images.device, dtype=images.dtype) + 0.5) / size
    along = torch.where(flip[:, None].to(images.device), 1 - steps, steps)
    x = (along * wide[:, None] - 0.5).clamp(min=0).minimum(wide[:, None] - 1) + left[:, None]
    y = (steps * high[:, None] - 0.5).clamp(min=0).minimum(high[:, None] - 1) + top[:, None]
    grid_x, grid_y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1
    grid = torch.stack((grid_x[:, None, :].expand(-1, size, -1), grid_y[:, :, None].expand(-1, -1, size)), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


class TensorLoader:
    """Batches of normalised, resized (and in training augmented) images with their classes, made on the device.

    Args:
        images: `(N, C, H, W)` uint8 on the device.
        targets: `(N,)` int64 on the device.
        args: A resolved recipe.
        config: timm's data configuration of the model.
        training: Shuffle, augment and drop the last, incomplete batch.

    Raises:
        ValueError: The recipe asks for an augmentation that is not made here, or there is less than one batch.
    """

    def __init__(
        self, images: Tensor, targets: Tensor, args: argparse.Namespace, config: dict[str, Any], training: bool
    ) -> None:
        asked = [key for key, neutral in _NEUTRAL.items() if getattr(args, key) not in (neutral, None)]
        asked += ["color_jitter"] if args.color_jitter and not args.no_aug else []
        asked += ["train_interpolation"] if training and args.train_interpolation != "bilinear" else []
        asked += ["interpolation"] if config["interpolation"] != "bilinear" else []
        if training and asked:
            raise ValueError(
                f"images held as a tensor are not augmented by {', '.join(asked)}: train with timm's loader "
                "(timm-gcp train), or set these keys to nothing (interpolations to bilinear)."
            )
        self.images, self.targets, self.args, self.training = images, targets, args, training
        self.size = int(config["input_size"][-1])
        self.crop_pct = float(config["crop_pct"])
        shape = (1, -1, 1, 1)
        self.mean, self.std = (
            torch.tensor(config[key], device=images.device).reshape(shape) * 255 for key in ("mean", "std")
        )
        self.batch_size = args.batch_size if training else args.validation_batch_size or args.batch_size
        self.epoch = 0
        if training and len(images) < self.batch_size:
            raise ValueError(f"{len(images)} training images make no batch of {self.batch_size}: lower --batch-size.")

    def set_epoch(self, epoch: int) -> None:
        """Order and augmentation depend on the seed and the epoch alone, so that a resumed run goes on as it would."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        return len(self.images) // self.batch_size if self.training else math.ceil(len(self.images) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch."""
        generator = torch.Generator().manual_seed(self.args.seed * 100_003 + self.epoch)
        count = len(self.images)
        order = torch.randperm(count, generator=generator) if self.training else torch.arange(count)
        for index in range(len(self)):
            chosen = order[index * self.batch_size : (index + 1) * self.batch_size].to(self.images.device)
            images = self.images[chosen].float()
            images = self._augment(images, generator) if self.training and not self.args.no_aug else self._fit(images)
            yield (images - self.mean) / self.std, self.targets[chosen]

    def _augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        count, (height, width) = len(images), images.shape[-2:]
        boxes = random_crops(count, height, width, tuple(self.args.scale), tuple(self.args.ratio), generator)
        flip = torch.rand(count, generator=generator) < self.args.hflip
        return crop_resize(images, boxes, flip, self.size)

    def _fit(self, images: Tensor) -> Tensor:
        """Resize and cut the centre, as in validation."""
        side = math.floor(self.size / self.crop_pct)
        images = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
        start = round((side - self.size) / 2)
        return images[..., start : start + self.size, start : start + self.size]


class TensorData:
    """A training and a validation set as tensors; `loaders` goes into `timm_gcp.train.train`.

    Args:
        train: Images `(N, C, H, W)` uint8 and classes `(N,)`.
        val: The same to validate on.
    """

    def __init__(self, train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> None:
        self.parts = (train, val)

    def loaders(self, args: argparse.Namespace, config: dict[str, Any], device: torch.device) -> Loaders:
        """Loaders of a run; the tensors move to its device once."""
        self.parts = tuple((x.to(device), y.to(device)) for x, y in self.parts)  # type: ignore[assignment]
        train, val = self.parts
        return Loaders(TensorLoader(*train, args, config, True), TensorLoader(*val, args, config, False))
