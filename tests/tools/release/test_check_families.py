"""The table of families: its rows, its refusals, and that no family of timm is missing from it."""

from __future__ import annotations

import check_families as tool
import pytest


def test_small_models_are_small():
    assert tool.small_models("vgg")[0] == "vgg11"
    assert tool.small_models("convnext")[0] == "test_convnext"


def by_name(row: tool.Row) -> str:
    return row.family


def test_rows(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert tool.main(["--families", "resnet", "pit", "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "## Works: 1 of 2 families" in text and "| resnet | `test_resnet` | 160 | NCHW, 96 | works |" in text
    assert "class tokens without the patches" in text.split("## Refused")[1]
    assert "| resnet |" in capsys.readouterr().err
    assert tool.page(sorted(tool.read(text).values(), key=by_name)) == text
    assert tool.main(["--families", "convnext", "--output", str(page)]) == 0  # beside the others
    assert set(tool.read(page.read_text(encoding="utf-8"))) == {"convnext", "pit", "resnet"}
    with pytest.raises(ValueError, match="timm has no family vgh; it has beit, "):
        tool.main(["--families", "vgh"])


def test_no_family_is_missing():
    text = tool.PAGE.read_text(encoding="utf-8")
    assert set(tool.read(text)) == set(tool.families())
    assert all(row.result for row in tool.read(text).values())
    assert text == tool.page(sorted(tool.read(text).values(), key=by_name))
