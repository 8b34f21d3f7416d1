"""An image folder held as tensors of one size: training images, held-out ones and test images, packed once.

Decoding and resizing image by image would take longer than a small network. Each image is resized so that its shorter
side is `pixels`, and its centre square is kept.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_dataset
from torch import Tensor
from torchvision.transforms.functional import center_crop, resize
from tqdm import tqdm

from timm_gcp.common.files import replacing

Images = tuple[Tensor, Tensor]  # (N, 3, S, S) uint8 and (N,) int64


def packed(data_dir: str | Path, split: str, pixels: int, cache: Path) -> Images:
    """A split as tensors, memory-mapped from `cache`, where it is written the first time.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: An image can't be read, or a class has no image.
    """
    path = cache / f"{split}-{pixels}.safetensors"
    if not path.is_file():
        folder = Path(data_dir)
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder {str(data_dir)!r}: give the data set's folder with --data-dir.")
        dataset = create_dataset("", root=str(folder), split=split)
        images = torch.empty((len(dataset), 3, pixels, pixels), dtype=torch.uint8)
        targets = torch.empty(len(dataset), dtype=torch.int64)
        for index in tqdm(range(len(dataset)), desc=f"pack {split}", disable=None):
            image, target = dataset[index]
            images[index] = _square(image, pixels)
            targets[index] = target
        with replacing(path) as partial:
            save_file({"images": images, "targets": targets}, partial)
    tensors = load_file(path)
    return tensors["images"], tensors["targets"]


def _square(image: Image.Image, pixels: int) -> Tensor:
    image = center_crop(resize(image.convert("RGB"), [pixels], antialias=True), [pixels, pixels])
    return torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1)


def hold_out(targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out: the same share of each class, drawn by a fixed seed.

    Raises:
        ValueError: A class has too few images for both.
    """
    generator = torch.Generator().manual_seed(0)
    kept, held = [], []
    for label in range(int(targets.max()) + 1):
        members = (targets == label).nonzero()[:, 0]
        count = round(share * len(members))
        if not 0 < count < len(members):
            raise ValueError(f"class {label} has {len(members)} training images, too few to hold out {share:.0%}.")
        order = members[torch.randperm(len(members), generator=generator)]
        held.append(order[:count])
        kept.append(order[count:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
