"""timm's pretrained cfgs: of one weight folder, and of all weights that are known when the models are registered."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from timm.models._hub import load_model_config_from_path
from timm.models._pretrained import DefaultCfg, PretrainedCfg

from timm_gcp.weights import catalog as table


def folder_cfg(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pretrained cfg of a weight folder, its weights named as `file`, and the model arguments that its model needs.

    Raises:
        FileNotFoundError: The folder has no `config.json`.
    """
    cfg, arch, model_args = load_model_config_from_path(folder)
    known = {key: tuple(value) if isinstance(value, list) else value for key, value in cfg.items()}
    known = {
        key: value for key, value in known.items() if key in PretrainedCfg.__dataclass_fields__ and key != "source"
    }
    return {**known, "architecture": arch, "file": str(folder / "model.safetensors")}, model_args


def default_cfgs(stored: Mapping[str, Path] | None = None) -> dict[str, DefaultCfg]:
    """timm's default cfgs of every architecture registered here: arch -> DefaultCfg with one cfg per tag.

    `catalog.DEFAULT_TAG` comes first, which makes it the default. Bundled and stored weights come with their file, so
    that `timm.list_pretrained` names them; the others have no source of their own: `timm_gcp.weights.resolve` finds
    them when `pretrained=True` asks for them.

    Args:
        stored: Weight folders of the local store, by `arch.tag`. One that can't be read is passed over: loading it
            says what is wrong.
    """
    defaults = {}
    stored = stored or {}
    folders = {**{name: table.BUNDLED / name for name in table.bundled_names()}, **stored}
    for arch in table.OURS:
        cfgs = {}
        for entry in (entry for entry in table.WEIGHTS.values() if entry.arch == arch):
            repo = table.hub_id(entry.name, table.HUB_ORG) if entry.name in table.ON_THE_HUB else None
            cfgs[entry.tag] = PretrainedCfg(**entry.pretrained_cfg(), hf_hub_id=repo)
        cfgs.update(cfgs_of(arch, folders, passed_over=stored))
        tags = sorted(cfgs, key=lambda tag: tag != table.DEFAULT_TAG)  # stable: the others keep the table's order
        defaults[arch] = DefaultCfg(deque(tags), cfgs, any(cfg.has_weights for cfg in cfgs.values()))
    return defaults


def cfgs_of(arch: str, folders: Mapping[str, Path], passed_over: Iterable[str]) -> dict[str, PretrainedCfg]:
    """timm's cfgs of the weight folders of one architecture, by tag.

    Args:
        arch: Its name.
        folders: Weight folders, by `arch.tag`.
        passed_over: Those among them that are left out where they can't be read, rather than raised of.
    """
    found = {}
    for name, folder in folders.items():
        if name.startswith(f"{arch}."):
            try:
                found[name.removeprefix(f"{arch}.")] = PretrainedCfg(**folder_cfg(folder)[0])
            except (OSError, ValueError, KeyError, TypeError):
                if name not in passed_over:
                    raise
    return found
