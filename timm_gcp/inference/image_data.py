"""timm's data sets with this package's reader of images, class order and checks of the layout."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import ImageDataset, create_dataset
from timm.data.readers.reader import Reader
from timm.utils.misc import natural_key

from timm_gcp.common.messages import did_you_mean
from timm_gcp.datasets.folders import (
    TRAIN_NAMES,
    VALIDATION_NAMES,
    ClassFolders,
    class_indices,
    plain,
    split_folder,
    survey,
)
from timm_gcp.inference.images import MODES, open_image

UNREADABLE = -100  # target of an image that can't be read; cross-entropy ignores it
STREAMS = ("hfds/", "hfids/", "tfds/", "wds/")  # timm's other kinds of data sets, by the prefix of their names
FOLDERS = ("", "torch/folder", "torch/image_folder")
_TORCH = ("cifar10", "cifar100", "mnist", "kmnist", "fashion_mnist", "qmnist", "imagenet", "inaturalist", "places365")
_TWO_SPLITS = _TORCH[:5]  # timm takes any split but the training ones for the test set

_logger = logging.getLogger(__name__)


class FolderReader(Reader):
    """The images of class folders with their classes, in timm's order."""

    def __init__(self, found: ClassFolders, indices: Mapping[str, int]) -> None:
        super().__init__()
        self.root = str(found.root)
        self.class_to_idx = dict(indices)
        self.samples = sorted(
            ((str(found.root / path), indices[name]) for name, paths in found.files.items() for path in paths),
            key=lambda sample: natural_key(sample[0]),
        )

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, target = self.samples[index]
        return open(path, "rb"), target

    def __len__(self) -> int:
        return len(self.samples)

    def _filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        path = Path(self.samples[index][0])
        if basename:
            return path.name
        return str(path) if absolute else str(path.relative_to(self.root))


class ImageData(ImageDataset):
    """timm's data set of indexed images, read by `open_image`.

    An unreadable image is replaced by the next one and logged where `stand_in` is set (training); elsewhere its place
    holds a black image with the target `UNREADABLE`, to be left out.

    Attributes:
        stand_in: Replace unreadable images.
    """

    def __init__(self, reader: Reader, channels: int, stand_in: bool = False) -> None:
        super().__init__("", reader=reader, input_img_mode=MODES[channels])
        self.channels, self.stand_in = channels, stand_in

    def _open(self, index: int) -> tuple[Any, Any]:
        file, target = self.reader[index]
        try:
            return open_image(file, self.channels, self._name(index)), target
        finally:
            if hasattr(file, "close"):
                file.close()

    def _name(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True))

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index >= len(self):  # ends a plain loop over the data
            raise IndexError(f"image {index} of {len(self)}")
        for step in range(self._max_retries):
            try:
                image, target = self._open((index + step) % len(self))
                break
            except (ValueError, OSError) as error:
                if not self.stand_in:
                    image, target = Image.new(self.input_img_mode, (8, 8)), UNREADABLE
                    break
                _logger.warning("%s The next image takes its place in training.", error)
        else:
            raise RuntimeError(
                f"{self._max_retries} images in a row can't be read, the first {self._name(index)!r}: check the files."
            )
        if self.transform is not None:
            image = self.transform(image)
        return image, -1 if target is None else target

    def why_unreadable(self, index: int) -> str:
        """One sentence on an image that can't be read."""
        try:
            self._open(index)
        except (ValueError, OSError) as error:
            return str(error)
        return f"{self._name(index)!r} could not be read at first, but can be: check the disk."


def check_name(name: str) -> None:
    """Check the name of a data set.

    Raises:
        ValueError: timm has no data set of that name or kind.
    """
    kind, _, rest = name.partition("/")
    known = [f"torch/{each}" for each in (*_TORCH, "image_folder")]
    if name in FOLDERS or (f"{kind.lower()}/" in STREAMS and rest) or name.lower() in (*known, "torch/inat"):
        return
    raise ValueError(
        f"no data set {name!r}: leave --dataset out for an image folder, or choose of {', '.join(known)}, or one of "
        f"timm's kinds {', '.join(f'{prefix}NAME' for prefix in STREAMS)}.{did_you_mean(name.lower(), known)}"
    )


