"""Options of a pooling's own, given by name as `pool_kwargs`: one table says which pooling takes which."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from timm_gcp.common.messages import did_you_mean
from timm_gcp.ops.dropcov import DropCov
from timm_gcp.ops.normalization import describe_normalization
from timm_gcp.ops.sparse_inverse import Isice

POOL_OPTIONS: dict[str, type] = {"dropcov": DropCov, "isice": Isice}
_NAMES = {name: tuple(field.name for field in dataclasses.fields(kind)) for name, kind in POOL_OPTIONS.items()}


def option_names(normalization: Any, without: Collection[str] = ()) -> tuple[str, ...]:
    """What `pool_kwargs` may hold for `normalization`, but for the names in `without`."""
    known = _NAMES.get(normalization, ()) if isinstance(normalization, str) else ()
    return tuple(name for name in known if name not in without)


def check_names(described: str, pool_kwargs: Any, allowed: Collection[str]) -> dict[str, Any]:
    """`pool_kwargs` of the normalisation that is `described`, as a dictionary.

    Raises:
        ValueError: Not a mapping, or a name that is not among `allowed`; these are listed.
    """
    if pool_kwargs is None:
        return {}
    if not isinstance(pool_kwargs, Mapping):
        raise ValueError(f"pool_kwargs is {pool_kwargs!r}; give a mapping of names to values, such as {{'steps': 5}}")
    for name in pool_kwargs:
        if name not in allowed:
            choices = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            near = did_you_mean(str(name), allowed)
            raise ValueError(
                f"pool_kwargs has {name!r}, which normalization {described} does not know; {choices}.{near}"
            )
    return dict(pool_kwargs)


def pool_options(normalization: Any, pool_kwargs: Mapping[str, Any] | None) -> Any:
    """The options of `normalization` from `pool_kwargs`; None for one that has none.

    Raises:
        ValueError: A name that the pooling does not know, or a value out of range.
    """
    known = option_names(normalization)
    if not known and pool_kwargs is None:
        return None
    given = check_names(describe_normalization(normalization), pool_kwargs, known)
    return POOL_OPTIONS[normalization](**given) if known else None
