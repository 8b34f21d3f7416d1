"""Small data sets, and the command as a function."""

from __future__ import annotations

from pathlib import Path

import pytest
from detection_sets import make_set
from toy_images import image_folder

from timm_gcp.cli import main


@pytest.fixture(scope="session")
def images(tmp_path_factory) -> Path:
    """Two classes of eight training and three validation images."""
    return image_folder(tmp_path_factory.mktemp("images"), train=8, validation=3)


@pytest.fixture(scope="session")
def coco(tmp_path_factory) -> Path:
    """Squares and discs in COCO's layout."""
    return make_set(tmp_path_factory.mktemp("coco"))


@pytest.fixture
def command(tmp_path, capsys):
    """Run `timm-gcp reproduce …` with results in `tmp_path / "out"`; returns exit status, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["reproduce", *map(str, words), "--output", str(tmp_path / "out")])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
