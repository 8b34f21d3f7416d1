"""results/results-imagenet.csv is what its command prints, in timm's columns."""

from __future__ import annotations

import csv

import pytest
import timm
from make_results import COLUMNS, TABLE, results

from timm_gcp.weights.catalog import WEIGHTS


def test_is_what_the_command_prints():
    assert TABLE.read_text(encoding="utf-8") == results()


def test_every_published_entry_has_a_row():
    rows = {row["model"]: row for row in csv.DictReader(results().splitlines())}
    assert set(rows) == set(WEIGHTS) and len(rows) == 40
    for name, row in rows.items():
        assert tuple(row) == COLUMNS
        assert float(row["top1"]) + float(row["top1_err"]) == pytest.approx(100, abs=1e-3)
        assert float(row["top1"]) == pytest.approx(WEIGHTS[name].figures[0].top1, abs=1e-3)


@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0_gcp.norm_in1k", "resnet18_gcp.adju_in1k"])
def test_parameters_are_the_models(name):
    row = next(row for row in csv.DictReader(results().splitlines()) if row["model"] == name)
    model = timm.create_model(name.split(".")[0])
    assert float(row["param_count"]) == round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
