"""Detector backbones out of swapped models (`gcp:NAME`, registered names, folders that hold one).

A detector has no covariance head, so its body is the timm model that was swapped, and a swap's weights fit it by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm.models import get_pretrained_cfg, is_model, parse_model_name
from torch import nn

from timm_gcp.models.registered import base_of
from timm_gcp.models.swap_args import BACKBONE_POOL, HEAD_KEYWORDS
from timm_gcp.weights import store
from timm_gcp.weights.named import check_named, hub_weights, weights_in
from timm_gcp.weights.swap_names import BACKBONE, PREFIX

_OF_THE_CLASSIFIER = {*HEAD_KEYWORDS, BACKBONE, "num_classes", "in_chans", "img_size", "global_pool", BACKBONE_POOL}


@dataclass(frozen=True)
class Swap:
    """A swapped model as a detector takes it.

    Attributes:
        backbone: timm name of the model that was swapped.
        folder: Where its weights are, or None.
    """

    backbone: str
    folder: Path | None = None

    @property
    def name(self) -> str:
        """Under which it is found again."""
        return PREFIX + self.backbone

    def weights(self, asked: str) -> Path:
        """Its weight file.

        Raises:
            FileNotFoundError: It has none.
            RuntimeError: The Hub does not deliver.
        """
        if asked.startswith(("hf-hub:", "hf_hub:")):
            return hub_weights(asked)
        if self.folder is None:
            raise FileNotFoundError(
                f"{asked} has no weights with a covariance head: give checkpoint=, or the weights of {self.backbone} "
                "under that name"
            )
        return weights_in(self.folder)


def swap_behind(name: str) -> Swap | None:
    """The swapped model that a name means; None for any other model.

    Raises:
        ValueError: A model that timm does not know, that takes images of one size, or whose backbone was built with
            arguments of its own.
        FileNotFoundError: A folder without a configuration.
        RuntimeError: The Hub does not deliver.
    """
    if name.startswith(PREFIX):
        return _checked(name, name.removeprefix(PREFIX), {}, None)
    source, model_id = parse_model_name(name)
    stored = store.find(name) if ":" not in name and "." in name else None
    record = check_named(f"local-dir:{stored}" if stored else name, False)
    if record is not None and isinstance(record.model_args.get(BACKBONE), str):
        folder = stored or (Path(model_id) if source == "local-dir" else None)
        return _checked(name, record.model_args[BACKBONE], record.model_args, folder)
    found = base_of(model_id.split(".")[0]) if record is None else None
    return None if found is None else _checked(name, found[0], found[1], None)


def drop_head(body: Any) -> None:
    """Take the head, which no map passes, off a feature extractor that holds a whole classifier, in place."""
    classifier = body.model.pretrained_cfg.get("classifier") or ()
    for path in (classifier,) if isinstance(classifier, str) else classifier:
        setattr(body.model, path.split(".")[0], nn.Identity())


def _checked(name: str, backbone: str, arguments: dict[str, Any], folder: Path | None) -> Swap:
    if not is_model(backbone.split(".")[0]):
        raise ValueError(f"{name} swaps the pooling of {backbone!r}, which timm does not know: give one of its models")
    own = sorted(set(arguments) - _OF_THE_CLASSIFIER)
    if own:
        raise ValueError(
            f"{name} has a backbone built with {own[0]}={arguments[own[0]]}; a detector takes {backbone}"
            " as it is in timm"
        )
    cfg = get_pretrained_cfg(backbone)
    if cfg is not None and cfg.fixed_input_size:
        raise ValueError(
            f"{name} takes images of {cfg.input_size[1]}×{cfg.input_size[2]} only, and a detector images of any size: "
            "choose a convolutional network"
        )
    return Swap(backbone, folder)
