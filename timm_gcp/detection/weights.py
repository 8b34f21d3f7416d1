"""Weights for detector backbones: the architecture behind a model name, and the backbone's part of a classifier."""

from __future__ import annotations

import json
from pathlib import Path

import timm
import torch
from timm.models import is_model, load_model_config_from_hf, parse_model_name
from torch import nn

from timm_gcp.common.messages import did_you_mean, listed
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.layouts import rename, unwrap
from timm_gcp.weights.source import find_checkpoint

HEADS = {"fc", "classifier", "global_pool"}  # what a checkpoint may hold beyond the backbone, whatever the network


def architecture_of(name: str) -> str:
    """Architecture behind a model name as timm takes it: `arch`, `arch.tag`, `local-dir:PATH` or `hf-hub:ID`.

    Raises:
        ValueError: For an architecture that timm does not know.
        FileNotFoundError: For a folder without a configuration.
    """
    source, model_id = parse_model_name(name)
    if source == "local-dir":
        architecture = _folder_architecture(Path(model_id))
    elif source == "hf-hub":
        architecture = load_model_config_from_hf(model_id)[1]
    else:
        architecture = model_id.split(".")[0]
    if not is_model(architecture):
        known = timm.list_models("*_gcp*")
        raise ValueError(
            f"unknown model {name!r}.{did_you_mean(architecture, timm.list_models())} "
            f"GCP models: {', '.join(known)}; GAP twins: timm's own names."
        )
    return architecture


def _folder_architecture(folder: Path) -> str:
    """The architecture that a weight folder names."""
    config = folder / "config.json"
    if not config.is_file():
        raise FileNotFoundError(f"{str(folder)!r} is no weight folder: it holds no config.json.")
    return str(json.loads(config.read_text(encoding="utf-8")).get("architecture"))


def read_classifier(checkpoint: str | Path) -> dict[str, torch.Tensor]:
    """State dict of a classifier's checkpoint in this package's names, whatever its layout.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no weights.
    """
    return rename(unwrap(read_checkpoint(find_checkpoint(checkpoint))))


def load_classifier(body: nn.Module, name: str, checkpoint: str | Path, in_chans: int = 3) -> None:
    """Load the backbone's part of a classifier checkpoint, in place, tensor by tensor.

    What the backbone has must all be there; what it has not may only belong to the classifier's head.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: Listing the names that are missing, foreign or wrongly sized.
    """
    given = read_classifier(checkpoint)
    wanted = body.state_dict()
    with torch.device("meta"):
        classifier = timm.create_model(architecture_of(name))
    kept = {key.split(".")[0] for key in wanted}
    head = {key.split(".")[0] for key in classifier.state_dict()} - kept | HEADS
    missing = [key for key in wanted if key not in given and not key.endswith(".num_batches_tracked")]
    foreign = [key for key in given if key not in wanted and key.split(".")[0] not in head]
    sized = [
        f"{key} is {tuple(given[key].shape)}, the backbone has {tuple(wanted[key].shape)}"
        for key in wanted
        if key in given and given[key].shape != wanted[key].shape
    ]
    problems = [
        f"{kind}: {listed(keys, 6)}"
        for kind, keys in (("missing", missing), ("foreign", foreign), ("wrongly sized", sized))
        if keys
    ]
    if problems:
        raise ValueError(
            f"{str(checkpoint)!r} holds no weights of {name} with in_chans={in_chans}. {'; '.join(problems)}. "
            "Name the model and the channels that the file was trained with."
        )
    body.load_state_dict({key: given[key] for key in wanted if key in given}, strict=False)
