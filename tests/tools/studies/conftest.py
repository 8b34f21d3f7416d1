"""The tools of `tools/studies/` as modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools" / "studies"


@pytest.fixture
def tool(monkeypatch):
    """Import a study tool by its name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module


@pytest.fixture
def run_tool(tool, monkeypatch):
    """Run a study tool by its name with the words of a command line; its exit status."""

    def run(name: str, *words: object) -> int:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        return tool(name).main()

    return run
