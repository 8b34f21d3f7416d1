"""The examples of docs/extend.md, run in order as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="docs/ comes with a checkout, not with the wheel")

# A model of your own comes back from its checkpoint as any other.
RELOAD = """
from timm_gcp.weights.source import read_source
record = read_source(Path("runs/cosine")).record
assert record.architecture == "small_net_gcp" and record.model_args["num_classes"] == 2, record
assert record.data_config["input_size"] == [3, 32, 32] or record.data_config["input_size"] == (3, 32, 32)
"""


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_each_section_has_an_example() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == [
        "A normalisation",
        "A backbone",
        "A data set",
        "A schedule",
    ]
    assert all("```python" in section for section in sections)


def test_the_examples_run(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join([*blocks(), RELOAD]), encoding="utf-8")
    root = str(PAGE.parents[1])
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
