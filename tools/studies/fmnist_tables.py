"""Tables and figures of `docs/fashion_mnist.md` from the `summary.csv` of finished runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fmnist_cells import (
    BACKBONES,
    CAUSES,
    DECAY,
    DIMS,
    GCP_RATE,
    LARGE,
    MOBILENET,
    POOLINGS,
    RATES,
    SCHEDULES,
    STRONG_CROPS,
    STUDIED,
    Cell,
    at_its_rate,
    at_rate,
    cause,
    decayed,
    larger,
    strong,
    twins,
)

from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.plots.style import COLOURS, new_figure, plain, save
from timm_gcp.train.curves import RunCurve, matching_epoch, read_summary

Curves = dict[Cell, RunCurve]


def read_curves(folder: Path, cells: Sequence[Cell], epochs: dict[str, int]) -> Curves:
    """The finished runs among `cells`."""
    curves = {}
    for cell in cells:
        path = folder / cell.name / "summary.csv"
        if path.is_file():
            curve = read_summary(path, cell.name)
            if len(curve.epochs) >= epochs[cell.schedule]:
                curves[cell] = curve
    return curves


def spread(values: Sequence[float]) -> str:
    """Mean and range of final accuracies, `93.51 (93.40 to 93.60, 3 seeds)`."""
    if not values:
        return "-"
    mean = sum(values) / len(values)
    return (
        f"{mean:.2f}"
        if len(values) == 1
        else f"{mean:.2f} ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)"
    )


def _of(curves: Curves, wanted: Cell) -> dict[int, RunCurve]:
    """The runs that differ from `wanted` in their seed alone, by seed."""
    return {cell.seed: curve for cell, curve in curves.items() if replace(cell, seed=wanted.seed) == wanted}


def _one(curves: Curves, cell: Cell) -> dict[int, RunCurve]:
    """That run alone, by seed, in the form of `_of`; nothing where it has not run."""
    return {cell.seed: curves[cell]} if cell in curves else {}


def _final(runs: dict[int, RunCurve]) -> str:
    """Accuracy after the last epoch: mean and range over the seeds."""
    return spread([run.top1[-1] for run in runs.values()])


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _gain(gap: dict[int, RunCurve], gcp: dict[int, RunCurve]) -> str:
    """Lead of GCP over the GAP run of the same seed after the last epoch: mean, and range over several seeds."""
    gains = [gcp[seed].top1[-1] - gap[seed].top1[-1] for seed in sorted(set(gap) & set(gcp))]
    if not gains:
        return "-"
    mean = f"{sum(gains) / len(gains):+.2f}"
    return mean if len(gains) == 1 else f"{mean} ({min(gains):+.2f} to {max(gains):+.2f})"


def _matching(gap: dict[int, RunCurve], gcp: dict[int, RunCurve]) -> str:
    """Epoch at which GCP first reaches the final accuracy of the GAP run of the same seed, per seed."""
    common = sorted(set(gap) & set(gcp))
    reached = [matching_epoch(gcp[seed], gap[seed].top1[-1]) for seed in common]
    return ", ".join("never" if epoch is None else str(epoch) for epoch in reached) or "-"


def weights_table(curves: Curves) -> str:
    """The twins that were trained on all images under LR_adju: accuracy after every epoch."""
    whole = any(cell.all_images for cell in curves)  # else the whole study took all images
    runs = {cell.pooling: _of(curves, cell) for cell in twins("adju", 0, all_images=whole)}
    runs[f"GCP, rate {GCP_RATE}"] = _of(curves, at_its_rate("GCP", 0, whole))
    return _per_epoch(runs)


def resolution_table(curves: Curves) -> str:
    """The same with larger images, each at its own rate."""
    whole = any(cell.all_images for cell in curves)
    labels = {"GAP": f"GAP, {LARGE} px", "GCP": f"GCP, {LARGE} px, rate {GCP_RATE}"}
    return _per_epoch({label: _of(curves, larger(pooling, 0, whole)) for pooling, label in labels.items()})


def _per_epoch(runs: dict[str, dict[int, RunCurve]]) -> str:
    """Accuracy after every epoch, a row for each run."""
    epochs = max((len(curve.epochs) for found in runs.values() for curve in found.values()), default=0)
    rows = [
        [f"{label}, seed {seed}", *(f"{value:.2f}" for value in curve.top1)]
        for label, found in runs.items()
        for seed, curve in sorted(found.items())
    ]
    return _markdown(["Top-1 after epoch", *(str(epoch + 1) for epoch in range(epochs))], rows)


def schedules_table(curves: Curves) -> str:
    """GAP and GCP under the three schedules: accuracy, gain, and epochs at which GCP matches GAP (Tables 2 and 3)."""
    rows = []
    slow = _of(curves, Cell(STUDIED, "GAP", "norm", 0))
    for schedule in reversed(SCHEDULES):
        gap, gcp = (_of(curves, cell) for cell in twins(schedule, 0))
        epochs = str(len(next(iter((gcp or gap).values())).epochs)) if gcp or gap else "-"
        rows.append(
            [
                f"LR_{schedule}",
                epochs,
                _final(gap),
                _final(gcp),
                _gain(gap, gcp),
                _matching(gap, gcp),
                _matching(slow, gcp),
            ]
        )
    head = ["Schedule", "Epochs", "GAP top-1", "GCP top-1", "Gain", "GCP matches GAP", "GCP matches GAP under LR_norm"]
    return _markdown(head, rows)


def crops_table(curves: Curves) -> str:
    """GAP and GCP with stronger crops, and with the recipe's: of seed 0, which alone has both."""
    whole = any(cell.all_images for cell in curves)
    kinds = {f"LR_{name}": twins(name, 0) for name in reversed(SCHEDULES)}
    if whole:
        kinds["LR_adju, all images"] = twins("adju", 0, all_images=True)
    kinds["LR_adju, MobileNetV2"] = twins("adju", 0, MOBILENET)
    rows = []
    for label, usual in kinds.items():
        line = [label]
        for cells in ([strong(cell) for cell in usual], usual):
            pair = [_one(curves, cell) for cell in cells]
            line += [*map(_final, pair), _gain(*pair)]
        rows.append(line)
    crops = STRONG_CROPS["scale"][0], read_recipe(find_recipe("fmnist_adju"))["scale"][0]
    head = [f"{column}, from {crop}" for crop in crops for column in ("GAP", "GCP", "gain")]
    return _markdown(["Schedule", *head], rows)


