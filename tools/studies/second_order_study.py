"""Eqs. (6) to (8) of the paper along a training: one run of a study of `compare.py` again, looked at on the way.

    python tools/studies/second_order_study.py tools/studies/configs/tiny_imagenet.yaml --data-dir FOLDER \\
        --records docs/tiny_imagenet --run gcp-adju --every 100 --images 16

CONFIG is a study; `--records` is where its tables are, whose trials chose the rate. Looking leaves the training as it
is. Writes `equations.csv` (a row a look), `spectra.csv` (of the last), the figure `equations.png` and the tables
`results.md` into `--docs`. What is complete is not run again; `--tables` writes tables and figure from the CSV files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from compare import train_cell
from compare_report import markdown
from started import use_weights
from study_config import Cell, Study, check_runs, read_study
from watched import add_watch_arguments, first_cell, to_train

from timm_gcp.common.files import copy, write_text
from timm_gcp.plots.style import new_figure, plain, save
from timm_gcp.second_order.study import SecondOrderCallback, read_rows

HEADER = "<!-- Written by tools/studies/second_order_study.py. -->"
READINGS = {
    "layer": "Eq. (6) against the layer's own gradient",
    "literal_printed": "Eq. (7) as printed against Eq. (6)",
    "columns_printed": "Eq. (7), mask on the columns, against Eq. (6)",
    "literal_eigen": "Eq. (7) in the eigenbasis against Eq. (6)",
    "columns_eigen": "Eq. (7), both, against Eq. (6)",
}
SPECTRA = {
    "literal_printed": "F⁻¹, as printed",
    "literal_eigen": "F⁻¹, in the eigenbasis",
    "columns_eigen": "F⁻¹, mask on the columns, eigenbasis",
    "kfac_inputs": "K-FAC, inverse of the input factor",
    "kfac_outputs": "K-FAC, inverse of the output factor",
}


def main() -> int:
    """Train if need be, then write tables and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_watch_arguments(parser)
    parser.add_argument("--run", metavar="NAME", help="run of the study, with covariance pooling; not with --tables")
    parser.add_argument("--output", type=Path, default=Path("output/second_order"), metavar="DIR", help="its folder")
    parser.add_argument("--docs", type=Path, default=Path("docs/optimization"), metavar="DIR", help="of the results")
    parser.add_argument("--every", type=int, default=100, metavar="N", help="updates from look to look")
    parser.add_argument("--images", type=int, default=16, metavar="N", help="images of a batch that are looked at")
    args = parser.parse_args()
    try:
        if not args.tables:
            if not args.data_dir or not args.run:
                parser.error("--data-dir and --run are needed to train.")
            study = read_study(args.config)
            check_runs(study, [args.run], args.config)
            entry = study.entry(args.run)
            use_weights(args.weights, [entry.keys])
            _train(first_cell(entry, study, args.records), study, args)
        print(f"wrote {write_results(args.docs)}")
        return 0
    except (ValueError, FileNotFoundError) as error:
        print(f"second_order_study.py: error: {error}", file=sys.stderr)
        return 1


def _train(cell: Cell, study: Study, args: argparse.Namespace) -> None:
    folder = args.output / cell.folder
    equations, curves = folder / "equations.csv", folder / "spectra.csv"
    if to_train(cell, args.output, equations):
        callback = SecondOrderCallback(equations, every=args.every, images=args.images, spectra_path=curves)
        train_cell(cell, study, args.data_dir, args.output, test=False, callbacks=[callback])
    args.docs.mkdir(parents=True, exist_ok=True)
    for file in (equations, curves):
        copy(file, args.docs / file.name)


def write_results(docs: Path) -> Path:
    """Write the tables `results.md` and the figure `equations.png` from the CSV files in `docs`.

    Raises:
        FileNotFoundError: They aren't there.
    """
    rows, curves = read_rows(docs / "equations.csv"), read_rows(docs / "spectra.csv")
    draw(rows, curves, docs / "equations.png")
    write_text(docs / "results.md", f"{HEADER}\n\n{tables(rows)}")
    return docs / "results.md"


def tables(rows: list[dict[str, float]]) -> str:
    """Cosines and ratios, condition and flatness, overlap: at the first look, one in the middle and the last."""
    shown = [rows[0], rows[len(rows) // 2], rows[-1]]
    steps = [f"update {row['step']:.0f}" for row in shown]

    gradients = [
        [label, *(f"{row[f'cosine_{key}']:.3f} ({row[f'ratio_{key}']:.3g})" for row in shown)]
        for key, label in READINGS.items()
    ]
    spectra = [
        [label, *(f"{row[f'condition_{key}']:.3g} ({row[f'flatness_{key}']:.2g})" for row in shown)]
        for key, label in SPECTRA.items()
    ]
    overlap = "overlap of its leading eigenspace with that of K-FAC's output factor"
    covariance = [
        ["rank, mean over the images", *(f"{row['rank']:.1f}" for row in shown)],
        [overlap, *(f"{row['overlap']:.3f} (chance {row['overlap_chance']:.3f})" for row in shown)],
    ]
    parts = {"cosine (ratio of norms)": gradients, "condition number (flatness)": spectra, "covariance": covariance}
    return "\n".join(markdown([title, *steps], lines) for title, lines in parts.items())


def draw(rows: list[dict[str, float]], curves: list[dict[str, float]], path: Path) -> None:
    """The figure: cosine and ratio of norms along the training, and the spectra at its end."""
    figure = new_figure(15, 4.4)
    cosine, ratio, spectrum = figure.subplots(1, 3)
    steps = [row["step"] for row in rows]
    for key, label in READINGS.items():
        cosine.plot(steps, [row[f"cosine_{key}"] for row in rows], label=label)
        ratio.plot(steps, [row[f"ratio_{key}"] for row in rows], label=label)
    cosine.set(xlabel="update", ylabel="cosine", ylim=(-0.65, 1.05), title="Angle between the gradients")
    ratio.set(xlabel="update", ylabel="ratio of norms", yscale="log", title="Length of the gradients")
    cosine.legend(fontsize=7, loc="lower right")
    for style, (key, label) in zip(("-", "--", "-", "-", ":"), SPECTRA.items(), strict=True):  # flat ones coincide
        values = [row[key] for row in curves if row[key] == row[key] and row[key] > 1e-9 * curves[0][key]]
        places = [(index + 0.5) / len(values) for index in range(len(values))]
        spectrum.plot(places, [value / values[0] for value in values], ls=style, lw=2, label=f"{label} ({len(values)})")
    spectrum.set(
        xlabel="place among the positive values",
        ylabel="value over the largest",
        yscale="log",
        title="Spectra of the pre-conditioners",
    )
    spectrum.legend(fontsize=7)
    for axes in (cosine, ratio, spectrum):
        plain(axes)
    save(figure, path)


if __name__ == "__main__":
    sys.exit(main())
