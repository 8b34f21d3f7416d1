"""What a study trains: a YAML file of runs, each a recipe with some keys changed, tuned on held-out images if asked.

title: Imagenette
data: {pixels: 128, held_out: 0.1}     # side of the stored images, share of the training images held out
                                       # train_per_class: 30: draw these by the seed, test on the rest; exclude: [NAME]
                                       # limit_per_class: 120: train on the first so many images of each class
                                       # groups: 10: merge the classes, in order, into so many of equal numbers
                                       # dataset: torch/fashion_mnist, channels: 1: one of timm's sets, grey
recipe: shufflenetv2_adju              # of every run, unless it names its own
keys: {img_size: 96, epochs: 12}       # of every run
seeds: [0]
tune: {lr: [0.03, 0.06], epochs: 3}    # short trials; the best value of each key on the held-out images is taken
runs:
  shufflenet-gap: {keys: {model: shufflenet_v2_x1_0}}
  shufflenet-gcp: {keys: {model: shufflenet_v2_x1_0_gcp}, against: shufflenet-gap}
                                       # tuned_as: shufflenet-gap takes that run's tuned keys
                                       # reach: a run of another schedule, to be compared with, too
                                       # principal: true starts the reduction from principal components
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_TOP = ("title", "data", "recipe", "keys", "seeds", "tune", "runs", "modules")
_DATA = ("pixels", "held_out", "train_per_class", "limit_per_class", "groups", "exclude", "dataset", "channels")
_RUN = ("recipe", "keys", "seeds", "tune", "tuned_as", "against", "reach", "label", "principal")


@dataclass(frozen=True)
class Cell:
    """One training run: its folder's name, its recipe and the keys in which it differs from that.

    `principal`: its reduction starts from the principal components of the training images.
    """

    name: str
    recipe: str
    keys: dict[str, Any] = field(hash=False)
    seed: int = 0
    principal: bool = False

    @property
    def folder(self) -> str:
        """Name of the run's folder."""
        return f"{self.name}-seed{self.seed}"


@dataclass(frozen=True)
class Entry:
    """One line of a study's table: a run over several seeds, tuned or not, and the runs it is compared with.

    `against` is compared with it as its twin, `reach` beside that: a run of another schedule.
    """

    name: str
    label: str
    recipe: str
    keys: dict[str, Any] = field(hash=False)
    seeds: tuple[int, ...] = (0,)
    tune: dict[str, Any] = field(default_factory=dict, hash=False)
    against: str | None = None
    tuned_as: str | None = None
    reach: str | None = None
    principal: bool = False

    def trials(self) -> Iterator[Cell]:
        """The short runs that choose its tuned keys, at the first seed."""
        names = [name for name in self.tune if name != "epochs"]
        for values in itertools.product(*(self.tune[name] for name in names)):
            chosen = dict(zip(names, values, strict=True))
            title = "-".join(f"{name}{value:g}" for name, value in chosen.items())
            keys = {**self.keys, **chosen, "epochs": self.tune.get("epochs", self.keys["epochs"])}
            yield Cell(f"{self.name}-tune-{title}", self.recipe, keys, self.seeds[0], self.principal)

    def cells(self, chosen: dict[str, Any]) -> list[Cell]:
        """Its full runs, one a seed, with the tuned keys' chosen values."""
        keys = {**self.keys, **chosen}
        return [Cell(self.name, self.recipe, keys, seed, self.principal) for seed in self.seeds]


@dataclass(frozen=True)
class Study:
    """A study: title, how its images are stored, its entries, and modules to import before any model is built."""

    title: str
    pixels: int
    held_out: float
    entries: tuple[Entry, ...]
    modules: tuple[str, ...] = ()
    train_per_class: int | None = None
    exclude: tuple[str, ...] = ()
    limit_per_class: int | None = None
    groups: int | None = None
    dataset: str = ""
    channels: int = 3

    def entry(self, name: str) -> Entry:
        """The entry of that name."""
        return next(entry for entry in self.entries if entry.name == name)


