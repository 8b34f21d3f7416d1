"""Strict check of a state dict in this package's names against a model: one error that lists all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from timm_gcp.common.messages import listed

CLASSIFIERS = ("fc", "classifier")
_HEAD = (*CLASSIFIERS, "conv_head", "bn2")  # the latter two end timm's MobileNetV2; its feature extractor has neither
REDUCTION = "global_pool.reduction."


def fit(state_dict: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    """Check a state dict in our names against `model`, name by name and size by size.

    Dropped: what a model without classifier (`num_classes=0`, `features_only`) lacks of the head. Added: batch
    counters, which checkpoints older than PyTorch 0.4.1 lack. Left to timm, which adapts them: the classifier where
    the model is built for another number of classes, the first convolution where it takes other channels.

    Raises:
        ValueError: Listing every missing, foreign and wrongly sized entry.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    headless = not any(f"{name}.weight" in wanted for name in CLASSIFIERS)
    reduces = any(name.startswith(REDUCTION) for name in wanted)
    given = dict(state_dict)
    if headless:
        dropped = set(_HEAD) - {name.split(".")[0] for name in wanted}
        given = {name: tensor for name, tensor in given.items() if name.split(".")[0] not in dropped}
        if not reduces:
            given = {name: tensor for name, tensor in given.items() if not name.startswith(REDUCTION)}
    for name in wanted:
        if name.endswith(".num_batches_tracked") and name not in given:
            given[name] = torch.tensor(0)
    cfg = getattr(model, "pretrained_cfg", None) or {}
    new_head = getattr(model, "num_classes", None) != cfg.get("num_classes", 1000)
    missing = [name for name in wanted if name not in given and not (new_head and name.split(".")[0] in CLASSIFIERS)]
    foreign = [name for name in given if name not in wanted]
    sized = [
        f"{name} is {tuple(tensor.shape)}, the model has {wanted[name]}"
        for name, tensor in given.items()
        if name in wanted and not _fits(name, tuple(tensor.shape), wanted[name], model)
    ]
    if missing or foreign or sized:
        problems = [f"{kind}: {listed(names)}" for kind, names in
                    (("missing", missing), ("foreign", foreign), ("wrongly sized", sized)) if names]  # fmt: skip
        raise ValueError(
            f"The weights do not fit {_describe(model)}. {'; '.join(problems)}.{_remedy(given, wanted, model)}"
        )
    return given


def _fits(name: str, given: tuple[int, ...], wanted: tuple[int, ...], model: nn.Module) -> bool:
    """Whether a tensor of shape `given` can become the model's tensor of shape `wanted`, timm's adaptation included."""
    if given == wanted:
        return True
    if len(given) != len(wanted):
        return False
    cfg = getattr(model, "pretrained_cfg", None) or {}
    if name == f"{cfg.get('first_conv')}.weight":
        return given[0] == wanted[0] and given[2:] == wanted[2:]
    if name.split(".")[0] in CLASSIFIERS:
        return given[1:] == wanted[1:] and wanted[0] != cfg.get("num_classes", 1000)
    return False


def _remedy(given: Mapping[str, torch.Tensor], wanted: Mapping[str, tuple[int, ...]], model: nn.Module) -> str:
    """What to do about the commonest mismatches, or an empty string."""
    theirs = covariance_width({name: tuple(tensor.shape) for name, tensor in given.items()})
    ours = covariance_width(wanted)
    if theirs is None and ours is not None:
        return " The file has no covariance head: it may belong to the GAP model of this architecture."
    if theirs is not None and ours is None:
        return " The file has a covariance head: it belongs to a *_gcp model."
    if theirs != ours:
        return (
            f" The file's covariance is {theirs} wide, the model's {ours}: create the model with reduce_dim={theirs}."
        )
    for name in (f"{classifier}.bias" for classifier in CLASSIFIERS):
        if name in given and name in wanted and tuple(given[name].shape) != wanted[name]:
            classes = len(given[name])
            return (
                f" The file has {classes} classes: pass num_classes={classes} to create_model, or, to start a new "
                f"classifier from it, add num_classes={classes} to pretrained_cfg_overlay."
            )
    return ""


def covariance_width(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """D of the last reduction step, None without one."""
    steps = sorted(name for name in shapes if name.startswith(REDUCTION) and name.endswith(".conv.weight"))
    return shapes[steps[-1]][0] if steps else None


def _describe(model: nn.Module) -> str:
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return str(cfg.get("architecture") or type(model).__name__)
