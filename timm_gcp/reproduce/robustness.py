"""Table 4: ImageNet-C and ImageNet-P scores of six networks with GAP and with GCP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timm_gcp.reproduce import paper, trial
from timm_gcp.reproduce.classification import different, hours
from timm_gcp.reproduce.item import Column, Item, Row, Value, spread
from timm_gcp.reproduce.jobs import Job, checkpoint, data_settings, shown, train_job
from timm_gcp.reproduce.published import published_name
from timm_gcp.reproduce.runs import Run, classifier
from timm_gcp.reproduce.setup import IMAGENET_CLASSES, VAL, Setup, split_folder
from timm_gcp.robustness.corruptions import SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import TEST_PERTURBATIONS
from timm_gcp.robustness.results import ALEXNET, read_baseline, read_result, result_path
from timm_gcp.robustness.scores import score_c, score_p

BENCHMARKS = ("c", "p")


def folder(benchmark: str, setup: Setup) -> Path:
    """Where the results of a benchmark lie: those of published weights, too, have a place of their own."""
    return setup.output / "robustness" / (f"{benchmark}-published" if setup.published else benchmark)


def baseline_folder(benchmark: str, setup: Setup) -> Path:
    """Where the results of AlexNet lie."""
    return setup.output / "robustness" / f"{benchmark}-{ALEXNET}"


def label(run: Run) -> str:
    """A network's name in tables and files."""
    return f"{paper.TITLES[run.backbone]} + {run.pooling}"


def benchmark_folder(benchmark: str, setup: Setup) -> Path | None:
    """The benchmark on disk; None where its images are made on the fly, as in a trial."""
    if setup.limit is not None:
        return None
    return setup.imagenet_c if benchmark == "c" else setup.imagenet_p


def needs_alexnet(benchmark: str, setup: Setup) -> bool:
    """Whether the baseline has to be measured: the package holds AlexNet's figures for ImageNet-C as published only."""
    if setup.limit is not None or setup.classes != IMAGENET_CLASSES:
        return False
    return benchmark == "p" or benchmark_folder("c", setup) is None


def _plan(rows: Sequence[Row], setup: Setup) -> list[Job]:
    """The classifiers, unless published ones are to be taken, then AlexNet where it is needed, then both benchmarks.

    Raises:
        ValueError: Published weights, which know ImageNet's classes, with another number of them.
    """
    runs = different(row.source for row in rows)
    if setup.published and setup.classes != IMAGENET_CLASSES:
        raise ValueError(
            f"published weights know ImageNet's {IMAGENET_CLASSES} classes, here are {setup.classes}: leave out "
            "--weights published" + (f" or --limit {setup.limit}." if setup.limit is not None else ".")
        )
    jobs = [] if setup.published else [train_job(run, setup) for run in runs]
    for benchmark in BENCHMARKS:
        if needs_alexnet(benchmark, setup):
            models = ["--model", "torchvision:alexnet", "--pretrained", "--label", ALEXNET]
            jobs.append(_job(benchmark, [ALEXNET], models, setup, alexnet=True))
        labels = [label(run) for run in runs]
        if setup.published:
            models = ["--model", *(published_name(run, setup) for run in runs), "--pretrained"]
        else:
            files = [shown(checkpoint(run, setup)) for run in runs]
            models = ["--model", *(run.model for run in runs), "--checkpoint", *files]
        jobs.append(_job(benchmark, labels, [*models, "--label", *labels], setup))
    return jobs


def _job(benchmark: str, labels: list[str], models: list[str], setup: Setup, alexnet: bool = False) -> Job:
    place = baseline_folder(benchmark, setup) if alexnet else folder(benchmark, setup)
    images = benchmark_folder(benchmark, setup)
    clean = split_folder(setup.imagenet, VAL)
    line = [benchmark, *models, "--data-dir", shown(images or clean)]
    line += [] if images else ["--on-the-fly"]
    line += ["--clean-dir", shown(clean)] if images and benchmark == "c" else []
    if not alexnet and needs_alexnet(benchmark, setup):
        line += ["--baseline", shown(result_path(baseline_folder(benchmark, setup), benchmark, ALEXNET))]
    line += ["--limit", str(trial.CORRUPTED_IMAGES)] if setup.limit is not None else []
    workers = 0 if setup.limit is not None else setup.workers
    line += ["--workers", str(workers)] if workers is not None else []
    line += ["--device", setup.device] if setup.device else []
    settings = {**data_settings(setup, setup.imagenet_source), "benchmark": images.resolve().name if images else None}
    settings["weights"] = "published" if setup.published else "trained"
    return Job(
        place,
        ("timm-gcp", "robustness", *line, "--output", shown(place)),
        settings,
        lambda: all(_complete(place, benchmark, name) for name in labels),
    )


