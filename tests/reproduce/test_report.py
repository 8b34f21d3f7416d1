"""The table beside the paper's."""

from __future__ import annotations

from dataclasses import replace

from timm_gcp.reproduce.catalog import ITEMS
from timm_gcp.reproduce.item import Column, Row
from timm_gcp.reproduce.report import comma_separated, markdown
from timm_gcp.reproduce.setup import Setup

ITEM = replace(
    ITEMS["table2"],
    labels=("net", "lr"),
    columns=(Column("top-1"), Column("epochs"), Column("range", ".1e", printed=False)),
    measure=lambda row, setup: row.source,
    notes=("a note",),
)
ROWS = [
    Row(("A", "norm"), "a", "a", (71.5, 100), (70.123, 100, 0.00123)),
    Row(("B", "fast"), "b", "b", (None, 30), (None, None, None)),
]


def test_markdown(tmp_path):
    assert markdown(ITEM, ROWS, Setup(tmp_path)) == (
        "Table 2: GAP under LR_norm and GCP under LR_adju\n\n"
        "| net | lr | top-1, paper | top-1, ours | epochs, paper | epochs, ours | range, ours |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
        "| A | norm | 71.50 | 70.12 | 100 | 100 | 1.2e-03 |\n"
        "| B | fast | – | – | 30 | – | – |\n\n"
        "- a note\n"
    )
    text = markdown(replace(ITEM, printed="released", notes=()), ROWS, Setup(tmp_path, limit=4))
    assert "| top-1, released |" in text and text.endswith(
        "- A trial with --limit 4: the figures say that it runs, and nothing of the networks.\n"
    )


def test_csv_has_all_digits(tmp_path):
    assert comma_separated(ITEM, ROWS, Setup(tmp_path)).splitlines()[1:] == [
        "A,norm,71.5,70.123,100,100,0.00123",
        "B,fast,,,30,,",
    ]
