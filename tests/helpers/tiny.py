"""Small models and weight files for the tests of the weights commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

import timm_gcp  # noqa: F401

ARCH = "shufflenet_v2_x1_0_gcp"
ARGS: dict[str, Any] = {"num_classes": 7, "reduce_dim": 8}
DATA: dict[str, Any] = {"input_size": (3, 64, 64), "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
NAME = f"{ARCH}.tiny"


def model(seed: int = 0, **kwargs: Any) -> nn.Module:
    torch.manual_seed(seed)
    return timm.create_model(ARCH, **{**ARGS, **kwargs}).eval()


def image(channels: int = 3, size: int = 64) -> torch.Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(5))


def logits(network: nn.Module, channels: int = 3) -> torch.Tensor:
    with torch.inference_mode():
        return network.eval()(image(channels))


def checkpoint(path: Path, network: nn.Module | None = None, **more: Any) -> Path:
    """A training checkpoint of `network` (default: `model()`) at `path`."""
    network = model() if network is None else network
    torch.save({"state_dict": network.state_dict(), "epoch": 3, **more}, path)
    return path
