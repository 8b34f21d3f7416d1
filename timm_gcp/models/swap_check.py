"""One zero image through a model: what its features are, and whether it still runs once its head is swapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.models import get_model_traits
from torch import Tensor, nn

PROBE_SIZE = 64


def run_on_zeros(model: nn.Module, forward: Callable[[Tensor], Any]) -> Any:
    """`forward` of one zero image in evaluation mode, small if the model takes small images.

    Raises:
        RuntimeError: It fails for images of every size tried; says which and why.
    """
    cfg = getattr(model, "pretrained_cfg", None) or {}
    channels, *full = cfg.get("input_size", (3, PROBE_SIZE, PROBE_SIZE))
    channels = getattr(model, "in_chans", channels)
    built = get_model_traits(model).get("img_size")  # asked of timm.create_model: the configuration does not say it
    full = list(built or full)
    sizes = [full] if built or cfg.get("fixed_input_size") else [[PROBE_SIZE, PROBE_SIZE], full]
    parameter = next(model.parameters())
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        for size in sizes:
            try:
                with torch.no_grad():
                    return forward(torch.zeros(1, channels, *size, device=parameter.device, dtype=parameter.dtype))
            except Exception as error:
                failure = error
    finally:
        for module, training in modes:
            module.training = training
    reason = str(failure).strip().split("\n")[0] or type(failure).__name__
    raise RuntimeError(f"fails for images of {sizes[-1][0]}×{sizes[-1][1]} ({reason})") from failure


def remember(model: nn.Module) -> Callable[[], None]:
    """What puts a model's modules, attributes and class back as they are."""
    cls, attributes = type(model), dict(vars(model))
    children = [(module, dict(module._modules)) for module in model.modules()]

    def restore() -> None:
        model.__class__ = cls
        vars(model).clear()
        vars(model).update(attributes)
        for module, named in children:
            module._modules.clear()
            module._modules.update(named)

    return restore


def check_swapped(model: Any, pool: nn.Module, channels: int) -> None:
    """Raise unless a swapped model turns one zero image into logits (or, without a classifier, pooled features).

    Args:
        model: The model with its new head.
        pool: Its pooling.
        channels: Channels that the pooling was made for.

    Raises:
        ValueError: Its forward fails or returns another shape; says what would help.
    """
    name = model._swapped_from.__name__
    seen: list[int] = []
    handle = pool.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    try:
        output = run_on_zeros(model, model)
    except RuntimeError as error:
        if seen and seen[-1] != channels:
            raise ValueError(
                f"the pooling of {name} gets {seen[-1]} channels where its forward_features gives {channels}; give "
                f"channels={seen[-1]}"
            ) from error
        raise ValueError(f"{name} can't take a covariance head: with it, its forward {error}") from error
    finally:
        handle.remove()
    output = output[0] if isinstance(output, tuple) else output
    wanted = (1, model.num_classes or model.head_hidden_size)
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found != wanted:
        raise ValueError(f"{name} can't take a covariance head: with it, its forward gives {found}, not {wanted}")
