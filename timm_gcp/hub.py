"""Upload weight folders to the Hugging Face Hub, and say plainly why the Hub did not deliver."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm_gcp import cards, store
from timm_gcp import pretrained as table
from timm_gcp.safe_load import safetensors_metadata

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
        org: Namespace on the Hub; default as `pretrained.hub_id`.
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


# Class name, anywhere in the chain of causes -> what it means. By name: the clients of the last years share the names
# but not the modules, nor the HTTP library beneath.
_MEANING = {
    "OfflineModeIsEnabled": "{repo} is not in the local cache, and HF_HUB_OFFLINE forbids asking the Hub. Load it once "
    "online, or unset HF_HUB_OFFLINE.",
    "GatedRepoError": "Access to {repo} has to be asked for on its page.",
    "RepositoryNotFoundError": "The Hub has no repository {repo}, or it is private and no token was given "
    "(`hf auth login`). Check the name.",
    "RevisionNotFoundError": "The repository {repo} has no such revision. Check what follows the @.",
    "RemoteEntryNotFoundError": "The repository {repo} lacks the weights: no model.safetensors and no "
    "pytorch_model.bin. It is not a weight folder, or its upload is incomplete.",
    "SafetensorError": "The weights of {repo} in the local cache are cut short or damaged ({detail}). Expected a whole "
    "model.safetensors: remove the repository from the cache (`hf cache rm model/{repo}`) and load again.",
    "RemoteProtocolError": "The Hub broke off in the middle of {repo} ({detail}). Try again: what has arrived is kept.",
    "IncompleteRead": "The Hub broke off in the middle of {repo} ({detail}). Try again: what has arrived is kept.",
    "ConnectError": "The Hub could not be reached for {repo} ({detail}). Check the network, the proxy and HF_ENDPOINT.",
    "ConnectTimeout": "The Hub did not answer for {repo} in time. Check the network, the proxy and HF_ENDPOINT.",
    "ReadTimeout": "The Hub did not answer for {repo} in time. Try again.",
    "ReadError": "The connection to the Hub broke while {repo} was read. Try again: what has arrived is kept.",
    "ConnectionError": "The Hub could not be reached for {repo} ({detail}). Check the network and HF_ENDPOINT.",
    "HfHubHTTPError": "The Hub refused the request for {repo}: {detail}.",
    "LocalEntryNotFoundError": "{repo} is not in the local cache, and the Hub could not be reached. Check the network, "
    "the proxy and HF_ENDPOINT.",
    "EntryNotFoundError": "The repository {repo} lacks the weights: no model.safetensors and no pytorch_model.bin. It "
    "is not a weight folder, or its upload is incomplete.",
}


def explain(error: BaseException, repo: str) -> str | None:
    """What an error of the Hub's client means for `repo`, and the remedy; None for an error that is not the Hub's."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for name, text in _MEANING.items():  # from the most telling to the most general
        for link in chain:
            if any(cls.__name__ == name for cls in type(link).__mro__):
                return text.format(repo=repo, detail=_first_line(link))
    for link in chain:
        if isinstance(link, OSError) and "Consistency check failed" in str(link):
            return f"{repo} did not arrive whole ({_first_line(link)}). Try again."
    return None


def _first_line(error: Any) -> str:
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200].rstrip(".")


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    from timm_gcp.weight_import import file_sha256

    return file_sha256(content)
