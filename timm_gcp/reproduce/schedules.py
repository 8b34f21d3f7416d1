"""Table 3: the recipes' learning rates against the formulas as the paper prints them. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.reproduce import paper
from timm_gcp.reproduce.item import Column, Item, Row, Value
from timm_gcp.reproduce.jobs import Job
from timm_gcp.reproduce.runs import family
from timm_gcp.reproduce.setup import Setup
from timm_gcp.schedules.spec import parse

ROUNDING = 1e-9  # relative difference
STEPS = 100  # updates of an epoch, for the schedule that falls with every update


def _linear(start: float, end: float, first: float, epoch: float) -> float:
    return start - (start - end) / 50 * (epoch - first)


def _staged(epoch: float) -> float:
    stages = ((6e-2, 1e-3), (1e-2, 1e-4), (1e-3, 1e-5))
    stage = min(int(epoch // 50), 2)
    return _linear(*stages[stage], 50 * stage, epoch)


# Table 3, restated apart from `timm_gcp.schedules`: the rate in epoch e, or e epochs into training for ShuffleNet V2.
PRINTED: dict[tuple[str, str], Callable[[float], float]] = {
    ("mobilenetv2_100", "norm"): lambda e: 0.045 * 0.98**e,
    ("mobilenetv2_100", "fast"): lambda e: 0.06 * 0.92**e,
    ("mobilenetv2_100", "adju"): _staged,
    ("shufflenet_v2_x1_0", "norm"): lambda e: 0.5 * (1 - e / 240),
    ("shufflenet_v2_x1_0", "fast"): lambda e: 0.5 * (1 - e / 60),
    ("shufflenet_v2_x1_0", "adju"): lambda e: 0.5 * (1 - e / 100),
    ("resnet", "norm"): lambda e: 0.1 ** (e // 30 + 1),
    ("resnet", "fast"): lambda e: 0.1 * (1 - (e - 1) / 52) ** 11,
    ("resnet", "adju"): lambda e: 0.1 * (1 - (e - 1) / 49) ** 2,
}


def recipe_of(network: str, schedule: str) -> dict[str, Any]:
    """The recipe of a row."""
    prefix = "resnet" if network == "resnet" else family(network)
    return read_recipe(find_recipe(f"{prefix}_{schedule}"))


def rates(network: str, schedule: str) -> list[tuple[float, float]]:
    """(printed, ours) at every epoch of the recipe's run, or at every update of ShuffleNet V2's."""
    recipe, printed = recipe_of(network, schedule), PRINTED[network, schedule]
    spec = parse(recipe["sched"])
    ticks = STEPS if spec.per_update else 1
    times = range(recipe["epochs"] * ticks)
    return [(printed(t / ticks), recipe["lr"] * spec.shape(t, ticks)) for t in times]


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    found = rates(*row.source)
    largest = max(abs(ours / printed - 1) for printed, ours in found)
    return (recipe_of(*row.source)["epochs"], found[0][1], found[-1][1], largest)


def _agreement() -> str:
    followed = [row for row in PRINTED if all(abs(ours / printed - 1) < ROUNDING for printed, ours in rates(*row))]
    return f"{len(followed)} of {len(PRINTED)} recipes follow the printed formula in every epoch or update"


def _draw(rows: Sequence[Row], setup: Setup, path: Path) -> None:
    from timm_gcp.plots.schedules import draw_schedules
    from timm_gcp.reproduce.runs import POLY_PAIRS

    draw_schedules(path, [f"{power}-{end}" for power, end in POLY_PAIRS])


def _nothing_to_run(rows: Sequence[Row], setup: Setup) -> list[Job]:
    return []


ITEMS = (
    Item(
        name="table3",
        title="Table 3",
        what="learning rates",
        data=(),
        labels=("backbone", "lr", "formula, paper"),
        columns=(
            Column("epochs", printed=False),
            Column("first rate", ".4g", printed=False),
            Column("last rate", ".4g", printed=False),
            Column("largest relative difference", ".1e", printed=False),
        ),
        rows=tuple(
            Row((paper.TITLES.get(net, "ResNet"), f"LR_{schedule}", formula), net, net, (), (net, schedule))
            for (net, schedule), formula in paper.TABLE_3.items()
        ),
        plan=_nothing_to_run,
        measure=_measure,
        cost=lambda: "none",
        claim="nine formulas",
        here=_agreement,
        draw=_draw,
        notes=("The difference is that of the recipe's rate from the printed formula, in any epoch or update.",),
    ),
)
