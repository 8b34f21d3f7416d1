"""Image folders, checked before anything is read from them: the split, the class folders, the files in them.

A class is a folder with images in it, under its own name however deep it lies, as timm reads image folders.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from timm_gcp.common.messages import counted, did_you_mean, listed
from timm_gcp.datasets.class_map import check_fits, class_order

TRAIN_NAMES = ("train", "training")  # folders that stand for one another, as in timm
VALIDATION_NAMES = ("val", "valid", "validation", "eval", "evaluation")
UNREAD_IMAGES = frozenset(
    {".avif", ".bmp", ".dcm", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jxl", ".pbm", ".pgm", ".ppm", ".tga"}
    | {".tif", ".tiff", ".webp"}
)  # endings of images that timm's reader of folders passes over

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClassFolders:
    """What lies in the class folders of a split.

    Attributes:
        root: The split's folder.
        files: Class -> its images as paths below `root`, both in natural order.
    """

    root: Path
    files: dict[str, list[str]]

    @property
    def classes(self) -> list[str]:
        """Names of the classes in natural order."""
        return list(self.files)


def split_folder(root: str | Path, split: str, option: str, whole: bool = False) -> Path:
    """The folder of a split below `root`; the usual names of a training or validation split stand for one another.

    Args:
        root: Folder of the data set.
        split: Name of the split; empty for `root` itself.
        option: The option that names the split, for messages.
        whole: Take `root` itself, with a notice, where it holds class folders in place of splits and a validation
            split is asked for by one of its usual names.

    Raises:
        FileNotFoundError: No such folder, or no such split; lists those that there are.
        ValueError: A slice of a split, which image folders don't have.
    """
    if not str(root) or not Path(root).is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r}: give the data set's folder with --data-dir.")
    root = Path(root)
    if "[" in split:
        raise ValueError(f"{option} {split!r}: image folders can't be sliced; name the split's folder alone.")
    synonyms = next((names for names in (TRAIN_NAMES, VALIDATION_NAMES) if split in names), ())
    for name in (split, *synonyms):
        if (root / name).is_dir():
            return root / name
    inside = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    splits = {entry.name for entry in inside} & {*TRAIN_NAMES, *VALIDATION_NAMES, "test"}
    if whole and split in VALIDATION_NAMES and inside and not splits and all(map(_has_images, inside)):
        _logger.warning("%r has no folder %r: its %d class folders themselves are read.", str(root), split, len(inside))
        return root
    names = [entry.name for entry in inside]
    others = ", ".join(name for name in synonyms if name != split)
    raise FileNotFoundError(
        f"{str(root)!r} has no folder {split!r}{f' (nor {others})' if others else ''}, it has "
        f"{listed(names) if names else 'no folders'}: name the split's folder with {option}."
        f"{did_you_mean(split, names)}"
    )


def _has_images(folder: Path) -> bool:
    types = _read_types()
    return any(os.path.splitext(entry.name)[1].lower() in types for entry in os.scandir(folder))


def _read_types() -> set[str]:
    from timm.data.readers.img_extensions import get_img_extensions

    return get_img_extensions(as_set=True)


def survey(root: Path) -> ClassFolders:
    """List the images of a split, class by class.

    Raises:
        FileNotFoundError: No such folder.
        OSError: A folder that can't be listed.
        ValueError: Images beside the class folders, a class folder without images that are read, a name of a class
            in two places, or no images at all; names folders and counts files.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r}")
    from timm.utils.misc import natural_key

    types = _read_types()
    found: dict[str, list[str]] = {}
    empty: dict[str, Counter[str]] = {}
    skipped: Counter[str] = Counter()
    places: dict[str, str] = {}
    for folder, inner, names in os.walk(root, followlinks=True, onerror=_stop):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        endings = {name: os.path.splitext(name)[1].lower() for name in names if not name.startswith(".")}
        images = [name for name, ending in endings.items() if ending in types]
        others = Counter(ending or "no ending" for ending in endings.values() if ending not in types)
        below = os.path.relpath(folder, root)
        if below == ".":
            if images:
                raise ValueError(_stray(root, len(images), len(inner)))
            continue
        skipped.update({ending: count for ending, count in others.items() if ending in UNREAD_IMAGES})
        if not images:
            if not inner:
                empty[below] = others
            continue
        label = os.path.basename(below)
        if label in places:
            raise ValueError(
                f"{places[label]!r} and {below!r} in {str(root)!r} have images in folders of one name, so they would "
                f"be one class {label!r}: name one split's folder ({os.path.join(root, os.path.dirname(below))}), or "
                "put the images into folders named for their classes."
            )
        places[label] = below
        found[label] = sorted((f"{below}/{name}" for name in images), key=natural_key)
    if empty:
        raise ValueError(_empty(root, empty, len(found), types))
    if not found:
        raise ValueError(f"no images in the class folders of {str(root)!r}: looked for {', '.join(sorted(types))}")
    if skipped:
        told = ", ".join(f"{count} {ending}" for ending, count in sorted(skipped.items()))
        _logger.warning(
            "%r: %s not read (only %s are): convert them to use them.", str(root), told, ", ".join(sorted(types))
        )
    return ClassFolders(root, {name: found[name] for name in class_order(found)})


