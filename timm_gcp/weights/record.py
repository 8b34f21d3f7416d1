"""The model record: all that a checkpoint says of its model, as plain values.

Which architecture with which arguments, how images are prepared, the classes in order, and how it was trained. Training
keeps it among the arguments in each checkpoint (`args.timm_gcp`); an exported folder has the same in `config.json`.
A file may come from anywhere, so nothing is taken from it unchecked.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import listed, one_line, printable
from timm_gcp.weights.allowed import LARGEST_IMAGE, is_number, not_listed, wrong_argument
from timm_gcp.weights.classes import names_in_order
from timm_gcp.weights.data_config import DATA_KEYS, as_items, checked_data_config

KEY = "timm_gcp"  # attribute of a checkpoint's args, section of config.json
RECIPE_KEYS = ("opt", "sched", "lr", "epochs", "batch_size", "weight_decay", "seed")
# Arguments of `create_model` that name files or weights, which a checkpoint has no say in.
_FORBIDDEN = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "checkpoint_path",
              "cache_dir", "features_only", "scriptable", "exportable", "no_jit", "device", "dtype"}  # fmt: skip
_FROM_ARGS = {"num_classes": "num_classes", "in_chans": "in_chans", "gp": "global_pool", "bn_momentum": "bn_momentum",
              "bn_eps": "bn_eps"}  # fmt: skip


@dataclass(frozen=True)
class Record:
    """What is known of a checkpoint's model; empty where nothing is.

    Attributes:
        architecture: timm's model name, without a tag in a full record.
        model_args: Keywords of `timm.create_model` that decide which function is computed.
        data_config: timm's data configuration, of `DATA_KEYS`.
        label_names: Classes in the order of the logits.
        label_descriptions: Longer names, by class name.
        class_map: Index of each class folder.
        dataset: timm's name of the data set; empty for an image folder.
        data_folder: Name of the folder that it was read from.
        recipe: Main settings of the training run.
        unlisted: Model arguments of a checkpoint that it can't decide by itself, see `weights.allowed`.
        metrics: What the checkpoint scored, by name.
        version: Version of this package that wrote it.
        origin: Where this was found, in words; empty where nothing was.
        full: Whether it is a record, in which nothing is left to defaults.
    """

    architecture: str = ""
    model_args: dict[str, Any] = field(default_factory=dict)
    data_config: dict[str, Any] = field(default_factory=dict)
    label_names: tuple[str, ...] | None = None
    label_descriptions: dict[str, str] | None = None
    class_map: dict[str, int] | None = None
    dataset: str = ""
    data_folder: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    unlisted: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    version: str = ""
    origin: str = ""
    full: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        values = {key: value for key, value in asdict(self).items() if key not in ("origin", "full", "unlisted")}
        return json.loads(json.dumps(values))  # type: ignore[no-any-return]

    @property
    def states_preprocessing(self) -> bool:
        """Whether size and normalisation of images are known."""
        return self.full or bool(self.origin)


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


def checked_record(
    values: Mapping[str, Any], where: str, origin: str, full: bool = True, stated: bool = False
) -> Record:
    """A record of untrusted values: known keys alone, each of its type and in range.

    Args:
        values: What was found.
        where: The file, for errors.
        origin: Where in it, in words.
        full: Whether nothing is left to defaults.
        stated: Whether a checkpoint says so of itself: model arguments that are on no list then stay out.

    Raises:
        ValueError: A value is out of range or of another type; names the file, the key and the value.
    """
    import timm

    def refuse(key: str, value: Any, wanted: str) -> ValueError:
        got = one_line(value, 80)
        return ValueError(
            f"{where}: {one_line(key, 80)} must be {wanted}, got {got!r}. Name it with an option instead."
        )

    name = values.get("architecture")
    if not isinstance(name, str) or re.fullmatch(r"\w+(\.[\w.-]+)?", name) is None:
        raise refuse("the model", name, "a plain name of timm's, such as resnet50_gcp")
    if not timm.is_model(name.split(".")[0]):
        raise refuse("the model", name, "one that timm knows (`timm.list_models()`)")
    for section in ("model_args", "data_config", "recipe", "metrics"):
        if not isinstance(values.get(section) or {}, Mapping):
            raise refuse(section, values[section], "a mapping")
    model_args = {}
    for key, value in dict(values.get("model_args") or {}).items():
        if not isinstance(key, str) or not key.isidentifier() or key in _FORBIDDEN:
            raise refuse("each model argument", key, "a keyword of the network itself")
        model_args[key] = _plain(value, lambda v, key=key: refuse(key, v, "a plain value"))  # type: ignore[misc]
        wanted = wrong_argument(key, model_args[key])
        if wanted:
            raise refuse(key, value, wanted)
    unlisted = not_listed(model_args) if stated else {}
    labels = values.get("label_names")
    if isinstance(labels, Mapping):
        labels = list(labels.values())
    if labels is not None and not all(isinstance(label, str) for label in as_items(labels)):
        raise refuse("label_names", labels, "a list of strings")
    if labels and model_args.get("num_classes") not in (None, len(labels)):
        raise refuse("label_names", listed(labels), f"{model_args['num_classes']} names, one a class")
    class_map = values.get("class_map")
    if class_map is not None and not _mapping_of(class_map, int):
        raise refuse("class_map", class_map, "a mapping of names to whole numbers")
    descriptions = values.get("label_descriptions")
    if descriptions is not None and not _mapping_of(descriptions, str):
        raise refuse("label_descriptions", descriptions, "a mapping of names to texts")
    return Record(
        architecture=name,
        model_args={key: value for key, value in model_args.items() if key not in unlisted},
        unlisted=unlisted,
        data_config=checked_data_config(
            {str(key): value for key, value in dict(values.get("data_config") or {}).items()}, where, LARGEST_IMAGE
        ),
        label_names=tuple(labels) if labels else None,
        label_descriptions=dict(descriptions) if descriptions else None,
        class_map=dict(class_map) if class_map else None,
        dataset=_text(values.get("dataset")),
        data_folder=_text(values.get("data_folder")),
        recipe={
            key: one_line(value) if isinstance(value, str) else value
            for key, value in dict(values.get("recipe") or {}).items()
            if key in RECIPE_KEYS and (isinstance(value, str) or is_number(value, -1e12, 1e12))
        },
        metrics={
            one_line(key): float(value)
            for key, value in dict(values.get("metrics") or {}).items()
            if is_number(value, -1e12, 1e12)
        },
        version=_text(values.get("version")),
        origin=origin,
        full=full,
    )


def _mapping_of(value: Any, kind: type) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and type(v) is kind for k, v in value.items())


def _text(value: Any) -> str:
    return printable(value)[:200] if isinstance(value, str) else ""


def _plain(value: Any, refused: Any, depth: int = 0) -> Any:
    """Strings, numbers, truth values and short lists of them; tuples become lists, as in JSON."""
    if value is None or isinstance(value, bool) or is_number(value, -1e12, 1e12):
        return value
    if isinstance(value, str) and len(value) <= 1000:
        return value
    if isinstance(value, list | tuple) and len(value) <= 1000 and depth < 3:
        return [_plain(item, refused, depth + 1) for item in value]
    raise refused(value)
