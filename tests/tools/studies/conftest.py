"""The tools of `tools/studies/` as modules."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[3] / "tools" / "studies"


@pytest.fixture
def tool(monkeypatch):
    """Import a study tool by its name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module
