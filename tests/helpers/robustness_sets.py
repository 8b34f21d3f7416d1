"""Tiny classifiers and fake benchmark trees."""

from __future__ import annotations

import gzip
import struct
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from timm_gcp.inference.model import Loaded
from timm_gcp.robustness.inference import Classifier

SIZE = 48


class ByBrightness(torch.nn.Module):
    """Class 1 where the mean pixel is over a threshold, else class 0; further classes never win."""

    def __init__(self, threshold: float, num_classes: int = 2) -> None:
        super().__init__()
        self.threshold, self.num_classes = threshold, num_classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bright = x.mean(dim=(1, 2, 3)) - self.threshold
        rest = -torch.arange(1.0, self.num_classes - 1).expand(len(x), -1)
        return torch.cat([torch.stack([-bright, bright], dim=1), rest - 9], dim=1)


def classifier(label: str = "bright", threshold: float = 0.5, num_classes: int = 2, in_chans: int = 3) -> Classifier:
    config = {
        "input_size": (in_chans, SIZE, SIZE),
        "mean": (0.0,) * in_chans,
        "std": (1.0,) * in_chans,
        "interpolation": "bilinear",
        "crop_pct": 0.9,
    }
    loaded = Loaded(
        ByBrightness(threshold, num_classes).eval(), label, config, None, torch.device("cpu"), nullcontext()
    )
    return Classifier(label, loaded)


def pixels(seed: int, size: int = SIZE) -> np.ndarray:
    rng = np.random.RandomState(seed)
    level = rng.randint(30, 220)
    return np.clip(level + rng.randint(-30, 30, size=(size, size, 3)), 0, 255).astype(np.uint8)


def write_images(folder: Path, per_class: int, seed: int, size: int = SIZE) -> None:
    for label, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(pixels(seed + 100 * label + i, size)).save(folder / name / f"{i}.png")


def write_clip(path: Path, frames: np.ndarray) -> None:
    av = pytest.importorskip("av", reason="the robustness extra isn't installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=1)
        video.width, video.height, video.pix_fmt, video.bit_rate = (
            frames.shape[2],
            frames.shape[1],
            "yuv420p",
            4_000_000,
        )
        for frame in frames:
            container.mux(video.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(video.encode())


def levels(values: list[int], size: int = SIZE) -> np.ndarray:
    """Grey frames of the given brightness."""
    return np.stack([np.full((size, size, 3), value, dtype=np.uint8) for value in values])


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 2048 + array.ndim, *array.shape) + array.tobytes()


def write_fashion_mnist(
    folder, images: np.ndarray, labels: np.ndarray, packed: bool = True, split: str = "t10k"
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{split}-images-idx3-ubyte", images), (f"{split}-labels-idx1-ubyte", labels)):
        content = idx(array.astype(np.uint8))
        path = folder / (name + ".gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
