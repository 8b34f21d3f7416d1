"""timm's data configuration for a model that takes other channels than the configuration says."""

from __future__ import annotations

from typing import Any


def for_channels(config: dict[str, Any], channels: int) -> dict[str, Any]:
    """`config` for images of `channels` channels: mean and standard deviation of other channels are averaged.

    Args:
        config: With `input_size` `(C, H, W)`, `mean` and `std`, one value per channel; not changed.
        channels: Channels that the model takes.
    """
    config = {**config, "input_size": (channels, *config["input_size"][1:])}
    for key in ("mean", "std"):
        if len(config[key]) != channels:
            config[key] = (sum(config[key]) / len(config[key]),) * channels
    return config
