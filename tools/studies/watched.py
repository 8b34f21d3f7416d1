"""Runs of a study of `compare.py` made again and watched: what the tools that look at trainings share."""

from __future__ import annotations

import argparse
from pathlib import Path

from compare import choose, done, tuned
from study_config import Cell, Entry, Study


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that name a study, its images and the records of its trials."""
    parser.add_argument("config", metavar="CONFIG", help="study: a YAML file of tools/studies/configs/")
    parser.add_argument("--data-dir", metavar="DIR", help="images, as compare.py takes them")
    parser.add_argument("--weights", metavar="DIR", help="folder of the weights that a study starts from")
    parser.add_argument("--records", type=Path, metavar="DIR", help="the study's --docs or --output; needed if tuned")
    parser.add_argument("--tables", action="store_true", help="train nothing, write tables and figure again")


def first_cell(entry: Entry, study: Study, records: Path | None) -> Cell:
    """A run at its first seed, with the tuned keys that its trials chose.

    Args:
        entry: The run.
        study: Its study.
        records: Folder of the trials: the study's `--docs` or its `--output`; None will do for a run without trials.

    Raises:
        ValueError: The run is tuned, and no folder was named.
    """
    source = tuned(entry, study)
    if not source.tune:
        return entry.cells({})[0]
    if records is None:
        raise ValueError(f"run {entry.name} is tuned: name the folder of its trials' records with --records.")
    trials = records / "runs" if (records / "runs").is_dir() else records
    return entry.cells(choose(source, trials))[0]


def to_train(cell: Cell, output: Path, rows: Path) -> bool:
    """Whether a watched run is still to be trained.

    `rows`, the CSV that its watcher goes on with, is removed where an earlier try ended before its first checkpoint.
    """
    folder = output / cell.folder
    if done(folder, cell, test=False):
        return False
    if not (folder / "last.pth.tar").is_file():
        rows.unlink(missing_ok=True)
    return True
