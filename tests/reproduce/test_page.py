"""docs/reproduce.md holds what `timm-gcp reproduce list` prints, and links that lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

from timm_gcp.reproduce.catalog import ITEMS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_that_the_command_prints(command):
    status, printed, _ = command("list")
    assert status == 0
    marked = PAGE.split("<!-- begin timm-gcp reproduce list -->\n")[1].split("<!-- end timm-gcp reproduce list -->")[0]
    assert marked == printed


def test_every_table_and_figure_has_a_row_with_all_cells():
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| (Table|Fig\.|Appendix) ", line)]
    assert len(rows) == len(ITEMS) == 15
    for row, name in zip(rows, ITEMS, strict=True):
        assert len(row) == 6 and all(cell.strip() for cell in row)
        assert row[2].startswith(f"`timm-gcp reproduce {name}")


def test_links_lead_to_pages():
    links = re.findall(r"\]\(([\w./]+\.md)\)", PAGE)
    assert links and all((DOCS / link).is_file() for link in links)
