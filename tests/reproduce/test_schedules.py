"""Table 3: recipes against the printed formulas."""

from __future__ import annotations

import pytest

from timm_gcp.reproduce import paper, schedules
from timm_gcp.reproduce.catalog import ITEMS
from timm_gcp.reproduce.schedules import PRINTED, rates
from timm_gcp.schedules.curves import TABLE_3


def test_every_printed_formula_is_restated():
    assert list(PRINTED) == list(paper.TABLE_3)


@pytest.mark.parametrize("row", PRINTED)
def test_the_paper_s_schedules_follow_the_formulas(row, monkeypatch):
    """The schedules that carry the table's name; which one a recipe takes is its own choice."""
    prefix = "resnet" if row[0] == "resnet" else schedules.family(row[0])
    recipe = {**schedules.recipe_of(*row), "sched": f"gcp_{prefix}_{row[1]}"}
    monkeypatch.setattr(schedules, "recipe_of", lambda *_: recipe)
    found = rates(*row)
    assert len(found) == TABLE_3[recipe["sched"]].epochs * (schedules.STEPS if prefix == "shufflenetv2" else 1)
    assert max(abs(ours / printed - 1) for printed, ours in found) < schedules.ROUNDING


def test_another_rate_is_seen(monkeypatch):
    recipe = {**schedules.recipe_of("resnet", "adju"), "lr": 0.11}
    monkeypatch.setattr(schedules, "recipe_of", lambda *_: recipe)
    (row,) = [row for row in ITEMS["table3"].rows if row.source == ("resnet", "adju")]
    assert ITEMS["table3"].measure(row, None)[-1] == pytest.approx(0.1)
    assert ITEMS["table3"].here().startswith("0 of 9 recipes follow the printed formula")