def _stop(error: OSError) -> None:
    """A folder that can't be listed is not an empty one."""
    raise error


def _stray(root: Path, images: int, folders: int) -> str:
    if not folders:
        held = counted(images, "image")
        return (
            f"{str(root)!r} is flat, {held} and no class folders: put the images of each class in a folder of its own."
        )
    return (
        f"{str(root)!r} has {counted(images, 'image')} beside its {counted(folders, 'class folder')}, of no class: "
        "move what lies there into a class folder or elsewhere."
    )


def _empty(root: Path, empty: Mapping[str, Counter[str]], classes: int, types: set[str]) -> str:
    told = []
    for name in class_order(empty):
        files = ", ".join(f"{count} {ending}" for ending, count in sorted(empty[name].items()))
        told.append(f"{name!r} ({files or 'empty'})")
    return (
        f"{counted(len(empty), 'class folder')} in {str(root)!r} without images that are read "
        f"({', '.join(sorted(types))}), {classes} with: {listed(told, 5)}. Convert the files, or move the folders away."
    )


def class_indices(
    found: ClassFolders,
    class_map: Mapping[str, int] | None = None,
    num_classes: int | None = None,
    names: tuple[str, ...] | None = None,
) -> dict[str, int]:
    """Index of each class of a split, checked against the class map and what is known of the model.

    Args:
        found: The split.
        class_map: Class -> index; natural order where it is None.
        num_classes: Classes of the model, if there is one already.
        names: The model's own class names by index, if known.

    Raises:
        ValueError: Folders that the class map lacks, another number of classes than the model's, other names.
    """
    where = f"{str(found.root)!r}"
    if class_map is not None:
        unknown = [name for name in found.classes if name not in class_map]
        if unknown:
            raise ValueError(
                f"the class map for {where} lacks {listed(unknown, 5)}: name each of the {len(found.classes)} class "
                "folders in it."
            )
        if num_classes is not None:
            check_fits(class_map, num_classes, f"the class map for {where}")
        return dict(class_map)
    indices = {name: index for index, name in enumerate(found.classes)}
    if num_classes is None:
        return indices
    if names is not None and set(names) == set(indices):
        return {name: index for index, name in enumerate(names)}
    of_model = {plain(name): index for index, name in enumerate(names or ())}
    if len(of_model) != len(names or ()):  # names that differ in signs only can't be told apart
        names = None
    if names is not None and set(of_model) != set(map(plain, indices)):
        ours = {plain(name) for name in indices}
        missing = [name for name in names if plain(name) not in ours]
        extra = [name for name in indices if plain(name) not in of_model]
        parts = [f"the model's {listed(missing, 5)} missing or empty there"] if missing else []
        parts += [f"{listed(extra, 5)} unknown to the model"] if extra else []
        raise ValueError(
            f"the classes of {where} ({len(indices)}) are not the model's ({len(names)}): {'; '.join(parts)}. Give the "
            "folders' names in the model's order with --class-map FILE, or choose a model of these classes."
        )
    if len(indices) != num_classes:
        raise ValueError(
            f"{where} has {counted(len(indices), 'class folder')}, the model "
            f"{counted(num_classes, 'class', 'classes')}: give the folders' names in "
            "the model's order with --class-map FILE, or a model with as many classes"
        )
    if names is not None:  # the model's order, whichever that is
        indices = {name: of_model[plain(name)] for name in indices}
    return indices


def check_same_classes(train: ClassFolders, validation: ClassFolders, class_map: Mapping[str, int] | None) -> None:
    """Check that two splits have the same classes, or that a class map settles their indices.

    Raises:
        ValueError: They differ; names the classes that one of them lacks.
    """
    for found in (train, validation):
        class_indices(found, class_map)
    if class_map is not None:
        return
    missing = [f"{name} ({counted(len(train.files[name]), 'training image')})" for name in train.files if name not in
               validation.files]  # fmt: skip
    extra = [
        f"{name} ({counted(len(validation.files[name]), 'image')})"
        for name in validation.files
        if name not in train.files
    ]
    if missing or extra:
        parts = [f"without {listed(missing, 5)}"] if missing else []
        parts += [f"with {listed(extra, 5)}, which training lacks"] if extra else []
        names = " and ".join(parts)
        raise ValueError(
            f"{str(train.root)!r} has {counted(len(train.files), 'class', 'classes')}, "
            f"{str(validation.root)!r} {len(validation.files)}, {names}: give both the same class folders, or name all "
            "classes with --class-map FILE."
        )


def plain(name: str) -> str:
    """A class name as it is compared: lower case, anything but letters and digits as one underscore."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.casefold()).split()
    return "_".join(words)
