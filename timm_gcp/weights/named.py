"""A model by its name as timm takes it (`arch.tag`, `local-dir:PATH`, `hf-hub:ID`), checked before timm reads it.

A weight folder or repository may come from anywhere: its configuration, its file and the size of the model that it asks
for are looked at first, its values afterwards, and what goes wrong is said in one sentence with the name.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from timm_gcp.common.messages import one_line
from timm_gcp.weights.architectures import STOCK
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.container import check_file, read_header
from timm_gcp.weights.hub_errors import explain
from timm_gcp.weights.layouts import unwrap
from timm_gcp.weights.record import Record
from timm_gcp.weights.record_sources import record_from_folder
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.store import find
from timm_gcp.weights.swap_names import as_swap

_IN_A_FOLDER = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")  # in timm's order
_SMALL = 1_000_000  # numbers that a model may have whatever its file holds
_ENDINGS = (".safetensors", ".pth", ".pth.tar", ".bin")
_SOURCES = ("local-dir:", "hf-hub:", "hf_hub:")


def create(name: str, pretrained: bool, arguments: Mapping[str, Any]) -> Any:
    """timm's model of that name; weights kept here under the name of a model that timm registers are found, too.

    Raises:
        FileNotFoundError: A folder without configuration or weights, or weights that are not on this machine.
        ValueError: An unknown name, arguments that the model doesn't take, or a broken or foreign folder or file.
        RuntimeError: The Hub does not deliver.
    """
    from timm.models import create_model

    name = kept_folder(name)
    check_named(name, pretrained)
    built, arguments = as_swap(name, arguments)
    try:
        model = create_model(built, pretrained=pretrained, **arguments)
    except ImportError:
        raise
    except Exception as error:
        told = _explained(error, name, pretrained, arguments)
        if told is error:
            raise
        raise told from error
    if pretrained:
        check_model(model, name)
    return model


def kept_folder(name: str) -> str:
    """`arch.tag` of a model that timm itself registers as `local-dir:`, where the store or the package has its weights.

    timm knows no such tag, and there is no entry point here that would point it to them. Other names stay as they are.
    """
    if name.split(".")[0] not in STOCK or "." not in name:
        return name
    folder = find(name)
    return name if folder is None else f"local-dir:{folder}"


def check_model(model: Any, name: str) -> None:
    """Check the values of the weights that a model was loaded with.

    Raises:
        ValueError: One is not finite; `name` and the entries are named.
    """
    try:
        check_values(model.state_dict(), positive=False)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def check_named(name: str, weights: bool) -> Record | None:
    """Check the folder or repository behind `name`, and that its file accounts for the model; what is said of it there.

    Args:
        name: As timm takes it; one that is neither `local-dir:` nor `hf-hub:` is left to timm.
        weights: Whether its weights are wanted.

    Raises:
        FileNotFoundError: No such folder, or it lacks the configuration or the weights.
        ValueError: A configuration or a file that can't be used.
        RuntimeError: The Hub does not deliver.
    """
    source = next((prefix for prefix in _SOURCES if name.startswith(prefix)), None)
    if source is None:
        return None
    place = name.removeprefix(source)
    if source == "local-dir:":
        config = Path(place) / "config.json"
        if not config.is_file():
            raise FileNotFoundError(
                f"{place!r} is not a weight folder: it holds no config.json. Name one that `timm-gcp weights` wrote."
            )
        record, file = record_from_folder(Path(place)), weights_in(Path(place)) if weights else None
    else:
        config = _from_hub(place, ("config.json",), "it is not a timm model")
        try:
            record = record_from_folder(config.parent)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        file = _from_hub(place, _IN_A_FOLDER[:2], "it holds no weights") if weights else None
    if file is not None:
        try:
            _check_size(record, file)
        except ValueError as error:
            raise ValueError(str(error) if place in str(error) else f"{name}: {error}") from error
    return record


def _check_size(record: Record, file: Path) -> None:
    """Refuse a model far larger than the weights that it is described with."""
    if check_file(file) == "torch":
        held = sum(tensor.numel() for tensor in unwrap(read_checkpoint(file)).values())
    else:
        entries = read_header(file)
        held = sum(math.prod(entry["shape"]) for key, entry in entries.items() if key != "__metadata__")
    model = blueprint(record.architecture, record.model_args)
    if model is None:
        return
    asked = sum(tensor.numel() for tensor in model.state_dict().values())
    if asked > 2 * held + _SMALL:
        raise ValueError(
            f"{file} holds {held:,} numbers, but {record.architecture} as it is described has {asked:,} "
            f"({_words(record.model_args)}): the configuration and the weights are not of one model."
        )


def blueprint(name: str, arguments: Mapping[str, Any]) -> Any:
    """The model without values, which takes no memory; None for a model that can't be built so.

    Raises:
        ValueError: An unknown name, or arguments that the model doesn't take.
    """
    from timm.models import create_model

    name, arguments = as_swap(name, arguments)
    kept = {key: value for key, value in arguments.items() if not key.startswith(("pretrained", "checkpoint"))}
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return create_model(name, pretrained=False, **kept)
    except (TypeError, OverflowError) as error:
        raise _explained(error, name, False, arguments) from error
    except Exception:  # such as a layer that looks at its own values; the model itself says what is wrong
        return None


def _explained(error: Exception, name: str, pretrained: bool, arguments: Mapping[str, Any]) -> Exception:
    """What timm's error means, as one of our own."""
    text = one_line(error)
    if "Unknown model" in text:
        return ValueError(f"{text}. `timm.list_models('*gcp*')` lists ours, `timm.list_models()` all.")
    told = explain(error, name) if pretrained else None
    if told is not None:
        return error if isinstance(error, RuntimeError) and str(error).startswith("No weights") else RuntimeError(told)
    if isinstance(error, FileNotFoundError):
        return error
    if isinstance(error, ValueError):
        place = name.partition(":")[2] or name
        return error if place in text else ValueError(f"{name}: {error}")
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return ValueError(f"{name} takes more memory than this machine has with {_words(arguments)}: {text}")
    if "loading state_dict" in text or "weights_only" in text:
        return ValueError(f"the weights of {name} don't fit the model: {text}. Name the model that they are of.")
    if isinstance(error, RuntimeError | OSError) and pretrained:
        return RuntimeError(f"{name}: {text}")
    return ValueError(f"{name} can't be built with {_words(arguments)}: {text or type(error).__name__}")


