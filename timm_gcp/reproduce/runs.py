"""The classifiers of the paper: which recipe trains which network, with what changed on its command line.

Tables and figures share these runs: each is trained once, in a folder of its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.reproduce import paper

FAMILIES = {"mobilenetv2_100": "mobilenetv2", "shufflenet_v2_x1_0": "shufflenetv2"}  # all others are ResNets
POLY_PAIRS = ((2, 50), (4, 53), (8, 53), (11, 53))  # (rho, e_f) of Fig. 4; the paper names the first and the last


@dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
        name: Folder of the run.
        backbone: timm's name of the network with average pooling.
        pooling: `GAP` or `GCP`.
        recipe: Shipped recipe.
        model: What train.py creates.
        keys: Keys of train.py that differ from the recipe's.
    """

    name: str
    backbone: str
    pooling: str
    recipe: str
    model: str
    keys: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe's keys with this run's over them."""
        return {**read_recipe(find_recipe(self.recipe)), "model": self.model, **self.keys}

    @property
    def architecture(self) -> str:
        """timm's name of the network, whatever it is created from."""
        return self.backbone if self.pooling == "GAP" else self.model

    @property
    def hours(self) -> float | None:
        """Hours on four Titan Xp by Appendix V's time per image; None for networks that it does not list."""
        row = paper.TABLE_9.get((self.backbone, self.pooling))
        return row[2] * paper.IMAGENET_IMAGES * self.settings["epochs"] / 3.6e6 if row else None


def family(backbone: str) -> str:
    """Prefix of a backbone's recipes."""
    return FAMILIES.get(backbone, "resnet")


def classifier(backbone: str, pooling: str, schedule: str, variant: str = "") -> Run:
    """The run of a network under `norm`, `fast` or `adju`.

    GAP networks keep their stock stride in the last stage, as the paper's baselines do. MobileNetV2's GAP twin is
    `mobilenetv2_100_gcp` with average pooling, since stock `mobilenetv2_100` has timm's initial values.

    Args:
        backbone: timm's name of the network with average pooling.
        pooling: `GAP` or `GCP`.
        schedule: Suffix of the recipe.
        variant: Of GCP: `d128`, `ds` (down-sampling kept in the last stage), `8k` (Appendix V's two reductions).
    """
    name = "-".join(part for part in (backbone, pooling.lower(), variant, schedule) if part)
    recipe = f"{family(backbone)}_{schedule}"
    if pooling == "GAP":
        if backbone == "mobilenetv2_100":
            return Run(name, backbone, pooling, recipe, "mobilenetv2_100_gcp", {"gp": "avg"})
        return Run(name, backbone, pooling, recipe, backbone)
    if variant == "d128":
        return Run(name, backbone, pooling, recipe, f"{backbone}_gcp_d128")
    if variant == "ds":
        return Run(name, backbone, pooling, f"{recipe}_ds", f"{backbone}_gcp")
    keys = {"model_kwargs": {"zero_init_last": False, "reduce_dim": (256, 128)}} if variant == "8k" else {}
    return Run(name, backbone, pooling, recipe, f"{backbone}_gcp", keys)


def poly(power: int, end: int) -> Run:
    """A run of Fig. 4's sweep: ResNet-18 with GCP under polynomial decay (ρ, e_f); the ends are LR_adju and LR_fast."""
    if (power, end) in ((2, 50), (11, 53)):
        return classifier("resnet18", "GCP", "adju" if power == 2 else "fast")
    keys = {"sched": f"gcp_poly:power={power},start=1,end={end}", "epochs": end}
    return Run(f"resnet18-gcp-poly-{power}-{end}", "resnet18", "GCP", "poly_sweep", "resnet18_gcp", keys)


def landscape(backbone: str, pooling: str) -> Run:
    """A run of Fig. 2: LR_norm up to the paper's steps, MobileNetV2 without dropout (Section 3.2)."""
    run = classifier(backbone, pooling, "norm")
    steps, batch = paper.FIGURE_2[backbone][0], paper.TABLE_2[backbone, "GAP", "norm"][0]
    keys: dict[str, Any] = {**run.keys, "epochs": -(-steps // (paper.IMAGENET_IMAGES // batch))}
    if backbone == "mobilenetv2_100":
        keys["drop"] = 0.0
    return Run(f"{backbone}-{pooling.lower()}", backbone, pooling, run.recipe, run.model, keys)
