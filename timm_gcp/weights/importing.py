"""From a checkpoint file to a verified weight folder: read safely, rename, check, try, write."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from timm_gcp.common.files import file_sha256
from timm_gcp.weights import cards, layouts, store
from timm_gcp.weights import catalog as table
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.fit import CLASSIFIERS, covariance_width, fit
from timm_gcp.weights.sanity import check_values, try_model
from timm_gcp.weights.triangle_order import column_to_row, triangle_dim

ORDERS = ("auto", "row", "column")
_SUFFIXES = r"(\.(pth|pt|tar|bin|safetensors))+$"


@dataclass(frozen=True)
class Imported:
    """A weight folder and what was found in the file that it was made of."""

    name: str
    folder: Path
    layout: str
    triangle_order: str
    sha256: str


def guess_name(path: str | Path) -> str:
    """`arch.tag` of one of the authors' files, told by its file name.

    Raises:
        ValueError: If the file name is none of theirs.
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
) -> Imported:
    """Make a verified weight folder of a checkpoint file.

    Args:
        path: The authors' `.pth.tar`, a state dict, a timm training checkpoint, fast-MPN-COV's files, safetensors.
        name: `arch.tag`; by default told by the file name.
        use_ema: Take the averaged weights of a training checkpoint.
        triangle_order: Order of the upper triangle in the classifier: `'auto'` finds out, `'row'` and `'column'` say.
        replace: Replace weights of that name.
        model_args: Further keywords of the model, such as `reduce_dim`.
        target: Folder to write; by default the one of that name in the local store.
        label_names: Names of the classes.
        dtype: Store parameters in this type, batch-norm statistics as they are; by default all as they are.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is unreadable or unsafe, belongs to another model, or its weights are unusable.
        RuntimeError: If the folder cannot be written.
    """
    if triangle_order not in ORDERS:
        raise ValueError(f"`triangle_order` must be one of {', '.join(ORDERS)}. Got {triangle_order!r}.")
    path = Path(path)
    name = name or guess_name(path)
    arch, _ = store.check_name(name)
    target = target or store.stored_folder(name)
    if target.exists() and not replace:
        raise ValueError(f"{target} exists already. Add --force to replace it, or choose another name with --as.")
    checkpoint = read_checkpoint(path)
    entry = table.WEIGHTS.get(name)
    digest = file_sha256(path)
    if entry is not None and entry.sha256 not in (None, digest):
        raise ValueError(f"{path} is not the published file of {name}: its SHA-256 is {digest}, not {entry.sha256}.")
    try:
        unwrapped = layouts.unwrap(checkpoint, use_ema)
        layout = layouts.layout_of(unwrapped)
        state_dict, order = _in_row_order(layouts.rename(unwrapped), triangle_order)
        model = _empty_model(name, layout, state_dict, dict(model_args or {}))
        _take_preprocessing(model, checkpoint)
        state_dict = fit(state_dict, model)
        check_values(state_dict)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if dtype is not None:
        state_dict = _cast(state_dict, dtype, path)
    model.load_state_dict(state_dict, assign=True)
    try_model(model, str(path))
    width = covariance_width({key: tuple(tensor.shape) for key, tensor in state_dict.items()})
    metadata = {
        "format": "pt",
        "arch": arch,
        "tag": name.split(".", 1)[1],
        "source": path.name,
        "source_sha256": digest,
        "layout": layout,
        "dimension": str(width or ""),
        "triangle_order": order,
        "timm_gcp_version": _version(),
    }
    store.add(
        target, lambda folder: write_folder(folder, model, state_dict, metadata, label_names, model_args), replace
    )
    return Imported(name, target, layout, order, digest)


