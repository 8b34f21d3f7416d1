"""The table of families: its rows, its refusals, and that no family of timm is missing from it."""

from __future__ import annotations

import check_families as tool
import pytest


def test_small_models_are_small():
    assert tool.small_models("vgg")[0] == "vgg11"
    assert tool.small_models("convnext")[0] == "test_convnext"


def test_rows(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert tool.main(["--shapes", "--families", "vgg", "pit", "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "## Works: 1 of 2 families" in text and "| vgg | `vgg11` | 224 | NCHW, 512 | works (shapes) |" in text
    assert "class tokens without the patches" in text.split("## Refused")[1]
    assert "| vgg |" in capsys.readouterr().err
    rows = tool.read(text)
    assert tool.page(list(rows.values())) == text
    assert tool.main(["--families", "resnet", "--output", str(page)]) == 0  # with numbers, beside the others
    assert tool.read(page.read_text(encoding="utf-8"))["resnet"].result == "works"
    assert set(tool.read(page.read_text(encoding="utf-8"))) == {"vgg", "pit", "resnet"}
    with pytest.raises(ValueError, match="timm has no family vgh; it has beit, "):
        tool.main(["--families", "vgh"])


def test_no_family_is_missing():
    text = tool.PAGE.read_text(encoding="utf-8")
    assert set(tool.read(text)) == set(tool.families())
    assert all(row.result for row in tool.read(text).values())
