"""What `pretrained=True` means: the store or the package, else the Hub, else the authors' file, else one error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from timm.models._registry import get_pretrained_cfg

from timm_gcp.weights import catalog as table
from timm_gcp.weights import hub_errors, store
from timm_gcp.weights.checkpoint import read_checkpoint, safe_types
from timm_gcp.weights.container import check_file
from timm_gcp.weights.timm_cfgs import folder_cfg

_SOURCES = ("file", "state_dict", "url", "hf_hub_id")


@contextmanager
def weight_source(variant: str, pretrained: bool, kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Point timm at the weights that `pretrained=True` means; surround the call of `build_model_with_cfg` with it.

    A source that the caller names (`pretrained_cfg_overlay=dict(file=...)`, `local-dir:`, `hf-hub:`) is checked, then
    left alone. Otherwise: the local store or the package, else the Hub where the weights are published, else the
    authors' file, which is downloaded and imported into the store, else one error.
    Model arguments kept with the weights, such as `output_stride`, apply wherever their tag is named.

    Args:
        variant: Model name without tag.
        pretrained: Whether weights are wanted.
        kwargs: Keyword arguments for `build_model_with_cfg`; not modified.

    Yields:
        The keyword arguments to use instead.

    Raises:
        FileNotFoundError: There are no such weights; the text says where it looked and what gets them.
        ValueError: A file is not a weight file, or a download another one than before.
        RuntimeError: Neither the Hub nor the authors' file arrives.
    """
    kwargs = dict(kwargs)
    cfg = kwargs.get("pretrained_cfg")
    if not pretrained:
        folder = store.find(f"{variant}.{cfg}") if isinstance(cfg, str) and cfg else None
        if folder is not None:  # a tag names the model that its weights fit, with or without them
            _check_folder(folder, variant, False)
            kwargs = {**folder_cfg(folder)[1], **kwargs}
        yield kwargs
        return
    overlay = dict(kwargs.get("pretrained_cfg_overlay") or {})
    explicit = overlay if any(overlay.get(key) for key in _SOURCES) else _as_dict(cfg)
    name = ""
    if any(explicit.get(key) for key in _SOURCES):
        if explicit.get("file") and not explicit.get("state_dict"):
            _check_source(Path(explicit["file"]))
    else:
        tag = cfg if isinstance(cfg, str) and cfg else _default_tag(variant)
        name = f"{variant}.{tag}"
        on_the_hub = name in table.ON_THE_HUB or (
            name in table.WEIGHTS and bool(os.environ.get(table.HUB_ORG_VARIABLE))
        )
        folder = store.find(name)
        if folder is None and name in table.WEIGHTS and _may_download(name):
            on_the_hub, folder = _from_afar(name, on_the_hub)
        if folder is not None:
            _check_folder(folder, variant, True)
            stored, model_args = folder_cfg(folder)
            kwargs["pretrained_cfg"] = {**stored, "tag": tag}
            kwargs = {**model_args, **kwargs}
        elif on_the_hub:
            kwargs["pretrained_cfg_overlay"] = {**overlay, "hf_hub_id": table.hub_id(name)}
        else:
            raise FileNotFoundError(_not_found_text(name))
    try:
        with safe_types():
            yield kwargs
    except Exception as error:
        sources = (kwargs.get("pretrained_cfg_overlay"), kwargs.get("pretrained_cfg"))
        given = [str(value["file"]) for value in sources if isinstance(value, dict) and value.get("file")]
        if isinstance(error, ValueError) and given and given[0] not in str(error):
            raise ValueError(f"{given[0]}: {error}") from error
        source = (kwargs.get("pretrained_cfg_overlay") or {}).get("hf_hub_id") or _as_dict(cfg).get("hf_hub_id")
        text = hub_errors.explain(error, str(source)) if source else None
        if text is None:
            raise
        if name:
            text = _not_found_text(name, text)
        raise RuntimeError(text) from error


