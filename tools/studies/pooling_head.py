"""The pooling heads that the studies compare, and how one is trained on feature maps that stay as they are."""

from __future__ import annotations

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
    optimizer = torch.optim.SGD(head.parameters(), lr=how["lr"], momentum=0.9, weight_decay=how["weight_decay"])
    steps = how["epochs"] * (len(rows) // how["batch_size"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, how["lr"], total_steps=steps, pct_start=how["warmup"], cycle_momentum=False
    )
    head.train()
    for _ in range(how["epochs"]):
        order = rows[torch.randperm(len(rows))]
        for start in range(0, len(order) - how["batch_size"] + 1, how["batch_size"]):
            batch = order[start : start + how["batch_size"]]
            features = maps.features[batch, torch.randint(2, (len(batch),))].float()
            loss = cross_entropy(head(features), maps.targets[batch], label_smoothing=how["smoothing"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return head.eval()


@torch.inference_mode()
def answers(head: nn.Module, maps: Maps, rows: Tensor) -> list[bool]:
    """Whether the head, or the end of a network, has each of the images `rows`, upright, right."""
    right = []
    for part in rows.split(256):
        right += (head(maps.features[part, 0].float()).argmax(1) == maps.targets[part]).tolist()
    return right
