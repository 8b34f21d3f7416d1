"""gdown's own code against an HTTP server on loopback."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import gdown
import pytest
from file_server import FileServer
from file_server import file_server as file_server  # a fixture

from timm_gcp.weights.drive import from_drive
from timm_gcp.weights.transfer import RoomError, TransferError

CONTENT = bytes(range(256)) * 16384  # 4 MiB: several of gdown's chunks


@pytest.fixture
def target(tmp_path: Path, file_server: FileServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))  # gdown keeps cookies there
    file_server.content = CONTENT
    folder = tmp_path / "downloads"
    folder.mkdir()
    return folder / "x.pth.tar"


def test_whole(file_server: FileServer, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_drive(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]
    err = capsys.readouterr().err
    assert "x.pth.tar: 100%" in err and "From" not in err


@pytest.mark.parametrize("honours", [True, False])
def test_a_broken_download(file_server: FileServer, target: Path, honours: bool) -> None:
    file_server.honours, file_server.breaks = honours, 1
    with pytest.raises(TransferError, match=r"\w"):
        from_drive(f"{file_server.url}/x", target, quiet=True)
    (partial,) = target.parent.iterdir()
    kept = partial.stat().st_size
    assert 0 < kept < len(CONTENT)
    for _ in range(2):
        try:
            from_drive(f"{file_server.url}/x", target, quiet=True)
            break
        except TransferError:
            assert not honours, "gdown refuses to go on without ranges, and starts anew the next time"
    assert target.read_bytes() == CONTENT
    assert f"bytes={kept}-" in file_server.ranges


def test_parts_in_the_way(file_server: FileServer, target: Path) -> None:
    for number, start in enumerate((b"<html>", b"", b"<html><body>")):
        target.with_name(f"{target.name}abcd{number:04}.part").write_bytes(start)
    own = target.with_name(f"{target.name}.part")  # of a mirror
    own.write_bytes(CONTENT[:7])
    from_drive(f"{file_server.url}/x", target, quiet=True)
    assert target.read_bytes() == CONTENT and file_server.ranges == [None]
    assert sorted(target.parent.iterdir()) == [target, own]


def test_a_part_that_is_too_long(file_server: FileServer, target: Path) -> None:
    target.with_name(f"{target.name}abcd1234.part").write_bytes(CONTENT + b"more")
    with pytest.raises(TransferError, match=r"range|Range|416"):
        from_drive(f"{file_server.url}/x", target, quiet=True)
    assert list(target.parent.iterdir()) == []


def test_a_disk_too_small(file_server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, 4_000_000))
    with pytest.raises(RoomError, match=r"x.pth.tar needs [34]\.\d MB in .* has 4\.0 MB free"):
        from_drive(f"{file_server.url}/x", target, 500_000, quiet=True)
    assert not target.exists()


def test_failures(file_server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_server.code = 500
    with pytest.raises(TransferError, match="500"):
        from_drive(f"{file_server.url}/x", target, quiet=True)
    monkeypatch.setattr(
        gdown, "download", lambda **kwargs: (_ for _ in ()).throw(RuntimeError("Too many users.\nmore"))
    )
    with pytest.raises(TransferError, match=r"^Too many users$"):
        from_drive(f"{file_server.url}/x", target, quiet=True)
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(ImportError, match=r"needs gdown: pip install 'gdown>=6.3'"):
        from_drive(f"{file_server.url}/x", target)