def _may_download(name: str) -> bool:
    from timm_gcp.weights.download import allowed  # not needed for `import timm_gcp`

    return allowed(name)


def _from_afar(name: str, on_the_hub: bool) -> tuple[bool, Path | None]:
    """Whether the Hub has the weights; if not, the folder that the store has of them once the authors' file is fetched.

    Raises:
        RuntimeError: The file does not arrive.
        ValueError: It is not usable.
    """
    from timm_gcp.weights.download import DownloadError
    from timm_gcp.weights.fetch import fetch_aloud
    from timm_gcp.weights.named import check_named

    answer = ""
    if on_the_hub:
        try:
            check_named(f"hf-hub:{table.hub_id(name)}", False)
            return True, None
        except (RuntimeError, ValueError) as error:
            answer = str(error)
            print(f"{name}: {answer} The authors' file is next.", file=sys.stderr)
    try:
        fetch_aloud(name)
    except DownloadError as error:
        raise RuntimeError(_not_found_text(name, answer, error.reason)) from error
    return False, store.find(name)


def _default_tag(variant: str) -> str:
    cfg = get_pretrained_cfg(variant)
    return (cfg.tag if cfg is not None else None) or table.DEFAULT_TAG


def _as_dict(cfg: Any) -> dict[str, Any]:
    """Fields of a pretrained cfg in any of the forms that timm takes; a tag has none."""
    if isinstance(cfg, dict):
        return cfg
    return dict(vars(cfg)) if hasattr(cfg, "hf_hub_id") else {}


def _check_folder(folder: Path, variant: str, weights: bool) -> None:
    """Look at a stored folder before timm does: its configuration, whose model it holds and, if wanted, its weights."""
    from timm_gcp.weights.named import check_named  # not needed for `import timm_gcp`

    record = check_named(f"local-dir:{folder}", weights)
    if record is not None and record.architecture.split(".")[0] != variant:
        raise ValueError(f"{folder} holds weights of {record.architecture}, not of {variant}: rename the folder.")


def _check_source(path: Path) -> None:
    """Look at a file, or at the weights in a folder, before timm does."""
    from timm_gcp.weights.named import weights_in

    file = weights_in(path) if path.is_dir() else path
    if check_file(file) == "torch":
        read_checkpoint(file)


def _not_found_text(name: str, hub_answer: str = "", download: str = "") -> str:
    """The one error of `pretrained=True`: what is missing, where it was looked for, the commands that get it."""
    arch = name.split(".")[0]
    entry = table.WEIGHTS.get(name)
    if entry is None:
        known = [
            other
            for other in (*table.WEIGHTS, *table.bundled_names(), *store.stored_names())
            if other.startswith(arch + ".")
        ]
        return (
            f"No weights are called {name}. Looked in {store.stored_folder(name)} and in the package. "
            f"Known for {arch}: {', '.join(dict.fromkeys(known)) or 'none'}. "
            f"A checkpoint of your own: `timm-gcp weights import PATH --as {name}`."
            + ("" if arch in table.OURS else " pretrained_backbone=True starts the backbone from its timm weights.")
        )
    hub_line = hub_answer or (
        f"{table.hub_id(name)} is not published; set {table.HUB_ORG_VARIABLE} to an organisation that has these weights"
    )
    return (
        f"No weights for {name} on this machine. Looked in {store.stored_folder(name)}, in the package, and on the Hub "
        f"({hub_line}). {download}{' ' if download else ''}Either of these gets them:\n"
        f"  timm-gcp weights fetch {name}\n"
        f"  timm-gcp weights import {entry.source_name}.pth.tar --as {name}   "
        f"(the authors' file: https://drive.google.com/open?id={entry.google_drive_id})\n"
        "TIMM_GCP_MIRROR=PLACE names a server or a folder that holds the authors' files. pretrained=False builds the "
        "model with random weights."
    )
