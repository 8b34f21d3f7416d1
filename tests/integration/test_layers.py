"""The layers of pyproject.toml, and that an import against them is caught."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="pyproject.toml comes with a checkout")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", script, "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def copy_of(folder: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", folder)
    ignore = shutil.ignore_patterns("*.safetensors", "__pycache__")
    shutil.copytree(ROOT / "timm_gcp", folder / "timm_gcp", ignore=ignore)
    return folder


def test_layers_hold(tmp_path: Path) -> None:
    done = lint(copy_of(tmp_path))
    assert done.returncode == 0, done.stdout
    assert "2 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("ops/precision.py", "from timm_gcp.models import head", "Layers"),
        ("train/run.py", "from timm_gcp.commands import validate", "Layers"),
        ("robustness/scores.py", "from timm_gcp.landscape import probe", "Layers"),
        ("weights/store.py", "def late():\n    from timm_gcp.train import run", "The core imports no training"),
    ],
)
def test_forbidden_import_is_caught(tmp_path: Path, module: str, line: str, contract: str) -> None:
    source = copy_of(tmp_path) / "timm_gcp" / module
    source.write_text(source.read_text() + f"\n\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert any(row.startswith(contract) and row.endswith("BROKEN") for row in done.stdout.splitlines()), done.stdout
