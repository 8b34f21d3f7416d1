"""Lay Fashion-MNIST out for timm's `torch/fashion_mnist` reader, checked by checksum.

The set (Xiao et al. 2017, MIT licence): 60,000 training and 10,000 test images, 28×28, one channel, ten classes.
"""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

from timm_gcp.common.files import file_sha256

FASHION_MNIST_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Over the pixels of the 60,000 training images, in [0, 1].
FASHION_MNIST_MEAN, FASHION_MNIST_STD = 0.2860, 0.3530
# sha256 of the uncompressed files.
FASHION_MNIST_FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
_HELP = (
    "Install Debian's package (`apt-get install dataset-fashion-mnist`), or connect to the internet for torchvision's "
    "download, or put the four *-ubyte.gz files of https://github.com/zalandoresearch/fashion-mnist into a folder and "
    "name it with --source."
)


def prepare_fashion_mnist(root: str | Path, source: str | Path | None = None) -> Path:
    """Put the four files of Fashion-MNIST where timm's and torchvision's readers look, unless they are there.

    Args:
        root: Data folder, the `--data-dir` of training; receives `FashionMNIST/raw/`.
        source: Folder of the four `.gz` files; Debian's if left out, else torchvision's download.

    Returns:
        The folder of the files.

    Raises:
        FileNotFoundError: `source` lacks a file.
        RuntimeError: The download failed, or a checksum is wrong; says what to do.
    """
    raw = Path(root) / "FashionMNIST" / "raw"
    if all(_is_right(raw / name, digest) for name, digest in FASHION_MNIST_FILES.items()):
        return raw
    raw.mkdir(parents=True, exist_ok=True)
    folder = Path(source) if source is not None else DEBIAN_FOLDER if DEBIAN_FOLDER.is_dir() else None
    if folder is None:
        _download(Path(root))
    else:
        for name in FASHION_MNIST_FILES:
            packed = folder / f"{name}.gz"
            if not packed.is_file():
                raise FileNotFoundError(f"{str(packed)!r} is missing. {_HELP}")
            _unpack(packed, raw / name)
    for name, digest in FASHION_MNIST_FILES.items():
        if not _is_right(raw / name, digest):
            found = file_sha256(raw / name) if (raw / name).is_file() else "nothing"
            raise RuntimeError(
                f"{str(raw / name)!r} is damaged (sha256 {found}, not {digest}): delete it and its source. {_HELP}"
            )
    return raw


def _download(root: Path) -> None:
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(root), download=True)
    except (RuntimeError, OSError) as error:
        raise RuntimeError(f"Fashion-MNIST could not be downloaded ({error}). {_HELP}") from error


def _unpack(packed: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".part")
    try:
        with gzip.open(packed, "rb") as source, partial.open("wb") as file:
            shutil.copyfileobj(source, file)
    except (gzip.BadGzipFile, EOFError) as error:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"{str(packed)!r} is not a complete gzip file ({error}). {_HELP}") from error
    os.replace(partial, target)


def _is_right(path: Path, digest: str) -> bool:
    return path.is_file() and file_sha256(path) == digest
