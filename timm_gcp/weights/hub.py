"""Upload weight folders to the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from timm_gcp.common.files import file_sha256
from timm_gcp.weights import cards, store
from timm_gcp.weights import catalog as table
from timm_gcp.weights.checkpoint import safetensors_metadata
from timm_gcp.weights.hub_errors import explain

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


def prepare(name: str, org: str | None = None, private: bool = False, licence: str | None = None) -> Upload:
    """Gather what a push of `name` would send.

    Args:
        name: `arch.tag` of a stored or bundled weight folder.
        org: Namespace on the Hub; default as `catalog.hub_id`.
        private: Create the repository private.
        licence: Licence of weights whose source states none, given by someone who has permission to publish them.

    Raises:
        FileNotFoundError: If there is no such weight folder on this machine.
        ValueError: If the weights are a third party's, without a licence.
    """
    store.check_name(name)
    folder = store.find(name)
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
    card = (folder / README).read_text(encoding="utf-8") if (folder / README).is_file() else ""
    if stated or not card:
        card = cards.card(name, metadata, stated)
    files: dict[str, bytes | Path] = {
        CONFIG: folder / CONFIG,
        store.WEIGHTS_FILE: folder / store.WEIGHTS_FILE,
        README: card.encode(),
    }
    return Upload(table.hub_id(name, org), private, f"Add {name}", files)


def push(upload: Upload, token: str | None = None) -> str:
    """Create the repository and commit the files; the address of the commit.

    Raises:
        RuntimeError: If the Hub refuses or cannot be reached.
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


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    return file_sha256(content)