def _words(arguments: Mapping[str, Any]) -> str:
    return one_line({key: value for key, value in arguments.items() if value is not None}, 400)


def weights_in(folder: Path) -> Path:
    """The weight file that timm would take out of a folder."""
    for name in _IN_A_FOLDER:
        if (folder / name).is_file():
            return folder / name
    for ending in _ENDINGS:
        found = sorted(folder.glob(f"*{ending}"))
        if found:
            return found[0]
    raise FileNotFoundError(f"{str(folder)!r} holds no weights: none of {', '.join(_IN_A_FOLDER)}.")


def hub_weights(name: str) -> Path:
    """The weight file of `hf-hub:ID`, in the local cache.

    Raises:
        RuntimeError: The Hub does not deliver, or the repository holds no weights.
    """
    return _from_hub(name.partition(":")[2], _IN_A_FOLDER[:2], "it holds no weights")


def _from_hub(place: str, names: tuple[str, ...], otherwise: str) -> Path:
    """The first of these files that a repository has, in the local cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo, _, revision = place.partition("@")
    for name in names:
        try:
            return Path(hf_hub_download(repo, name, revision=revision or None))
        except Exception as error:
            if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
                continue
            text = explain(error, place)
            raise RuntimeError(text or f"hf-hub:{place}: {one_line(error)}. Check the name.") from error
    raise RuntimeError(f"The repository {place} has no {' and no '.join(names)}: {otherwise}. Check the name.")
