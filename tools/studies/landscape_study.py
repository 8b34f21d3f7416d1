"""The landscape of a study's runs (Fig. 2): the same trainings again, probed at every so many updates.

    python tools/studies/landscape_study.py tools/studies/configs/tiny_imagenet.yaml --data-dir FOLDER \\
        --records docs/tiny_imagenet --runs gap-adju gcp-adju --every 50 --images 32

CONFIG is a study of `compare.py`; `--records` is where its tables are, whose trials chose the rates. A probe leaves a
training as it is. The first run's largest stable step sizes, from a training of its own, bound those of all runs, where
the paper has no range. Writes `DOCS/NAME.csv` and `DOCS/NAME-summary.csv` for every run, the figure
`DOCS/landscape.png` and the tables `DOCS/results.md`. What is complete is not run again; `--tables` writes tables and
figure from the CSV files.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import train_cell
from compare_report import markdown
from started import use_weights
from study_config import Cell, Entry, Study, check_runs, read_study
from watched import add_watch_arguments, first_cell, to_train

from timm_gcp.common.files import copy, write_text
from timm_gcp.landscape import (
    LandscapeCallback,
    Record,
    StableStepCallback,
    plot_landscape,
    range_table,
    read_records,
    step_range,
)
from timm_gcp.train.curves import read_summary
from timm_gcp.train.options import resolve_args

HEADER = "<!-- Written by tools/studies/landscape_study.py. -->"
Runs = dict[str, list[Record]]


def main() -> int:
    """Run what is missing, then write tables and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_watch_arguments(parser)
    parser.add_argument(
        "--runs", nargs="+", required=True, metavar="NAME", help="runs of the study, the baseline first"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the trainings; output/landscape/ + name")
    parser.add_argument(
        "--docs", type=Path, default=Path("docs/landscape"), metavar="DIR", help="folder of the results"
    )
    parser.add_argument("--every", type=int, default=50, metavar="N", help="updates from probe to probe")
    parser.add_argument("--images", type=int, default=32, metavar="N", help="images of a batch that are probed")
    parser.add_argument("--points", type=int, default=50, metavar="N", help="step sizes")
    args = parser.parse_args()
    try:
        study = read_study(args.config)
        check_runs(study, args.runs, args.config)
        entries = [study.entry(name) for name in args.runs]
        if not args.tables:
            if not args.data_dir:
                parser.error("--data-dir is needed to train.")
            use_weights(args.weights, [entry.keys for entry in entries])
            _train([first_cell(entry, study, args.records) for entry in entries], study, args)
        print(f"wrote {write_results(study.title, entries, args.docs)}")
        return 0
    except (ValueError, FileNotFoundError) as error:
        print(f"landscape_study.py: error: {error}", file=sys.stderr)
        return 1


def _train(cells: list[Cell], study: Study, args: argparse.Namespace) -> None:
    output = args.output or Path("output/landscape") / Path(args.config).stem
    low, high = _range(cells[0], study, args, output)
    for cell in cells:
        folder = output / cell.folder
        probes = folder / "landscape.csv"
        if to_train(cell, output, probes):
            callback = LandscapeCallback(probes, low, high, args.points, every=args.every, images=args.images)
            train_cell(cell, study, args.data_dir, output, test=False, callbacks=[callback])
        _keep(cell, folder, args.docs)


def _range(cell: Cell, study: Study, args: argparse.Namespace, output: Path) -> tuple[float, float]:
    """The paper's range, or up to what stays stable at every probe of a training of the first run."""
    low, high = step_range(cell.keys["model"], resolve_args(cell.recipe, cell.keys).lr)
    if high is not None:
        return low, high
    first = replace(cell, name=f"{cell.name}-range")
    path = output / first.folder / "range.json"
    if not path.is_file():
        for old in path.parent.glob("*.pth.tar"):  # the smallest step must come from the whole training
            old.unlink()
        callback = StableStepCallback(low, every=args.every, images=args.images)
        train_cell(first, study, args.data_dir, output, test=False, callbacks=[callback])
        write_text(path, json.dumps({"low": low, "high": callback.high}))
    return low, json.loads(path.read_text())["high"]


def _keep(cell: Cell, folder: Path, docs: Path) -> None:
    """Copy a run's probes and its accuracies per epoch to the folder of the results."""
    docs.mkdir(parents=True, exist_ok=True)
    copy(folder / "landscape.csv", docs / f"{cell.name}.csv")
    copy(folder / "summary.csv", docs / f"{cell.name}-summary.csv")


def write_results(title: str, entries: list[Entry], docs: Path) -> Path:
    """Write the tables `results.md` and the figure `landscape.png` from the CSV files in `docs`.

    Raises:
        FileNotFoundError: A run has no CSV there.
    """
    runs = {entry.label: read_records(docs / f"{entry.name}.csv") for entry in entries}
    top1 = [read_summary(docs / f"{entry.name}-summary.csv", entry.label).top1[-1] for entry in entries]
    plot_landscape({title.partition(":")[0]: runs}, docs / "landscape.png")
    write_text(docs / "results.md", f"{HEADER}\n\n{tables(runs, top1)}")
    return docs / "results.md"


def tables(runs: Runs, top1: list[float]) -> str:
    """Mean ranges over all probes and over each third of the training; mean loss along the gradient, and accuracy."""
    first = next(iter(runs.values()))[0]
    ends = f"[{first.low:.4g}, {first.high:.4g}]"
    parts = [f"{first.points} step sizes in {ends}. A ratio above 1: the range is narrower than the first run's."]
    last = max(record.step for records in runs.values() for record in records)
    edges = [0, *(round(last * third / 3) for third in (1, 2)), last + 1]
    for start, end in [(0, last + 1), *pairwise(edges)]:
        within = {name: [r for r in records if start <= r.step < end] for name, records in runs.items()}
        parts.append(f"**Updates {start} to {end - 1}**\n\n{range_table(within)}".strip())
    rows = []
    for (label, records), accuracy in zip(runs.items(), top1, strict=True):
        mean = sum(record.loss_mean for record in records) / len(records)
        rows.append([label, f"{mean:.4g}", f"{accuracy:.2f}"])
    return "\n\n".join([*parts, markdown(["run", "mean of Δl", "held-out top-1"], rows)])


if __name__ == "__main__":
    sys.exit(main())
