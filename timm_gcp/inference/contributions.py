"""Where a classifier looks: what each position of the last feature map contributes to a class's logit.

A position's contribution is Σ_c f_c · ∂logit/∂f_c, gradient times feature (Shrikumar et al. 2016).
Features f are those that are pooled: for covariance pooling the reduced ones, otherwise what goes into the pooling.
With average pooling and one linear classifier this is the class activation map (Zhou et al. 2016). The normalised
covariance has degree one in the features, as the average has, wherever its normalisation is a square root: by Euler's
theorem the contributions then add up to the logit less its bias, for either pooling.

A sequence of tokens is laid out as the grid of its patches. What class and register tokens contribute, and a classifier
on the class token, is not on it.
"""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn


def pooled_features(model: nn.Module) -> tuple[nn.Module, bool]:
    """The module at which pooled features are found, and whether they are its output (else its input).

    Raises:
        ValueError: The model pools no feature map.
    """
    covariance = [module for module in model.modules() if getattr(module, "pool_type", None) == "gcp"]
    if covariance:
        pool: Any = covariance[-1]
        reduced = len(pool.reduction) > 0 and not getattr(pool, "concat_average", False)
        return (pool.reduction, True) if reduced else (pool, False)
    average = [module for module in model.modules() if isinstance(module, SelectAdaptivePool2d)]
    if not average:
        raise ValueError(f"{type(model).__name__} pools no feature map, so there is no map of where it looks.")
    return average[-1], False


def contributions(model: nn.Module, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Contribution of each position of the feature map to the logit of one class per image.

    Args:
        model: A classifier in evaluation mode.
        images: `(B, C, H, W)`, normalised.
        classes: `(B,)`, the class of each image.

    Returns:
        Contributions `(B, h, w)` and logits `(B, classes)`, both detached.

    Raises:
        ValueError: The model pools no feature map `(B, C, h, w)`, its patches form no grid of the image's shape, or a
            class is not one of its.
    """
    module, is_output = pooled_features(model)
    kept: list[Tensor] = []

    def keep(found: Any) -> Tensor:
        if not isinstance(found, Tensor) or found.ndim != 4:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{type(model).__name__} pools {shape}, not a feature map (B, C, h, w).")
        leaf = found.detach().requires_grad_()
        kept.append(leaf)
        return leaf

    if is_output:
        handle = module.register_forward_hook(lambda _module, _args, output: keep(output))
    else:
        handle = module.register_forward_pre_hook(lambda _module, args: (keep(args[0]), *args[1:]))
    try:
        with torch.enable_grad():
            logits = model(images)
    finally:
        handle.remove()
    if int(classes.min()) < 0 or int(classes.max()) >= logits.shape[1]:
        raise ValueError(f"classes must be 0 to {logits.shape[1] - 1}, got {classes.tolist()}.")
    (gradient,) = torch.autograd.grad(logits.gather(1, classes[:, None]).sum(), kept[-1])
    found = (kept[-1].detach() * gradient).sum(dim=1)
    return _on_grid(model, found, images) if _is_sequence(model) else found, logits.detach()


def _is_sequence(model: Any) -> bool:
    return getattr(model, "_gcp", {}).get("layout") == "NLC"


def _on_grid(model: Any, found: Tensor, images: Tensor) -> Tensor:
    """Contributions of tokens `(B, N, 1)` as the grid `(B, h, w)` of the patches, which has the image's shape."""
    patches = found[:, model._gcp["prefix"] - model._gcp["skip"] :, 0]
    count, (height, width) = patches.shape[1], images.shape[-2:]
    rows = round((count * height / width) ** 0.5)
    if rows * round(rows * width / height) != count:
        raise ValueError(
            f"{type(model).__name__} has {count} patches, which form no grid of the shape of a {height}×{width} image, "
            "so there is no map of where it looks."
        )
    return patches.unflatten(1, (rows, -1))
