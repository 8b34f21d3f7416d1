"""Files appear whole or not at all."""

from __future__ import annotations

import pytest

from timm_gcp.common import files


def fail(*_):
    raise OSError("disk full")


def test_a_file_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file.txt"
    files.write_text(path, "first")
    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_text(path, "second")
    assert path.read_text() == "first"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.txt"]


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk full"), files.replacing(tmp_path / "figure.png") as partial:
        assert partial.parent == tmp_path and partial.suffix == ".png"
        partial.write_bytes(b"half")
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_has_the_same_bytes(tmp_path):
    (tmp_path / "rows.csv").write_bytes(b"a,b\r\n1,2\r\n")
    files.copy(tmp_path / "rows.csv", tmp_path / "docs" / "rows.csv")
    assert (tmp_path / "docs" / "rows.csv").read_bytes() == b"a,b\r\n1,2\r\n"
