"""Runs the jobs of a plan one after the other: finished ones are skipped, unfinished ones go on.

Before anything starts, every job's folder is compared with its settings; one that was begun with others stops the plan.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

from timm_gcp.common.files import write_text
from timm_gcp.common.interrupt import on_interrupt
from timm_gcp.reproduce.jobs import Job, environment_of

SETTINGS = "reproduce.json"  # in each job's folder
FINISHED, UNFINISHED, NEW = "finished", "unfinished", "new"

RunCommand = Callable[[Sequence[str]], int]


def state(job: Job) -> str:
    """Whether a job is finished, unfinished or new.

    Raises:
        ValueError: Its folder belongs to a run of other settings, or to none of this command.
    """
    if not job.folder.is_dir() or all(path.name.startswith(".") for path in job.folder.iterdir()):
        return NEW
    record = job.folder / SETTINGS
    if not record.is_file():
        raise ValueError(
            f"{str(job.folder)!r} holds files, but no run that timm-gcp reproduce began: choose another --output."
        )
    try:
        begun = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(record)!r} is damaged ({error}): choose another --output.") from error
    here = plain(job)
    different = [
        f"{key} {begun.get(key)!r}, not {here.get(key)!r}"
        for key in sorted({*begun, *here})
        if begun.get(key) != here.get(key)
    ]
    if different:
        raise ValueError(
            f"{str(job.folder)!r} was begun with {'; '.join(different)}: choose another --output, or give the options "
            "of that run. Nothing was changed."
        )
    return FINISHED if job.finished() else UNFINISHED


def plain(job: Job) -> dict[str, object]:
    """A job's settings as JSON reads them back."""
    return dict(json.loads(json.dumps(dict(job.settings))))


def command_line(job: Job, how: str) -> str:
    """What is typed to run a job, or to let it go on, as a shell takes it."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in job.environment.items()]
    return " ".join([*variables, shlex.join([*job.command, *(job.continued() if how == UNFINISHED else ())])])


def show(jobs: Sequence[Job]) -> str:
    """The plan as a shell script; what is finished is a comment."""
    lines = []
    for job in jobs:
        how = state(job)
        lines.append(f"# {job.name}: {how}")
        if how != FINISHED:
            lines.append(command_line(job, how))
    return "\n".join(lines)


def execute(jobs: Sequence[Job], run_command: RunCommand) -> None:
    """Run what is not finished.

    Args:
        jobs: In order.
        run_command: Runs the words after `timm-gcp` in this process and returns the exit status.

    Raises:
        ValueError: A folder belongs to a run of other settings.
        RuntimeError: A job failed, or ended without its results.
    """
    states = [state(job) for job in jobs]
    for number, (job, how) in enumerate(zip(jobs, states, strict=True), start=1):
        print(f"== {number}/{len(jobs)} {job.name}: {how}", flush=True)
        if how == FINISHED:
            continue
        more = job.continued() if how == UNFINISHED else ()
        if not more:
            for path in job.fresh:
                path.unlink(missing_ok=True)
        write_text(job.folder / SETTINGS, json.dumps(plain(job), indent=1, sort_keys=True) + "\n")
        kept = f"{job.name} is in {job.folder}: the same command goes on from there."
        with on_interrupt(kept.__str__):
            if job.action is not None:
                job.action()
            else:
                print(command_line(job, how), flush=True)
                _run([*job.command, *more], job, run_command)
        if not job.finished():
            raise RuntimeError(f"{job.name} ended without all of its results; see what it printed and run this again.")


def _run(command: Sequence[str], job: Job, run_command: RunCommand) -> None:
    if command[0] == "timm-gcp":
        status = run_command(command[1:])
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run"]  # what `torchrun` is, in this environment
        status = subprocess.run([*launcher, *command[1:]], env=environment_of(job), check=False).returncode
    if status:
        raise RuntimeError(f"{job.name} failed with exit status {status}; run this again to let it go on.")
