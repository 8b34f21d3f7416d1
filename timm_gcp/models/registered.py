"""timm names for swaps: `register("convnext_tiny")` makes `timm.create_model("convnext_tiny_gcp")`.

A few that people fine-tune are registered on import. Nothing is built for that: their description is the base's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import split_model_name_tag
from timm.models._pretrained import DefaultCfg, PretrainedCfg
from torch import nn

from timm_gcp.models.gcp import register as register_entrypoint
from timm_gcp.models.gcp_model import OWN
from timm_gcp.models.swap_args import BACKBONE, ENTRY_POINT, PRETRAINED_BACKBONE
from timm_gcp.models.swapped import backbone_name, build_swap, cfg_of
from timm_gcp.weights.store import stored_folders
from timm_gcp.weights.timm_cfgs import cfgs_of

# Bases of the names registered on import, and whether the swap gives them a head of its own (tokens, NHWC).
READY = {
    "resnet50d": False,
    "resnext50_32x4d": False,
    "regnety_016": False,
    "efficientnet_b0": False,
    "tf_efficientnet_lite0": False,
    "convnext_tiny": False,
    "mobilenetv3_large_100": False,
    "mobilenetv4_conv_small": False,
    "vit_small_patch16_224": True,
    "deit_small_patch16_224": True,
    "swin_tiny_patch4_window7_224": True,
}

default_cfgs: dict[str, DefaultCfg] = {}
_bases: dict[str, tuple[str, dict[str, Any]]] = {}


def register(base: str, name: str | None = None, **options: Any) -> str:
    """Register a timm model with covariance pooling under a name of its own.

        timm_gcp.register("convnext_tiny", reduce_dim=128)
        model = timm.create_model("convnext_tiny_gcp", pretrained_backbone=True, num_classes=10)

    The new name takes what the base takes and the options of `gcp_swap`: `pretrained_backbone=True` starts the
    backbone from the base's timm weights, `pretrained=True` means weights with the covariance head.

    Args:
        base: timm name, with the tag whose weights and image preparation are meant, if another than timm's first.
        name: New name; by default the base's, without tag, and `_gcp`.
        **options: Defaults of the new name: options of `gcp_swap`, or arguments of the base.

    Returns:
        The new name.

    Raises:
        ValueError: A base that timm does not know or that can't be swapped, options that it does not take, or a name
            that is taken or is not a plain word.
    """
    base = backbone_name({BACKBONE: base})
    name = f"{split_model_name_tag(base)[0]}_gcp" if name is None else name
    if not isinstance(name, str) or re.fullmatch(r"\w+", name) is None:
        raise ValueError(f"name is {name!r}; give a plain word of letters, digits and _, such as {base}_gcp")
    if timm.is_model(name) and name not in default_cfgs:
        raise ValueError(f"{name!r} is a model already; give another name=")
    if refused := sorted({BACKBONE, "pretrained", PRETRAINED_BACKBONE} & set(options)):
        raise ValueError(f"{refused[0]} is no default of a registered name: give it to timm.create_model")
    _register(base, name, options, _classifier(base, options), stored_folders())
    return name


def base_of(name: str) -> tuple[str, dict[str, Any]] | None:
    """The timm model behind a registered name, and the options that it was registered with; None for another name."""
    return _bases.get(name)


def _classifier(base: str, options: dict[str, Any]) -> Any:
    """Where the classifiers of a swap are, seen on one without values; None where it can't be built so."""
    try:
        with torch.device("meta"):
            model: Any = timm.create_model(ENTRY_POINT, backbone=base, **options)
    except ValueError:
        raise
    except TypeError as error:
        raise ValueError(f"{base} can't be built with {options}: {error}") from error
    except Exception:  # such as a layer that looks at its own values
        return None
    return model.pretrained_cfg.get("classifier")


def _register(base: str, name: str, options: dict[str, Any], classifier: Any, stored: Mapping[str, Path]) -> None:
    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return build_swap(name, pretrained, {BACKBONE: base, **options, **kwargs})  # type: ignore[no-any-return]

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"{base} with global covariance pooling."
    cfg = {**cfg_of(base, name), **({"classifier": classifier} if classifier else {})}
    cfgs = {"": PretrainedCfg(**cfg), **cfgs_of(name, stored, passed_over=stored)}
    default_cfgs[name] = DefaultCfg(deque(cfgs), cfgs, any(one.has_weights for one in cfgs.values()))
    _bases[name] = (base, options)
    globals()[name] = entrypoint  # where pickle and timm's tools look for it
    register_entrypoint(entrypoint)


def _register_ready() -> None:
    stored = stored_folders()
    for base, own in READY.items():
        _register(base, f"{base}_gcp", {}, OWN[1] if own else None, stored)


_register_ready()
