"""The order of classes: natural, as timm's image folders have it (`2` before `10`), or that of a class map file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from timm_gcp.common.messages import listed

KINDS = (".txt", ".pkl")


def class_order(names: Iterable[str]) -> list[str]:
    """Class names in the order of their indices: natural order, upper and lower case alike.

    Raises:
        ValueError: Two names have the same place in that order (`1` and `01`, `cat` and `Cat`).
    """
    from timm.utils.misc import natural_key

    ordered = sorted(set(names), key=lambda name: (natural_key(name), name))
    for first, second in pairwise(ordered):
        if natural_key(first) == natural_key(second):
            raise ValueError(
                f"the classes {first!r} and {second!r} have the same place in natural order, so their indices would be "
                "left to chance: rename one of them."
            )
    return ordered


def read_class_map(path: str | Path | None, folder: str | Path = "") -> dict[str, int] | None:
    """Class name -> index, as a class map file says.

    Args:
        path: Text file with one class name a line, in the order of the indices, or a pickled dict (`.pkl`) of names to
            indices, as timm reads them. None or empty for no class map.
        folder: Where a relative path is looked for if it isn't a file as it stands.

    Raises:
        FileNotFoundError: No such file.
        ValueError: Not a class map: another ending, not text, empty lines between names, a name or an index twice.
    """
    if path is None or str(path) == "":
        return None
    found = next((place for place in (Path(path), Path(folder) / path) if place.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"no class map at {str(path)!r}: give a text file with one class name a line.")
    where = f"class map {str(found)!r}"
    if found.suffix.lower() not in KINDS:
        raise ValueError(f"{where} must end in {' or '.join(KINDS)} (a text file has one class name a line).")
    indices = _from_text(found, where) if found.suffix.lower() == ".txt" else _from_pickle(found, where)
    if not indices:
        raise ValueError(f"{where} names no class: give one class name a line.")
    return indices


def _from_text(path: Path, where: str) -> dict[str, int]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").rstrip().splitlines()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not a text file in UTF-8: {error}.") from error
    indices: dict[str, int] = {}
    for index, name in enumerate(lines):
        if not name:
            raise ValueError(f"{where}: line {index + 1} is empty, which would leave class {index} without a name.")
        if name in indices:
            raise ValueError(f"{where} names {name!r} twice, in lines {indices[name] + 1} and {index + 1}.")
        indices[name] = index
    return indices


def _from_pickle(path: Path, where: str) -> dict[str, int]:
    import pickle

    from timm.data.readers.class_map import load_class_map

    try:
        content = load_class_map(str(path))  # timm's unpickler builds nothing but built-in types
    except (pickle.UnpicklingError, ValueError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is not a pickled dict of class names to indices: {error}") from error
    right = all(isinstance(k, str) and type(v) is int and v >= 0 for k, v in content.items())
    if not right or len(set(content.values())) != len(content):
        raise ValueError(f"{where} must give each class name an index of its own, from 0 up.")
    return content


def check_fits(indices: Mapping[str, int], num_classes: int, where: str) -> None:
    """Check that no index lies outside the model's classes.

    Raises:
        ValueError: One does.
    """
    over = [name for name, index in indices.items() if index >= num_classes]
    if over:
        raise ValueError(
            f"{where} names {max(indices.values()) + 1} classes; the model has {num_classes} classes (no place for "
            f"{listed(map(repr, over), 5)})."
        )


def names_of(indices: Mapping[str, int], num_classes: int) -> tuple[str, ...]:
    """The names of all classes of a model by index.

    Raises:
        ValueError: A class has no name, or a name no class.
    """
    check_fits(indices, num_classes, "the class map")
    names = {index: name for name, index in indices.items()}
    missing = [index for index in range(num_classes) if index not in names]
    if missing:
        raise ValueError(
            f"the class map names {len(names)} of the model's {num_classes} classes: name {listed(missing, 5)}, too."
        )
    return tuple(names[index] for index in range(num_classes))


def digest(indices: Mapping[str, int]) -> str:
    """A short fingerprint of which class has which index."""
    return hashlib.sha256(json.dumps(sorted(indices.items())).encode()).hexdigest()[:16]