def write_folder(
    folder: Path,
    model: Any,
    state_dict: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    label_names: list[str] | None = None,
    model_args: Mapping[str, Any] | None = None,
) -> None:
    """Write `config.json` as timm does, `model.safetensors` with metadata, and the model card into `folder`."""
    from safetensors.torch import save_file
    from timm.models._hub import save_config_for_hf

    labels = {"label_names": label_names} if label_names else None
    config: Any = folder / "config.json"  # annotated as str, but older timm opens it as a path
    save_config_for_hf(model, config, model_config=labels, model_args=dict(model_args or {}))
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state_dict.items()}
    save_file(tensors, folder / store.WEIGHTS_FILE, metadata=dict(metadata))
    shutil.copymode(folder / "config.json", folder / store.WEIGHTS_FILE)  # safetensors writes for the owner alone
    name = f"{metadata['arch']}.{metadata['tag']}"
    (folder / "README.md").write_text(cards.card(name, metadata), encoding="utf-8")


def _in_row_order(state_dict: dict[str, torch.Tensor], order: str) -> tuple[dict[str, torch.Tensor], str]:
    """Convert the classifier to row order; what was found or said, for the metadata."""
    if order == "auto":
        return layouts.to_row_order(state_dict)
    head = next((f"{name}.weight" for name in CLASSIFIERS if f"{name}.weight" in state_dict), None)
    dim = triangle_dim(state_dict[head].shape[1]) if head else None
    if order == "column" and head is not None and dim is not None:
        return {**state_dict, head: state_dict[head][:, column_to_row(dim)]}, "column (converted, as told)"
    return state_dict, f"{order} (as told)"


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


def _empty_model(name: str, layout: str, state_dict: Mapping[str, torch.Tensor], model_args: dict[str, Any]) -> Any:
    """Model without storage, for as many classes and channels as the table says or, failing that, the weights have."""
    import timm

    arch, tag = store.check_name(name)
    if not timm.is_model(arch):
        raise ValueError(f"Unknown architecture {arch!r}. Here: {', '.join(table.ARCHITECTURES)}; or any of timm's.")
    entry = table.WEIGHTS.get(name)
    head = next((state_dict[f"{key}.weight"] for key in CLASSIFIERS if f"{key}.weight" in state_dict), None)
    stem = next((state_dict[f"{key}.weight"] for key in table.FIRST_CONVS if f"{key}.weight" in state_dict), None)
    if entry is not None:
        model_args.setdefault("num_classes", entry.num_classes)
    elif head is not None:
        model_args.setdefault("num_classes", len(head))
    if entry is None and stem is not None and stem.ndim == 4:
        model_args.setdefault("in_chans", stem.shape[1])
    with torch.device("meta"):
        model: Any = timm.create_model(arch, pretrained=False, **model_args).eval()
    cfg = model.pretrained_cfg
    if entry is not None:
        cfg.update(entry.pretrained_cfg())
    else:  # the architecture's default describes other weights
        for key in ("license", "origin_url", "notes", "label_names", "label_descriptions", "description"):
            cfg.pop(key, None)
        if layout in table.THIRD_PARTY_LAYOUTS:
            cfg["notes"] = (table.NO_LICENCE,)
    cfg.update(tag=tag, num_classes=model.num_classes)
    return model


def _take_preprocessing(model: Any, checkpoint: Mapping[str, Any]) -> None:
    """Image size, mean, … of a training checkpoint of timm, which carries the arguments of its run."""
    args = checkpoint.get("args")
    if isinstance(args, Namespace):
        from timm.data import resolve_data_config

        found = resolve_data_config(vars(args), model=model)
        keys = ("input_size", "interpolation", "mean", "std", "crop_pct")
        model.pretrained_cfg.update({key: found[key] for key in keys if key in found})
        with torch.inference_mode():
            features = model.forward_features(torch.zeros(1, *model.pretrained_cfg["input_size"], device="meta"))
        if features.ndim == 4:
            model.pretrained_cfg["pool_size"] = tuple(features.shape[-2:])


def _version() -> str:
    from importlib.metadata import version

    return version("timm-gcp")
