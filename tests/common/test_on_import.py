"""Actions that wait for an import."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from timm_gcp.common.on_import import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    (tmp_path / "waited_for").mkdir()
    (tmp_path / "waited_for" / "__init__.py").write_text("value = 1\n")
    (tmp_path / "waited_for" / "part.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield "waited_for"
    sys.meta_path[:] = finders
    for name in ("waited_for", "waited_for.part"):
        sys.modules.pop(name, None)


def test_waits_for_the_import_and_acts_once(package: str) -> None:
    seen = []
    when_imported(package, lambda: seen.append(sys.modules[package].value))
    assert seen == []
    import waited_for
    import waited_for.part

    assert seen == [1]
    assert type(waited_for.__loader__).__name__ == "SourceFileLoader"
    assert waited_for.part.value == 2


def test_acts_at_once_where_it_is_imported_already(package: str) -> None:
    import waited_for  # noqa: F401

    seen = []
    when_imported(package, lambda: seen.append(1))
    assert seen == [1]


def test_a_package_that_is_not_there_is_still_not_there() -> None:
    when_imported("no_such_package_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_package_anywhere"):
        __import__("no_such_package_anywhere")
