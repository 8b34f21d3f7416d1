"""State dicts of other code bases in this package's names: pure dict -> dict, and a strict check against a model.

Understood, whatever wraps them (`state_dict`/`state_dict_ema`/`model` containers, `module.`/`_orig_mod.` prefixes):

- this package's own names, which are timm's plus `global_pool.reduction.{i}.{conv,bn}.*`: left as they are
- the authors' release: torchvision's names plus `layer_reduce*` (ResNet) or `dimension_reduction.*` (MobileNetV2,
  ShuffleNetV2), and its GAP twins in plain torchvision names
- fast-MPN-COV: `features.{i}.*`, `representation.conv_dr_block.*`, `classifier.*`, and its bare `mpncovresnet*` files

`checkpoint_filter_fn` is what timm calls on every load (`pretrained=True`, `file`, `local-dir:`, `hf-hub:`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from timm_gcp.common.messages import listed
from timm_gcp.weights.fit import CLASSIFIERS, REDUCTION, check_kind, fit
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.triangle_order import column_to_row, triangle_dim, triangle_order

_logger = logging.getLogger(__name__)

CONTAINERS = ("state_dict", "model")
EMA_CONTAINERS = ("state_dict_ema", "model_ema")
WRAPPERS = {"module", "_orig_mod"}

# Blocks per stage of MobileNetV2 (Sandler et al. 2018, Table 2): torchvision counts blocks through, timm per stage.
_MOBILENETV2_REPEATS = (1, 2, 3, 4, 3, 3, 1)
_MOBILENETV2_STARTS = (0, *accumulate(_MOBILENETV2_REPEATS))
# Position inside torchvision's block -> timm's name; the first block has no expansion.
_MOBILENETV2_FIRST = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}
_MOBILENETV2_BLOCK = {"0.0": "conv_pw", "0.1": "bn1", "1.0": "conv_dw", "1.1": "bn2", "2": "conv_pwl", "3": "bn3"}
_MOBILENETV2_OUTER = {
    "features.0.0": "conv_stem",
    "features.0.1": "bn1",
    f"features.{_MOBILENETV2_STARTS[-1] + 1}.0": "conv_head",
    f"features.{_MOBILENETV2_STARTS[-1] + 1}.1": "bn2",
    "classifier.1": "classifier",
}
# fast-MPN-COV numbers the children of a ResNet: stem convolution, its norm, activation, pool, four stages and, when it
# was built from its own pretrained model, the reduction.
_FAST_MPN_COV = {
    "features.0": "conv1",
    "features.1": "bn1",
    "features.4": "layer1",
    "features.5": "layer2",
    "features.6": "layer3",
    "features.7": "layer4",
    "features.8": REDUCTION + "0.conv",
    "features.9": REDUCTION + "0.bn",
    "representation.conv_dr_block.0": REDUCTION + "0.conv",
    "representation.conv_dr_block.1": REDUCTION + "0.bn",
    "classifier": "fc",
}
_REDUCTION = {
    "layer_reduce": REDUCTION + "0.conv",
    "layer_reduce_bn": REDUCTION + "0.bn",
    "dimension_reduction.0": REDUCTION + "0.conv",
    "dimension_reduction.1": REDUCTION + "0.bn",
}


def unwrap(checkpoint: Mapping[str, Any], use_ema: bool = False) -> dict[str, torch.Tensor]:
    """State dict inside a checkpoint, without the prefixes of DistributedDataParallel and torch.compile.

    Args:
        checkpoint: A state dict, or a training checkpoint that holds one (`state_dict`, `model`).
        use_ema: Take the averaged weights (`state_dict_ema`, `model_ema`).

    Raises:
        ValueError: Averaged weights are asked for and absent, an entry is not a tensor or of a type that
            no weights have, or two names become one.
    """
    first, second = (EMA_CONTAINERS, CONTAINERS) if use_ema else (CONTAINERS, EMA_CONTAINERS)
    held = [name for name in first if isinstance(checkpoint.get(name), Mapping)]
    if use_ema and not held:
        raise ValueError(
            f"The checkpoint holds no averaged (EMA) weights: none of {', '.join(EMA_CONTAINERS)} among its entries "
            f"{listed(checkpoint)}. Load it without asking for EMA."
        )
    held += [name for name in second if isinstance(checkpoint.get(name), Mapping)]
    if held:
        return unwrap(checkpoint[held[0]])
    state_dict: dict[str, torch.Tensor] = {}
    for key, value in checkpoint.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"A state dict maps names to tensors. Entry {str(key)[:200]!r} is of type {type(value).__name__}; a "
                f"training checkpoint keeps its weights under one of {', '.join(CONTAINERS + EMA_CONTAINERS)}."
            )
        check_kind(key, value)
        name = ".".join(part for part in str(key).split(".") if part not in WRAPPERS)
        if name in state_dict:
            raise ValueError(f"Two entries of the checkpoint are called {name!r} once wrapper prefixes are removed.")
        state_dict[name] = value
    return state_dict


def layout_of(names: Iterable[str]) -> str:
    """Which code base names its tensors so: `'mobilenetv2'`, `'fast-mpn-cov'`, `'authors'` or `'timm'` (ours)."""
    names = set(names)
    if "features.0.0.weight" in names:
        return "mobilenetv2"
    if "features.0.weight" in names:
        return "fast-mpn-cov"
    return "authors" if any(name.startswith(("layer_reduce", "dimension_reduction.")) for name in names) else "timm"


def rename(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Same tensors under this package's names; a name that no known layout has stays as it is.

    Raises:
        ValueError: Two entries end up under one name.
    """
    convert = _RENAMERS[layout_of(state_dict)]
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        new = convert(name)
        if new in renamed:
            raise ValueError(f"Two entries of the checkpoint mean the same tensor, {new!r}; {name!r} is one of them.")
        renamed[new] = tensor
    return renamed


