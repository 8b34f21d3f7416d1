"""The jobs of a plan: each with its folder, its command line, and how to tell that it is finished or can go on.

Here: those that train classifiers, by `timm-gcp train` in one process, by timm's train.py under torchrun on several
GPUs.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.reproduce import paper, trial
from timm_gcp.reproduce.runs import Run
from timm_gcp.reproduce.setup import IMAGENET_CLASSES, Setup

LAST, SUMMARY = "last.pth.tar", "summary.csv"  # timm's names
PROBES = "landscape.csv"
LANDSCAPE_VARIABLE = "TIMM_GCP_LANDSCAPE"  # what timm_gcp.reproduce.landscape_hook reads


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        folder: What it writes, and the record of its settings.
        command: Words of the command line; the first is `timm-gcp` or `torchrun`.
        settings: What must not differ for it to be skipped or to go on.
        finished: Whether it is complete.
        continued: Words to append so that it goes on from what is there; empty to start from nothing.
        action: Done in place of the command, for what has no command of its own.
        environment: Variables to set for the command.
        fresh: Files that a new start of an unfinished run must not find.
    """

    folder: Path
    command: tuple[str, ...]
    settings: Mapping[str, Any]
    finished: Callable[[], bool]
    continued: Callable[[], tuple[str, ...]] = tuple
    action: Callable[[], None] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    fresh: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        """Last two parts of the folder, such as `train/resnet18-gcp-adju`."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def words(keys: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of a recipe as options of a command line."""
    line: list[str] = []
    for key, value in keys.items():
        option = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            line += [option] if value else ["--no-" + option[2:]]
        elif isinstance(value, dict):
            line += [option, *(f"{name}={_plain(item)}" for name, item in value.items())]
        elif isinstance(value, list):
            line += [option, *map(str, value)]
        else:
            line += [option, str(value)]
    return tuple(line)


def _plain(value: Any) -> str:
    return str(value).replace(" ", "")


def shown(path: Path) -> str:
    """A path as the shell in the working directory takes it: relative if it lies below."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def epochs_in(summary: Path, first: int = 0) -> int:
    """Epochs that a summary.csv holds, of which the first is numbered `first`; 0 where there is no such file."""
    if not summary.is_file():
        return 0
    with summary.open(newline="", encoding="utf-8") as file:
        whole = [row for row in csv.DictReader(file) if None not in row.values()]  # not one that was cut off
        numbers = [row.get("epoch", "") for row in whole]
    return max((int(float(text)) - first + 1 for text in numbers if text.replace(".", "", 1).isdigit()), default=0)


def train_folder(run: Run, setup: Setup) -> Path:
    """Where a classifier's run lies."""
    return setup.output / "train" / run.name


def checkpoint(run: Run, setup: Setup) -> Path:
    """The network at the end of a classifier's run."""
    return train_folder(run, setup) / LAST


def train_job(run: Run, setup: Setup) -> Job:
    """The training of a classifier.

    Raises:
        ValueError: Several GPUs without train.py, or with a batch that they can't share.
    """
    return _training(run, setup, train_folder(run, setup))


def landscape_job(run: Run, setup: Setup) -> Job:
    """The training of a classifier with Fig. 2's probes; 50 step sizes in the paper's range.

    Raises:
        ValueError: As `train_job`.
    """
    _, every, (low, high) = paper.FIGURE_2[run.backbone]
    folder = setup.output / "landscape" / run.name
    points = paper.FIGURE_2_POINTS
    if setup.limit is not None:
        every, points = 1, trial.PROBED_STEPS
    probe = {"csv": shown(folder / PROBES), "every": every, "low": low, "high": high, "points": points}
    return _training(run, setup, folder, probe)


def _training(run: Run, setup: Setup, folder: Path, probe: Mapping[str, Any] | None = None) -> Job:
    recipe, keys = read_recipe(find_recipe(run.recipe)), {"model": run.model, **run.keys}
    if setup.classes != IMAGENET_CLASSES:
        keys["num_classes"] = setup.classes
    if setup.limit is not None:
        keys |= trial.train_keys(recipe["batch_size"], setup.limit, setup.gpus)
    settings = {**recipe, **keys, **data_settings(setup, setup.imagenet_source), **(probe or {})}
    for place in ("csv", "device_modules", "workers"):
        settings.pop(place, None)
    if setup.gpus > 1:
        keys["batch_size"] = share(settings["batch_size"], setup.gpus, run.name)  # train.py's is for each process
    where = ("--data-dir", shown(setup.imagenet), *words(keys))
    where += ("--output", shown(folder.parent), "--experiment", folder.name)
    if setup.workers is not None and setup.limit is None:
        where += ("--workers", str(setup.workers))
    where += ("--device", setup.device) if setup.device else ()
    environment: dict[str, str] = {}
    if setup.gpus > 1:
        modules = list(recipe["device_modules"])
        if probe is not None:
            modules.append("timm_gcp.reproduce.landscape_hook")
            where += ("--device-modules", *modules)
            environment[LANDSCAPE_VARIABLE] = json.dumps(dict(probe), separators=(",", ":"))
        start = ("torchrun", f"--nproc-per-node={setup.gpus}", shown(_train_py(setup)))
        command = (*start, "-c", shown(find_recipe(run.recipe)), *where)
    else:
        program = ("train",) if probe is None else ("landscape", "train", *words(probe))
        command = ("timm-gcp", *program, "-c", run.recipe, *where)
    last, csv_file = folder / LAST, folder / PROBES

    def finished() -> bool:
        return epochs_in(folder / SUMMARY) >= settings["epochs"] and (probe is None or csv_file.is_file())

    return Job(
        folder,
        command,
        settings,
        finished,
        lambda: ("--resume", shown(last)) if last.is_file() else (),
        environment=environment,
        fresh=(csv_file,) if probe is not None else (),
    )


def _train_py(setup: Setup) -> Path:
    if setup.train_py is None and not setup.dry_run:
        raise ValueError(
            f"{setup.gpus} GPUs train with timm's own train.py, which its wheel does not hold: name the file with "
            "--train-py, or train on one with --gpus 1."
        )
    return setup.train_py or Path("train.py")


def share(batch: int, gpus: int, name: str) -> int:
    """Images of a batch for each GPU.

    Raises:
        ValueError: They can't be shared equally.
    """
    if batch % gpus:
        raise ValueError(f"{gpus} GPUs can't share the batch of {batch} images of {name}: choose another --gpus.")
    return batch // gpus


def data_settings(setup: Setup, source: Path) -> dict[str, Any]:
    """What tells data apart: the name of its folder, which may move, and a trial's limit."""
    return {"data": source.resolve().name, "limit": setup.limit}


def measure_job(
    folder: Path, command: tuple[str, ...], settings: Mapping[str, Any], result: str, action: Callable[[], None]
) -> Job:
    """A measurement in this process that ends with the file `result` in `folder`."""
    return Job(folder, command, settings, (folder / result).is_file, action=action)


def environment_of(job: Job) -> dict[str, str]:
    """The variables of this process with the job's over them."""
    return {**os.environ, **job.environment}
