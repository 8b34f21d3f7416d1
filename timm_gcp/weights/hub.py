"""Upload weight folders to the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm_gcp.common.files import file_sha256
from timm_gcp.weights import cards, store
from timm_gcp.weights import catalog as table
from timm_gcp.weights.checkpoint import safetensors_metadata
from timm_gcp.weights.hub_errors import explain
from timm_gcp.weights.rebuild import rebuild
from timm_gcp.weights.record import KEY, Record
from timm_gcp.weights.record_sources import record_from_folder
from timm_gcp.weights.source import read_source

CONFIG, README = "config.json", "README.md"


@dataclass(frozen=True)
class Upload:
    """What a push sends: repository, visibility, commit message and, per file, its content or where it lies."""

    repo: str
    private: bool
    message: str
    files: dict[str, bytes | Path]

    def describe(self) -> str:
        """Every file with size and SHA-256, then the card in full."""
        lines = [
            f"repository  {self.repo} ({'private' if self.private else 'public'}, created if it does not exist)",
            f"commit      {self.message}",
        ]
        for name, content in self.files.items():
            size = len(content) if isinstance(content, bytes) else content.stat().st_size
            lines.append(f"file        {name}  {size:,} bytes  sha256 {_digest(content)}")
        card = self.files[README]
        text = card.decode() if isinstance(card, bytes) else card.read_text(encoding="utf-8")
        return "\n".join([*lines, "", text])


def prepare(
    name: str,
    org: str | None = None,
    private: bool = False,
    licence: str | None = None,
    folder: Path | None = None,
    data_config: Mapping[str, Any] | None = None,
    measured: tuple[float, float] | None = None,
) -> Upload:
    """Gather what a push of `name` would send.

    Args:
        name: `arch.tag` of a stored or bundled weight folder.
        org: Namespace on the Hub; default as `catalog.hub_id`.
        private: Create the repository private.
        licence: Licence of weights whose source states none, given by someone who has permission to publish them.
        folder: The weight folder, where it is not the one of that name on this machine.
        data_config: Keys of timm's data configuration, for a folder that had to assume them.
        measured: Top-1 and top-5 accuracy in % that were measured with weights of the table, for their card.

    Raises:
        FileNotFoundError: There is no such weight folder on this machine.
        ValueError: The weights are a third party's, without a licence, their preprocessing is not known, or the
            folder is broken.
    """
    store.check_name(name)
    folder = folder or store.find(name)
    if folder is None:
        known = ", ".join([*store.stored_names(), *table.bundled_names()]) or "none"
        raise FileNotFoundError(f"No weight folder {name} on this machine to upload. There: {known}.")
    metadata = safetensors_metadata(folder / store.WEIGHTS_FILE)
    entry = table.WEIGHTS.get(name)
    third_party = entry is not None or metadata.get("layout") in table.THIRD_PARTY_LAYOUTS
    stated = licence or (entry.licence if entry else None)
    if third_party and not stated:
        raise ValueError(
            f"{name} is not ours to publish. {entry.licence_note if entry else table.NO_LICENCE} With permission from "
            "the authors, say under which licence: --licence SPDX-ID."
        )
    record = record_from_folder(folder)
    rebuild(read_source(folder / store.WEIGHTS_FILE))  # the weights have to fit what the configuration says
    config: bytes | Path = folder / CONFIG
    if data_config:
        config, record = _with_data_config(folder / CONFIG, data_config)
    if not record.full:
        raise ValueError(
            f"{name} was imported from a file that doesn't state how its images were prepared; whoever loads it from "
            "the Hub would have to guess: give --data-config FILE, or --img-size, --mean and --std."
        )
    card = (folder / README).read_text(encoding="utf-8") if (folder / README).is_file() else ""
    repo = table.hub_id(name, org)
    if entry is None and name not in table.BUNDLED_WEIGHTS:
        card = cards.card(name, metadata, stated, record, repo)
    elif stated or not card:
        card = cards.card(name, metadata, stated, repo=repo if entry else "", measured=measured)
    files: dict[str, bytes | Path] = {
        CONFIG: config,
        store.WEIGHTS_FILE: folder / store.WEIGHTS_FILE,
        README: card.encode(),
    }
    return Upload(repo, private, f"Add {name}", files)


def _with_data_config(path: Path, given: Mapping[str, Any]) -> tuple[bytes, Record]:
    """A `config.json` with another data configuration, and the record that it then is."""
    config = json.loads(path.read_text(encoding="utf-8"))
    cfg, values = config["pretrained_cfg"], dict(given)
    if "img_size" in values:
        side = values.pop("img_size")
        values.setdefault("input_size", (cfg["input_size"][0], side, side))
    cfg.update({key: list(value) if isinstance(value, tuple) else value for key, value in values.items()})
    if {"input_size", "mean", "std"} <= set(values):
        config.setdefault(KEY, {})["preprocessing"] = "stated"
    text = json.dumps(config, indent=2).encode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CONFIG).write_bytes(text)
        return text, record_from_folder(Path(folder))


def push(upload: Upload, token: str | None = None) -> str:
    """Create the repository and commit the files; the address of the commit.

    Raises:
        RuntimeError: The Hub refuses or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(token=token, library_name="timm_gcp")
    operations = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=content if isinstance(content, bytes) else str(content))
        for name, content in upload.files.items()
    ]
    try:
        api.create_repo(upload.repo, private=upload.private, exist_ok=True)
        commit = api.create_commit(upload.repo, operations, commit_message=upload.message)
    except Exception as error:
        text = explain(error, upload.repo)
        if text is None:
            raise
        raise RuntimeError(f"{text} Nothing was published.") from error
    return str(commit.commit_url)


def published_digest(repo: str) -> str | None:
    """SHA-256 of the `model.safetensors` that a repository on the Hub has; None where there is none.

    Raises:
        RuntimeError: The Hub refuses or cannot be reached.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    try:
        return get_hf_file_metadata(hf_hub_url(repo, store.WEIGHTS_FILE)).etag  # of large files, the Hub's tag is that
    except (EntryNotFoundError, RepositoryNotFoundError):
        return None
    except Exception as error:
        text = explain(error, repo)
        if text is None:
            raise
        raise RuntimeError(text) from error


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return file_sha256(content)
