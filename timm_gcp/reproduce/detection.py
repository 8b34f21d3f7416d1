"""Tables 6, 7 and 8: detectors and instance segmentation on COCO, and what down-sampling in the last stage does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from timm_gcp.detection.coco_eval import METRICS as AP
from timm_gcp.reproduce import paper
from timm_gcp.reproduce.classification import accuracy, different, hours
from timm_gcp.reproduce.detectors import detect_job, precision
from timm_gcp.reproduce.item import Column, Item, Row, Value, spread
from timm_gcp.reproduce.jobs import Job, train_job
from timm_gcp.reproduce.published import published_name
from timm_gcp.reproduce.runs import Run, classifier
from timm_gcp.reproduce.setup import Setup

TITLES = {"fasterrcnn": "Faster R-CNN", "maskrcnn": "Mask R-CNN"}
NO_TIME = "the paper names neither GPUs nor hours for its detectors"
OTHER_DETECTORS = "The paper uses MMDetection, this package torchvision's detectors: compare rows rather than decimals."
STARTS = (
    "Each detector starts from the network of LR_norm; with --weights published from the released one, GAP from "
    "torchvision's, as MMDetection does."
)


def start_of(backbone: str, method: str) -> Run:
    """The classifier that a row's detector starts from."""
    return classifier(backbone, "GAP" if method == "GAP" else "GCP", "norm", "ds" if method == "w/ DS" else "")


def recipe_of(detector: str, backbone: str, method: str) -> str:
    """The recipe of a row's detector."""
    suffix = {"GAP": "gap", "GCP_D": "gcp_d", "GCP_M": "gcp_m", "w/o DS": "gcp_d", "w/ DS": "gcp_ds"}[method]
    return f"{detector}_{backbone}_{suffix}"


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    """The classifiers, unless published ones are to be taken, then the detectors.

    Raises:
        FileNotFoundError: Published weights that are not on this machine.
    """
    starts = [start_of(row.backbone, row.source[2]) for row in rows]
    if setup.published:
        for run in different(starts):
            if run.pooling == "GCP":
                published_name(run, setup)  # says so if it is not here
    jobs = [] if setup.published else [train_job(run, setup) for run in different(starts)]
    for row, start in zip(rows, starts, strict=True):
        jobs.append(detect_job(recipe_of(*row.source), None if setup.published else start, setup))
    return jobs


def _measure(kind: str, row: Row, setup: Setup) -> Sequence[Value]:
    found = precision(recipe_of(*row.source), setup).get(kind, {})
    return tuple(found.get(name) for name in AP)


def _measure_8(row: Row, setup: Setup) -> Sequence[Value]:
    start = start_of(row.backbone, row.source[2])
    return (*accuracy(start, setup), *_measure("bbox", row, setup)[:3])


def _rows(table: Mapping[tuple[str, str, str], tuple[float, ...]]) -> tuple[Row, ...]:
    return tuple(
        Row(
            (TITLES[detector], paper.TITLES[net], method),
            net,
            start_of(net, method).architecture,
            figures,
            (detector, net, method),
            recipe_of(detector, net, method),
        )
        for (detector, net, method), figures in table.items()
    )


def _gains(table: Mapping[tuple[str, str, str], tuple[float, ...]]) -> str:
    gains = [
        table[detector, net, "GCP_M"][0] - table[detector, net, "GAP"][0]
        for detector, net, method in table
        if method == "GAP"
    ]
    return f"GCP_M {spread(gains, 1)} points of AP above GAP"


def _changes() -> str:
    table = paper.TABLE_8
    top, ap = (
        [table[net, "w/ DS"][k] - table[net, "w/o DS"][k] for net, method in table if method == "w/ DS"] for k in (0, 2)
    )
    return f"with down-sampling {spread([-value for value in top])} points of top-1 less, {spread(ap, 1)} of AP more"


ROWS_6, ROWS_7 = _rows(paper.TABLE_6), _rows(paper.TABLE_7)
ROWS_8 = tuple(
    Row(
        (paper.TITLES[net], method),
        net,
        f"{net}_gcp",
        figures,
        ("fasterrcnn", net, method),
        recipe_of("fasterrcnn", net, method),
    )
    for (net, method), figures in paper.TABLE_8.items()
)


def _hours(rows: Sequence[Row]) -> str:
    return f"{hours(start_of(row.backbone, row.source[2]) for row in rows)}; {NO_TIME}"


ITEMS = (
    Item(
        name="table6",
        title="Table 6",
        what="object detection on COCO val2017",
        data=("imagenet", "coco"),
        labels=("detector", "backbone", "method"),
        columns=tuple(Column(name, ".1f") for name in AP),
        rows=ROWS_6,
        plan=_plan,
        measure=partial(_measure, "bbox"),
        cost=lambda: _hours(ROWS_6),
        claim=_gains(paper.TABLE_6),
        here=lambda: "not run on COCO; ShuffleNet V2 on micrographs of blood cells: [study](detection.md)",
        notes=(OTHER_DETECTORS, STARTS),
        published=True,
    ),
    Item(
        name="table7",
        title="Table 7",
        what="instance segmentation on COCO val2017 with Mask R-CNN",
        data=("imagenet", "coco"),
        labels=("detector", "backbone", "method"),
        columns=tuple(Column(name, ".1f") for name in AP),
        rows=ROWS_7,
        plan=_plan,
        measure=partial(_measure, "segm"),
        cost=lambda: _hours(ROWS_7),
        claim=_gains(paper.TABLE_7),
        here=lambda: "not run on COCO",
        notes=(OTHER_DETECTORS, STARTS, "The runs are those of Table 6."),
        published=True,
    ),
    Item(
        name="table8",
        title="Table 8",
        what="GCP without and with down-sampling (DS) in the last stage: ImageNet, and Faster R-CNN on COCO",
        data=("imagenet", "coco"),
        labels=("backbone", "method"),
        columns=(Column("top-1"), Column("top-5"), *(Column(name, ".1f") for name in AP[:3])),
        rows=ROWS_8,
        plan=_plan,
        measure=_measure_8,
        cost=lambda: f"{_hours(ROWS_8)} (the hours are of networks without down-sampling)",
        claim=_changes(),
        here=lambda: "not run here",
        notes=(
            OTHER_DETECTORS,
            "The paper names no schedule. LR_norm is that of its rows without down-sampling, whose figures it prints "
            "elsewhere. Both detectors down-sample in the last stage; the classifiers that they start from differ.",
        ),
    ),
)
