"""`--weights published`: the authors' released weights in place of own trainings."""

from __future__ import annotations

from timm_gcp.reproduce.runs import Run
from timm_gcp.reproduce.setup import Setup
from timm_gcp.weights import store
from timm_gcp.weights.architectures import STOCK


def published_name(run: Run, setup: Setup) -> str:
    """What `--model` takes with `--pretrained` for the weights of a run's network and schedule.

    Networks that timm itself registers have no tags of ours: their weight folder is named.

    Raises:
        FileNotFoundError: The weights are not on this machine; says how to get them. Not in a dry run.
    """
    name = f"{run.architecture}.{run.recipe.rsplit('_', 1)[1]}_in1k"
    folder = store.find(name)
    if folder is None and not setup.dry_run:
        raise FileNotFoundError(
            f"the weights {name} are not on this machine: `timm-gcp weights fetch {name}` gets them, or leave out "
            "--weights published to train the network."
        )
    if run.architecture in STOCK:
        return f"local-dir:{folder or store.stored_folder(name)}"
    return name
