"""The folder of a training run: its name, what a run leaves in it, and what an interrupted one has kept."""

from __future__ import annotations

import argparse
from pathlib import Path, PurePath

LAST = "last.pth.tar"  # timm's name of the newest checkpoint
SUMMARY = "summary.csv"
_CHECKPOINTS = "*.pth.tar"


def run_folder(args: argparse.Namespace, name: str) -> Path:
    """Folder of a run, below `output`.

    Args:
        args: The run's settings.
        name: Name of the folder where `experiment` gives none.

    Raises:
        ValueError: `experiment` leads out of the folder of runs.
    """
    given = PurePath(args.experiment or name)
    if given.is_absolute() or ".." in given.parts:
        raise ValueError(f"--experiment {args.experiment!r} leads out of the folder of runs: name that with --output.")
    return Path(args.output or "output/train") / given


def begin_run(folder: Path, resume: str | None, force: bool) -> None:
    """Check that no other run lies in `folder`, or remove its files where they are to be replaced.

    Args:
        folder: Where the run is to write; need not exist.
        resume: Checkpoint that the run goes on from, if any.
        force: Replace another run.

    Raises:
        FileExistsError: The folder holds a run that isn't the one to go on with.
    """
    check_free(folder, resume, force)
    if force and not _goes_on(folder, resume):
        for path in _files(folder):
            path.unlink()


def check_free(folder: Path, resume: str | None, force: bool) -> None:
    """Check that no other run lies in `folder`; see `begin_run`.

    Raises:
        FileExistsError: One does.
    """
    if force or _goes_on(folder, resume) or not _files(folder):
        return
    last = folder / LAST
    go_on = f"go on with it by --resume {last}" if last.is_file() else "keep it"
    raise FileExistsError(
        f"{str(folder)!r} holds a run already: {go_on}, choose another --experiment or --output, or replace it by "
        "--force."
    )


def kept(folder: Path) -> str:
    """One sentence on what an interrupted run leaves, and how to go on."""
    last = folder / LAST
    if last.is_file():
        return f"{last} holds the run as of its newest checkpoint: go on with --resume {last}."
    return f"{folder} has no checkpoint of it: start again."


def _goes_on(folder: Path, resume: str | None) -> bool:
    return bool(resume) and Path(str(resume)).resolve().parent == folder.resolve()


def _files(folder: Path) -> list[Path]:
    """Checkpoints and summary of a run; settings alone lose nothing."""
    return [*folder.glob(_CHECKPOINTS), *([folder / SUMMARY] if (folder / SUMMARY).is_file() else [])]