def open_data(
    name: str,
    root: str | Path | None,
    split: str,
    channels: int,
    *,
    option: str = "--val-split",
    is_training: bool = False,
    whole: bool = False,
    class_map: Mapping[str, int] | None = None,
    num_classes: int | None = None,
    names: tuple[str, ...] | None = None,
    **more: Any,
) -> Any:
    """Open a split of a data set as timm does, reading images with `open_image` wherever there are files.

    Args:
        name: timm's name of the data set; empty for an image folder.
        root: Its folder.
        split: Name of the split.
        channels: 3 for colour, 1 for grey.
        option: The option that names the split, for messages.
        is_training: For training: unreadable images are replaced.
        whole: Take `root` itself for a validation split that it doesn't have, where it holds class folders.
        class_map: Class -> index, for image folders.
        num_classes: Classes of the model, to be checked where given.
        names: The model's class names by index, to be compared where given.
        more: Further options of timm's `create_dataset`.

    Raises:
        FileNotFoundError: No such folder or split.
        ValueError: No such data set, or one that doesn't fit the model; says how.
    """
    check_name(name)
    if channels not in MODES:
        raise ValueError(f"images have 1 or 3 channels, the model takes {channels}.")
    if name in FOLDERS:
        found = survey(split_folder(root or "", split, option, whole))
        reader = FolderReader(found, class_indices(found, class_map, num_classes, names))
        return ImageData(reader, channels, stand_in=is_training)
    if class_map is not None and name.lower().startswith("torch/"):
        raise ValueError(f"--class-map is for image folders, the data set {name!r} has an order of its own: drop it.")
    if name.lower() in [f"torch/{each}" for each in _TWO_SPLITS]:
        known = (*TRAIN_NAMES, *VALIDATION_NAMES, "test")
        if split not in known:
            raise ValueError(f"{name} has no split {split!r}: give {option} one of {', '.join(known)}.")
    if class_map is not None:
        more["class_map"] = dict(class_map)
    mode = MODES[channels]
    try:
        data = create_dataset(
            name,
            root=None if root is None else str(root),
            split=split,
            is_training=is_training,
            input_img_mode=mode,
            **more,
        )
    except (AssertionError, RuntimeError, TypeError, KeyError) as error:
        raise ValueError(f"data set {name!r} in {str(root)!r}: {error}") from error
    if isinstance(data, ImageDataset):  # indexed images of another reader
        data = ImageData(data.reader, channels, stand_in=is_training)
    classes = class_names(data)
    if classes is not None and num_classes is not None:
        check_classes(name, classes, num_classes, names)
    return data


def class_names(data: Any) -> tuple[str, ...] | None:
    """Class names of an opened data set by index, None where it doesn't say them."""
    indices = getattr(getattr(data, "reader", None), "class_to_idx", None)
    if indices:
        return tuple(sorted(indices, key=indices.__getitem__))
    classes = getattr(data, "classes", None)
    return tuple(map(str, classes)) if classes else None


def check_classes(name: str, classes: tuple[str, ...], num_classes: int, names: tuple[str, ...] | None) -> None:
    """Compare the classes of a data set that has an order of its own with the model's.

    Raises:
        ValueError: Another number, or other names.
    """
    if len(classes) != num_classes:
        raise ValueError(
            f"the data set {name!r} has {len(classes)} classes, the model {num_classes}: choose a model with as many."
        )
    if names is not None and list(map(plain, names)) != list(map(plain, classes)):
        index = next(i for i in range(num_classes) if plain(names[i]) != plain(classes[i]))
        raise ValueError(
            f"class {index} of the data set {name!r} is {classes[index]!r}, the model's is {names[index]!r}: choose a "
            "model of this data set."
        )
