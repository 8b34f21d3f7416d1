"""Strict check of a state dict in this package's names against a model: one error that lists all that is wrong."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from timm_gcp.common.messages import listed

CLASSIFIERS = ("fc", "classifier")
_HEAD = (*CLASSIFIERS, "conv_head", "bn2")  # the latter two end timm's MobileNetV2; its feature extractor has neither
REDUCTION = "global_pool.reduction."


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COUNTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def check_kind(name: object, tensor: torch.Tensor) -> None:
    """Refuse a tensor of a type that no weights are kept in: complex, quantized, sparse, 8-bit floats.

    Raises:
        ValueError: Another type; names the entry and its type.
    """
    if tensor.is_quantized or tensor.layout != torch.strided or tensor.dtype not in (*_FLOATS, *_COUNTS):
        kind = str(tensor.dtype if tensor.layout == torch.strided else tensor.layout).removeprefix("torch.")
        raise ValueError(
            f"The entry {str(name)[:200]!r} is of type {kind}. Weights are dense and of type float32, float16, "
            "bfloat16 or float64: convert them before saving."
        )


def load_whole(model: nn.Module, state_dict: Mapping[str, torch.Tensor], source: object) -> None:
    """Load a state dict in the model's own names, all of it and nothing else, in place.

    Raises:
        ValueError: Anything is missing, foreign, wrongly sized or wrongly typed; names `source` and every such entry.
    """
    wanted = model.state_dict()
    problems = _problems(
        [name for name in wanted if name not in state_dict],
        [name for name in state_dict if name not in wanted],
        [_sized(name, tensor, wanted[name]) for name, tensor in state_dict.items()
         if name in wanted and tensor.shape != wanted[name].shape],
        _typed(state_dict, wanted),
    )  # fmt: skip
    if problems:
        raise ValueError(
            f"{source}: the weights do not fit {_describe(model)}. {problems}. Name the model, with its arguments, "
            "that the file was trained with."
        )
    model.load_state_dict(state_dict)


def _problems(missing: list[str], foreign: list[str], sized: list[str], typed: list[str]) -> str:
    kinds = (("missing", missing), ("foreign", foreign), ("wrongly sized", sized), ("wrongly typed", typed))
    return "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds if names)


def _sized(name: str, given: torch.Tensor, wanted: torch.Tensor) -> str:
    return f"{name} is {tuple(given.shape)}, the model has {tuple(wanted.shape)}"


def _typed(given: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """Integers in the place of weights, such as a quantized file has without its scales."""
    return [
        f"{name} is {str(tensor.dtype).removeprefix('torch.')}, the model has "
        f"{str(wanted[name].dtype).removeprefix('torch.')}"
        for name, tensor in given.items()
        if name in wanted and wanted[name].is_floating_point() and not tensor.is_floating_point()
    ]


def fit(state_dict: Mapping[str, torch.Tensor], model: nn.Module) -> dict[str, torch.Tensor]:
    """Check a state dict in our names against `model`, name by name and size by size.

    Dropped: what a model without classifier (`num_classes=0`, `features_only`) lacks of the head. Added: batch
    counters, which checkpoints older than PyTorch 0.4.1 lack. Left to timm, which adapts them: the classifier where
    the model is built for another number of classes, the first convolution where it takes other channels.

    Raises:
        ValueError: An entry is missing, foreign, wrongly sized or wrongly typed; lists them all.
    """
    own = model.state_dict()
    wanted = {name: tuple(tensor.shape) for name, tensor in own.items()}
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
    problems = _problems(missing, foreign, sized, _typed(given, own))
    if problems:
        raise ValueError(f"The weights do not fit {_describe(model)}. {problems}.{_remedy(given, wanted, model)}")
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
