"""docs/performance.md and docs/poolings.md hold the tables that the benchmarks wrote beside it."""

from __future__ import annotations

from pathlib import Path

import performance_page
import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", performance_page.PAGES)
def test_the_page_is_what_the_tool_makes(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == performance_page.page(text, ROOT / "docs" / "performance")


def test_a_marked_part_is_replaced_and_the_rest_stays(tmp_path):
    (tmp_path / "models_cpu.md").write_text("new\n")
    text = "a\n<!-- begin models cpu -->\nold\n<!-- end models cpu -->\nb\n"
    assert performance_page.page(text, tmp_path) == text.replace("old", "new")
