"""The printed figures against what the paper says of them in words, and against where else they are kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from timm_gcp.inference import cost
from timm_gcp.landscape import PAPER_EVERY, PAPER_RANGES
from timm_gcp.reproduce import paper
from timm_gcp.reproduce.runs import classifier
from timm_gcp.schedules.curves import TABLE_3
from timm_gcp.weights.authors import PAPER, ROWS

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# The arrows that the paper prints beside its figures.
GAINS_2 = {"mobilenetv2_100": 2.39, "shufflenet_v2_x1_0": 3.21, "resnet18": 4.39, "resnet34": 2.62, "resnet50": 1.86}
GAINS_2["resnet101"] = 1.51
FEWER_EPOCHS_2 = {"mobilenetv2_100": 332, "shufflenet_v2_x1_0": 162, "resnet18": 68, "resnet34": 62, "resnet50": 60}
FEWER_EPOCHS_2["resnet101"] = 59
GAINS_4 = {  # mCE, relative mCE, mFR, mT5D
    "mobilenetv2_100": (5.4, 4.3, 15.5, 8.9),
    "shufflenet_v2_x1_0": (7.5, 14.1, 19.5, 12.7),
    "resnet18": (8.4, 2.6, 19.6, 9.9),
    "resnet34": (5.5, 1.8, 14.0, 7.1),
    "resnet50": (6.0, 7.1, 10.5, 3.7),
    "resnet101": (4.8, 4.6, 10.5, 5.6),
}
GAINS_6 = {  # of GCP_M over GAP: AP, AP50, AP75, APS, APM, APL
    ("fasterrcnn", "resnet50"): (0.7, 0.9, 0.7, 0.2, 0.9, 1.4),
    ("fasterrcnn", "resnet101"): (0.9, 0.6, 1.2, 0.6, 0.7, 0.9),
    ("maskrcnn", "resnet50"): (0.7, 0.5, 1.0, 0.2, 0.8, 1.0),
    ("maskrcnn", "resnet101"): (1.3, 1.1, 1.3, 0.9, 1.5, 1.5),
}


@pytest.mark.parametrize("net", paper.BACKBONES)
def test_differences_are_the_printed_ones(net):
    gap, gcp = paper.TABLE_2[net, "GAP", "norm"], paper.TABLE_2[net, "GCP", "adju"]
    assert gcp[3] - gap[3] == pytest.approx(GAINS_2[net])
    assert gap[1] - gcp[2] == FEWER_EPOCHS_2[net]
    lowered = [a - b for a, b in zip(paper.TABLE_4[net, "GAP"], paper.TABLE_4[net, "GCP"], strict=True)]
    assert lowered == pytest.approx(GAINS_4[net])


@pytest.mark.parametrize(("detector", "net"), GAINS_6)
def test_differences_of_the_detectors_are_the_printed_ones(detector, net):
    gap, gcp_m = (paper.TABLE_6[detector, net, method] for method in ("GAP", "GCP_M"))
    assert [b - a for a, b in zip(gap, gcp_m, strict=True)] == pytest.approx(GAINS_6[detector, net])


def test_accuracies_are_those_kept_with_the_weights():
    sources = {(row[0], row[1].split("_")[2]): row[1] for row in ROWS}
    found = {(*key, ""): row[3:] for key, row in paper.TABLE_2.items()}
    found |= {(net, "GCP", lr, "d128" * (dim == 128)): top for (net, lr, dim), top in paper.TABLE_5.items()}
    compared = 0
    for (net, pooling, schedule, variant), figures in found.items():
        if schedule == "K-FAC":
            continue
        source = sources[classifier(net, pooling, schedule, variant).architecture, f"LR{schedule}"]
        if source in PAPER:
            assert tuple(figures) == PAPER[source][:2], source
            compared += 1
    assert compared >= 19


def test_costs_are_those_of_timm_gcp_cost():
    ours = {f"{net}{'_gcp' if pooling == 'GCP' else ''}": row[:2] for (net, pooling), row in paper.TABLE_9.items()}
    assert {name: ours[name] for name in cost.PAPER} == cost.PAPER


def test_the_landscape_is_probed_as_by_timm_gcp_landscape():
    assert {net: row[1] for net, row in paper.FIGURE_2.items()} == PAPER_EVERY
    assert {net: row[2] for net, row in paper.FIGURE_2.items()} == PAPER_RANGES


@pytest.mark.parametrize(("net", "pooling", "schedule"), [key for key in paper.TABLE_2 if key[2] != "K-FAC"])
def test_batches_and_epochs_are_the_schedules(net, pooling, schedule):
    run = classifier(net, pooling, schedule)
    row = TABLE_3[f"gcp_{run.recipe}"]
    assert paper.TABLE_2[net, pooling, schedule][:2] == (row.batch_size, row.epochs)


def test_precisions_are_those_of_the_recipes():
    suffix = {"GAP": "gap", "GCP_D": "gcp_d", "GCP_M": "gcp_m"}

    def listed(name: str, kind: str) -> list[float]:
        text = (RECIPES / "detection" / f"{name}.yaml").read_text()
        return [float(part) for part in re.search(rf"^#   {kind} ([\d./ ]+) \(Table", text, re.MULTILINE)[1].split("/")]

    for (detector, net, method), figures in paper.TABLE_6.items():
        assert listed(f"{detector}_{net}_{suffix[method]}", "boxes") == list(figures)
    for (detector, net, method), figures in paper.TABLE_7.items():
        assert listed(f"{detector}_{net}_{suffix[method]}", "masks") == list(figures)
    for net in ("resnet18", "resnet50", "resnet101"):
        text = (RECIPES / "detection" / f"fasterrcnn_{net}_gcp_ds.yaml").read_text()
        for method, place in (("w/ DS", "boxes"), ("w/o DS", "without down-sampling")):
            assert f"{place} {' / '.join(map(str, paper.TABLE_8[net, method][2:]))}" in text


def test_without_down_sampling_the_detector_is_gcp_d():
    for net in ("resnet50", "resnet101"):
        assert paper.TABLE_8[net, "w/o DS"][2:] == paper.TABLE_6["fasterrcnn", net, "GCP_D"][:3]
