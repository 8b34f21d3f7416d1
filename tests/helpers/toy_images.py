"""A tiny image folder that a tiny model learns in a few updates: class c is brightest in channel c (modulo 3)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

TINY = "test_resnet"  # timm's own smallest ResNet


def image_folder(root: Path, train: int = 16, validation: int = 6, classes: int = 2, size: int = 32) -> Path:
    """`root/{train,validation}/c{class}/{index}.png`, `train` and `validation` images of each class."""
    generator = np.random.default_rng(0)
    for split, count in (("train", train), ("validation", validation)):
        for label in range(classes):
            folder = root / split / f"c{label}"
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(0, 120, (size, size, 3))
                pixels[..., label % 3] += 100
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{index}.png")
    return root


def tiny_settings(data: Path, output: Path, **more: object) -> dict[str, object]:
    """Keys of a run of two short epochs on `image_folder`."""
    return {
        "model": TINY,
        "num_classes": 2,
        "img_size": 32,
        "batch_size": 8,
        "workers": 0,
        "epochs": 2,
        "device": "cpu",
        "data_dir": str(data),
        "output": str(output),
        "experiment": "run",
        "lr": 0.05,
        "warmup_epochs": 0,
        **more,
    }
