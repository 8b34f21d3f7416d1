"""Tables 2 and 5 and Figs. 1, 3, 4 and 5: classifiers trained on ImageNet, their accuracy and its course."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from timm_gcp.reproduce import paper
from timm_gcp.reproduce.draw import draw_convergence, draw_sweep
from timm_gcp.reproduce.item import Column, Item, Row, Value, spread
from timm_gcp.reproduce.jobs import SUMMARY, Job, train_folder, train_job
from timm_gcp.reproduce.runs import POLY_PAIRS, Run, classifier, poly
from timm_gcp.reproduce.setup import Setup
from timm_gcp.train.curves import RunCurve, matching_epoch, read_summary
from timm_gcp.weights.authors import ROWS as RELEASED

SCHEDULES = ("norm", "fast", "adju")
TOP = (Column("top-1"), Column("top-5"))
EPOCHS, MATCHING = Column("epochs"), Column("matching epoch")
TWINS = "ShuffleNet V2 on Imagenette, Tiny-ImageNet and Fashion-MNIST in a few epochs: [studies](evidence.md)"
MATCHING_NOTE = "The matching epoch is the first whose top-1 reaches the GAP network's final one under LR_norm."


def curve(run: Run, setup: Setup) -> RunCurve | None:
    """A run's accuracies; None where there are none yet."""
    path = train_folder(run, setup) / SUMMARY
    return read_summary(path, run.name) if path.is_file() else None


def accuracy(run: Run | None, setup: Setup) -> tuple[Value, Value]:
    """Top-1 and top-5 after the last epoch."""
    found = curve(run, setup) if run is not None else None
    return (found.top1[-1], found.top5[-1]) if found else (None, None)


def matched(run: Run, setup: Setup) -> int | None:
    """First epoch, from 1, at which a GCP run reaches its GAP twin's final top-1 under LR_norm; None if never."""
    own, reference = curve(run, setup), curve(classifier(run.backbone, "GAP", "norm"), setup)
    return matching_epoch(own, reference.top1[-1]) if own and reference and run.pooling == "GCP" else None


def different(runs: Iterable[Run | None]) -> list[Run]:
    """The runs without repetition."""
    return list({run.name: run for run in runs if run is not None}.values())


def train_all(rows: Sequence[Row], setup: Setup) -> list[Job]:
    """A job for each run of the rows."""
    return [train_job(run, setup) for run in different(row.source for row in rows)]


def hours(runs: Iterable[Run | None]) -> str:
    """Hours of the runs, as far as Appendix V's times per image say."""
    chosen = different(runs)
    known = [run.hours for run in chosen if run.hours is not None]
    text = f"{sum(known):,.0f} h on four Titan Xp for {len(known)} ResNet runs, by Appendix V's ms per image"
    rest = len(chosen) - len(known)
    return text + (f"; {rest} runs of networks for which the paper gives no time" if rest else "")


def released(run: Run) -> tuple[Value, Value]:
    """The release's accuracies of a network and schedule; None where no checkpoint is released."""
    schedule = f"LR{run.recipe.rsplit('_', 1)[1]}"
    found = (row[2:4] for row in RELEASED if row[0] == run.architecture and schedule in row[1])
    return next(found, (None, None))


def _row(run: Run, labels: tuple[str, ...], figures: tuple[Value, ...]) -> Row:
    return Row((paper.TITLES[run.backbone], *labels), run.backbone, run.architecture, figures, run, run.name)


def _table_2() -> tuple[Row, ...]:
    rows = []
    for (backbone, pooling, schedule), (batch, epochs, matching, *top) in paper.TABLE_2.items():
        if schedule == "K-FAC":
            labels = (paper.TITLES[backbone], pooling, schedule, str(batch))
            rows.append(Row(labels, backbone, backbone, (epochs, matching, *top)))
        else:
            run = classifier(backbone, pooling, schedule)
            rows.append(_row(run, (pooling, f"LR_{schedule}", str(batch)), (epochs, matching, *top)))
    return tuple(rows)


def _measure_2(row: Row, setup: Setup) -> Sequence[Value]:
    found = curve(row.source, setup) if row.source else None
    if found is None:
        return (None, None, None, None)
    return (found.epochs[-1] + 1, matched(row.source, setup), *accuracy(row.source, setup))


def _gains() -> str:
    table = paper.TABLE_2
    gains = [
        row[3] - table[backbone, "GAP", "norm"][3]  # type: ignore[operator]
        for (backbone, _, schedule), row in table.items()
        if schedule == "adju"
    ]
    return f"GCP under LR_adju {spread(gains)} points of top-1 above GAP under LR_norm, in half the epochs or fewer"


def _course(schedules: Sequence[tuple[str, str]], backbones: Sequence[str]) -> tuple[Row, ...]:
    rows = []
    for backbone in backbones:
        for pooling, schedule in schedules:
            run = classifier(backbone, pooling, schedule)
            rows.append(_row(run, (pooling, f"LR_{schedule}"), released(run)))
    return tuple(rows)


