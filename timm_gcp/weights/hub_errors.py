"""Say plainly why the Hub did not deliver."""

from __future__ import annotations

from typing import Any

from timm_gcp.common.messages import one_line

# Class, anywhere in the chain of causes -> what it means, from the most telling to the most general. The Hub's own
# are classes of huggingface_hub.errors; those of the HTTP library beneath, which differs by release, go by their names.
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
    "HFValidationError": "{repo!r} is not a name of a repository ({detail}). Write ORG/NAME or ORG/NAME@REVISION.",
    "HfHubHTTPError": "The Hub refused the request for {repo}: {detail}. Check the name and the token (`hf auth "
    "login`), or try again later.",
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
    for name, text in _MEANING.items():
        for link in chain:
            if _is(link, name):
                return text.format(repo=repo, detail=_first_line(link))
    for link in chain:
        if isinstance(link, OSError) and "Consistency check failed" in str(link):
            return f"{repo} did not arrive whole ({_first_line(link)}). Try again."
    return None


def _is(error: BaseException, name: str) -> bool:
    from huggingface_hub import errors

    known = getattr(errors, name, None)
    if known is not None:
        return isinstance(error, known)
    return any(cls.__name__ == name for cls in type(error).__mro__)


def _first_line(error: Any) -> str:
    return one_line(str(error).strip().split("\n")[0] or type(error).__name__)
