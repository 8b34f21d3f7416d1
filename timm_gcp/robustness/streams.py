"""Feed the parts of a benchmark (one corruption at one severity, one perturbation) through workers in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

Place = tuple[int, int]  # part, position in it


class Parts(Sampler[list[Place]]):
    """Batches of places, part after part; no batch reaches over the end of a part."""

    def __init__(self, counts: Sequence[int], batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"--batch-size must be 1 or more; got {batch_size}")
        self.counts, self.batch_size = list(counts), batch_size

    def __iter__(self) -> Iterator[list[Place]]:
        """Yield the batches."""
        for part, count in enumerate(self.counts):
            for start in range(0, count, self.batch_size):
                yield [(part, i) for i in range(start, min(start + self.batch_size, count))]

    def __len__(self) -> int:
        """Return the number of batches."""
        return sum(-(-count // self.batch_size) for count in self.counts)


def _quiet_worker(worker: int) -> None:
    """Keep a worker to one thread: the workers are the parallelism."""
    torch.set_num_threads(1)
    try:
        import cv2
    except ImportError:
        return
    cv2.setNumThreads(0)


def stream(
    dataset: Dataset[Any], counts: Sequence[int], batch_size: int, workers: int, collate: Any = None
) -> Iterator[tuple[int, int, bool, Any]]:
    """Yield `(part, size, last, batch)`: the part a batch belongs to, its length, whether the part ends with it.

    One loader serves all parts, so that its workers start once.

    Args:
        dataset: indexed by `(part, position)`.
        counts: positions in each part.
        batch_size: places per batch.
        workers: processes; 0 works in this one.
        collate: see `DataLoader`.

    Raises:
        ValueError: A batch size under 1 or a negative number of workers.
    """
    if workers < 0:
        raise ValueError(f"--workers must be 0 or more; got {workers}")
    parts = Parts(counts, batch_size)
    loader = DataLoader(
        dataset,
        batch_sampler=parts,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_quiet_worker,
    )
    for places, batch in zip(parts, loader, strict=True):
        part, position = places[-1]
        yield part, len(places), position + 1 == counts[part], batch
