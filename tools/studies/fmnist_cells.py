"""The runs of the Fashion-MNIST study: model, recipe and seed, the most telling first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

SCHEDULES = ("adju", "fast", "norm")  # most telling first
POOLINGS = ("GAP", "GCP")
DIMS = (32, 64, 128, 256)
PARTS = ("weights", "schedules", "backbones", "crops", "dims", "rates", "seeds", "decay", "causes", "resolution")

# Stronger crops and stretches than the recipes': a harder task, which costs accuracy in so few epochs.
STRONG_CROPS: dict[str, Any] = {"scale": [0.7, 1.0], "ratio": [0.9, 1.1111]}
STRONG = "crop0.7"

# The rates and weight decays of Table 3 for a batch of 128; the recipes themselves are ShuffleNetV2's.
_RESNET = {
    "sched": "gcp_resnet_adju:stretch",
    "sched_on_updates": False,
    "lr": 0.05,
    "weight_decay": 1e-4,
    "model_kwargs": {},  # its last stage has stride 1, so that 64 px end in 4x4 positions
}
MOBILENET = "mobilenetv2_100"
BACKBONES: dict[str, dict[str, Any]] = {
    MOBILENET: {"sched": "gcp_mobilenetv2_adju:stretch", "sched_on_updates": False, "lr": 0.06},
    "resnet18": _RESNET,
    "resnet34": _RESNET,
    "resnet50": _RESNET,
    "resnet101": _RESNET,
}
STUDIED = "shufflenet_v2_x1_0"
RATES = (0.03125, 0.125, 0.25)  # half, twice and four times the recipe's, under the schedule with the fewest updates
GCP_RATE = 0.125  # GCP's best of these under LR_fast, where GAP fails at it; under LR_adju GAP was not tried at it
DECAY = 5e-4  # twelve times the recipe's weight decay; usual for small images
LARGE = 96  # pixels: 6x6 positions at twice the cost of the recipe's 64, which has 4x4


class Cause(NamedTuple):
    """What could hold GCP back: the keys that it changes, its row's label, and the poolings that it is tried with."""

    keys: dict[str, Any]
    label: str
    poolings: tuple[str, ...] = ("GCP",)


# By variant. The GCP head has the pooling's reduction in it; layer decay with a floor gives all layers before it a
# quarter of its rate.
CAUSES: dict[str, Cause] = {
    "head4": Cause({"lr": 0.25, "layer_decay": 1e-6, "layer_decay_min_scale": 0.25}, "Head's learning rate times 4"),
    "bn0.01": Cause({"bn_momentum": 0.01}, "Batch-norm momentum 0.01 for 0.1"),
    "eigh": Cause({"model_kwargs": {"output_stride": 16, "normalization": "eigh"}}, "Exact square root"),
    "px80": Cause({"img_size": 80}, "80 px, 5×5 positions", POOLINGS),
}


@dataclass(frozen=True)
class Cell:
    """One run: backbone, pooling, schedule, seed, width D of the covariance, and further keys.

    With `all_images` it trains on the whole set where the study takes a part of it; `variant` names what `keys` change.
    """

    backbone: str
    pooling: str
    schedule: str
    seed: int
    dim: int = 256
    keys: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    all_images: bool = False
    variant: str = ""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        width = "" if self.dim == 256 else f"-d{self.dim}"
        variant = f"-{self.variant}" if self.variant else ""
        run = f"{self.backbone}-{self.pooling.lower()}{width}-{self.schedule}{variant}-seed{self.seed}"
        return run + "-all" * self.all_images

    @property
    def recipe(self) -> str:
        """Name of its recipe."""
        return f"fmnist_{self.schedule}"

    def settings(self, recipe: dict[str, Any], batch_size: int | None = None) -> dict[str, Any]:
        """The keys in which the run differs from its recipe; a rate follows the batch size in proportion.

        The GAP twin of a timm backbone is the GCP model with `gp: avg`: the same strides and feature map.
        """
        keys = {"model": f"{self.backbone}_gcp", "seed": self.seed, **self.keys}
        if self.pooling == "GAP" and self.backbone == STUDIED:
            keys["model"] = STUDIED
        elif self.pooling == "GAP":
            keys["gp"] = "avg"
        if self.dim != 256:
            keys["model_kwargs"] = {**keys.get("model_kwargs", recipe["model_kwargs"]), "reduce_dim": self.dim}
        if batch_size is not None:
            keys["lr"] = keys.get("lr", recipe["lr"]) * batch_size / recipe["batch_size"]
            keys["batch_size"] = batch_size
        return keys


