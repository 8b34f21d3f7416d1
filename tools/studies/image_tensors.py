"""A set of images held as tensors of one size: training images, held-out ones and test images; packed once.

Decoding and resizing image by image would take longer than a small network. Each image is resized so that its shorter
side is `pixels`, and its centre square is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from study_config import Study
from timm.data import create_dataset
from timm.utils.misc import natural_key
from torch import Tensor
from torchvision.transforms.functional import center_crop, resize
from tqdm import tqdm

from timm_gcp.common.files import replacing

_SPLITS = {"train": ("train",), "val": ("val", "validation")}
_MODES = {1: "L", 3: "RGB"}  # Pillow's, by channels
Images = tuple[Tensor, Tensor]  # (N, C, S, S) uint8 and (N,) int64


def packed(
    data_dir: str | Path,
    split: str,
    pixels: int,
    cache: Path,
    exclude: Sequence[str] = (),
    dataset: str = "",
    channels: int = 3,
) -> Images:
    """A split as tensors, memory-mapped from `cache`, where it is written the first time.

    Args:
        data_dir: Folder of the data set.
        split: Folder in it that holds a folder a class, or split of the named `dataset`; "" for `data_dir` itself.
        pixels: Side of the images.
        cache: Folder of the packed file.
        exclude: Class folders to leave out.
        dataset: Name of one of timm's data sets, such as `torch/fashion_mnist`; "" for folders of images.
        channels: 3 for colour, 1 for grey.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: An image can't be read, or there are none.
    """
    path = cache / f"{split or 'all'}-{pixels}.safetensors"
    if not path.is_file():
        folder = _existing(data_dir)
        source = _named(folder, dataset, split) if dataset else _Readable(_folders(folder, split, exclude))
        images = torch.empty((len(source), channels, pixels, pixels), dtype=torch.uint8)
        targets = torch.empty(len(source), dtype=torch.int64)
        for index in tqdm(range(len(source)), desc=f"pack {split}", disable=None):
            image, targets[index] = source[index]
            images[index] = _square(image, pixels, _MODES[channels])
        with replacing(path) as partial:
            save_file({"images": images, "targets": targets}, partial)
    tensors = load_file(path)
    return tensors["images"], tensors["targets"]


def _existing(data_dir: str | Path) -> Path:
    if not Path(data_dir).is_dir():
        raise FileNotFoundError(f"no folder {str(data_dir)!r}: give the data set's folder with --data-dir.")
    return Path(data_dir)


def _named(folder: Path, dataset: str, split: str) -> Any:
    try:
        return create_dataset(dataset, root=str(folder), split=split)
    except RuntimeError as error:  # torchvision's
        raise ValueError(f"{str(folder)!r} does not hold {dataset}: lay it out there first ({error}).") from error


def _folders(folder: Path, split: str, exclude: Sequence[str]) -> Any:
    if split and not any((folder / name).is_dir() for name in _SPLITS[split]):
        names = " or ".join(f"{name}/" for name in _SPLITS[split])
        raise FileNotFoundError(f"{str(folder)!r} has no {names}: the study needs train/ and val/.")
    return _image_folder(folder, split, exclude)


class _Readable:
    """timm's data set of image files; one that can't be read is an error, where timm would go on with the next."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        file, target = self.source.reader[index]
        try:
            with file, Image.open(file) as image:
                image.load()
                return image, target
        except OSError as error:
            name = self.source.filename(index, absolute=True)
            raise ValueError(f"{name} can't be read as an image: replace it or take it out.") from error


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


def _square(image: Image.Image, pixels: int, mode: str) -> Tensor:
    image = center_crop(resize(image.convert(mode), [pixels], antialias=True), [pixels, pixels])
    return torch.from_numpy(numpy.atleast_3d(numpy.asarray(image)).copy()).permute(2, 0, 1)


def _classes(targets: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Every class with the indices of its images, in order."""
    for label in range(int(targets.max()) + 1):
        yield label, (targets == label).nonzero()[:, 0]


def first_per_class(targets: Tensor, count: int) -> Tensor:
    """Indices of the first `count` images of each class, in order.

    Raises:
        ValueError: A class has fewer.
    """
    chosen = []
    for label, members in _classes(targets):
        if len(members) < count:
            raise ValueError(f"class {label} has {len(members)} training images, not {count}: lower limit_per_class.")
        chosen.append(members[:count])
    return torch.cat(chosen).sort().values


def grouped(targets: Tensor, classes: int, groups: int) -> Tensor:
    """Targets after the `classes`, in order, are merged into `groups` of equal numbers.

    Raises:
        ValueError: They don't divide.
    """
    if classes % groups:
        raise ValueError(f"data.groups must divide the {classes} classes, got {groups}.")
    return targets // (classes // groups)


def per_class(targets: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of `count` images of each class, drawn by `seed`, and of all others.

    Raises:
        ValueError: A class has no image beyond these.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    for label, members in _classes(targets):
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


def study_images(study: Study, data_dir: str | Path, cache: Path, seed: int) -> tuple[Images, Images]:
    """Training and test images of a study: its two splits, or, by `train_per_class`, a draw from one folder.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: An image can't be read, a class has too few, or `groups` does not divide their number.
    """
    if study.train_per_class is None:
        given = (study.pixels, cache, study.exclude, study.dataset, study.channels)
        images, targets = packed(data_dir, "train", *given)
        test = packed(data_dir, "val", *given)
        if study.limit_per_class is not None:
            kept = first_per_class(targets, study.limit_per_class)
            images, targets = images[kept], targets[kept]
        if study.groups is not None:
            classes = int(targets.max()) + 1
            targets, test = grouped(targets, classes, study.groups), (test[0], grouped(test[1], classes, study.groups))
        return (images, targets), test
    images, targets = packed(data_dir, "", study.pixels, cache, study.exclude, channels=study.channels)
    train, rest = per_class(targets, study.train_per_class, seed)
    return (images[train], targets[train]), (images[rest], targets[rest])


def hold_out(targets: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Indices to train on and indices held out: the same share of each class, drawn by a fixed seed.

    Raises:
        ValueError: A class has too few images for both.
    """
    generator = torch.Generator().manual_seed(0)
    kept, held = [], []
    for label, members in _classes(targets):
        count = round(share * len(members))
        if not 0 < count < len(members):
            raise ValueError(f"class {label} has {len(members)} training images, too few to hold out {share:.0%}.")
        order = members[torch.randperm(len(members), generator=generator)]
        held.append(order[:count])
        kept.append(order[count:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
