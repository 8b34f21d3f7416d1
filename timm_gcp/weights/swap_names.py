"""`gcp:NAME`: the timm model NAME with covariance pooling, as commands, recipes and train.py's `model:` take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "gcp:"
SWAP = "gcp_swap"  # the registered model that makes it
BACKBONE = "backbone"


def as_swap(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """`gcp:NAME` and its arguments as a registered model and the arguments of that; other names as they are.

    Raises:
        ValueError: Nothing follows the colon, or another backbone is among the arguments.
    """
    if not name.startswith(PREFIX):
        return name, dict(arguments)
    backbone = name.removeprefix(PREFIX)
    if not backbone:
        raise ValueError(f"{name!r} names no model: give {PREFIX}NAME with a name of timm's, such as gcp:convnext_tiny")
    if arguments.get(BACKBONE) not in (None, backbone):
        raise ValueError(f"{name} and backbone={arguments[BACKBONE]} name two backbones: give one of them")
    return SWAP, {**arguments, BACKBONE: backbone}


def plain_name(name: str) -> str:
    """A model's name without a colon, for timm's functions that make the names of folders: `gcp_NAME` of `gcp:NAME`."""
    return f"gcp_{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name


def pooled_name(name: str) -> str:
    """The timm model behind one with covariance pooling: `NAME` of `gcp:NAME`, `NAME_gcp`, `NAME_gcp_d128`."""
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else name.split("_gcp")[0]