def to_row_order(state_dict: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], str]:
    """Bring the classifier of a GCP state dict (our names) into row-major triangle order.

    Returns:
        The state dict and what was found: `'row'`, `'column (converted)'`, `'row (assumed)'` where the classifier shows
        no structure, `''` where there is no GCP classifier.
    """
    state_dict = dict(state_dict)
    head = next((f"{name}.weight" for name in CLASSIFIERS if f"{name}.weight" in state_dict), None)
    if head is None or not any(name.startswith(REDUCTION) for name in state_dict):
        return state_dict, ""
    weight = state_dict[head]
    dim = triangle_dim(weight.shape[1]) if weight.ndim == 2 else None
    if dim is None:  # not a triangle: the check against the model says so
        return state_dict, ""
    order, certain = triangle_order(weight)
    if order == "column":
        state_dict[head] = weight[:, column_to_row(dim)]
        return state_dict, "column (converted)"
    return state_dict, "row" if certain else "row (assumed)"


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, torch.Tensor]:
    """Weights of any understood layout, ready for `model.load_state_dict` (the signature that timm expects).

    Raises:
        ValueError: Anything is missing, foreign, wrongly sized or not finite; all of it is listed.
    """
    unwrapped = unwrap(state_dict)
    converted = rename(unwrapped)
    if layout_of(unwrapped) != "timm":
        converted, order = to_row_order(converted)
        if order.startswith("column"):
            _logger.warning("The classifier was trained with the column-major triangle order; converted to row-major.")
    fitted = fit(converted, model)
    check_values(fitted, positive=False)
    _declare_classes(fitted, model)
    return fitted


def _declare_classes(state_dict: Mapping[str, torch.Tensor], model: nn.Module) -> None:
    """Tell timm how many classes the file has.

    timm compares the model's classes with those of the pretrained cfg. For a file of another class count (an overlay
    `dict(file=...)` over a 1000-class cfg) it would discard a classifier that fits and leave a random one in its place.
    """
    cfg = getattr(model, "pretrained_cfg", None)
    classes = getattr(model, "num_classes", 0)
    fits = any(name in state_dict and len(state_dict[name]) == classes for name in ("fc.bias", "classifier.bias"))
    if fits and isinstance(cfg, dict):
        cfg["num_classes"] = classes


def _swap_prefix(name: str, table: Mapping[str, str]) -> str:
    """Replace the longest dotted prefix of `name` that `table` has."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in table:
            return ".".join([table[prefix], *parts[length:]])
    return name


def _from_mobilenetv2(name: str) -> str:
    found = re.fullmatch(r"features\.(\d+)\.conv\.([\d.]+)\.(\w+)", name)
    if found is None:
        return _swap_prefix(name, {**_MOBILENETV2_OUTER, **_REDUCTION})
    block, position, leaf = int(found[1]) - 1, found[2], found[3]
    positions = _MOBILENETV2_FIRST if block == 0 else _MOBILENETV2_BLOCK
    if position not in positions or not 0 <= block < _MOBILENETV2_STARTS[-1]:
        return name
    stage = next(s for s, start in enumerate(_MOBILENETV2_STARTS[1:]) if block < start)
    return f"blocks.{stage}.{block - _MOBILENETV2_STARTS[stage]}.{positions[position]}.{leaf}"


_RENAMERS: dict[str, Callable[[str], str]] = {
    "mobilenetv2": _from_mobilenetv2,
    "fast-mpn-cov": lambda name: _swap_prefix(name, _FAST_MPN_COV),
    "authors": lambda name: _swap_prefix(name, _REDUCTION),
    "timm": lambda name: name,
}
