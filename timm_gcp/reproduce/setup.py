"""Where data and results lie and on what is run: the options of `timm-gcp reproduce`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

IMAGENET_CLASSES = 1000
SMALLEST_TRIAL = 4  # images; batch-norm needs two, a detector's split a few
TRAIN, VAL = ("train",), ("val", "validation")


@dataclass(frozen=True)
class Setup:
    """What a plan is made for.

    Attributes:
        output: Folder of all runs, tables and figures.
        data_dir: ImageNet (folders `train` and `val`), or COCO (folder `annotations`) where nothing else is needed.
        coco_dir: COCO, where `data_dir` is ImageNet.
        imagenet_c: ImageNet-C; corrupted images are made on the fly when left out.
        imagenet_p: ImageNet-P; sequences are made on the fly when left out.
        limit: Images of a trial, or None for the real thing.
        gpus: Processes that train together.
        train_py: timm's train.py, for several of them.
        device: Device of a single process; CUDA where there is one when left out.
        workers: Processes that load images, for each process that trains; the programs' own number when left out.
        published: Start from published weights in place of own trainings.
        dry_run: Print only; then neither data nor weights nor train.py have to be there.
    """

    output: Path
    data_dir: Path | None = None
    coco_dir: Path | None = None
    imagenet_c: Path | None = None
    imagenet_p: Path | None = None
    limit: int | None = None
    gpus: int = 1
    train_py: Path | None = None
    device: str | None = None
    workers: int | None = None
    published: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Check what needs no plan.

        Raises:
            ValueError: A limit or a number of GPUs that makes no sense.
            FileNotFoundError: A train.py or a benchmark folder that is not there.
        """
        if self.limit is not None and self.limit < SMALLEST_TRIAL:
            raise ValueError(f"--limit must be at least {SMALLEST_TRIAL} images. Got {self.limit}.")
        if self.gpus < 1:
            raise ValueError(f"--gpus must be at least 1. Got {self.gpus}.")
        if self.dry_run:
            return
        for option in ("imagenet_c", "imagenet_p"):
            folder = getattr(self, option)
            if folder is not None and not folder.is_dir():
                raise FileNotFoundError(f"no folder {str(folder)!r} for --{option.replace('_', '-')}.")
        if self.train_py is not None and not self.train_py.is_file():
            raise FileNotFoundError(f"no file {str(self.train_py)!r}: --train-py names timm's own train.py.")

    @cached_property
    def imagenet_source(self) -> Path:
        """The folder of ImageNet, or of another set in its layout.

        Raises:
            FileNotFoundError: It is not there; says what was looked for.
        """
        return self._found(self.data_dir, "IMAGENET", "--data-dir", [TRAIN, VAL], "the folders train/ and val/")

    @cached_property
    def coco_source(self) -> Path:
        """The folder of COCO, or of another set in its layout.

        Raises:
            FileNotFoundError: It is not there; says what was looked for.
        """
        given, option = self.coco_dir, "--coco-dir"
        if given is None and self.data_dir is not None and (self.data_dir / "annotations").is_dir():
            given, option = self.data_dir, "--data-dir"
        return self._found(given, "COCO", option, [("annotations",)], "annotations/instances_{train,val}2017.json")

    def _found(self, given: Path | None, name: str, option: str, parts: list[tuple[str, ...]], content: str) -> Path:
        if self.dry_run:
            return given or Path(name)
        if given is None:
            raise FileNotFoundError(f"this needs {name}: give its folder, with {content}, as {option}.")
        if not all(any((given / part).is_dir() for part in names) for names in parts):
            raise FileNotFoundError(
                f"{option} {str(given)!r} is not {name} or a set in its layout: {content} must be in it."
            )
        return given

    @property
    def imagenet(self) -> Path:
        """The images that classifiers are trained on: all, or a trial's."""
        source = self.imagenet_source
        return source if self.limit is None else self.output / "data" / f"imagenet-{self.limit}"

    @property
    def coco(self) -> Path:
        """The images that detectors are trained on: all, or a trial's."""
        source = self.coco_source
        return source if self.limit is None else self.output / "data" / f"coco-{self.limit}"

    @cached_property
    def class_names(self) -> list[str] | None:
        """Class folders of the training images that a run sees; None where the folder is not there (dry run)."""
        source = self.imagenet_source
        if not (source / TRAIN[0]).is_dir():
            return None
        names = [entry.name for entry in (source / TRAIN[0]).iterdir() if entry.is_dir()]
        if self.limit is not None:
            names = [name for name in names if (split_folder(source, VAL) / name).is_dir()]
        return sorted(names)[: self.limit]

    @property
    def classes(self) -> int:
        """Number of classes that a run sees."""
        names = self.class_names
        return min(IMAGENET_CLASSES, self.limit or IMAGENET_CLASSES) if names is None else len(names)


def split_folder(root: Path, names: tuple[str, ...]) -> Path:
    """The first of these folders that is there, else the first as it would be."""
    return next((root / name for name in names if (root / name).is_dir()), root / names[0])
