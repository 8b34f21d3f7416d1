"""Importing this module teaches timm's train.py our schedules and models: `device_modules: [timm_gcp.train_hook]`.

train.py imports the modules that `--device-modules` names before it builds anything, but has bound timm's scheduler
factory by then. `install` therefore puts the extended factory wherever the original is bound.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

from timm.scheduler import scheduler_factory

import timm_gcp  # noqa: F401  (registers the models)
from timm_gcp.schedules.scheduler import create
from timm_gcp.schedules.spec import is_ours

_NAME = "create_scheduler_v2"
_MARK = "_timm_gcp_original"


def install() -> None:
    """Let timm's `create_scheduler_v2` build the `gcp_…` schedules, wherever that name is bound already.

    Reaches timm's own modules, `__main__` (`python train.py`, `torchrun … train.py`), an imported `train`, and any
    other module that did `from timm.scheduler import create_scheduler_v2`. timm's schedules pass through untouched;
    calling again changes nothing.
    """
    current = getattr(scheduler_factory, _NAME)
    original = getattr(current, _MARK, None)
    extended = current if original is not None else _extend(current)
    original = original if original is not None else current
    for module in list(sys.modules.values()):
        # The dictionary itself, since attribute access may import lazily loaded modules.
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get(_NAME) is original:
            names[_NAME] = extended
            _warn_of_unread_keys(names)


def _warn_of_unread_keys(names: dict[str, Any]) -> None:
    """Name the recipe's keys that the training script has no option for: argparse takes them without a word.

    So a misspelt key, or distillation asked of a train.py that is too old for it, does not go unnoticed.
    """
    parser = names.get("parser")
    if isinstance(parser, argparse.ArgumentParser):
        known = {action.dest for action in parser._actions}
        unread = sorted(set(parser._defaults) - known)
        if unread:
            warnings.warn(f"{names.get('__name__')} has no option for {', '.join(unread)} of the recipe.", stacklevel=3)


def _extend(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_scheduler_v2(*args: Any, **kwargs: Any) -> Any:
        sched = kwargs["sched"] if "sched" in kwargs else args[1] if len(args) > 1 else None
        if sched is None or not is_ours(sched):
            return original(*args, **kwargs)
        return create(**signature.bind(*args, **kwargs).arguments)

    setattr(create_scheduler_v2, _MARK, original)
    return create_scheduler_v2


install()
