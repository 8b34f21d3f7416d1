"""Clean images in a fixed order: an image folder, or Fashion-MNIST's test set held in memory."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm")
FASHION_MNIST = "torch/fashion_mnist"  # as timm names the data set
_IMAGES, _LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_IDX_MAGIC = {3: 2051, 1: 2049}  # by number of dimensions


class Source(Protocol):
    """Images with their classes. `positions` are their places in the whole data set, which seed their corruptions."""

    positions: np.ndarray

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Return one RGB image and its class."""
        ...


def spread(total: int, limit: int | None) -> np.ndarray:
    """Return `limit` of `total` positions, evenly spaced so that sorted classes stay balanced; all without a limit.

    Raises:
        ValueError: for a limit under 1.
    """
    if limit is None or limit >= total:
        return np.arange(total)
    if limit < 1:
        raise ValueError(f"--limit must be 1 or more; got {limit}")
    return np.arange(limit) * total // limit


def open_image(path: Path) -> Image.Image:
    """Return the image in RGB.

    Raises:
        ValueError: if it can't be decoded, with its path.
    """
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError) as error:  # Pillow reports some broken PNGs as SyntaxError
        raise ValueError(f"can't read image {path}: {error}") from error


def read_class_map(path: Path | None) -> list[str] | None:
    """Return the folder names of a class map: a text file with one name per line, in the model's class order.

    Raises:
        FileNotFoundError: if the file isn't there.
        ValueError: if it is empty or names a folder twice.
    """
    if path is None:
        return None
    if not path.is_file():
        raise FileNotFoundError(f"no class map at {path}: give a text file with one folder name per line")
    names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"class map {path} must name at least one folder and none twice")
    return names


def list_images(root: Path, num_classes: int, class_map: Sequence[str] | None) -> tuple[list[str], np.ndarray]:
    """Return the paths below `root` of the images in its class folders, in sorted order, and their classes.

    Args:
        root: folder with one folder per class.
        num_classes: of the model.
        class_map: names of the class folders in the model's order; without it they are sorted, and there must be as
            many as the model has classes.

    Raises:
        FileNotFoundError: if the folder isn't there.
        ValueError: if folders and classes don't match, or there are no images.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}")
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    if class_map is None and len(folders) != num_classes:
        raise ValueError(
            f"{root} has {len(folders)} class folders, the model {num_classes} classes: give the folders' names in the "
            "model's order with --class-map FILE, or a model with as many classes"
        )
    order = {name: index for index, name in enumerate(class_map if class_map is not None else folders)}
    unknown = [name for name in folders if name not in order]
    if unknown or len(order) > num_classes:
        what = f"lacks {', '.join(unknown[:5])}" if unknown else f"names {len(order)} classes"
        raise ValueError(f"the class map for {root} {what}; the model has {num_classes} classes")
    paths, classes = [], []
    for name in folders:
        files = sorted(entry.name for entry in (root / name).iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES)
        paths += [f"{name}/{file}" for file in files]
        classes += [order[name]] * len(files)
    if not paths:
        raise ValueError(f"no images in the class folders of {root}: looked for {', '.join(IMAGE_SUFFIXES)}")
    return paths, np.array(classes)


class FolderSource:
    """An image folder: one folder per class."""

    def __init__(
        self, root: Path, num_classes: int, class_map: Sequence[str] | None = None, limit: int | None = None
    ) -> None:
        self.root = root
        paths, classes = list_images(root, num_classes, class_map)
        self.positions = spread(len(paths), limit)
        self.paths = [paths[i] for i in self.positions]
        self.classes = classes[self.positions]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.paths)

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Return one RGB image and its class."""
        return open_image(self.root / self.paths[index]), int(self.classes[index])


def read_idx(path: Path) -> np.ndarray:
    """Return the bytes of an IDX file, packed or not, in the shape that it states.

    Raises:
        ValueError: if it isn't a whole IDX file of bytes with one or three dimensions.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        (magic,) = struct.unpack(">I", content[:4])
        dimensions = magic & 0xFF
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        if _IDX_MAGIC.get(dimensions) != magic:
            raise ValueError(f"its magic number is {magic}")
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise ValueError(f"{path} is not a whole IDX file: {error}") from error


class FashionMnistSource:
    """Fashion-MNIST's test set, held in memory."""

    def __init__(self, data_dir: Path, num_classes: int, limit: int | None = None) -> None:
        images, labels = (read_idx(_find_idx(data_dir, name)) for name in (_IMAGES, _LABELS))
        if len(images) != len(labels):
            raise ValueError(f"{data_dir} holds {len(images)} test images but {len(labels)} labels")
        if labels.max() >= num_classes:
            raise ValueError(f"the labels go up to {labels.max()}, the model has {num_classes} classes")
        self.positions = spread(len(images), limit)
        self.images, self.labels = images[self.positions], labels[self.positions]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Return one RGB image and its class."""
        return Image.fromarray(self.images[index]).convert("RGB"), int(self.labels[index])


def _find_idx(data_dir: Path, name: str) -> Path:
    for folder in (data_dir, data_dir / "FashionMNIST" / "raw"):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise FileNotFoundError(
        f"no {name}[.gz] in {data_dir} or its FashionMNIST/raw: `timm-gcp data fashion-mnist --root {data_dir}` puts "
        "it there"
    )


@dataclass(frozen=True)
class Framing:
    """How a clean image becomes the model's input: shorter side resized, then a centre crop.

    Attributes:
        size: side of the crop in pixels.
        canvas: length of the shorter side before the crop.
        interpolation: of the resize: bilinear, bicubic, nearest, ...
    """

    size: int
    canvas: int
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        """Check the sizes and the name of the interpolation."""
        if not 1 <= self.size <= self.canvas:
            raise ValueError(f"the crop ({self.size} px) must fit into the resized image ({self.canvas} px)")
        names = [mode.value for mode in InterpolationMode]
        if self.interpolation not in names:
            raise ValueError(f"unknown interpolation {self.interpolation!r}; choose from {', '.join(names)}")

    def resize(self, image: Image.Image) -> np.ndarray:
        """Return the `(H, W, 3)` uint8 image with its shorter side at `canvas`."""
        return np.asarray(F.resize(image, self.canvas, InterpolationMode(self.interpolation)))

    def crop(self, image: Image.Image) -> np.ndarray:
        """Return the `(size, size, 3)` uint8 crop."""
        resized = F.resize(image, self.canvas, InterpolationMode(self.interpolation))
        return np.asarray(F.center_crop(resized, [self.size, self.size]))
