"""Build the very model and image transform that a checkpoint was trained with: one function for every command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from timm_gcp.common.data_config import for_channels
from timm_gcp.common.messages import one_line
from timm_gcp.weights import layouts
from timm_gcp.weights.allowed import ARGUMENTS
from timm_gcp.weights.architectures import ARCHITECTURES
from timm_gcp.weights.catalog import ORDERS
from timm_gcp.weights.data_config import DATA_KEYS, checked_data_config, describe
from timm_gcp.weights.fit import CLASSIFIERS, REDUCTION, fit
from timm_gcp.weights.named import blueprint, create
from timm_gcp.weights.record import Record
from timm_gcp.weights.record_sources import record_of
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.source import Source
from timm_gcp.weights.triangle_order import column_to_row, triangle_dim

OPTIONS = "--data-config FILE, or --img-size, --mean, --std, --interpolation and --crop-pct"


@dataclass(frozen=True)
class Rebuilt:
    """A model with the weights of a checkpoint.

    Attributes:
        model: In evaluation mode, float32, on the CPU.
        record: Its full record; `origin` is empty where preprocessing had to be assumed.
        state_dict: Its tensors as they were in the file, in the model's names.
        layout: Whose names the file had.
        triangle_order: What is known of the order of the classifier's inputs.
        notes: What was overridden or assumed, a sentence each.
    """

    model: Any
    record: Record
    state_dict: dict[str, Tensor]
    layout: str
    triangle_order: str
    notes: tuple[str, ...]


def rebuild(
    source: Source,
    name: str = "",
    model_args: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    triangle_order: str = "auto",
    default_cfg: Mapping[str, Any] | None = None,
) -> Rebuilt:
    """Build the model of a checkpoint with its weights, and say how its images are to be prepared.

    Args:
        source: The checkpoint.
        name: Model to build; by default the one that the checkpoint names.
        model_args: Arguments of the model that override the checkpoint's.
        data: Keys of the data configuration (or `img_size`) that override the checkpoint's.
        triangle_order: Order of the classifier's inputs in the file: `'auto'` finds out, `'row'` and `'column'` say.
        default_cfg: What is known of these weights otherwise, as a timm pretrained cfg.

    Raises:
        ValueError: Another `triangle_order`, no model or an unknown one named, arguments that contradict the
            weights, or weights that don't fit.
    """
    if triangle_order not in ORDERS:
        raise ValueError(f"`triangle_order` must be one of {', '.join(ORDERS)}. Got {triangle_order!r}.")
    record, path = source.record, str(source.path)
    given = {key: value for key, value in (model_args or {}).items() if value is not None}
    data = checked_data_config({key: value for key, value in (data or {}).items() if value is not None}, "option")
    if not name and not record.architecture:
        raise ValueError(f"which model? Give --model NAME ({path} names none).")
    architecture = record.architecture if not name or _same(name, record.architecture) else name
    bare = architecture.split(".")[0]
    try:
        tensors, layout, order = _renamed(source, bare, triangle_order)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    _check_listed(record, given, path)
    stated = {"num_classes": (default_cfg or {}).get("num_classes"), **record.model_args}
    sizes = _sizes(tensors, architecture)
    _check_sizes(given, sizes, path)
    arguments = {**sizes, **{key: value for key, value in stated.items() if value is not None}, **given}
    try:
        check_values(tensors, positive=False)
        described = blueprint(architecture, arguments)
        if described is not None:  # before any memory is taken
            _fitted(tensors, described, default_cfg)
        model = create(architecture, False, arguments)
        fitted = _fitted(tensors, model, default_cfg)
        model.load_state_dict(fitted)
    except (ValueError, RuntimeError) as error:
        text = one_line(error, 2000) + "."
        raise ValueError(text if path in text else f"{path}: {text}") from error
    if model.num_classes < 1:
        raise ValueError(f"{path} holds no classifier (0 classes): name the checkpoint of one that has classes.")
    if record.label_names and len(record.label_names) != model.num_classes:
        raise ValueError(
            f"{path} names {len(record.label_names)} classes, but its classifier has {model.num_classes}: give the "
            "checkpoint as it was written, or correct its names."
        )
    notes = _overridden(record.model_args, given)
    if name and record.architecture and architecture != record.architecture:
        notes.append(f"model {name} in place of {record.architecture}")
    config = _data_config(record.data_config, data, model, arguments)
    notes += _overridden(_comparable(record.data_config), _comparable(data))
    texts = [f"overridden: {', '.join(notes)}"] if notes else []
    if record.origin.startswith("the "):
        texts.insert(0, _taken(record, architecture, path))
    known = record.states_preprocessing or default_cfg is not None or {"mean", "std"} <= set(data)
    if not known:
        texts.append(
            f"{path} states no preprocessing: taking {describe(config)}, timm's defaults for {bare}; {OPTIONS} say "
            "otherwise"
        )
    full = record_of(model, config, label_names=_labels(record, model))
    full = replace(
        full,
        **{key: getattr(record, key) for key in ("class_map", "dataset", "data_folder", "recipe")},
        label_descriptions=record.label_descriptions,
        version=record.version or full.version,
        metrics={} if notes else record.metrics,  # measured without the overrides
        origin=(record.origin or "options") if known else "",
        full=known,
    )
    return Rebuilt(model.eval(), full, fitted, layout, order, tuple(texts))


def _fitted(tensors: Mapping[str, Tensor], model: Any, default_cfg: Mapping[str, Any] | None) -> dict[str, Tensor]:
    """The weights as `model` takes them; its pretrained cfg then describes them."""
    model.pretrained_cfg.update({**(default_cfg or {}), "num_classes": model.num_classes})
    return fit(tensors, model)


def _check_listed(record: Record, given: Mapping[str, Any], path: str) -> None:
    """Refuse what a checkpoint asks of its model beyond the list, unless it was given by hand too."""
    extra = [key for key in record.unlisted if key not in given]
    if extra:
        value = one_line(record.unlisted[extra[0]], 80)
        raise ValueError(
            f"{path} asks for the model argument {extra[0]}={value}, which a checkpoint can't decide by itself (it may "
            f"say {', '.join(ARGUMENTS)}). If you trust it, give --model-kwargs {extra[0]}={value}."
        )


def _taken(record: Record, architecture: str, path: str) -> str:
    """What the checkpoint says of its own model, in a sentence."""
    said = [f"{key} {_text(value)}" for key, value in {**record.model_args, **_comparable(record.data_config)}.items()]
    return f"{path}: {', '.join([architecture, *said])}, by {record.origin}"


def _same(name: str, recorded: str) -> bool:
    return name == recorded or name.split(".")[0] == recorded


def _renamed(source: Source, architecture: str, order: str) -> tuple[dict[str, Tensor], str, str]:
    """Tensors in the model's names and the classifier in row order; the file's naming and order, as found or told."""
    known = architecture in ARCHITECTURES
    layout = layouts.layout_of(source.state_dict) if known else "timm"
    tensors = layouts.rename(source.state_dict) if known else dict(source.state_dict)
    if order == "auto" and source.record.full:
        order = "row"  # written by this package
        return tensors, layout, order if any(key.startswith(REDUCTION) for key in tensors) else ""
    if order == "auto":
        tensors, order = layouts.to_row_order(tensors)
        return tensors, layout, order
    head = next((f"{name}.weight" for name in CLASSIFIERS if f"{name}.weight" in tensors), None)
    dim = triangle_dim(tensors[head].shape[1]) if head else None
    if order == "column" and head is not None and dim is not None:
        return {**tensors, head: tensors[head][:, column_to_row(dim)]}, layout, "column (converted, as told)"
    return tensors, layout, f"{order} (as told)"


def _sizes(tensors: Mapping[str, Tensor], architecture: str) -> dict[str, int]:
    """Classes and channels that the tensors of the classifier and of the first convolution have."""
    import timm

    cfg: Any = timm.get_pretrained_cfg(architecture.split(".")[0]) if ":" not in architecture else None
    found = {}
    for key, attribute, axis in (("num_classes", "classifier", 0), ("in_chans", "first_conv", 1)):
        layer = getattr(cfg, attribute, None)
        weight = tensors.get(f"{layer}.weight") if isinstance(layer, str) else None
        if weight is not None and weight.ndim > axis:
            found[key] = int(weight.shape[axis])
    return found


def _check_sizes(given: Mapping[str, Any], sizes: Mapping[str, int], path: str) -> None:
    for key, what in (("num_classes", "classes"), ("in_chans", "image channels")):
        if key in given and key in sizes and given[key] != sizes[key]:
            option = key.replace("_", "-")
            raise ValueError(
                f"--{option} {given[key]} was given, but the weights in {path} are for {sizes[key]} {what}: drop it."
            )


def _data_config(
    stated: Mapping[str, Any], given: Mapping[str, Any], model: Any, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    settings = {**stated, **given}
    if "img_size" in given and "input_size" not in given:
        settings.pop("input_size", None)
    return resolve_data(settings, model, arguments.get("in_chans"))


def resolve_data(settings: Mapping[str, Any], model: Any, channels: int | None = None) -> dict[str, Any]:
    """timm's data configuration for a model; statistics of another number of channels are averaged where timm's own.

    Args:
        settings: Keys of the configuration, or `img_size`, that are known.
        model: The model, for the rest.
        channels: Image channels, where the model's configuration doesn't say.

    Raises:
        ValueError: A mean or standard deviation was given for another number of channels.
    """
    from timm.data import resolve_data_config

    channels = channels or getattr(model, "in_chans", None) or model.pretrained_cfg["input_size"][0]
    for key in ("mean", "std"):
        values = settings.get(key)
        if values is not None and len(values) not in (1, channels):
            raise ValueError(f"{key} has {len(values)} values for {channels} image channels: give one per channel.")
    values = {key: value for key, value in settings.items() if value is not None}
    config = resolve_data_config({**values, "in_chans": channels}, model=model)
    config = for_channels(config, channels)
    config.update({key: tuple(config[key]) for key in ("mean", "std")})
    return {key: config[key] for key in DATA_KEYS}


def _comparable(data: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes under one name, as pixels."""
    found = {key: value for key, value in data.items() if key not in ("input_size", "img_size")}
    if "input_size" in data:
        found["img_size"] = max(data["input_size"][1:])
    if "img_size" in data:
        found["img_size"] = data["img_size"]
    return found


def _overridden(stated: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} {_text(given[key])} in place of {_text(stated[key])}"
        for key in given
        if key in stated and _text(given[key]) != _text(stated[key])
    ]


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _labels(record: Record, model: Any) -> tuple[str, ...] | None:
    names = record.label_names
    return names if names and len(names) == model.num_classes else None
