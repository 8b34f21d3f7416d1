"""The workbench of check_train_py.py: scratch data, one way to start a run, and its summary.csv read back."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
CLASSES = 4

# train.py hands `device_ids` to DistributedDataParallel, which refuses them for a CPU: with any model, recipe or not.
CPU_DDP = """
from torch.nn.parallel import DistributedDataParallel

_init = DistributedDataParallel.__init__

def _without_device_ids(self, module, device_ids=None, **options):
    _init(self, module, **options)

DistributedDataParallel.__init__ = _without_device_ids
"""


class CheckFailed(Exception):
    """A run did not do what it should; the message says what it did."""


class Bench:
    """A scratch folder with train.py, an image folder and a data set in Fashion-MNIST's layout.

    Args:
        scratch: Folder for everything.
        train_py: timm's train.py, copied unmodified.
        timm_folder: Folder to import timm from, or None for the installed one.
    """

    def __init__(self, scratch: Path, train_py: Path, timm_folder: Path | None) -> None:
        self.scratch = scratch
        self.train_py = Path(shutil.copy(train_py, scratch / "train.py"))
        self.scripts = train_py.resolve().parent  # timm's other scripts
        self.trained: Path | None = None
        (scratch / "cpu_ddp.py").write_text(CPU_DDP)
        paths = [str(timm_folder.resolve())] if timm_folder else []
        paths += [str(ROOT)]
        # One thread: two processes share the cores, and sums come out in one order.
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self.workers = "1" if timm_folder else "0"  # older releases cannot do without
        self.images = self._image_folder(scratch / "images")
        self.fashion = self._fashion_mnist(scratch / "fashion")
        self.runs = 0

    def versions(self) -> str:
        """One line on what is being checked."""
        code = "import timm, torch; print(f'timm {timm.__version__}, torch {torch.__version__}')"
        return self.python("-c", code).stdout.strip()

    def python(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the scratch folder and return whatever it did."""
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.scratch,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def arguments(self, recipe: str, *extra: str, epochs: int = 2, batch: int = 4) -> list[str]:
        """Command-line arguments that make a run of a recipe short; later ones win."""
        path = RECIPES / f"{recipe}.yaml"
        small = ["--epochs", str(epochs), "--batch-size", str(batch), "--workers", self.workers, "--device", "cpu"]
        if "fashion_mnist" in str(yaml.safe_load(path.read_text()).get("dataset")):
            small += ["--data-dir", str(self.fashion)]
        else:
            small += ["--data-dir", str(self.images), "--img-size", "64", "--num-classes", str(CLASSES)]
        return ["-c", str(path), *small, *extra]

    def start(self, *arguments: str, launcher: tuple[str, ...] = ("train.py",), **environment: str) -> Path:
        """Train and return the run's folder.

        Raises:
            CheckFailed: The process failed; with the last line of its complaint.
        """
        self.runs += 1
        name = f"run{self.runs}"
        output = ("--output", str(self.scratch / "output"), "--experiment", name)
        done = self.python(*launcher, *arguments, *output, **environment)
        if done.returncode:
            # The first error is the cause; torchrun and clean-up add their own after it.
            lines = re.findall(r"^(?:\[rank\d\]: )?\w*(?:Error|Exception): .+", done.stderr, flags=re.MULTILINE)
            told = lines or done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise CheckFailed(f"exit status {done.returncode}: {told[0]}")
        return self.scratch / "output" / name

    def fails(self, *arguments: str, expected: str) -> str:
        """Train, which must fail before the first update with `expected` in the complaint; returns its last line."""
        done = self.python("train.py", *arguments, "--output", str(self.scratch / "output"), "--log-interval", "1")
        told = done.stderr
        if done.returncode == 0:
            raise CheckFailed("it trained")
        if "Train: 0" in told + done.stdout or expected not in told:
            raise CheckFailed(f"expected {expected!r}, got {told.strip().splitlines()[-1]!r}")
        return told.strip().splitlines()[-1]

    def weight_folder(self, model: str, **settings: object) -> Path:
        """A folder of random weights in the Hub's layout, for `local-dir:`."""
        folder = self.scratch / f"{model}-weights"
        code = (
            "import json, sys, timm, timm_gcp; from timm.models import save_for_hf; a = json.loads(sys.argv[1]);"
            "save_for_hf(timm.create_model(a.pop('model'), **a.pop('settings')), a['folder'], safe_serialization=True)"
        )
        asked = {"model": model, "settings": settings, "folder": str(folder)}
        done = self.python("-c", code, json.dumps(asked))
        if done.returncode:
            raise CheckFailed(f"could not write weights: {done.stderr.strip().splitlines()[-1]}")
        return folder

    def _image_folder(self, root: Path, per_class: int = 3) -> Path:
        draw = np.random.default_rng(0)
        for split in ("train", "validation"):
            for label in range(CLASSES):
                folder = root / split / f"class{label}"
                folder.mkdir(parents=True)
                for index in range(per_class):
                    pixels = draw.integers(0, 256, (80, 96, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{index}.png")
        return root

    def _fashion_mnist(self, root: Path, images: int = 16) -> Path:
        folder = root / "FashionMNIST" / "raw"
        folder.mkdir(parents=True)
        draw = np.random.default_rng(1)
        for split in ("train", "t10k"):
            pixels = draw.integers(0, 256, (images, 28, 28), dtype=np.uint8)
            labels = draw.integers(0, 10, images, dtype=np.uint8)
            header = struct.pack(">HBBIII", 0, 8, 3, images, 28, 28)
            (folder / f"{split}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
            (folder / f"{split}-labels-idx1-ubyte").write_bytes(
                struct.pack(">HBBI", 0, 8, 1, images) + labels.tobytes()
            )
        return root


def summary(run: Path) -> list[dict[str, float]]:
    """Rows of a run's summary.csv."""
    with (run / "summary.csv").open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def same(first: object, second: object, what: str) -> None:
    """Fail unless the two are equal."""
    if first != second:
        raise CheckFailed(f"{what}: {first} is not {second}")
