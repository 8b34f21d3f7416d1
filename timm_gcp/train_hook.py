"""Importing this module teaches timm's train.py our schedules and models: `device_modules: [timm_gcp.train_hook]`.

train.py imports the modules that `--device-modules` names before it builds anything, but has bound timm's scheduler
factory by then. `install` therefore puts the extended factory wherever the original is bound, and likewise timm's
`create_model`, which then takes `model: gcp:NAME`: the timm model NAME with covariance pooling. The checkpoints of such
a run are completed, too: each gets the record of its model, with the classes of the data set that it was trained on.
train.py also takes `cuda` unless told otherwise: where there is none, and none was asked for, it gets the CPU. On a
CPU the process keeps the memory that it frees.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import timm.models
import timm.utils
import torch
from timm.data import dataset_factory
from timm.models import _factory
from timm.scheduler import scheduler_factory
from timm.utils import CheckpointSaver, unwrap_model

import timm_gcp.models  # noqa: F401  (registers them)
from timm_gcp.common.freed_memory import keep_freed_memory
from timm_gcp.schedules.scheduler import create
from timm_gcp.schedules.spec import is_ours
from timm_gcp.weights.classes import classes_of
from timm_gcp.weights.record import KEY
from timm_gcp.weights.record_sources import record_of, with_record
from timm_gcp.weights.swap_names import as_swap, plain_name

_NAME = "create_scheduler_v2"
_classes: dict[str, int] = {}  # of the training data set that was made last
_MARK = "_timm_gcp_original"


def install() -> None:
    """Let timm's `create_scheduler_v2` build the `gcp_…` schedules, wherever that name is bound already.

    Reaches timm's own modules, `__main__` (`python train.py`, `torchrun … train.py`), an imported `train`, and any
    other module that did `from timm.scheduler import create_scheduler_v2`. timm's schedules pass through untouched;
    calling again changes nothing.
    """
    for names in _replace(scheduler_factory, _NAME, _extend):
        _warn_of_unread_keys(names)
    _replace(dataset_factory, "create_dataset", _noting_classes)
    _replace(_factory, "create_model", _taking_swaps)
    _replace(_factory, "safe_model_name", _naming_swaps)
    if not hasattr(CheckpointSaver.__init__, _MARK):
        CheckpointSaver.__init__ = _completing(CheckpointSaver.__init__)  # type: ignore[method-assign]
    if not hasattr(timm.utils.init_distributed_device, _MARK):
        timm.utils.init_distributed_device = _or_cpu(timm.utils.init_distributed_device)


def _replace(home: Any, name: str, extend: Callable[..., Any]) -> list[dict[str, Any]]:
    """Put `extend(original)` wherever the function `name` of the module `home` is bound; the namespaces changed."""
    current = getattr(home, name)
    original = getattr(current, _MARK, None)
    extended = current if original is not None else extend(current)
    original = original if original is not None else current
    changed = []
    for module in list(sys.modules.values()):
        # The dictionary itself, since attribute access may import lazily loaded modules.
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get(name) is original:
            names[name] = extended
            changed.append(names)
    return changed


def _warn_of_unread_keys(names: dict[str, Any]) -> None:
    """Name the recipe's keys that the training script has no option for: argparse takes them silently.

    So a misspelt key, or distillation asked of a train.py that is too old for it, does not go unnoticed.
    """
    parser = names.get("parser")
    if isinstance(parser, argparse.ArgumentParser):
        known = {action.dest for action in parser._actions}
        unread = sorted(set(parser._defaults) - known)
        if unread:
            warnings.warn(f"{names.get('__name__')} has no option for {', '.join(unread)} of the recipe.", stacklevel=3)


def _or_cpu(original: Callable[[Any], torch.device]) -> Callable[[Any], torch.device]:
    """The function by which train.py makes its device; the default, `cuda`, becomes `cpu` where there is no CUDA.

    For a CPU the process is set up to keep the memory that it frees.
    """

    @functools.wraps(original)
    def init_distributed_device(args: Any) -> torch.device:
        asked = any(word.split("=")[0] == "--device" for word in sys.argv)
        if getattr(args, "device", None) == "cuda" and not asked and not torch.cuda.is_available():
            warnings.warn("torch sees no CUDA device: training on the CPU.", stacklevel=2)
            args.device = "cpu"
        device = original(args)
        if device.type == "cpu":
            keep_freed_memory()
        return device

    setattr(init_distributed_device, _MARK, original)
    return init_distributed_device


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


def _taking_swaps(original: Callable[..., Any]) -> Callable[..., Any]:
    """timm's `create_model`, which also takes `gcp:NAME`: the timm model NAME with covariance pooling."""

    @functools.wraps(original)
    def create_model(model_name: str, *args: Any, **kwargs: Any) -> Any:
        name, kwargs = as_swap(model_name, kwargs)
        return original(name, *args, **kwargs)

    setattr(create_model, _MARK, original)
    return create_model


def _naming_swaps(original: Callable[..., str]) -> Callable[..., str]:
    """timm's name of a run's folder, for `gcp:NAME` too."""

    @functools.wraps(original)
    def safe_model_name(model_name: str, *args: Any, **kwargs: Any) -> str:
        return original(plain_name(model_name), *args, **kwargs)

    setattr(safe_model_name, _MARK, original)
    return safe_model_name


def _noting_classes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_dataset(*args: Any, **kwargs: Any) -> Any:
        dataset = original(*args, **kwargs)
        if kwargs.get("is_training"):
            _classes.clear()
            _classes.update(classes_of(dataset))
        return dataset

    setattr(create_dataset, _MARK, original)
    return create_dataset


def _completing(original: Callable[..., None]) -> Callable[..., None]:
    """A constructor of timm's checkpoint saver whose run's arguments carry the model record."""

    @functools.wraps(original)
    def __init__(self: Any, model: Any, optimizer: Any, args: Any = None, *more: Any, **kwargs: Any) -> None:
        if isinstance(args, argparse.Namespace) and not hasattr(args, KEY):
            args = _completed(args, unwrap_model(model))
        original(self, model, optimizer, args, *more, **kwargs)

    setattr(__init__, _MARK, original)
    return __init__


def _completed(args: argparse.Namespace, model: Any) -> argparse.Namespace:
    from timm.data import resolve_data_config

    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if not hasattr(model, "pretrained_cfg"):
        return args
    try:
        config = {**resolve_data_config(vars(args), model=model), "crop_mode": "center"}  # as train.py validates
        return with_record(args, record_of(model, config, args, _classes))
    except (ValueError, KeyError, AssertionError, AttributeError) as error:
        warnings.warn(f"the checkpoints of this run won't say how to build their model: {error}", stacklevel=2)
        return args


install()
