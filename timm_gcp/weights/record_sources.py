"""Where a model record comes from: a model that was just trained, a checkpoint's arguments, a weight folder.

Training keeps the record among the arguments in each checkpoint (`args.timm_gcp`); an exported folder has the same in
`config.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import one_line
from timm_gcp.weights.classes import names_in_order
from timm_gcp.weights.data_config import DATA_KEYS, as_items
from timm_gcp.weights.record import KEY, RECIPE_KEYS, Record, checked_record

_FROM_ARGS = {"num_classes": "num_classes", "in_chans": "in_chans", "gp": "global_pool", "bn_momentum": "bn_momentum",
              "bn_eps": "bn_eps"}  # fmt: skip


def record_of(
    model: Any,
    data_config: Mapping[str, Any],
    args: argparse.Namespace | None = None,
    class_map: Mapping[Any, int] | None = None,
    label_names: Sequence[str] | None = None,
) -> Record:
    """The record of a model that timm made.

    Args:
        model: As `timm.create_model` returns it.
        data_config: How its images are prepared.
        args: Settings of its training run.
        class_map: Index of each class, as the data set's reader has it.
        label_names: Names in order, where the class map doesn't give them.

    Raises:
        ValueError: The model has arguments that are not plain values, or nothing says its name.
    """
    settings = vars(args) if args is not None else {}
    model_args = _model_args(model, settings)
    names = {str(key): int(value) for key, value in (class_map or {}).items()}
    labels = tuple(label_names) if label_names else names_in_order(names, int(model.num_classes))
    values = {
        "architecture": _architecture(model, settings),
        "model_args": model_args,
        "data_config": {key: data_config[key] for key in DATA_KEYS if key in data_config},
        "label_names": labels,
        "label_descriptions": None,
        "class_map": names or None,
        "dataset": settings.get("dataset") or "",
        "data_folder": _folder_name(settings.get("data_dir")),
        "recipe": {key: settings[key] for key in RECIPE_KEYS if settings.get(key) is not None},
        "version": version("timm-gcp"),
    }
    return checked_record(values, "the model", "")


def _architecture(model: Any, settings: Mapping[str, Any]) -> str:
    """Name of a model: as timm noted it, else, for one that was registered without timm's builder, as the run asked."""
    noted = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    name = noted or str(settings.get("model") or "").split(".")[0]
    if not name:
        raise ValueError(f"{type(model).__name__} doesn't say its name: make it with timm.create_model.")
    return str(name)


def _folder_name(path: Any) -> str:
    return Path(path).name if isinstance(path, str) else ""


def _model_args(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a model as timm has noted them on it; before timm 1.0.31, which does not, as the run gave them."""
    import timm.models

    asked = {name: settings[key] for key, name in _FROM_ARGS.items() if settings.get(key) not in (None, "")}
    noted = getattr(timm.models, "get_model_args", None)
    if noted is not None and getattr(model, "_model_args", None):
        return {**{key: asked[key] for key in ("bn_momentum", "bn_eps") if key in asked}, **noted(model)}
    if settings.get("input_size"):
        asked.setdefault("in_chans", settings["input_size"][0])
    found = {**getattr(model, "_model_args", {}), **(settings.get("model_kwargs") or {}), **asked}
    if hasattr(model, "num_classes"):
        found["num_classes"] = int(model.num_classes)
    return {key: value for key, value in found.items() if value is not None}


def with_record(args: argparse.Namespace, record: Record) -> argparse.Namespace:
    """A copy of a run's arguments that carries the record into its checkpoints."""
    return argparse.Namespace(**{**vars(args), KEY: record.plain()})


def record_from_args(args: Mapping[str, Any], where: str) -> Record:
    """What the arguments of a training run say, the record among them if they hold one.

    Raises:
        ValueError: A value that would be used has a type or range that it can't have.
    """
    held = args.get(KEY)
    if isinstance(held, Mapping):
        return checked_record(held, where, "the record in the checkpoint", stated=True)
    model_args = {name: args[key] for key, name in _FROM_ARGS.items() if args.get(key) not in (None, "")}
    kwargs = args.get("model_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise ValueError(f"{where}: model_kwargs must be a mapping, got {kwargs!r}.")
    data = {key: args[key] for key in DATA_KEYS if args.get(key) not in (None, "")}
    if "input_size" in data:
        model_args.setdefault("in_chans", next(iter(as_items(data["input_size"])), None))
    elif args.get("img_size") is not None:
        data["img_size"] = args["img_size"]
    if args.get("model") in (None, ""):
        return Record()
    values = {
        "architecture": args["model"],
        "model_args": {**model_args, **{str(key): value for key, value in kwargs.items()}},
        "data_config": data,
        "dataset": args.get("dataset") or "",
        "data_folder": _folder_name(args.get("data_dir")),
        "recipe": {key: args[key] for key in RECIPE_KEYS if isinstance(args.get(key), str | int | float)},
    }
    return checked_record(values, where, "the arguments of its training run", full=False, stated=True)


def record_from_folder(folder: Path) -> Record:
    """What the `config.json` of a weight folder says.

    Raises:
        ValueError: It is not JSON, or a value has a type or range that it can't have.
    """
    path = folder / "config.json"
    foreign = f"{path} is not the configuration of a timm model:"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{foreign} it is no JSON ({one_line(error)}). Download or export it again.") from error
    except OSError as error:
        raise FileNotFoundError(f"{path} can't be read ({one_line(error)}): name a weight folder.") from error
    if not isinstance(config, dict):
        raise ValueError(f"{foreign} it holds a {type(config).__name__}, not an object. Download or export it again.")
    cfg = config.get("pretrained_cfg", config)  # older folders have all in one object
    own = config.get(KEY)
    for key, value in (("pretrained_cfg", cfg), ("model_args", config.get("model_args")), (KEY, own)):
        if not isinstance(value, dict | None) or (key == "pretrained_cfg" and value is None):
            raise ValueError(f"{foreign} {key} must be an object, got {one_line(value, 80)!r}. Export it again.")
    if not isinstance(config.get("architecture"), str):
        raise ValueError(f"{foreign} it names no architecture. Download or export it again.")
    values = {
        **(own or {}),
        "architecture": config["architecture"],
        "model_args": {
            "num_classes": config.get("num_classes", cfg.get("num_classes")),
            **(config.get("model_args") or {}),
        },
        "data_config": {key: cfg[key] for key in DATA_KEYS if cfg.get(key) is not None},
        "label_names": config.get("label_names", cfg.get("label_names")),
        "label_descriptions": config.get("label_descriptions", cfg.get("label_descriptions")),
    }
    assumed = (own or {}).get("preprocessing") == "assumed"
    return checked_record(values, str(path), "" if assumed else "config.json", full=not assumed)
