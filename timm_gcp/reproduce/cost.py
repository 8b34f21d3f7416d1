"""Table 9 (Appendix V): parameters, multiply-adds and time per image; with ImageNet at hand the accuracies, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from timm_gcp.common.files import write_text
from timm_gcp.reproduce import paper, trial
from timm_gcp.reproduce.classification import accuracy, different, hours
from timm_gcp.reproduce.item import Column, Item, Row, Value, spread
from timm_gcp.reproduce.jobs import Job, measure_job, shown, train_job
from timm_gcp.reproduce.runs import Run, classifier
from timm_gcp.reproduce.setup import Setup

RESULT = "cost.json"
IMAGES, REPEATS = 8, 5  # of a timed step, and steps timed


def _folder(run: Run, setup: Setup) -> Path:
    return setup.output / "cost" / run.name.removesuffix("-norm")


def _measurement(run: Run, setup: Setup) -> Callable[[], None]:
    def measure_and_write() -> None:
        from timm_gcp.common.device import pick_device
        from timm_gcp.inference.cost import measure

        batch, repeats = _effort(setup)
        kwargs: dict[str, Any] = {k: v for k, v in run.keys.get("model_kwargs", {}).items() if k == "reduce_dim"}
        found = measure(run.model, pick_device(setup.device), batch_size=batch, repeats=repeats, **kwargs)
        write_text(_folder(run, setup) / RESULT, json.dumps(asdict(found), indent=1) + "\n")

    return measure_and_write


def _effort(setup: Setup) -> tuple[int, int]:
    return (IMAGES, REPEATS) if setup.limit is None else (trial.TIMED_IMAGES, trial.TIMED_STEPS)


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    runs = different(row.source for row in rows)
    jobs = [] if setup.data_dir is None else [train_job(run, setup) for run in runs]
    for run in runs:
        batch, repeats = _effort(setup)
        command = ("timm-gcp", "reproduce", "table9", "--models", run.architecture, "--output", shown(setup.output))
        settings = {"images": batch, "repeats": repeats, "device": setup.device}
        jobs.append(measure_job(_folder(run, setup), command, settings, RESULT, _measurement(run, setup)))
    return jobs


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    path = _folder(row.source, setup) / RESULT
    if not path.is_file():
        return (None, None, None, None, *accuracy(row.source, setup))
    found = json.loads(path.read_text(encoding="utf-8"))
    return (
        found["parameters"] / 1e6,
        found["macs"] / 1e9,
        1000 * found["training"]["median"],
        1000 * found["inference"]["median"],
        *accuracy(row.source, setup),
    )


def _rows() -> tuple[Row, ...]:
    rows = []
    for (net, pooling), figures in paper.TABLE_9.items():
        run = classifier(net, pooling, "norm", "8k" if pooling == "GCP" else "")
        rows.append(Row((paper.TITLES[net], pooling), net, run.architecture, figures, run))
    return tuple(rows)


def _extra() -> str:
    more = {
        k: spread(paper.TABLE_9[net, "GCP"][k] - paper.TABLE_9[net, "GAP"][k] for net in paper.RESNETS)
        for k in (0, 2, 3)
    }
    return f"GCP costs {more[0]} M parameters, {more[2]} ms per image in training and {more[3]} ms in inference more"


ROWS = _rows()

ITEMS = (
    Item(
        name="table9",
        title="Table 9",
        what="cost of GCP and GAP (Appendix V)",
        data=("imagenet",),
        labels=("backbone", "pooling"),
        columns=(
            Column("parameters (M)"),
            Column("GMACs"),
            Column("training (ms/image)"),
            Column("inference (ms/image)"),
            Column("top-1"),
            Column("top-5"),
        ),
        rows=ROWS,
        plan=_plan,
        measure=_measure,
        cost=lambda: f"minutes without --data-dir; with it, for the accuracies, {hours(row.source for row in ROWS)}",
        claim=_extra(),
        here=lambda: (
            "parameters are equal in every row, GMACs except as `timm-gcp cost` explains; times on a CPU: "
            "[study](performance.md)"
        ),
        notes=(
            "Without --data-dir nothing is trained, and the accuracies are left out.",
            "GCP has Appendix V's 8k covariance: two reductions, to 256 and 128 channels. The paper's GFLOPs are "
            "multiply-adds; `timm-gcp cost` says why some of them differ from ours. Its times are of four Titan Xp, "
            "ours of this machine.",
        ),
    ),
)