def _complete(place: Path, benchmark: str, name: str) -> bool:
    path = result_path(place, benchmark, name)
    if not path.is_file():
        return False
    result = read_result(path, benchmark)
    if benchmark == "p":
        return all(perturbation in result["flip_probability"] for perturbation in TEST_PERTURBATIONS)
    errors = result["corruption_error"]
    cells = all(str(s) in errors.get(name, {}) for name in TEST_CORRUPTIONS for s in SEVERITIES)
    return cells and result.get("clean_error") is not None


def _scores(run: Run, benchmark: str, setup: Setup) -> dict[str, Any]:
    path = result_path(folder(benchmark, setup), benchmark, label(run))
    if not path.is_file():
        return {}
    baseline = None
    own = result_path(baseline_folder(benchmark, setup), benchmark, ALEXNET)
    if needs_alexnet(benchmark, setup):
        baseline = read_result(own, benchmark) if own.is_file() else None
    elif benchmark == "c" and benchmark_folder("c", setup) is not None and setup.classes == IMAGENET_CLASSES:
        baseline = read_baseline(ALEXNET, "c")
    return (score_c if benchmark == "c" else score_p)(read_result(path, benchmark), baseline)


def _measure(row: Row, setup: Setup) -> Sequence[Value]:
    c, p = (_scores(row.source, benchmark, setup) for benchmark in BENCHMARKS)

    def percent(share: float | None) -> float | None:
        return None if share is None else 100 * share

    return (
        c.get("mCE"),
        c.get("relative_mCE"),
        p.get("mFR"),
        p.get("mT5D"),
        percent(c.get("clean_error")),
        percent(c.get("mean_error")),
        percent(p.get("mean_flip_probability")),
        p.get("mean_top5_distance"),
    )


def _gains() -> str:
    pairs = [(paper.TABLE_4[net, "GAP"], paper.TABLE_4[net, "GCP"]) for net in paper.BACKBONES]
    c, p = (spread([gap[k] - gcp[k] for gap, gcp in pairs], 1) for k in (0, 2))
    return f"GCP lowers mCE by {c} and mFR by {p} points"


ROWS = tuple(
    Row((paper.TITLES[net], pooling), net, run.architecture, figures, run)
    for (net, pooling), figures in paper.TABLE_4.items()
    for run in (classifier(net, pooling, "norm"),)
)

ITEMS = (
    Item(
        name="table4",
        title="Table 4",
        what="robustness to corruptions (ImageNet-C) and perturbations (ImageNet-P)",
        data=("imagenet", "imagenet_c", "imagenet_p"),
        labels=("backbone", "pooling"),
        columns=(
            *(Column(name, ".1f") for name in ("mCE", "relative mCE", "mFR", "mT5D")),
            Column("clean error %", printed=False),
            Column("error under corruption %", printed=False),
            Column("flips %", printed=False),
            Column("top-5 distance", ".3f", printed=False),
        ),
        rows=ROWS,
        plan=_plan,
        measure=_measure,
        cost=lambda: f"{hours(row.source for row in ROWS)}; the paper gives no time for the two benchmarks",
        claim=_gains(),
        here=lambda: "not run on ImageNet; MobileNetV2 on all test images of Imagenette: [study](robustness.md)",
        notes=(
            "Lower is better throughout. mCE, relative mCE, mFR and mT5D are in % of AlexNet's; the last four columns "
            "are not normalised. Without AlexNet's figures (a trial, another set of classes) only those are there.",
            "The paper names no schedule here: the networks are those of LR_norm.",
            "Without --imagenet-c or --imagenet-p the images are made on the fly from the validation set, without the "
            "benchmarks' JPEG and video compression.",
        ),
        published=True,
    ),
)
