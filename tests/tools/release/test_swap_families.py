"""Which families `swap_pooling` takes: the tool on a few, and the page beside it."""

from __future__ import annotations

import pytest
import swap_families as tool


def test_small_models_are_small():
    names = {family: tool.small_model(family) for family in ("resnet", "convnext", "vgg")}
    assert names["vgg"].startswith("vgg11") and "atto" in names["convnext"]


def test_families(capsys):
    assert tool.main(["--families", "vgg", "mlp_mixer", "--output", "-"]) == 0
    out, progress = capsys.readouterr()
    assert "Taken: 1 of 2 families" in out and "| vgg | `vgg11` | 512 |" in out
    assert "| mlp_mixer | `" in out.split("## Not taken")[1]
    assert "vgg: vgg11: taken" in progress
    with pytest.raises(ValueError, match="timm has no family vgh; it has beit, "):
        tool.main(["--families", "vgh"])


def test_reasons_are_short():
    assert tool.reason("X has no global average pooling of a feature map to replace; …") == (
        "no average pooling of a feature map"
    )
    assert tool.reason("X.forward_features gives (1, 5, 8) (NCHW), not a feature map") == (
        "features are no NCHW map: (1, 5, 8) (NCHW)"
    )
    assert tool.reason("X has no single linear classifier (looked for head)") == "no single linear classifier"
    assert tool.reason("a|" + "b" * 200) == r"a\|" + "b" * 98 + "…"


def test_the_page_is_of_this_form():
    lines = tool.PAGE.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Which timm families `swap_pooling` takes"
    families = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    assert {"resnet", "vgg", "vision_transformer"} <= set(families)
    assert len(families) - 2 > 90  # two headings
