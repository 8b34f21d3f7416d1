"""The pooling heads that the studies compare, and how one is trained on feature maps that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from frozen_features import Maps
from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from timm_gcp.models.initial_values import init_linear
from timm_gcp.models.pooling import GlobalCovPool2d
from timm_gcp.models.principal import set_principal


class Head(nn.Module):
    """Pooling and classifier on a feature map.

    With `side`, on the map averaged to that many rows and columns; with `linear`, without the activation of the
    reduction; with `principal`, from principal components (`start`).
    """

    def __init__(self, channels: int, classes: int, settings: dict[str, Any]) -> None:
        super().__init__()
        settings = dict(settings)
        side, linear = settings.pop("side", None), settings.pop("linear", False)
        self.principal = settings.pop("principal", False)
        self.resize = nn.Identity() if side is None else nn.AdaptiveAvgPool2d(side)
        if settings.get("pool") == "avg":
            self.pool: Any = SelectAdaptivePool2d(pool_type="avg", flatten=True)
            width = channels
        else:
            act_layer = nn.Identity if linear else nn.ReLU6
            self.pool = GlobalCovPool2d(channels, act_layer=act_layer, init="fan_out_normal", **settings)
            width = self.pool.out_features
        self.fc = nn.Linear(width, classes)
        init_linear(self.fc, "fan_out_normal")

    def start(self, maps: Maps, rows: Tensor) -> None:
        """Set the reduction to principal components of the training images' maps, where the head asks for it."""
        if self.principal:
            set_principal(self.pool, (self.resize(maps.features[part, 0].float()) for part in rows.split(64)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of feature maps."""
        return self.fc(self.pool(self.resize(x)))


def train_head(maps: Maps, rows: Tensor, settings: dict[str, Any], how: dict[str, Any], seed: int) -> Head:
    """Train a head on the images `rows`, each epoch upright or mirrored by chance."""
    torch.manual_seed(seed)
    head = Head(maps.features.shape[2], int(maps.targets.max()) + 1, settings)
    head.start(maps, rows)
    head.train()
    train(head, [(head, how["lr"])], maps, rows, how)
    return head.eval()


def train(
    net: nn.Module,
    parts: Sequence[tuple[nn.Module, float]],
    maps: Maps,
    rows: Tensor,
    how: dict[str, Any],
    layout: torch.memory_format = torch.contiguous_format,
) -> list[float]:
    """Train `net` by SGD on the maps of the images `rows`, upright or mirrored by chance, in the modes that it is in.

    Args:
        net: Takes maps `(B, C, h, w)` in the memory layout `layout`, gives logits.
        parts: Modules of `net` with the highest rate of each; the rates rise and fall together, once.
        maps: The maps.
        rows: Indices of the images.
        how: `epochs`, `batch_size`, `warmup` (share of the updates), `smoothing`, `weight_decay`.
        layout: As `net` wants its maps.

    Returns:
        The mean loss of each epoch.
    """
    groups = [{"params": part.parameters(), "lr": rate} for part, rate in parts]
    optimizer = torch.optim.SGD(groups, lr=parts[0][1], momentum=0.9, weight_decay=how["weight_decay"])
    size = how["batch_size"]
    updates = len(rows) // size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [rate for _, rate in parts], total_steps=how["epochs"] * updates, pct_start=how["warmup"],
        cycle_momentum=False,
    )  # fmt: skip
    losses = []
    for _ in range(how["epochs"]):
        order, total = rows[torch.randperm(len(rows))], 0.0
        for start in range(0, len(order) - size + 1, size):
            batch = order[start : start + size]
            features = maps.features[batch, torch.randint(2, (size,))].float().contiguous(memory_format=layout)
            loss = cross_entropy(net(features), maps.targets[batch], label_smoothing=how["smoothing"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        losses.append(total / updates)
    return losses


@torch.inference_mode()
def answers(head: nn.Module, maps: Maps, rows: Tensor) -> list[bool]:
    """Whether the head, or the end of a network, has each of the images `rows`, upright, right."""
    right = []
    for part in rows.split(256):
        right += (head(maps.features[part, 0].float()).argmax(1) == maps.targets[part]).tolist()
    return right
