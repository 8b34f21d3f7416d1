"""An image folder held as tensors of one size: training images, held-out ones and test images; packed once.

Decoding and resizing image by image would take longer than a small network. Each image is resized so that its shorter
side is `pixels`, and its centre square is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data import create_dataset
from timm.utils.misc import natural_key
from torch import Tensor
from torchvision.transforms.functional import center_crop, resize
from tqdm import tqdm

from timm_gcp.common.files import replacing

_SPLITS = {"train": ("train",), "val": ("val", "validation")}
Images = tuple[Tensor, Tensor]  # (N, 3, S, S) uint8 and (N,) int64


def packed(data_dir: str | Path, split: str, pixels: int, cache: Path, exclude: Sequence[str] = ()) -> Images:
    """A split as tensors, memory-mapped from `cache`, where it is written the first time.

    Args:
        data_dir: Folder of the data set.
        split: Folder in it that holds a folder a class; "" for `data_dir` itself.
        pixels: Side of the images.
        cache: Folder of the packed file.
        exclude: Class folders to leave out.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: An image can't be read, or there are none.
    """
    path = cache / f"{split or 'all'}-{pixels}.safetensors"
    if not path.is_file():
        folder = _existing(data_dir)
        if split and not any((folder / name).is_dir() for name in _SPLITS[split]):
            names = " or ".join(f"{name}/" for name in _SPLITS[split])
            raise FileNotFoundError(f"{str(data_dir)!r} has no {names}: the study needs train/ and val/.")
        dataset = _image_folder(folder, split, exclude)
        images = torch.empty((len(dataset), 3, pixels, pixels), dtype=torch.uint8)
        targets = torch.empty(len(dataset), dtype=torch.int64)
        for index in tqdm(range(len(dataset)), desc=f"pack {split}", disable=None):
            file, targets[index] = dataset.reader[index]
            try:  # timm's data set would go on with the next image
                with file, Image.open(file) as image:
                    images[index] = _square(image, pixels)
            except OSError as error:
                name = dataset.filename(index, absolute=True)
                raise ValueError(f"{name} can't be read as an image: replace it or take it out.") from error
        with replacing(path) as partial:
            save_file({"images": images, "targets": targets}, partial)
    tensors = load_file(path)
    return tensors["images"], tensors["targets"]


def _existing(data_dir: str | Path) -> Path:
    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"no folder {str(data_dir)!r}: give the data set's folder with --data-dir.")
    return Path(data_dir)


def _image_folder(folder: Path, split: str, exclude: Sequence[str]) -> Any:
    try:
        return create_dataset("", root=str(folder), split=split, class_map=_class_map(folder / split, exclude))
    except RuntimeError as error:  # timm's, when it finds no image
        raise ValueError(f"{str(folder / split)!r} has no images in folders of classes.") from error


def _class_map(folder: Path, exclude: Sequence[str]) -> dict[str, int] | None:
    if not exclude:
        return None
    names = [path.name for path in folder.iterdir() if path.is_dir() and path.name not in exclude]
    return {name: index for index, name in enumerate(sorted(names, key=natural_key))}


def _square(image: Image.Image, pixels: int) -> Tensor:
    image = center_crop(resize(image.convert("RGB"), [pixels], antialias=True), [pixels, pixels])
    return torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1)


def per_class(targets: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of `count` images of each class, drawn by `seed`, and of all others.

    Raises:
        ValueError: A class has no image beyond these.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    for label in range(int(targets.max()) + 1):
        members = (targets == label).nonzero()[:, 0]
        if len(members) <= count:
            raise ValueError(
                f"class {label} has {len(members)} images, too few to train on {count} and test on others."
            )
        chosen[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return chosen.nonzero()[:, 0], (~chosen).nonzero()[:, 0]


def files_to_test(data_dir: str | Path, count: int, exclude: Sequence[str], seed: int) -> list[Path]:
    """The test images of such a draw from a folder, as files; the folder that each is in is its class.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: It has no images, or a class has no image beyond these.
    """
    dataset = _image_folder(_existing(data_dir), "", exclude)
    targets = torch.tensor([target for _, target in dataset.reader.samples])
    _, test = per_class(targets, count, seed)
    return [Path(dataset.filename(index, absolute=True)) for index in test.tolist()]


def study_images(
    data_dir: str | Path, pixels: int, cache: Path, train_per_class: int | None, exclude: Sequence[str], seed: int
) -> tuple[Images, Images]:
    """Training and test images: the folders train/ and val/, or, by `train_per_class`, a draw from one folder.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: An image can't be read, or a class has too few.
    """
    if train_per_class is None:
        return packed(data_dir, "train", pixels, cache, exclude), packed(data_dir, "val", pixels, cache, exclude)
    images, targets = packed(data_dir, "", pixels, cache, exclude)
    train, test = per_class(targets, train_per_class, seed)
    return (images[train], targets[train]), (images[test], targets[test])


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
