"""ImageNet-C: errors of classifiers by corruption and severity, from disk or with the corruptions made on the fly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from timm_gcp.inference.images import open_image
from timm_gcp.robustness.corruptions import EXTRA_CORRUPTIONS, SEVERITIES, TEST_CORRUPTIONS, corrupt, image_seed
from timm_gcp.robustness.inference import Classifier
from timm_gcp.robustness.sources import Framing, Source, list_images, spread
from timm_gcp.robustness.streams import stream

CLEAN = "clean"
BENCHMARK_SIZE = 224


@dataclass(frozen=True)
class Cell:
    """One corruption at one severity; `Cell("clean", 0)` is the uncorrupted set."""

    corruption: str
    severity: int


def wanted_cells(corruptions: Sequence[str], severities: Sequence[int]) -> list[Cell]:
    """Return the cells in the order in which they are measured.

    Raises:
        ValueError: An unknown corruption or severity.
    """
    for name in corruptions:
        if name not in TEST_CORRUPTIONS + EXTRA_CORRUPTIONS:
            known = ", ".join(TEST_CORRUPTIONS + EXTRA_CORRUPTIONS)
            raise ValueError(f"unknown corruption {name!r}; choose from {known}")
    for severity in severities:
        if severity not in SEVERITIES:
            raise ValueError(f"severities are {', '.join(map(str, SEVERITIES))}; got {severity}")
    return [Cell(name, severity) for name in corruptions for severity in severities]


def cells_on_disk(root: Path, cells: Sequence[Cell], partial: bool) -> list[Cell]:
    """Return the cells that are there; the extra corruptions may be absent, a test corruption may not.

    Args:
        root: folder of `corruption/severity/class/image`.
        cells: cells asked for.
        partial: accept missing ones.

    Raises:
        FileNotFoundError: The folder isn't there.
        ValueError: Something is missing, with all that is missing, or nothing is there at all.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}: --data-dir is the folder that holds the corruptions' folders")
    found = [cell for cell in cells if (root / cell.corruption / str(cell.severity)).is_dir()]
    present = {cell.corruption for cell in found}
    missing = [c for c in cells if c not in found and (c.corruption in TEST_CORRUPTIONS or c.corruption in present)]
    if missing and not partial:
        told = ", ".join(f"{cell.corruption}/{cell.severity}" for cell in missing)
        raise ValueError(
            f"{root} lacks {told}: fetch what is missing, or score what is there with --partial (it isn't an mCE then)"
        )
    if not found:
        raise ValueError(f"{root} holds none of the corruptions asked for")
    return found


class CorruptedFolders(Dataset[tuple[Tensor, int]]):
    """The images of ImageNet-C as they lie on disk, not resized.

    Args:
        root: folder of `corruption/severity/class/image`.
        cells: cells to read, all of them present.
        num_classes: of the model.
        class_map: see `list_images`.
        limit: images per cell.
        partial: accept cells of different length.
        names: see `list_images`.

    Raises:
        ValueError: As `list_images`, or cells of different length.
    """

    def __init__(
        self,
        root: Path,
        cells: Sequence[Cell],
        num_classes: int,
        class_map: Mapping[str, int] | None = None,
        limit: int | None = None,
        partial: bool = False,
        names: tuple[str, ...] | None = None,
    ) -> None:
        self.root, self.cells = root, list(cells)
        self.paths: list[list[str]] = []
        self.classes: list[np.ndarray] = []
        for cell in tqdm(self.cells, desc="listing", unit="folder", leave=False, disable=None):
            paths, classes = list_images(root / cell.corruption / str(cell.severity), num_classes, class_map, names)
            if self.paths and paths == self.paths[-1]:  # all cells share one list: 95 of 50,000 names are much memory
                paths, classes = self.paths[-1], self.classes[-1]
            self.paths.append(paths)
            self.classes.append(classes)
        lengths = {len(paths) for paths in self.paths}
        if len(lengths) > 1 and not partial:
            told = ", ".join(
                f"{c.corruption}/{c.severity}: {len(p)}" for c, p in zip(self.cells, self.paths, strict=True)
            )
            raise ValueError(f"the corruptions hold different numbers of images ({told}): unpack what is cut short")
        self.kept = [spread(len(paths), limit) for paths in self.paths]
        self.counts = [len(kept) for kept in self.kept]

    def __len__(self) -> int:
        """Return the number of images of all cells."""
        return sum(self.counts)

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        """Return an `(H, W, 3)` uint8 image and its class."""
        part, position = place
        index = self.kept[part][position]
        cell = self.cells[part]
        image = open_image(self.root / cell.corruption / str(cell.severity) / self.paths[part][index], 3)
        return torch.from_numpy(np.array(image)), int(self.classes[part][index])


