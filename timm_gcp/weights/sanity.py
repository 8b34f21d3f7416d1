"""Checks of weights before they are accepted: their values, and a forward pass on a fixed image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from timm_gcp.common.messages import listed


def check_values(state_dict: Mapping[str, torch.Tensor], positive: bool = True) -> None:
    """Refuse weights that cannot be the outcome of a training run.

    Args:
        state_dict: The weights, in any type; looked at as float32 takes them.
        positive: Batch-norm variances must be above 0; otherwise 0 will do, that of a channel which never varied.

    Raises:
        ValueError: A weight is not finite or a batch-norm variance too small; names the entries.
    """
    held = {name: tensor for name, tensor in state_dict.items() if not tensor.is_meta}
    broken = [name for name, tensor in held.items() if not _finite(tensor)]
    if broken:
        raise ValueError(
            f"NaN or infinite values in {listed(broken)}. The training that wrote the file had diverged: take an "
            "earlier checkpoint."
        )
    flat = [
        name
        for name, tensor in held.items()
        if name.endswith("running_var") and not ((tensor > 0) if positive else (tensor >= 0)).all()
    ]
    if flat:
        what = "not positive" if positive else "negative"
        raise ValueError(f"Batch-norm variances that are {what} in {listed(flat)}. The file is damaged.")


def _finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point():
        return True
    seen = tensor.float() if tensor.dtype == torch.float64 else tensor  # too large for float32 becomes infinite
    return bool(torch.isfinite(seen).all())


def fixed_image(input_size: tuple[int, int, int]) -> torch.Tensor:
    """The image on which imported weights are tried, shape (1, C, H, W): waves of several lengths."""
    channels, height, width = input_size
    y = torch.linspace(0, 1, height)[:, None]
    x = torch.linspace(0, 1, width)
    waves = [torch.sin(7 * (c + 2) * x + 11 * y) + torch.cos(23 * y * (c + 1)) for c in range(channels)]
    return torch.stack(waves)[None]


def try_model(model: Any, path: str) -> None:
    """Run `model` once on the fixed image, in float32.

    Raises:
        ValueError: The logits are not finite or all the same; `path` is named.
    """
    size = model.pretrained_cfg["input_size"]
    with torch.inference_mode():
        trial = model.float()
        logits = trial(fixed_image((getattr(model, "in_chans", size[0]), *size[1:])))
    if not torch.isfinite(logits).all():
        raise ValueError(f"{path}: the model gives NaN or infinite logits on a plain image. The weights are unusable.")
    if logits.shape[-1] > 1 and logits.std() == 0:
        raise ValueError(f"{path}: the model gives every class the same logit. The weights are untrained or damaged.")
