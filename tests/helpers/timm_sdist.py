"""The tests folder of timm's source distribution: its wheel has none.

`python tests/helpers/timm_sdist.py` prints where it is.

`TIMM_TESTS_DIR` names such a folder; without it the source distribution of the installed version is downloaded once, by
pip and from wherever pip is set up to look, into the cache folder of pytest.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from types import ModuleType

import timm

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "timm-sdist"


def tests_folder() -> Path:
    """Folder that holds timm's own `test_models.py`.

    Raises:
        FileNotFoundError: `TIMM_TESTS_DIR` names a folder without it.
        RuntimeError: pip can't download the source distribution.
    """
    named = os.environ.get("TIMM_TESTS_DIR")
    folder = Path(named) if named else CACHE / timm.__version__
    if (folder / "test_models.py").is_file():
        return folder
    if named:
        raise FileNotFoundError(f"TIMM_TESTS_DIR is {named!r}, which holds no test_models.py")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        unpacked = _download(Path(temporary))
        try:
            os.replace(unpacked, folder)
        except OSError:  # another process was faster
            if not (folder / "test_models.py").is_file():
                raise
    return folder


def _download(folder: Path) -> Path:
    """Download and unpack the tests into `folder`; returns where they are."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "timm", "--dest", str(folder)]
    done = subprocess.run([*command, f"timm=={timm.__version__}"], capture_output=True, text=True)
    archives = list(folder.glob("timm-*.tar.gz"))
    if done.returncode or not archives:
        raise RuntimeError(
            f"pip can't download the source distribution of timm {timm.__version__}: {done.stderr.strip()[-500:]}\n"
            "Set TIMM_TESTS_DIR to the tests folder of an unpacked one."
        )
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            name = Path(member.name)
            inside = not name.is_absolute() and ".." not in name.parts
            content = archive.extractfile(member) if "tests" in name.parts and inside else None
            if content is not None:  # extractall's filter is not in the first releases of Python 3.10 and 3.11
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content.read())
    return next(folder.glob("timm-*/tests"))


def load_test_models() -> ModuleType:
    """timm's `test_models.py` as a module, with the model lists that timm's own CI uses.

    Its marks must be known to pytest before, see `MARKS`.
    """
    before = os.environ.get("GITHUB_ACTIONS")
    os.environ["GITHUB_ACTIONS"] = "true"  # read at import only
    try:
        spec = importlib.util.spec_from_file_location("timm_test_models", tests_folder() / "test_models.py")
        if spec is None or spec.loader is None:
            raise ImportError(f"can't import {tests_folder() / 'test_models.py'}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        if before is None:
            del os.environ["GITHUB_ACTIONS"]
        else:
            os.environ["GITHUB_ACTIONS"] = before
    return module


# Marks of timm's test functions.
MARKS = (
    "base",
    "forward",
    "backward",
    "cfg",
    "cfg_nonstd",
    "torchscript",
    "features",
    "fxforward",
    "fxbackward",
    "timeout",
)

if __name__ == "__main__":
    print(tests_folder())
