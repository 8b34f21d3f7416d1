"""Clean images in a fixed order: an image folder, or Fashion-MNIST's test set held in memory."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

from timm_gcp.datasets.folders import class_indices, survey
from timm_gcp.inference.images import open_image

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
        ValueError: A limit under 1.
    """
    if limit is None or limit >= total:
        return np.arange(total)
    if limit < 1:
        raise ValueError(f"--limit must be 1 or more; got {limit}")
    return np.arange(limit) * total // limit


def list_images(
    root: Path, num_classes: int, class_map: Mapping[str, int] | None = None, names: tuple[str, ...] | None = None
) -> tuple[list[str], np.ndarray]:
    """Return the paths below `root` of the images in its class folders, in natural order, and their classes.

    Args:
        root: folder with one folder per class.
        num_classes: of the model.
        class_map: class folder -> index; without it they are in natural order (or in that of `names`), and there must
            be as many as the model has classes.
        names: the model's class names by index, to be compared with the folders'.

    Raises:
        FileNotFoundError: The folder isn't there.
        ValueError: Folders and classes don't match, or a class has no images.
    """
    found = survey(root)
    indices = class_indices(found, class_map, num_classes, names)
    paths = [path for files in found.files.values() for path in files]
    return paths, np.array([indices[name] for name, files in found.files.items() for _ in files])


class FolderSource:
    """An image folder: one folder per class."""

    def __init__(
        self,
        root: Path,
        num_classes: int,
        class_map: Mapping[str, int] | None = None,
        limit: int | None = None,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.root = root
        paths, classes = list_images(root, num_classes, class_map, names)
        self.positions = spread(len(paths), limit)
        self.paths = [paths[i] for i in self.positions]
        self.classes = classes[self.positions]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.paths)

    def read(self, index: int) -> tuple[Image.Image, int]:
        """Return one RGB image and its class."""
        return open_image(self.root / self.paths[index], 3), int(self.classes[index])


def read_idx(path: Path) -> np.ndarray:
    """Return the bytes of an IDX file, packed or not, in the shape that it states.

    Raises:
        ValueError: It isn't a whole IDX file of bytes with one or three dimensions.
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
