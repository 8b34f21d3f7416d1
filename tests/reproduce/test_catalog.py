"""Names of tables and figures."""

from __future__ import annotations

import pytest

from timm_gcp.reproduce.catalog import ALIASES, ITEMS, find_item


def test_every_table_and_figure_is_there():
    assert list(ITEMS) == [*(f"table{n}" for n in range(1, 10)), *(f"fig{n}" for n in range(1, 6)), "appendix2"]
    for name, item in ITEMS.items():
        assert item.name == name and item.rows
        for row in item.rows:
            assert len(row.labels) == len(item.labels)
            assert len(row.paper) == sum(column.printed for column in item.columns)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("table2", "table2"),
        ("Table 2", "table2"),
        ("fig. 3", "fig3"),
        ("Figure3", "fig3"),
        ("appendixII", "appendix2"),
        ("Appendix V", "table9"),
        ("appendix5", "table9"),
        ("appendix-1", "fig2"),
        ("appendix iii", "fig5"),
    ],
)
def test_names_may_be_written_as_the_paper_does(text, name):
    assert find_item(text).name == name
    assert set(ALIASES.values()) <= set(ITEMS)


@pytest.mark.parametrize("text", ["table10", "fig6", "appendix4", "tabel2", ""])
def test_an_unknown_table_is_answered_with_the_known_ones(text):
    with pytest.raises(
        ValueError, match=r"no table or figure '.*'; there are table1, .* fig5, appendix2, appendix1 \("
    ):
        find_item(text)


def test_the_command_says_so_in_one_line(command):
    status, _, errors = command("tabel2")
    assert status == 1 and len(errors.splitlines()) == 1 and "Did you mean 'table2'?" in errors
