"""The choice of rows."""

from __future__ import annotations

import pytest

from timm_gcp.reproduce.catalog import ITEMS
from timm_gcp.reproduce.item import spread


def test_rows_are_chosen_by_backbone_model_or_run():
    item = ITEMS["table2"]
    assert item.choose(None) == list(item.rows)
    assert [row.labels[:3] for row in item.choose(["resnet50"])] == [
        ("ResNet-50", "GAP", "LR_norm"),
        ("ResNet-50", "GCP", "LR_adju"),
        ("ResNet-50", "GAP", "K-FAC"),
        ("ResNet-50", "GCP", "LR_fast"),
    ]
    assert [row.labels[1] for row in item.choose(["resnet18_gcp", "resnet34_gcp"])] == ["GCP", "GCP"]
    assert [row.name for row in item.choose(["resnet50-gcp-fast"])] == ["resnet50-gcp-fast"]
    assert len(ITEMS["table6"].choose(["fasterrcnn_resnet50_gcp_d"])) == 1


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"Table 5 has no rows of 'resnet18'; --models takes mobilenetv2_100, "):
        ITEMS["table5"].choose(["resnet18"])
    with pytest.raises(ValueError, match=r"Did you mean 'resnet50_gcp'"):
        ITEMS["table8"].choose(["resnet50", "resnet50_gpc"])


def test_spread():
    assert spread([3, 1.005, 2]) == "1.00 to 3.00"
