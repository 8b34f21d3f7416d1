"""Fig. 2: loss Lipschitzness and gradient predictiveness of MobileNetV2 and ResNet-18 in training (Section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from timm_gcp.landscape import Record, plot_landscape, read_records
from timm_gcp.reproduce import paper
from timm_gcp.reproduce.classification import hours
from timm_gcp.reproduce.item import Column, Item, Row, Value
from timm_gcp.reproduce.jobs import PROBES, Job, landscape_job
from timm_gcp.reproduce.runs import landscape
from timm_gcp.reproduce.setup import Setup


def records(row: Row, setup: Setup) -> list[Record]:
    """A run's probes up to the paper's number of steps; none where there are none yet."""
    path = setup.output / "landscape" / row.source.name / PROBES
    last = paper.FIGURE_2[row.backbone][0]
    return [record for record in read_records(path) if record.step <= last] if path.is_file() else []


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    return [landscape_job(row.source, setup) for row in rows]


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    found = records(row, setup)
    if not found:
        return (None,) * len(COLUMNS)
    return (
        len(found),
        fmean(record.loss_range for record in found),
        fmean(record.gradient_range for record in found),
        fmean(record.loss_mean for record in found),
    )


def _draw(rows: Sequence[Row], setup: Setup, path: Path) -> None:
    found = [(row, records(row, setup)) for row in rows]
    panels = {
        backbone: {row.labels[1]: probes for row, probes in found if row.labels[0] == backbone and probes}
        for backbone in dict.fromkeys(row.labels[0] for row in rows)
    }
    plot_landscape(panels, path)


COLUMNS = (
    Column("probes", printed=False),
    Column("mean width of Δl", ".4g", printed=False),
    Column("mean width of Δg", ".4g", printed=False),
    Column("mean Δl", ".4g", printed=False),
)
ROWS = tuple(
    Row((paper.TITLES[backbone], pooling), backbone, run.architecture, (), run)
    for backbone in paper.FIGURE_2
    for pooling in ("GAP", "GCP")
    for run in (landscape(backbone, pooling),)
)

ITEMS = (
    Item(
        name="fig2",
        title="Fig. 2",
        what="ranges of the loss and of the gradient's change along the gradient (Appendix I)",
        data=("imagenet",),
        labels=("backbone", "pooling"),
        columns=COLUMNS,
        rows=ROWS,
        plan=_plan,
        measure=_measure,
        cost=lambda: f"{hours(row.source for row in ROWS)}; the probes take about a tenth more",
        claim="both ranges are narrower with GCP, and the losses lower",
        here=lambda: "not run on ImageNet; a small ShuffleNet V2 on Tiny-ImageNet at 32 px: [study](landscape.md)",
        draw=_draw,
        notes=(
            "The paper draws the bands and prints no figures. Narrower is smoother (Δl) and steadier (Δg).",
            "MobileNetV2 is trained without dropout (Section 3.2), 500,000 steps; ResNet-18 100,000 steps.",
        ),
    ),
)
