"""Where the pooling and the classifier of a timm CNN stand, and what lies between them.

timm's heads of feature maps differ, but have one pooling module (`SelectAdaptivePool2d`) and one classifier. The swap
replaces both where they are, so that the model's own forward code runs on, and turns what lies between them (a norm, a
flatten, a hidden convolution: layers for the pooled map that no longer exists) into identities.
"""

from __future__ import annotations

from timm.layers import SelectAdaptivePool2d
from torch import nn


def pool_path(model: nn.Module) -> str | None:
    """Where the global pooling of a model is; None where it has no module of its own."""
    found = [name for name, module in model.named_modules() if isinstance(module, SelectAdaptivePool2d)]
    return found[-1] if found else None


def classifier_path(model: nn.Module, pool: str) -> str:
    """Where the classifier behind a pooling is.

    Raises:
        ValueError: There is none, or more than one.
    """
    cfg = getattr(model, "pretrained_cfg", None) or {}
    named = cfg.get("classifier")
    scope = pool.rpartition(".")[0]
    names = [named] if isinstance(named, str) else list(named or ())
    names += [f"{scope}.{leaf}".lstrip(".") for leaf in ("fc", "classifier", "head", "last_linear")]
    modules = dict(model.named_modules())
    for name in names:
        if isinstance(modules.get(name), (nn.Linear, nn.Conv2d, nn.Identity)):
            return name
    raise ValueError(
        f"{type(model).__name__} has no single linear classifier (looked for {', '.join(names)}); "
        "create the model with one classifier head"
    )


def clear_between(model: nn.Module, pool: str, classifier: str) -> None:
    """Make identities of the layers between pooling and classifier; dropout stays."""
    scope_path = pool.rpartition(".")[0]
    scope = model.get_submodule(scope_path)
    names = [name for name, _ in scope.named_children()]
    inner = classifier[len(scope_path) :].lstrip(".").split(".")
    for name in names[names.index(pool.rpartition(".")[2]) + 1 :]:
        if name != inner[0] and not isinstance(getattr(scope, name), nn.Dropout):
            setattr(scope, name, nn.Identity())
    for depth in range(1, len(inner)):  # SHViT: a norm inside the classifier's own module
        part = scope.get_submodule(".".join(inner[:depth]))
        for name, module in list(part.named_children()):
            if name != inner[depth] and not isinstance(module, nn.Dropout):
                setattr(part, name, nn.Identity())
    if scope_path and isinstance(
        getattr(scope, "in_conv", None), nn.Module
    ):  # EfficientViT: widens the map to be pooled
        scope.in_conv = nn.Identity()
    if scope_path and isinstance(getattr(model, "pre_logits", None), nn.Module):  # VGG: convolutions before the pooling
        model.pre_logits = nn.Identity()


def set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
