"""ImageNet-P: how often, and how far, predictions change along perturbation sequences, from clips or on the fly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from timm_gcp.robustness import metrics
from timm_gcp.robustness.corruptions import image_seed
from timm_gcp.robustness.inference import Classifier
from timm_gcp.robustness.perturbations import (
    DIFFICULTIES,
    EXTRA_PERTURBATIONS,
    FRAMES,
    TEST_PERTURBATIONS,
    is_noise,
    perturb,
)
from timm_gcp.robustness.sources import Framing, Source, spread
from timm_gcp.robustness.streams import stream


def clip_folder(root: Path, name: str, difficulty: int) -> Path:
    """Return the folder of a perturbation: noise has one per difficulty, the others are stepped through."""
    return root / (f"{name}_{difficulty}" if is_noise(name) and difficulty > 1 else name)


def check_choice(names: Sequence[str], difficulty: int, on_the_fly: bool) -> None:
    """Check names and difficulty.

    Raises:
        ValueError: One that doesn't exist, with those that do.
    """
    known = TEST_PERTURBATIONS if on_the_fly else TEST_PERTURBATIONS + EXTRA_PERTURBATIONS
    for name in names:
        if name not in known:
            raise ValueError(f"unknown perturbation {name!r}; choose from {', '.join(known)}")
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"--difficulty must be one of {', '.join(map(str, DIFFICULTIES))}; got {difficulty}")


def perturbations_on_disk(root: Path, names: Sequence[str], difficulty: int, partial: bool) -> list[str]:
    """Return the perturbations that are there; extra ones may be absent, a test perturbation may not.

    Raises:
        FileNotFoundError: The folder isn't there.
        ValueError: Something is missing, with all that is missing, or nothing is there at all.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}: --data-dir is the folder that holds the perturbations' folders")
    found = [name for name in names if clip_folder(root, name, difficulty).is_dir()]
    missing = [clip_folder(root, n, difficulty).name for n in names if n not in found and n in TEST_PERTURBATIONS]
    if missing and not partial:
        raise ValueError(
            f"{root} lacks {', '.join(missing)}: fetch what is missing, or score what is there with --partial "
            "(it isn't an mFR then)"
        )
    if not found:
        raise ValueError(f"{root} holds none of the perturbations asked for")
    return found


def read_clip(path: Path) -> np.ndarray:
    """Return the frames of a clip, `(T, H, W, 3)` uint8.

    Raises:
        ImportError: PyAV isn't installed.
        ValueError: The file can't be decoded.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("reading clips needs the package av: pip install 'timm-gcp[robustness]'") from error
    try:
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    except (OSError, ValueError, IndexError) as error:  # PyAV's errors derive from these
        raise ValueError(f"can't decode clip {path}: {error}") from error
    if not frames:
        raise ValueError(f"clip {path} has no frames")
    return np.stack(frames)


class Clips(Dataset[Tensor]):
    """The clips of ImageNet-P as they lie on disk, in `perturbation/class/clip.mp4`; frames aren't resized."""

    def __init__(self, root: Path, names: Sequence[str], difficulty: int = 1, limit: int | None = None) -> None:
        self.names = list(names)
        self.files: list[list[Path]] = []
        for name in self.names:
            folder = clip_folder(root, name, difficulty)
            files = sorted(folder.glob("*/*.mp4"))
            if not files:
                raise ValueError(f"no clips in {folder}: expected class/clip.mp4")
            self.files.append([files[i] for i in spread(len(files), limit)])
        self.counts = [len(files) for files in self.files]

    def __len__(self) -> int:
        """Return the number of clips."""
        return sum(self.counts)

    def __getitem__(self, place: tuple[int, int]) -> Tensor:
        """Return `(T, H, W, 3)` uint8."""
        return torch.from_numpy(read_clip(self.files[place[0]][place[1]]))


class Sequences(Dataset[Tensor]):
    """Clean images, made into sequences as they are read; each depends on seed, position and perturbation only."""

    def __init__(
        self, source: Source, framing: Framing, names: Sequence[str], difficulty: int = 1, seed: int = 0
    ) -> None:
        self.source, self.framing, self.names = source, framing, list(names)
        self.difficulty, self.seed = difficulty, seed
        self.counts = [len(source)] * len(self.names)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return sum(self.counts)

    def __getitem__(self, place: tuple[int, int]) -> Tensor:
        """Return `(T, size, size, 3)` uint8."""
        part, position = place
        name = self.names[part]
        image, _ = self.source.read(position)
        own = image_seed(self.seed, int(self.source.positions[position]), name, self.difficulty)
        return torch.from_numpy(perturb(self.framing.resize(image), self.framing.size, name, own, self.difficulty))


def _rankings(classifier: Classifier, frames: Tensor, batch_size: int) -> np.ndarray:
    """Return `(T, C)` rankings; sorted where the logits are, equal logits by class number as in `metrics.ranking`."""
    parts = []
    for chunk in frames.split(batch_size):
        order = classifier.logits(chunk).sort(dim=1, descending=True, stable=True).indices
        parts.append(order.to(torch.int32).cpu())
    return torch.cat(parts).numpy()


def evaluate(
    classifiers: Sequence[Classifier],
    results: Sequence[dict[str, Any]],
    dataset: Clips | Sequences,
    difficulty: int,
    batch_size: int,
    workers: int,
    save: Callable[[int], None],
) -> int:
    """Fill in the perturbations of `dataset` that the results lack; every clip is decoded once for all classifiers.

    Args:
        classifiers: models to score.
        results: their results so far (see `results.open_result`), changed in place.
        dataset: perturbations to measure.
        difficulty: step between compared frames, for clips without noise.
        batch_size: frames per forward pass.
        workers: processes that decode and perturb.
        save: called with a classifier's index after each of its finished perturbations.

    Returns:
        Number of frames seen.
    """
    sums = np.zeros((len(classifiers), 2))
    seen = 0
    with tqdm(total=sum(dataset.counts), unit="clip", desc="ImageNet-P", disable=None) as bar:
        for part, size, last, clips in stream(dataset, dataset.counts, -(-batch_size // FRAMES), workers, list):
            name = dataset.names[part]
            bar.set_postfix_str(name, refresh=False)
            ends = np.cumsum([len(clip) for clip in clips])
            for i, classifier in enumerate(classifiers):
                if name in results[i]["flip_probability"]:
                    continue
                for order in np.split(_rankings(classifier, torch.cat(clips), batch_size), ends[:-1]):
                    sums[i, 0] += metrics.flip_probability(order[:, 0], is_noise(name), difficulty)
                    sums[i, 1] += metrics.top5_distance(order, is_noise(name), difficulty)
            if last:
                for i, result in enumerate(results):
                    if name not in result["flip_probability"]:
                        result["flip_probability"][name], result["top5_distance"][name] = (
                            sums[i] / dataset.counts[part]
                        ).tolist()
                        result["images"][name] = dataset.counts[part]
                        save(i)
                sums[:] = 0
            seen += int(ends[-1])
            bar.update(size)
    return seen
