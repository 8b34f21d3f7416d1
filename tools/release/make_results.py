"""Write results/results-imagenet.csv: the published accuracies in the columns of timm's table of the same name.

python tools/release/make_results.py

The accuracies are the authors' (single crop, 224 px), not measured here; MODEL_CARDS.md says where each comes from.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from timm_gcp.common.files import write_text
from timm_gcp.weights.catalog import WEIGHTS

TABLE = Path(__file__).parents[2] / "results" / "results-imagenet.csv"
COLUMNS = ("model", "img_size", "top1", "top1_err", "top5", "top5_err", "param_count", "crop_pct", "interpolation")


def results() -> str:
    """The table as text, best top-1 first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in sorted(WEIGHTS.values(), key=lambda entry: (-entry.figures[0].top1, entry.name)):
        cfg, figure = entry.pretrained_cfg(), entry.figures[0]
        accuracies = (figure.top1, 100 - figure.top1, figure.top5, 100 - figure.top5)
        parameters = f"{entry.architecture.params / 1e6:,.2f}"
        row = (entry.name, cfg["input_size"][-1], *(f"{value:.3f}" for value in accuracies), parameters)
        writer.writerow((*row, f"{cfg['crop_pct']:.3f}", cfg["interpolation"]))
    return file.getvalue()


if __name__ == "__main__":
    write_text(TABLE, results())
    print(f"wrote {TABLE}")
