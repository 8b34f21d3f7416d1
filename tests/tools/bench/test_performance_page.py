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


def test_a_part_without_a_table_says_why(tmp_path):
    text = "<!-- begin {0} -->\nold\n<!-- end {0} -->\n"
    assert "no GPU was at hand" in performance_page.page(text.format("models_compiled cuda"), tmp_path)
    assert "old" not in performance_page.page(text.format("growth cpu"), tmp_path)


def test_what_the_pooling_benchmark_left_out_is_on_the_page(tmp_path):
    (tmp_path / "pooling_cuda.csv").write_text('"B, D, map",mode,ours f+b,ours fwd\n"1, 2, 3×3",tf32,1.5,0.5\n')
    (tmp_path / "pooling_cuda.md").write_text("about\n\n| a |\n\nLeft out: b (after 5 s).\n")
    text = performance_page.page("<!-- begin pooling cuda -->\n<!-- end pooling cuda -->\n", tmp_path)
    assert "| 1, 2, 3×3 | tf32 | 1.5 |" in text and "\nLeft out: b (after 5 s).\n<!-- end" in text


def test_another_folder_of_pages(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["performance_page.py", "--docs", str(tmp_path)])
    with pytest.raises(SystemExit):
        performance_page.main()
    assert "holds neither of performance.md, poolings.md" in capsys.readouterr().err
    (tmp_path / "performance.md").write_text("<!-- begin models cuda -->\n<!-- end models cuda -->\n")
    assert performance_page.main() == 0
    assert "Not measured" in (tmp_path / "performance.md").read_text()
