"""`args.yaml` and `summary.csv` of a training run, in timm's form."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

from timm_gcp.common.files import replacing


class Summary:
    """`summary.csv`, in the columns of timm's `update_summary`; rows of epochs to be run again are dropped first."""

    def __init__(self, path: Path, start: int):
        from timm.utils import update_summary

        self.path, self._update = path, update_summary
        kept: list[dict[str, str]] = []
        if path.is_file() and start > 0:
            with path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if row["epoch"].isdigit() and int(row["epoch"]) < start]
        if not kept:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(kept[0]))
            writer.writeheader()
            writer.writerows(kept)

    def write(self, row: dict[str, float]) -> None:
        """Append the row of an epoch."""
        parts: dict[str, dict[str, float]] = {part: {} for part in ("train_", "eval_")}
        for part, values in parts.items():
            values.update({name.removeprefix(part): value for name, value in row.items() if name.startswith(part)})
        first = not self.path.is_file()
        with replacing(self.path) as partial:
            if not first:
                shutil.copyfile(self.path, partial)
            self._update(
                row["epoch"],
                parts["train_"],
                parts["eval_"],
                filename=str(partial),
                lr=row["lr"],
                write_header=first,
            )