def _measure_course(row: Row, setup: Setup) -> Sequence[Value]:
    return (*accuracy(row.source, setup), matched(row.source, setup))


def _table_5() -> tuple[Row, ...]:
    rows = []
    for (backbone, schedule, dim), top in paper.TABLE_5.items():
        run = classifier(backbone, "GCP", schedule, "d128" if dim == 128 else "")
        rows.append(_row(run, (f"LR_{schedule}", str(dim)), top))
    return tuple(rows)


def _losses() -> str:
    table = paper.TABLE_5
    lost = [table[net, lr, 256][0] - table[net, lr, 128][0] for net, lr, dim in table if dim == 128]
    return f"D = 128 loses {spread(lost)} points of top-1 against D = 256, more under LR_adju"


def _measure_top(row: Row, setup: Setup) -> Sequence[Value]:
    return accuracy(row.source, setup)


def _sweep() -> tuple[Row, ...]:
    runs = {f"{power}-{end}": poly(power, end) for power, end in POLY_PAIRS}
    return tuple(_row(run, (pair,), released(run)) for pair, run in runs.items())


TABLE_2_ROWS, TABLE_5_ROWS, SWEEP = _table_2(), _table_5(), _sweep()
FIGURE_1_ROWS = _course((("GAP", "norm"), ("GCP", "fast")), ("mobilenetv2_100", "resnet18"))
FIGURE_3_ROWS = _course([(pooling, lr) for lr in SCHEDULES for pooling in ("GAP", "GCP")], paper.BACKBONES)
COURSE = (*TOP, Column("matching epoch", printed=False))


def _trained(rows: tuple[Row, ...], **facts: Any) -> Item:
    """A table or figure whose rows are trained on ImageNet, each by its recipe."""
    return Item(data=("imagenet",), plan=train_all, cost=lambda: hours(row.source for row in rows), rows=rows, **facts)


ITEMS = (
    _trained(
        TABLE_2_ROWS,
        name="table2",
        title="Table 2",
        what="GAP under LR_norm and GCP under LR_adju",
        labels=("backbone", "pooling", "lr", "BS"),
        columns=(EPOCHS, MATCHING, *TOP),
        measure=_measure_2,
        claim=_gains(),
        here=lambda: f"not run on ImageNet; {TWINS}",
        notes=(
            MATCHING_NOTE,
            "The row of K-FAC is not a run of the paper's: it is quoted there from Osawa et al., CVPR 2019.",
        ),
    ),
    _trained(
        TABLE_5_ROWS,
        name="table5",
        title="Table 5",
        what="GCP with D = 256 and D = 128",
        labels=("backbone", "lr", "D"),
        columns=TOP,
        measure=_measure_top,
        claim=_losses(),
        here=lambda: "not run on ImageNet; a small ShuffleNet V2 on Tiny-ImageNet at 32 px: [study](evidence.md)",
    ),
    _trained(
        FIGURE_1_ROWS,
        name="fig1",
        title="Fig. 1",
        what="convergence of MobileNetV2 and ResNet-18",
        labels=("backbone", "pooling", "lr"),
        columns=COURSE,
        measure=_measure_course,
        claim="GCP matches GAP or better in less than a quarter of the epochs",
        here=lambda: f"not run on ImageNet; {TWINS}",
        draw=draw_convergence,
        printed="released",
        notes=(
            "The caption names no schedule. LR_norm and LR_fast are those that Section 4.1 compares in the same words.",
            MATCHING_NOTE,
        ),
    ),
    _trained(
        FIGURE_3_ROWS,
        name="fig3",
        title="Fig. 3",
        what="convergence of six networks under three schedules",
        labels=("backbone", "pooling", "lr"),
        columns=COURSE,
        measure=_measure_course,
        claim="faster schedules cost accuracy, and cost GCP less than GAP",
        here=lambda: f"not run on ImageNet; {TWINS}",
        draw=draw_convergence,
        printed="released",
        notes=(MATCHING_NOTE,),
    ),
    _trained(
        SWEEP,
        name="fig4",
        title="Fig. 4",
        what="polynomial decays (ρ-e_f) and the convergence of ResNet-18 with GCP under them",
        labels=("backbone", "ρ-e_f"),
        columns=TOP,
        measure=_measure_top,
        claim="a larger ρ converges faster and ends lower",
        here=lambda: "the rates are drawn by `timm-gcp plot schedules`; the trainings are not run",
        draw=draw_sweep,
        printed="released",
        notes=(
            "The paper names the pairs 2-50 (LR_adju) and 11-53 (LR_fast, which stops after 30 epochs); those between "
            "are of recipes/poly_sweep.yaml.",
        ),
    ),
    _trained(
        TABLE_5_ROWS,
        name="fig5",
        title="Fig. 5",
        what="convergence with D = 256 and D = 128 (Appendix III)",
        labels=("backbone", "lr", "D"),
        columns=TOP,
        measure=_measure_top,
        claim="as Table 5, whose runs these are",
        here=lambda: "not run on ImageNet",
        draw=draw_convergence,
        notes=("The printed figures are Table 5's.",),
    ),
)