def read_study(path: str | Path) -> Study:
    """Read a study's YAML file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a study: a key is unknown or missing, or a run names another that isn't there.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no study at {str(path)!r}: give one of tools/studies/configs/.")
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(text, dict) or not isinstance(text.get("runs"), dict) or not text["runs"]:
        raise ValueError(f"{str(path)!r} is not a study: it needs `runs`, a name and keys for each.")
    _known(path, text, _TOP)
    data = text.get("data") or {}
    _known(path, data, _DATA)
    pixels, held_out = data.get("pixels"), data.get("held_out", 0.1)
    if not isinstance(pixels, int) or pixels < 1:
        raise ValueError(f"{path}: data.pixels, the side of the stored images, must be at least 1, got {pixels!r}.")
    if not 0 < held_out < 1:
        raise ValueError(f"{path}: data.held_out must be a share between 0 and 1, got {held_out!r}.")
    for name in ("train_per_class", "limit_per_class"):
        count = data.get(name)
        if count is not None and (not isinstance(count, int) or count < 2):
            raise ValueError(f"{path}: data.{name} must be 2 or more images, got {count!r}.")
    groups = data.get("groups")
    if groups is not None and (not isinstance(groups, int) or groups < 2):
        raise ValueError(f"{path}: data.groups must be 2 or more classes to train on, got {groups!r}.")
    one_folder = data.get("train_per_class") is not None
    other = [name for name in ("limit_per_class", "groups", "dataset") if data.get(name)]
    if one_folder and other:
        raise ValueError(f"{path}: data.train_per_class draws from one folder, without {' and '.join(other)}.")
    if data.get("channels", 3) not in (1, 3):
        raise ValueError(f"{path}: data.channels must be 1 (grey) or 3 (colour), got {data['channels']!r}.")
    entries = tuple(_entry(path, text, name, run or {}) for name, run in text["runs"].items())
    names = [entry.name for entry in entries]
    for entry in entries:
        for what, other in (("is set against", entry.against), ("is to reach", entry.reach)):
            if other is not None and other not in names:
                raise ValueError(f"{path}: run {entry.name} {what} {other!r}; runs are {', '.join(names)}.")
        if entry.tuned_as is not None and not any(o.name == entry.tuned_as and o.tune for o in entries):
            raise ValueError(
                f"{path}: run {entry.name} is tuned as {entry.tuned_as!r}, which is not a run with trials."
            )
    kept = ("train_per_class", "limit_per_class", "groups", "dataset", "channels")
    given = {name: data[name] for name in kept if name in data}
    modules, exclude = tuple(text.get("modules") or ()), tuple(data.get("exclude") or ())
    return Study(text.get("title", path.stem), pixels, held_out, entries, modules, exclude=exclude, **given)


def check_runs(study: Study, names: Iterable[str], path: str | Path) -> None:
    """Refuse names that no run of the study at `path` has.

    Raises:
        ValueError: There are such; the runs are listed.
    """
    known = [entry.name for entry in study.entries]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no run {', '.join(unknown)} in {path}; it has {', '.join(known)}.")


def _known(path: Path, given: dict[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = [key for key in given if key not in allowed]
    if unknown:
        raise ValueError(f"{path}: unknown key {', '.join(map(str, unknown))}; known are {', '.join(allowed)}.")


def _entry(path: Path, text: dict[str, Any], name: str, run: dict[str, Any]) -> Entry:
    _known(path, run, _RUN)
    keys = {**(text.get("keys") or {}), **(run.get("keys") or {})}
    recipe = run.get("recipe", text.get("recipe"))
    for key, value in (("recipe", recipe), ("keys.model", keys.get("model")), ("keys.epochs", keys.get("epochs"))):
        if not value:
            raise ValueError(f"{path}: run {name} has no {key}.")
    seeds = tuple(run.get("seeds", text.get("seeds", (0,))))
    tuned_as = run.get("tuned_as")
    tune = {} if tuned_as else run.get("tune", text.get("tune")) or {}
    given = {what: run.get(what) for what in ("against", "reach")} | {"principal": bool(run.get("principal"))}
    return Entry(str(name), str(run.get("label", name)), recipe, keys, seeds, tune, tuned_as=tuned_as, **given)
