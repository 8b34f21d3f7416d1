"""Loops of detector training and evaluation, on one process or on several (torchrun)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from timm.utils.distributed import init_distributed_device_so
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, Subset
from tqdm import tqdm

from timm_gcp.common.device import mixed_precision
from timm_gcp.detection.coco_data import CocoDataset, collate
from timm_gcp.detection.coco_eval import coco_results

WARMUP_START = 0.001  # share of the learning rate in the first step of the warm-up, as in MMDetection's schedule


@dataclass(frozen=True)
class Processes:
    """This process among those that train together."""

    device: torch.device
    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0


def join_processes(device: str | None = None) -> Processes:
    """Pick the device, and join the other processes where torchrun started several.

    Raises:
        ValueError: The device is not there.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but no CUDA device is available. Use --device cpu.")
    joined = init_distributed_device_so(name)
    return Processes(torch.device(joined["device"]), joined["global_rank"], joined["world_size"])


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of epoch and step: linear warm-up, then falls at the milestones."""

    lr: float
    milestones: Sequence[int]
    decay_rate: float
    warmup_iters: int

    def __call__(self, epoch: int, step: int) -> float:
        """Rate in epoch `epoch` (from 0) and step `step` (from 0, counted through all epochs)."""
        warmup = 1.0
        if step < self.warmup_iters:
            warmup = WARMUP_START + (1 - WARMUP_START) * step / self.warmup_iters
        return self.lr * warmup * self.decay_rate ** sum(epoch >= milestone for milestone in self.milestones)


class Precision:
    """Mixed precision: the autocast context and, for float16, the scaler of the loss."""

    def __init__(self, device: torch.device, amp: bool = False, dtype: str | None = None) -> None:
        self.device = device
        self.amp = amp
        self.dtype = dtype or ("float16" if device.type == "cuda" else "bfloat16")
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp and self.dtype == "float16")

    def context(self) -> AbstractContextManager[Any]:
        """Context of a forward pass."""
        return mixed_precision(self.device, self.amp, self.dtype)


def train_loader(
    dataset: CocoDataset, batch_size: int, epoch: int, seed: int, workers: int, processes: Processes
) -> DataLoader:
    """Batches of one epoch in an order that depends on `seed` and `epoch` alone; a smaller last batch is kept.

    Seeds the random state too, so that a resumed run repeats what an uninterrupted one does.
    """
    torch.manual_seed(int(np.random.SeedSequence([seed, epoch, processes.rank]).generate_state(1)[0]))
    sampler: Sampler
    if processes.count > 1:
        sampler = DistributedSampler(dataset, processes.count, processes.rank, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
    else:
        sampler = RandomSampler(dataset)
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=workers, collate_fn=collate)


def train_one_epoch(
    model: nn.Module,
    loader: DataLoader,
    optimizer: torch.optim.Optimizer,
    rate: Callable[[int, int], float],
    epoch: int,
    precision: Precision,
    processes: Processes,
    clip_grad: float | None = None,
) -> dict[str, float]:
    """Train for one epoch; returns the mean of each loss (and their sum, `loss`) over its steps.

    Raises:
        RuntimeError: The loss is not finite, with the losses of that step.
    """
    model.train()
    sums: dict[str, float] = defaultdict(float)
    progress = tqdm(loader, desc=f"epoch {epoch + 1}", leave=False, disable=not processes.is_first)
    for step, (images, targets) in enumerate(progress):
        for group in optimizer.param_groups:
            group["lr"] = rate(epoch, epoch * len(loader) + step)
        with precision.context():
            losses = model([image.to(processes.device) for image in images], _to(targets, processes.device))
        loss = sum(losses.values())
        values = {name: float(value.detach()) for name, value in {"loss": loss, **losses}.items()}
        if not math.isfinite(values["loss"]):
            raise RuntimeError(
                f"The loss of epoch {epoch + 1}, step {step + 1} is {values['loss']} ({values}). "
                "Lower --lr, lengthen --warmup-iters or set --clip-grad."
            )
        optimizer.zero_grad(set_to_none=True)
        precision.scaler.scale(loss).backward()
        if clip_grad is not None:
            precision.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
        precision.scaler.step(optimizer)
        precision.scaler.update()
        for name, value in values.items():
            sums[name] += value
        progress.set_postfix(loss=f"{values['loss']:.3f}")
    names = sorted(sums)
    totals = torch.tensor([sums[name] for name in names] + [float(len(loader))], dtype=torch.float64)
    if processes.count > 1:
        totals = totals.to(processes.device, torch.float32)
        dist.all_reduce(totals)
    return {name: float(total / totals[-1]) for name, total in zip(names, totals[:-1], strict=True)}


@torch.inference_mode()
def detect(
    model: nn.Module, dataset: CocoDataset, batch_size: int, workers: int, precision: Precision, processes: Processes
) -> list[dict[str, Any]]:
    """Detections on all images of `dataset` in COCO's results form; complete on the first process, empty elsewhere."""
    mine = Subset(dataset, range(processes.rank, len(dataset), processes.count))
    loader = DataLoader(mine, batch_size, num_workers=workers, collate_fn=collate)
    model.eval()
    results: list[dict[str, Any]] = []
    for images, targets in tqdm(loader, desc="detect", leave=False, disable=not processes.is_first):
        with precision.context():
            outputs = model([image.to(processes.device) for image in images])
        results += coco_results(outputs, [target["image_id"] for target in targets], dataset.category_of)
    if processes.count == 1:
        return results
    gathered: list[Any] = [None] * processes.count
    dist.all_gather_object(gathered, results)
    return [result for part in gathered for result in part] if processes.is_first else []


def _to(targets: Iterable[Mapping[str, Any]], device: torch.device) -> list[dict[str, Tensor]]:
    """Targets on the device, without what is not a tensor."""
    return [{key: value.to(device) for key, value in target.items() if isinstance(value, Tensor)} for target in targets]
