"""From a checkpoint file to a verified weight folder: read safely, rename, check, try, write."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import torch

from timm_gcp.common.files import file_sha256
from timm_gcp.weights import catalog as table
from timm_gcp.weights import store
from timm_gcp.weights.fit import covariance_width
from timm_gcp.weights.folder import as_list, compare, write_folder
from timm_gcp.weights.rebuild import OPTIONS, rebuild
from timm_gcp.weights.record import Record
from timm_gcp.weights.sanity import check_values, try_model
from timm_gcp.weights.source import find_checkpoint, read_source

_SUFFIXES = r"(\.(pth|pt|tar|bin|safetensors))+$"


@dataclass(frozen=True)
class Imported:
    """A weight folder and what was found in the file that it was made of."""

    name: str
    folder: Path
    layout: str
    triangle_order: str
    sha256: str
    notes: tuple[str, ...] = ()


def guess_name(path: str | Path) -> str:
    """`arch.tag` of one of the authors' files, told by its file name.

    Raises:
        ValueError: The file name is none of theirs.
    """
    stem = re.sub(_SUFFIXES, "", Path(path).name, flags=re.IGNORECASE)
    stem = re.sub(r"\s*\(\d+\)$", "", stem)  # as browsers name a second download
    for entry in table.WEIGHTS.values():
        if entry.source_name.lower() == stem.lower():
            return entry.name
    raise ValueError(
        f"{Path(path).name!r} is none of the authors' file names, so say which weights it holds: --as ARCH.TAG, "
        f"such as resnet50_gcp.norm_in1k. Architectures: {', '.join(table.ARCHITECTURES)}."
    )


def import_file(
    path: str | Path,
    name: str | None = None,
    *,
    use_ema: bool = False,
    triangle_order: str = "auto",
    replace: bool = False,
    model_args: Mapping[str, Any] | None = None,
    target: Path | None = None,
    label_names: list[str] | None = None,
    dtype: torch.dtype | None = None,
    data_config: Mapping[str, Any] | None = None,
    assume_preprocessing: bool = True,
    check: Callable[[Any, Any, Record], None] | None = None,
) -> Imported:
    """Make a verified weight folder of a checkpoint file.

    What was written is loaded again through timm before the folder appears, and has to give the checkpoint's logits.

    Args:
        path: The authors' `.pth.tar`, a state dict, a timm training checkpoint or its run's folder, fast-MPN-COV's
            files, safetensors.
        name: `arch.tag`; by default told by the file name.
        use_ema: Take the averaged weights of a training checkpoint.
        triangle_order: Order of the upper triangle in the classifier: `'auto'` finds out, `'row'` and `'column'` say.
        replace: Replace weights of that name.
        model_args: Further keywords of the model, such as `reduce_dim`; those of a training checkpoint are known.
        target: Folder to write; by default the one of that name in the local store.
        label_names: Names of the classes.
        dtype: Store parameters in this type, batch-norm statistics as they are; by default all as they are.
        data_config: Keys of timm's data configuration that override what the file says.
        assume_preprocessing: Take timm's defaults where nothing states the preprocessing, rather than refuse.
        check: Called with the checkpoint's model, the reloaded one and the record of both; may raise.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is unreadable or unsafe, belongs to another model, contradicts what was given, its
            weights are unusable, or the reloaded model answers otherwise.
        RuntimeError: The folder cannot be written.
    """
    if triangle_order not in table.ORDERS:
        raise ValueError(f"`triangle_order` must be one of {', '.join(table.ORDERS)}. Got {triangle_order!r}.")
    path = find_checkpoint(path)
    name = name or guess_name(path)
    arch, tag = store.check_name(name)
    if not timm.is_model(arch):
        raise ValueError(f"Unknown architecture {arch!r}. Here: {', '.join(table.ARCHITECTURES)}; or any of timm's.")
    target = target or store.stored_folder(name)
    store.check_target(target, replace)
    source = read_source(path, use_ema)
    entry = table.WEIGHTS.get(name)
    digest = file_sha256(path)
    if entry is not None and entry.sha256 not in (None, digest):
        raise ValueError(f"{path} is not the published file of {name}: its SHA-256 is {digest}, not {entry.sha256}.")
    _check_contradictions(source.record, arch, model_args or {}, path)
    rebuilt = rebuild(
        source, arch, model_args, data_config, triangle_order, entry.pretrained_cfg() if entry is not None else None
    )
    try:
        check_values(rebuilt.state_dict)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not rebuilt.record.full and not assume_preprocessing:
        raise ValueError(
            f"{path} does not state how its images were prepared, and a wrong guess costs accuracy in silence: give "
            f"{OPTIONS}."
        )
    model, record, layout = rebuilt.model, rebuilt.record, rebuilt.layout
    if label_names is not None:
        if len(label_names) != model.num_classes:
            raise ValueError(
                f"{len(label_names)} class names were given for the {model.num_classes} classes of {path}."
            )
        record = dataclasses.replace(record, label_names=tuple(label_names))
    _describe(model, record, tag, entry, layout)
    try_model(model, str(path))
    state_dict = rebuilt.state_dict if dtype is None else _cast(rebuilt.state_dict, dtype, path)
    width = covariance_width({key: tuple(tensor.shape) for key, tensor in state_dict.items()})
    metadata = {
        "format": "pt",
        "arch": arch,
        "tag": tag,
        "source": path.name,
        "source_sha256": digest,
        "layout": layout,
        "dimension": str(width or ""),
        "triangle_order": rebuilt.triangle_order,
        "timm_gcp_version": version("timm-gcp"),
    }
    if dtype is not None:
        model.load_state_dict(state_dict)  # rounded, as the folder's will be

    def fill(folder: Path) -> None:
        write_folder(folder, model, state_dict, metadata, record=record)
        compare(model, folder, path, record, check)

    store.add(target, fill, replace)
    return Imported(name, target, layout, rebuilt.triangle_order, digest, rebuilt.notes)


def _check_contradictions(record: Record, arch: str, given: Mapping[str, Any], path: Path) -> None:
    """Refuse to describe a checkpoint otherwise than it was trained: its weights would mean something else."""
    recorded = record.architecture.split(".")[0]
    if record.full and recorded != arch:
        raise ValueError(f"{path} holds weights of {recorded}, not of {arch}: name it {recorded}.TAG.")
    for key, value in given.items():
        there = {**record.unlisted, **record.model_args}.get(key, value)
        if as_list(there) != as_list(value):
            raise ValueError(f"{key}={value} was given, but {path} was trained with {key}={there}: drop it.")
        if record.full and key not in {**record.unlisted, **record.model_args}:
            raise ValueError(f"{key}={value} was given, but {path} was trained with the model's default: drop it.")


def _cast(state_dict: Mapping[str, torch.Tensor], dtype: torch.dtype, path: Path) -> dict[str, torch.Tensor]:
    """Parameters in `dtype`; batch-norm statistics, few and of a wide range, keep their own type."""
    cast = {
        key: tensor.to(dtype) if tensor.is_floating_point() and ".running_" not in f".{key}" else tensor
        for key, tensor in state_dict.items()
    }
    lost = [key for key, tensor in cast.items() if not tensor.isfinite().all()]
    if lost:
        raise ValueError(f"{path}: values of {lost[0]} are beyond the range of {dtype}. Store it in a wider type.")
    return cast


def _describe(model: Any, record: Record, tag: str, entry: table.Weights | None, layout: str) -> None:
    """Make the model's pretrained cfg that of these weights; the architecture's default describes others."""
    cfg = model.pretrained_cfg
    if entry is None:
        for key in ("license", "origin_url", "notes", "label_names", "label_descriptions", "description"):
            cfg.pop(key, None)
        if layout in table.THIRD_PARTY_LAYOUTS:
            cfg["notes"] = (table.NO_LICENCE,)
    config = record.data_config
    if tuple(cfg["input_size"]) != tuple(config["input_size"]):
        with torch.inference_mode():
            features = model.forward_features(torch.zeros(1, *config["input_size"]))
        cfg["pool_size"] = tuple(features.shape[-2:]) if features.ndim == 4 else None
    for key in ("test_input_size", "test_crop_pct"):
        cfg.pop(key, None)
    cfg.update(config, tag=tag, num_classes=model.num_classes)
