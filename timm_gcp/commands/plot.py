"""`timm-gcp plot`: learning-rate curves (Table 3, Fig. 4 left) and convergence of finished runs (Figs. 1, 3 and 5)."""

from __future__ import annotations

import argparse
from pathlib import Path

PAIRS = ("2-50", "4-53", "8-53", "11-53")  # ρ-e_f; the paper names the first and the last


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands `schedules` and `convergence`."""
    commands = parser.add_subparsers(dest="figure", required=True, metavar="FIGURE")
    schedules = commands.add_parser("schedules", help="learning rates of Table 3 and of the sweep of Fig. 4")
    schedules.add_argument(
        "--output", type=Path, default=Path("schedules.png"), help="figure to write (.png, .pdf, .svg)"
    )
    schedules.add_argument(
        "--pairs", nargs="+", default=list(PAIRS), metavar="RHO-EF", help="polynomial decays to draw, as in Fig. 4"
    )
    convergence = commands.add_parser("convergence", help="top-1 per epoch of any number of runs, and their table")
    convergence.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run's folder or its summary.csv; LABEL=PATH names it (default: the folder's name)",
    )
    convergence.add_argument("--baseline", metavar="LABEL", help="run that the others are to match, usually GAP's")
    convergence.add_argument("--output", type=Path, default=Path("convergence.png"), help="figure to write")
    convergence.add_argument("--title", default="", help="title of the figure, e.g. the backbone")
    convergence.add_argument("--json", action="store_true", help="print the table as JSON")


def main(args: argparse.Namespace) -> int:
    """Draw the figure that was asked for."""
    if args.figure == "schedules":
        from timm_gcp.plots.schedules import draw_schedules

        print(draw_schedules(args.output, args.pairs))
        return 0
    from timm_gcp.plots.convergence import draw_convergence
    from timm_gcp.train.curves import format_table, read_runs, table, to_json

    runs = read_runs(args.runs)
    rows = table(runs, args.baseline)
    path = draw_convergence(args.output, runs, args.baseline, args.title)
    print(to_json(rows) if args.json else f"{format_table(rows, args.baseline)}\n\n{path}")
    return 0
