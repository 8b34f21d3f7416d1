"""The weight folder of a model: written as timm reads it, and compared with the model once it is loaded again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
import torch

from timm_gcp.weights import cards, store
from timm_gcp.weights.data_config import DATA_KEYS
from timm_gcp.weights.record import KEY, Record
from timm_gcp.weights.sanity import fixed_image


def compare(
    model: Any, folder: Path, path: Path, record: Record, check: Callable[[Any, Any, Record], None] | None = None
) -> None:
    """Load a weight folder through timm and compare its answers with those of the model that it was made of.

    Raises:
        ValueError: Logits, preprocessing or class names differ, or `check` says so.
    """
    from timm.data import resolve_data_config

    loaded: Any = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    found = resolve_data_config({}, model=loaded)
    different = [key for key in DATA_KEYS if as_list(found[key]) != as_list(record.data_config[key])]
    if different:
        raise ValueError(f"{path}: the reloaded model prepares images otherwise ({', '.join(different)}).")
    if record.label_names and list(loaded.pretrained_cfg.get("label_names") or ()) != list(record.label_names):
        raise ValueError(f"{path}: the reloaded model has lost the names of its classes.")
    image = fixed_image(record.data_config["input_size"])
    images = torch.cat([image, -image, image.flip(-1)])
    with torch.inference_mode():
        ours, theirs = model.float().eval()(images), loaded.float()(images)
    difference = (ours - theirs).abs().max().item()
    if not difference <= 1e-5 * max(1.0, ours.abs().max().item()):
        raise ValueError(f"{path}: the reloaded model gives other logits, by up to {difference:.3g}.")
    if check is not None:
        check(model, loaded, record)


def as_list(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return list(value) if isinstance(value, list | tuple) else value


def write_folder(
    folder: Path,
    model: Any,
    state_dict: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    label_names: list[str] | None = None,
    model_args: Mapping[str, Any] | None = None,
    record: Record | None = None,
) -> None:
    """Write `config.json` as timm does, `model.safetensors` with metadata, and the model card into `folder`.

    Args:
        folder: Where to.
        model: The model; its `pretrained_cfg` says how images are prepared, unless a record does.
        state_dict: Its weights.
        metadata: Metadata of the safetensors file.
        label_names: Names of the classes, unless a record has them.
        model_args: Keywords of the model beyond those that timm has noted on it.
        record: What is known of the model.
    """
    from safetensors.torch import save_file
    from timm.models._hub import save_config_for_hf

    labels: dict[str, Any] = {"label_names": label_names} if label_names else {}
    arguments = dict(model_args or {})
    if record is not None:
        arguments = {**record.model_args, **arguments}
        labels = {"label_names": list(record.label_names)} if record.label_names else {}
        if record.label_descriptions:
            labels["label_descriptions"] = record.label_descriptions
        kept = ("class_map", "dataset", "data_folder", "recipe", "metrics", "version")
        labels[KEY] = {key: value for key, value in record.plain().items() if key in kept and value}
        labels[KEY]["preprocessing"] = "stated" if record.full else "assumed"
    config: Any = folder / "config.json"  # annotated as str, but older timm opens it as a path
    data = dict(record.data_config) if record is not None else None
    save_config_for_hf(model, config, model_config=labels, model_args=arguments, data_config=data)
    _state_classes_once(config)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state_dict.items()}
    save_file(tensors, folder / store.WEIGHTS_FILE, metadata=dict(metadata))
    shutil.copymode(folder / "config.json", folder / store.WEIGHTS_FILE)  # safetensors writes for the owner alone
    name = f"{metadata['arch']}.{metadata['tag']}"
    (folder / "README.md").write_text(cards.card(name, metadata, record=record), encoding="utf-8")


def _state_classes_once(path: Path) -> None:
    """Leave the number of classes out of config.json's `model_args`: transformers passes it on beside them."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if config.get("model_args", {}).pop("num_classes", None) is not None:
        path.write_text(json.dumps(config, indent=2), encoding="utf-8")
