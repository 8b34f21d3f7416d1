"""Fetch the tests of the installed timm from its source distribution; print the folder that holds `test_models.py`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "timm_sdist"


def timm_tests(cache: Path = CACHE) -> Path:
    """Folder `tests/` of the installed timm's sdist, downloaded from the package index on first use.

    Raises:
        RuntimeError: If the source distribution cannot be had; names the command that failed.
    """
    release = f"timm-{version('timm')}"
    tests = cache / release / "tests"
    if (tests / "test_models.py").is_file():
        return tests
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "timm", "-d", work]
        command.append(release.replace("-", "==", 1))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(Path(work).glob("*.tar.gz"))
        if done.returncode or not archives:
            raise RuntimeError(f"could not download timm's tests: {' '.join(command)}\n{done.stderr.strip()}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(work, filter="data")
        (Path(work) / release).rename(cache / release)
    return tests


def main() -> int:
    """Print the folder."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(timm_tests())
    return 0


if __name__ == "__main__":
    sys.exit(main())
