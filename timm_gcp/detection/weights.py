"""Weights for detector backbones: the architecture behind a model name, and the backbone's part of a classifier."""

from __future__ import annotations

from pathlib import Path

import timm
import torch
from timm.models import is_model, parse_model_name
from torch import nn

from timm_gcp.common.messages import did_you_mean, listed
from timm_gcp.detection.swaps import swap_behind
from timm_gcp.weights.checkpoint import read_checkpoint
from timm_gcp.weights.layouts import rename, unwrap
from timm_gcp.weights.named import check_named
from timm_gcp.weights.sanity import check_values
from timm_gcp.weights.source import find_checkpoint

HEADS = {"fc", "classifier", "global_pool"}  # what a checkpoint may hold beyond the backbone, whatever the network


def architecture_of(name: str) -> str:
    """Architecture behind a model name: `arch`, `arch.tag`, `local-dir:PATH`, `hf-hub:ID`; `gcp:NAME` for a swap.

    Raises:
        ValueError: An architecture that timm does not know.
        FileNotFoundError: A folder without a configuration.
        RuntimeError: The Hub does not deliver.
    """
    if (swap := swap_behind(name)) is not None:
        return swap.name
    _, model_id = parse_model_name(name)
    record = check_named(name, False)
    architecture = model_id.split(".")[0] if record is None else record.architecture
    if not is_model(architecture):
        known = timm.list_models("*_gcp*")
        raise ValueError(
            f"unknown model {name!r}.{did_you_mean(architecture, timm.list_models())} "
            f"GCP models: {', '.join(known)}; GAP twins: timm's own names."
        )
    return architecture


def read_classifier(checkpoint: str | Path) -> dict[str, torch.Tensor]:
    """State dict of a classifier's checkpoint in this package's names, whatever its layout.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no weights.
    """
    path = find_checkpoint(checkpoint)
    try:
        tensors = rename(unwrap(read_checkpoint(path)))
        check_values(tensors, positive=False)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    return tensors


def load_classifier(body: nn.Module, name: str, checkpoint: str | Path, in_chans: int = 3) -> None:
    """Load the backbone's part of a classifier checkpoint, in place, tensor by tensor.

    What the backbone has must all be there; what it lacks may only belong to the classifier's head.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Names are missing, foreign or wrongly sized; lists them.
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