class CorruptedSource(Dataset[tuple[Tensor, int]]):
    """Clean images, corrupted as they are read; every image depends on the seed, its position and its cell only."""

    def __init__(self, source: Source, framing: Framing, cells: Sequence[Cell], seed: int = 0) -> None:
        self.source, self.framing, self.cells, self.seed = source, framing, list(cells), seed
        self.counts = [len(source)] * len(self.cells)

    def __len__(self) -> int:
        """Return the number of images of all cells."""
        return sum(self.counts)

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        """Return an `(size, size, 3)` uint8 image and its class."""
        part, position = place
        cell = self.cells[part]
        image, target = self.source.read(position)
        pixels = self.framing.crop(image)
        if cell.corruption != CLEAN:
            own = image_seed(self.seed, int(self.source.positions[position]), cell.corruption, cell.severity)
            pixels = corrupt(pixels, cell.corruption, cell.severity, own)
        return torch.from_numpy(np.array(pixels)), target


def is_done(result: dict[str, Any], cell: Cell) -> bool:
    """Return whether a result already holds a cell."""
    if cell.corruption == CLEAN:
        return result["clean_error"] is not None
    return str(cell.severity) in result["corruption_error"].get(cell.corruption, {})


def _store(result: dict[str, Any], cell: Cell, error: float, images: int) -> None:
    if cell.corruption == CLEAN:
        result["clean_error"] = error
    else:
        result["corruption_error"].setdefault(cell.corruption, {})[str(cell.severity)] = error
    result["images"][f"{cell.corruption}/{cell.severity}"] = images


def _stack(batch: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    shapes = {tuple(image.shape) for image, _ in batch}
    if len(shapes) > 1:
        raise ValueError(f"images of one batch differ in size ({sorted(shapes)}); ImageNet-C's are all 224 px")
    return torch.stack([image for image, _ in batch]), torch.tensor([target for _, target in batch])


def evaluate(
    classifiers: Sequence[Classifier],
    results: Sequence[dict[str, Any]],
    dataset: CorruptedFolders | CorruptedSource,
    batch_size: int,
    workers: int,
    save: Callable[[int], None],
) -> int:
    """Fill in the cells of `dataset` that the results lack; every image is decoded once for all classifiers.

    Args:
        classifiers: models to score.
        results: their results so far (see `results.open_result`), changed in place.
        dataset: cells to measure.
        batch_size: images per forward pass.
        workers: processes that decode and corrupt.
        save: called with a classifier's index after each of its finished cells.

    Returns:
        Number of images seen.
    """
    wrong = [0] * len(classifiers)
    seen = in_cell = 0
    with tqdm(total=sum(dataset.counts), unit="image", desc="ImageNet-C", disable=None) as bar:
        for part, size, last, (images, targets) in stream(dataset, dataset.counts, batch_size, workers, _stack):
            cell = dataset.cells[part]
            bar.set_postfix_str(f"{cell.corruption} {cell.severity}", refresh=False)
            in_cell += size
            for i, classifier in enumerate(classifiers):
                if not is_done(results[i], cell):
                    predictions = classifier.logits(images).argmax(dim=1).cpu()
                    wrong[i] += int((predictions != targets).sum())
            if last:
                for i in range(len(classifiers)):
                    if not is_done(results[i], cell):
                        _store(results[i], cell, wrong[i] / in_cell, in_cell)
                        save(i)
                wrong, in_cell = [0] * len(classifiers), 0
            seen += size
            bar.update(size)
    return seen
