"""Start a reduction from the principal components of the features that it will reduce, in place of random numbers.

A covariance head on a pretrained backbone is new. Its classifier is a linear layer and learns fast, but behind a random
reduction it sees few of the directions in which the features differ. What that costs is measured in
docs/poolings_compared.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from timm_gcp.models.pooling import GlobalCovPool2d


class Moments:
    """Mean and covariance of the channels of feature maps, over images and positions, in float64."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.total = torch.zeros(channels, dtype=torch.float64)
        self.products = torch.zeros(channels, channels, dtype=torch.float64)

    def add(self, maps: Tensor) -> None:
        """Add maps `(B, C, H, W)` or `(B, C, N)`.

        Raises:
            ValueError: Another number of channels, or NaN or Inf.
        """
        if maps.ndim not in (3, 4) or maps.shape[1] != len(self.total):
            raise ValueError(f"expected maps (B, {len(self.total)}, H, W), got shape {tuple(maps.shape)}")
        rows = maps.detach().flatten(2).transpose(1, 2).flatten(0, 1).double()
        if not torch.isfinite(rows).all():
            raise ValueError("a feature map holds NaN or Inf; check the backbone's weights and the images")
        self.total = self.total.to(rows.device) + rows.sum(0)
        self.products = self.products.to(rows.device) + rows.mT @ rows
        self.count += len(rows)

    def principal(self, width: int) -> tuple[Tensor, Tensor, Tensor, float]:
        """The `width` directions of largest variance `(width, C)`, mean and variance of the projections on them.

        The last value is the share of all variance that they hold, from 0 to 1.

        Raises:
            ValueError: No more positions than directions.
        """
        if self.count <= width:
            raise ValueError(
                f"{width} directions need more than {width} positions, got {self.count}: give more images."
            )
        mean = self.total / self.count
        variances, directions = torch.linalg.eigh(self.products / self.count - torch.outer(mean, mean))
        directions = directions[:, -width:].flip(1).mT
        kept = variances[-width:].flip(0).clamp_min(0)
        share = kept.sum() / variances.clamp_min(0).sum().clamp_min(torch.finfo(torch.float64).tiny)
        return directions, directions @ mean, kept, share.item()


def _only_step(pool: GlobalCovPool2d) -> Any:
    if len(pool.reduction) != 1:
        raise ValueError(
            f"the reduction has {len(pool.reduction)} steps; principal components are for one step: give reduce_dim=128"
        )
    step: Any = pool.reduction[0]
    if step.conv.out_channels > step.conv.in_channels:
        raise ValueError(
            f"the reduction goes from {step.conv.in_channels} channels to {step.conv.out_channels}; there are no more "
            "principal components than channels"
        )
    return step


def only_pool(model: nn.Module) -> GlobalCovPool2d:
    """The covariance pooling of a model.

    Raises:
        ValueError: It has none, or several.
    """
    pools = [module for module in model.modules() if isinstance(module, GlobalCovPool2d)]
    if len(pools) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(pools)} GlobalCovPool2d; init_reduction takes a model with one"
        )
    return pools[0]


@torch.no_grad()
def set_principal(pool: GlobalCovPool2d, maps: Iterable[Tensor]) -> float:
    """Set a pooling's reduction to the principal components of feature maps, in place.

    The 1×1 convolution becomes the projection on the D directions of largest variance, the largest first; its
    batch-norm gets mean and variance of these projections as running statistics, and a scale of one. An activation
    behind it cuts off one sign of each direction: `act_layer=torch.nn.Identity` keeps both, as principal components
    are meant.

    Args:
        pool: The pooling; its reduction has one step.
        maps: Feature maps `(B, C, H, W)` or `(B, C, N)` of training images, batch by batch.

    Returns:
        The share of the features' variance that the D directions hold, from 0 to 1.

    Raises:
        ValueError: A reduction of no or several steps or to more channels, too few positions, NaN or Inf.
    """
    step = _only_step(pool)
    moments = Moments(step.conv.in_channels)
    for batch in maps:
        moments.add(batch)
    directions, mean, variance, share = moments.principal(step.conv.out_channels)
    step.conv.weight.copy_(directions[:, :, None, None])
    step.bn.reset_parameters()
    step.bn.running_mean.copy_(mean)
    step.bn.running_var.copy_(variance)
    return share


def init_reduction(model: nn.Module, images: Iterable[Any]) -> float:
    """Start the reduction of a covariance head from the principal components of its backbone's features, in place.

    For a head that is new on a pretrained backbone: `swap_pooling`, `gcp_swap`, or another `reduce_dim`. The images go
    through the model once, in evaluation mode and without gradients. A few hundred to a few thousand training images
    do; take no test images.

    Args:
        model: A model with one `GlobalCovPool2d`, such as `swap_pooling` makes.
        images: Batches of images as the model takes them, or of `(images, targets)`, as timm's loaders give them.

    Returns:
        The share of the features' variance that the reduction keeps, from 0 to 1.

    Raises:
        ValueError: None or several poolings, and what `set_principal` refuses.
    """
    pool = only_pool(model)
    _only_step(pool)
    seen: list[Tensor] = []
    hook = pool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    modes = {module: module.training for module in model.modules()}
    device = next(model.parameters()).device

    def maps() -> Iterable[Tensor]:
        for batch in images:
            model(batch[0].to(device) if isinstance(batch, (list, tuple)) else batch.to(device))
            yield seen.pop()

    try:
        model.eval()
        return set_principal(pool, maps())
    finally:
        hook.remove()
        for module, mode in modes.items():
            module.training = mode
