"""The table of published weights: which exist, where they come from, what they score, how they are to be fed.

`WEIGHTS` maps `arch.tag` to a `Weights` entry, `BUNDLED_WEIGHTS` likewise what the package ships; `weights.timm_cfgs`
turns the entries into what timm's registry wants. The tags name the schedule of training and the data: `norm_in1k` (the
default), `fast_in1k`, `adju_in1k`, `adju_fmnist`; or the data alone: `caltech101`. These are data: importing them loads
neither weights nor torch.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm_gcp.weights.architectures import ARCHITECTURES, Architecture
from timm_gcp.weights.architectures import OURS as OURS
from timm_gcp.weights.authors import PAPER, ROWS
from timm_gcp.weights.bundled import ROWS as BUNDLED_ROWS
from timm_gcp.weights.bundled import Bundled

# Where published weight folders live on the Hugging Face Hub, unless TIMM_GCP_HUB_ORG or an argument says otherwise.
HUB_ORG = "timm-gcp"
HUB_ORG_VARIABLE = "TIMM_GCP_HUB_ORG"
# Entries that have been uploaded to HUB_ORG. Nothing is claimed to be there that is not.
ON_THE_HUB: frozenset[str] = frozenset()

BUNDLED = Path(__file__).parents[1] / "weights_bundled"
SOURCE_URL = "https://github.com/ZhangLi-CS/GCP_Optimization"
PAPER_ID = "arXiv:2003.11241"
NO_LICENCE = "The authors' repository states no licence."
# Naming of other code bases (see `weights.layouts`); none of these publishes its weights under a stated licence.
THIRD_PARTY_LAYOUTS = ("authors", "fast-mpn-cov", "mobilenetv2")
# Of the upper triangle in a classifier: `auto` finds out, the others say.
ORDERS = ("auto", "row", "column")
DEFAULT_TAG = "norm_in1k"
SCHEDULES = {"LRnorm": "norm", "LRfast": "fast", "LRadju": "adju"}
# Where the paper prints another curve than the released script runs, the recipes take the script's (docs/recipes.md).
_RELEASED_CURVES = {"gcp_mobilenetv2_adju": "gcp_mobilenetv2_adju_released"}
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


_FIRST_CONV = {"resnet": "conv1", "mobilenetv2": "conv_stem", "shufflenetv2": "conv1.0"}
FIRST_CONVS = tuple(dict.fromkeys(_FIRST_CONV.values()))
_CLASSIFIER = {"resnet": "fc", "mobilenetv2": "classifier", "shufflenetv2": "fc"}


@dataclass(frozen=True)
class Figure:
    """Top-1 and top-5 accuracy in % on the ImageNet-1k validation set, and who says so."""

    top1: float
    top5: float
    origin: str


@dataclass(frozen=True)
class Weights:
    """One published set of weights.

    Attributes:
        arch: Model name for `timm.create_model`.
        tag: Tag after the dot: `norm_in1k`, `fast_in1k` or `adju_in1k`.
        num_classes: Classes of the classifier.
        dataset: What it was trained on.
        figures: Accuracies; the release's own first.
        recipe: Recipe file in `recipes/` that trains it (`--model` picks the architecture).
        schedule: Name for train.py's `--sched`.
        source_name: The authors' file name, without suffix.
        source_url: Where the file is published.
        google_drive_id: Its id on Google Drive.
        licence: SPDX id, or None where the source states none.
        licence_note: The same in a sentence.
        sha256: Digest of the authors' file, None until a download has been verified.
    """

    arch: str
    tag: str
    num_classes: int
    dataset: str
    figures: tuple[Figure, ...]
    recipe: str
    schedule: str
    source_name: str
    source_url: str
    google_drive_id: str
    licence: str | None
    licence_note: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """`arch.tag`."""
        return f"{self.arch}.{self.tag}"

    @property
    def architecture(self) -> Architecture:
        """What all weights of this architecture share."""
        return ARCHITECTURES[self.arch]

    def pretrained_cfg(self) -> dict[str, Any]:
        """Preprocessing and head, as a timm pretrained cfg without a weight source."""
        facts = self.architecture
        return {
            "num_classes": self.num_classes,
            "input_size": (3, 224, 224),
            "pool_size": facts.pool_size,
            "interpolation": "bilinear",
            "crop_pct": 0.875,
            "mean": MEAN,
            "std": STD,
            "first_conv": _FIRST_CONV[facts.family],
            "classifier": _CLASSIFIER[facts.family],
            "license": self.licence,
            "origin_url": self.source_url,
            "paper_ids": PAPER_ID,
            "notes": (self.licence_note,),
        }


def _entry(arch: str, source: str, top1: float, top5: float, drive_id: str) -> Weights:
    schedule = SCHEDULES[source.split("_")[2]]
    figures = [Figure(top1, top5, "the authors' release")]
    if source in PAPER:
        paper_top1, paper_top5, table = PAPER[source]
        figures.append(Figure(paper_top1, paper_top5, f"the paper's {table} table"))
    family = ARCHITECTURES[arch].family
    name = f"gcp_{family}_{schedule}"
    return Weights(
        arch=arch,
        tag=f"{schedule}_in1k",
        num_classes=1000,
        dataset="imagenet-1k",
        figures=tuple(figures),
        recipe=f"{family}_{schedule}.yaml",
        schedule=_RELEASED_CURVES.get(name, name),
        source_name=source,
        source_url=SOURCE_URL,
        google_drive_id=drive_id,
        licence=None,
        licence_note=NO_LICENCE,
    )


WEIGHTS: dict[str, Weights] = {entry.name: entry for entry in (_entry(*row) for row in ROWS)}
BUNDLED_WEIGHTS: dict[str, Bundled] = {entry.name: entry for entry in BUNDLED_ROWS}


def hub_id(name: str, org: str | None = None) -> str:
    """Repository of `arch.tag` on the Hub: under `org`, else $TIMM_GCP_HUB_ORG, else `HUB_ORG`."""
    return f"{org or os.environ.get(HUB_ORG_VARIABLE) or HUB_ORG}/{name}"


def matching(pattern: str = "*", names: Iterable[str] | None = None) -> list[str]:
    """Names (default: of the table) that match a shell pattern, or contain it where it has no wildcard.

    Raises:
        ValueError: None does; the known names are listed.
    """
    names = list(WEIGHTS if names is None else names)
    wild = pattern if any(c in pattern for c in "*?[") else f"*{pattern}*"
    found = [name for name in names if fnmatch.fnmatch(name, wild)]
    if not found:
        raise ValueError(f"No weights match {pattern!r}. Known: {', '.join(names)}.")
    return found


def bundled_names() -> list[str]:
    """`arch.tag` of the weight folders shipped inside the package."""
    if not BUNDLED.is_dir():
        return []
    return sorted(path.parent.name for path in BUNDLED.glob("*.*/config.json"))
