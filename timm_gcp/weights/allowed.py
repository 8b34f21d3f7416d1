"""What a file may decide about the model that is built for it: a short list of arguments, each with its kind and range.

A checkpoint may come from anywhere. Arguments on the list are taken from it and checked; any other has to be given by
the one who loads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

LARGEST_IMAGE = 2048  # pixels a side that a file may ask for; options may ask for more


def is_number(value: Any, low: float = -1e6, high: float = 1e6) -> bool:
    """Whether `value` is a finite number, and no truth value, from `low` to `high`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return lambda value: type(value) is int and low <= value <= high, f"a whole number from {low:g} to {high:g}"


def _whole_or_list(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    def good(value: Any) -> bool:
        items = list(value) if isinstance(value, list | tuple) else [value]
        return 1 <= len(items) <= 8 and all(type(item) is int and low <= item <= high for item in items)

    return good, f"a whole number from {low:g} to {high:g}, or a list of them"


def _number(low: float, high: float) -> tuple[Callable[[Any], bool], str]:
    return lambda value: is_number(value, low, high), f"a number from {low:g} to {high:g}"


_WORD = (lambda value: isinstance(value, str) and re.fullmatch(r"[\w.-]{0,64}", value) is not None, "a plain word")
_FLAG = (lambda value: isinstance(value, bool), "true or false")


def _options(value: Any) -> bool:
    """A short mapping of names to numbers and truth values."""
    return (
        isinstance(value, dict)
        and len(value) <= 16
        and all(isinstance(name, str) and re.fullmatch(r"\w{1,64}", name) for name in value)
        and all(item is None or isinstance(item, bool) or is_number(item) for item in value.values())
    )


# Keyword of `timm.create_model`: whether a value is good, and what is.
ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_classes": _whole(0, 10**6),
    "in_chans": _whole(1, 1000),
    "reduce_dim": _whole_or_list(1, 4096),
    "n_iter": _whole(0, 1000),
    "normalization": _WORD,
    "exponent": _number(0, 10),
    "eps": _number(0, 1),
    "iteration_dtype": _WORD,
    "pool_kwargs": (_options, "a mapping of names to numbers, true or false"),
    "init": _WORD,
    "last_stage": _WORD,
    "global_pool": _WORD,
    "output_stride": _whole(1, 64),
    "pad_type": _WORD,
    "img_size": _whole_or_list(1, LARGEST_IMAGE),
    "bn_momentum": _number(0, 1),
    "bn_eps": _number(0, 1),
    "drop_rate": _number(0, 1),
    "drop_path_rate": _number(0, 1),
    "drop_block_rate": _number(0, 1),
    "act_layer": _WORD,
    "norm_layer": _WORD,
    "zero_init_last": _FLAG,
    "repeats": _whole_or_list(1, 64),
    "layers": _whole_or_list(1, 64),
    "channels": _whole_or_list(1, 8192),
    "stem_width": _whole(1, 512),
    "base_width": _whole(1, 1024),
    "cardinality": _whole(1, 512),
    "backbone": _WORD,
    "backbone_pool": _WORD,
    "head_act_layer": _WORD,
    "head_channels": _whole(1, 8192),
    "head_tokens": _WORD,
    "head_class_token": _WORD,
}


MAPPINGS = ("pool_kwargs",)  # arguments whose value is a mapping


def wrong_argument(key: str, value: Any) -> str:
    """What the argument `key` has to be if it is on the list and `value` is not that; else an empty string."""
    good, wanted = ARGUMENTS.get(key, (lambda _: True, ""))
    return "" if value is None or good(value) else wanted


def not_listed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not on the list."""
    return {key: value for key, value in arguments.items() if key not in ARGUMENTS}