def strong(cell: Cell) -> Cell:
    """The same run with stronger crops than the recipe's."""
    return replace(cell, keys={**cell.keys, **STRONG_CROPS}, variant=STRONG)


def at_rate(rate: float, pooling: str, seed: int) -> Cell:
    """A run under LR_fast with stronger crops and from another learning rate than the recipe's."""
    keys = {**STRONG_CROPS, "lr": rate}
    return Cell(STUDIED, pooling, "fast", seed, keys=keys, variant=f"{STRONG}-lr{rate}")


def twins(schedule: str, seed: int, backbone: str = STUDIED, all_images: bool = False) -> list[Cell]:
    """GAP and GCP with nothing changed."""
    keys = BACKBONES.get(backbone, {})
    return [Cell(backbone, pool, schedule, seed, keys=keys, all_images=all_images) for pool in POOLINGS]


def at_its_rate(pooling: str, seed: int, all_images: bool = False) -> Cell:
    """A run under LR_adju from the learning rate that suits its pooling best: for GAP the recipe's."""
    cell = Cell(STUDIED, pooling, "adju", seed, all_images=all_images)
    return replace(cell, keys={"lr": GCP_RATE}, variant=f"lr{GCP_RATE}") if pooling == "GCP" else cell


def decayed(pooling: str, seed: int, all_images: bool = False) -> Cell:
    """The same with more weight decay."""
    cell = at_its_rate(pooling, seed, all_images)
    return replace(cell, keys={**cell.keys, "weight_decay": DECAY}, variant=f"{cell.variant}-wd{DECAY}".strip("-"))


def larger(pooling: str, seed: int, all_images: bool = False) -> Cell:
    """The same as `at_its_rate` with larger images."""
    cell = at_its_rate(pooling, seed, all_images)
    return replace(cell, keys={**cell.keys, "img_size": LARGE}, variant=f"{cell.variant}-px{LARGE}".strip("-"))


def cause(variant: str, pooling: str, seed: int) -> Cell:
    """A run under LR_adju with one of `CAUSES` changed."""
    return Cell(STUDIED, pooling, "adju", seed, keys=dict(CAUSES[variant].keys), variant=variant)


def plan(parts: Sequence[str], seeds: Sequence[int], backbones: Sequence[str], subset: bool = False) -> list[Cell]:
    """The runs of the study in order: the twins on all images where the study takes a `subset`, and GCP there at its
    own rate; all six cells once; the other backbones; the same with stronger crops, the widths and other rates there;
    the further seeds; the twins on all images with more weight decay; what else could hold GCP back; the twins on all
    images with larger images."""
    first, *others = seeds
    runs = {
        "weights": [*twins("adju", first, all_images=subset), at_its_rate("GCP", first, subset)],
        "schedules": [cell for schedule in SCHEDULES for cell in twins(schedule, first)],
        "backbones": [cell for name in backbones for cell in twins("adju", first, name)],
        "crops": [strong(cell) for schedule in SCHEDULES for cell in twins(schedule, first)]
        + [strong(cell) for cell in twins("adju", first, all_images=subset) + twins("adju", first, MOBILENET)],
        "dims": [strong(Cell(STUDIED, "GCP", "adju", first, dim)) for dim in DIMS],
        "rates": [at_rate(rate, pool, first) for rate in RATES for pool in POOLINGS],
        "seeds": [cell for schedule in SCHEDULES for seed in others for cell in twins(schedule, seed)],
        "decay": [decayed(pool, first, subset) for pool in POOLINGS],
        "causes": [cause(variant, pool, first) for variant in CAUSES for pool in CAUSES[variant].poolings],
        "resolution": [larger(pool, first, subset) for pool in POOLINGS],
    }
    return list(dict.fromkeys(cell for part in PARTS if part in parts for cell in runs[part]))