def decay_table(curves: Curves) -> str:
    """The twins on all images under LR_adju, each at its own rate: the recipe's weight decay and more."""
    whole = any(cell.all_images for cell in curves)
    usual = read_recipe(find_recipe("fmnist_adju"))
    rows = []
    for pool in POOLINGS:
        cell = at_its_rate(pool, 0, whole)
        pair = [_of(curves, cell), _of(curves, decayed(pool, 0, whole))]
        rows.append([pool, str(cell.keys.get("lr", usual["lr"])), *map(_final, pair)])
    decays = [f"Top-1, decay {decay:g}" for decay in (usual["weight_decay"], DECAY)]
    return _markdown(["Pooling", "Rate", *decays], rows)


def causes_table(curves: Curves) -> str:
    """One change at a time to the runs under LR_adju: the accuracy without it, then with each."""
    rows = []
    for variant, label in {"": "None", **{name: change.label for name, change in CAUSES.items()}}.items():
        cells = [cause(variant, pool, 0) for pool in POOLINGS] if variant else twins("adju", 0)
        gap, gcp = (_one(curves, cell) for cell in cells)
        rows.append([label, _final(gap), _final(gcp), _gain(gap, gcp)])
    return _markdown(["Change", "GAP top-1", "GCP top-1", "Gain"], rows)


def dims_table(curves: Curves) -> str:
    """Accuracy by width D under LR_adju with stronger crops (the question of Table 5)."""
    rows = []
    for dim in DIMS:
        runs = _of(curves, strong(Cell(STUDIED, "GCP", "adju", 0, dim)))
        rows.append([str(dim), f"{dim * (dim + 1) // 2:,}", _final(runs)])
    return _markdown(["D", "Features", "GCP top-1"], rows)


def backbones_table(curves: Curves) -> str:
    """The backbones under LR_adju."""
    rows = []
    for name in (STUDIED, *BACKBONES):
        gap, gcp = (_of(curves, cell) for cell in twins("adju", 0, name))
        if gap or gcp:
            rows.append([name, _final(gap), _final(gcp), _gain(gap, gcp), _matching(gap, gcp)])
    return _markdown(["Backbone", "GAP top-1", "GCP top-1", "Gain", "GCP matches GAP at epoch"], rows)


def rates_table(curves: Curves) -> str:
    """GAP and GCP under LR_fast with stronger crops, from the recipe's learning rate and from others."""
    usual = read_recipe(find_recipe("fmnist_fast"))["lr"]
    rows = []
    for rate in sorted((usual, *RATES)):
        usually = [strong(cell) for cell in twins("fast", 0)]
        cells = usually if rate == usual else [at_rate(rate, pool, 0) for pool in POOLINGS]
        gap, gcp = (_of(curves, cell) for cell in cells)
        rows.append([str(rate), _final(gap), _final(gcp), _gain(gap, gcp)])
    return _markdown(["Rate of a batch of 128", "GAP top-1", "GCP top-1", "Gain"], rows)


def draw(curves: Curves, path: Path) -> Path:
    """Top-1 per epoch under the schedules that have run, mean over seeds, in the form of Fig. 3."""
    cells = {schedule: twins(schedule, 0) for schedule in reversed(SCHEDULES)}
    runs = {schedule: [list(_of(curves, cell).values()) for cell in pair] for schedule, pair in cells.items()}
    runs = {schedule: pair for schedule, pair in runs.items() if any(pair)}
    figure = new_figure(1 + 10 * len(runs) / 3, 3.8)
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    final = []
    for axes, (schedule, pair) in zip(panels, runs.items(), strict=True):
        plain(axes)
        for pooling, seeds, colour in zip(POOLINGS, pair, COLOURS, strict=False):
            if not seeds:
                continue
            columns = list(zip(*(run.top1 for run in seeds), strict=True))
            epochs = [epoch + 1 for epoch in seeds[0].epochs]
            means = [sum(column) / len(column) for column in columns]
            final.append(means[-1])
            axes.plot(epochs, means, color=colour, marker="o", markersize=3, label=f"{pooling} ({means[-1]:.2f})")
            axes.fill_between(epochs, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15)
        axes.set_title(f"LR_{schedule}")
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, loc="lower right")
    panels[0].set_ylabel("top-1 accuracy (%)")
    panels[0].set_ylim(min(final) - 8, max(final) + 1)
    return save(figure, path)


# The table of each section of the page.
TABLES: dict[str, Callable[[Curves], str]] = {
    "weights": weights_table,
    "schedules": schedules_table,
    "backbones": backbones_table,
    "crops": crops_table,
    "dims": dims_table,
    "rates": rates_table,
    "decay": decay_table,
    "causes": causes_table,
    "resolution": resolution_table,
}
