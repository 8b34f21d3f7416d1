"""The training that two processes share in `test_distributed.py`: in a module of its own, which they can import."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import timm_gcp  # noqa: F401  registers the models

NAMES = ["resnet18_gcp", "shufflenet_v2_x1_0_gcp"]
WORLD = 2
STEPS = 3


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=3, reduce_dim=4).double()


def batch(step: int) -> torch.Tensor:
    return torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def frozen_statistics(model: nn.Module) -> nn.Module:
    """Batch normalisation by running statistics: the one part of a model that sees the whole local batch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model


def train(model: nn.Module, part: slice) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # without batch statistics gradients are large
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)[part]).square().mean().backward()
        optimizer.step()


def worker(rank: int, port: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    try:
        size = 4 // WORLD
        for name in NAMES:
            model = DistributedDataParallel(frozen_statistics(build(name)))
            train(model, slice(rank * size, (rank + 1) * size))
            torch.save(model.module.state_dict(), Path(path) / f"{name}.{rank}.pt")
    finally:
        dist.destroy_process_group()
