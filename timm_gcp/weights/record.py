"""The model record: all that a checkpoint says of its model, as plain values, each checked.

Which architecture with which arguments, how images are prepared, the classes in order, and how it was trained. Where a
record comes from is in `timm_gcp.weights.record_sources`. A file may come from anywhere, so nothing is taken from it
unchecked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from timm_gcp.common.messages import listed, one_line, printable
from timm_gcp.weights.allowed import LARGEST_IMAGE, MAPPINGS, is_number, not_listed, wrong_argument
from timm_gcp.weights.data_config import as_items, checked_data_config

KEY = "timm_gcp"  # attribute of a checkpoint's args, section of config.json
RECIPE_KEYS = ("opt", "sched", "lr", "epochs", "batch_size", "weight_decay", "seed")
# Arguments of `create_model` that name files or weights, which a checkpoint has no say in.
_FORBIDDEN = {"pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_model_args", "checkpoint_path",
              "cache_dir", "features_only", "scriptable", "exportable", "no_jit", "device", "dtype"}  # fmt: skip


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
        if key in MAPPINGS and isinstance(value, Mapping):
            model_args[key] = dict(value)
        else:
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
