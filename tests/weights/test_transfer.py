"""A file over HTTP on loopback, or out of a folder: whole, resumed, started anew, refused."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from file_server import PAGE, FileServer
from file_server import file_server as file_server  # a fixture

from timm_gcp.weights import transfer
from timm_gcp.weights.transfer import MissingError, RoomError, TransferError, from_folder, from_http, part_of

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def target(tmp_path: Path, file_server: FileServer) -> Path:
    file_server.content = CONTENT
    return tmp_path / "x.pth.tar"


def broken(server: FileServer, target: Path) -> int:
    """Length of what a download that breaks off leaves."""
    server.breaks = 1
    with pytest.raises(TransferError, match=r"it broke off after 524,288 of 1,048,576 bytes"):
        from_http(f"{server.url}/x", target)
    assert not target.exists()
    return part_of(target).stat().st_size


@pytest.mark.parametrize("sized", [True, False])
def test_whole(file_server: FileServer, target: Path, capsys: pytest.CaptureFixture[str], sized: bool) -> None:
    file_server.sized = sized
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]
    assert "x.pth.tar" in capsys.readouterr().err, "with a bar"
    from_http(f"{file_server.url}/x", target, quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("etag", [True, False])
def test_resumed(file_server: FileServer, target: Path, etag: bool) -> None:
    file_server.etag = etag
    kept = broken(file_server, target)
    from_http(f"{file_server.url}/x", target)
    assert file_server.ranges == [None, f"bytes={kept}-"]
    assert target.read_bytes() == CONTENT and list(target.parent.iterdir()) == [target]


def test_no_ranges(file_server: FileServer, target: Path) -> None:
    file_server.honours = False
    broken(file_server, target)
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT


def test_a_changed_file_starts_anew(file_server: FileServer, target: Path) -> None:
    broken(file_server, target)
    file_server.content = CONTENT[::-1]
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_part_that_is_whole_or_too_long(file_server: FileServer, target: Path, extra: bytes) -> None:
    part_of(target).write_bytes(CONTENT + extra)
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT


def test_a_range_that_does_not_join(file_server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = broken(file_server, target)
    opened = transfer.urllib.request.urlopen

    def shifted(request, timeout):
        response = opened(request, timeout=timeout)
        if response.status == 206:
            response.headers.replace_header("Content-Range", f"bytes {kept - 1}-9/9")
        return response

    monkeypatch.setattr(transfer.urllib.request, "urlopen", shifted)
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT and file_server.ranges[-2:] == [f"bytes={kept}-", None]


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/octet-stream"])
def test_a_page_leaves_the_part_alone(file_server: FileServer, target: Path, kind: str) -> None:
    kept = broken(file_server, target)
    file_server.content, file_server.kind, file_server.honours = PAGE, kind, False
    with pytest.raises(TransferError, match="it answers with a web page"):
        from_http(f"{file_server.url}/x", target)
    assert part_of(target).stat().st_size == kept
    file_server.content, file_server.kind, file_server.honours = CONTENT, "application/octet-stream", True
    from_http(f"{file_server.url}/x", target)
    assert target.read_bytes() == CONTENT and file_server.ranges[-1] == f"bytes={kept}-"


def test_refusals(file_server: FileServer, target: Path) -> None:
    for code, kind, message in (
        (404, MissingError, r"does not have the file \(404\)"),
        (410, MissingError, "does not have the file"),
        (500, TransferError, "it answers 500 Internal Server Error"),
    ):
        file_server.code = code
        with pytest.raises(kind, match=message):
            from_http(f"{file_server.url}/x", target)
    file_server.stop()
    with pytest.raises(TransferError, match="refused"):
        from_http(f"{file_server.url}/x", target)
    with pytest.raises(TransferError, match="unknown url type"):
        from_http("nowhere", target)
    assert list(target.parent.iterdir()) == []


def test_a_connection_that_dies(file_server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import http.client

    monkeypatch.setattr(
        http.client.HTTPResponse, "read", lambda self, amount=None: (_ for _ in ()).throw(OSError("gone"))
    )
    with pytest.raises(TransferError, match=r"it broke off \(gone\)"):
        from_http(f"{file_server.url}/x", target)


def test_a_disk_too_small(file_server: FileServer, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = broken(file_server, target)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0, 0, len(CONTENT)))
    source = target.with_name("source")
    source.write_bytes(CONTENT)
    for bring in (lambda: from_http(f"{file_server.url}/x", target, 600_000), lambda: from_folder(source, target, 1)):
        with pytest.raises(
            RoomError, match=r"x.pth.tar needs 1\.\d MB in .* has 1\.0 MB free\. Free some space, or set"
        ):
            bring()
    assert part_of(target).stat().st_size == kept and not target.exists()
    from_http(f"{file_server.url}/x", target, 500_000)  # the half that is there need not fit again
    from_folder(source, target)


def test_out_of_a_folder(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = target.with_name("source")
    with pytest.raises(MissingError, match="it does not have the file"):
        from_folder(source, target)
    source.write_bytes(CONTENT)
    from_folder(source, target)
    assert target.read_bytes() == CONTENT

    def unreadable(*paths: object) -> None:
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr(shutil, "copyfile", unreadable)
    with pytest.raises(TransferError, match="Permission denied"):
        from_folder(source, target)

    def full(*paths: object) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        from_folder(source, target)


def test_throw_away(target: Path) -> None:
    part = part_of(target)
    for path in (target, part, part.with_name(f"{part.name}.etag"), target.with_name(f"{target.name}abcd1234.part")):
        path.write_bytes(b"x")
    other = target.with_name("y.pth.tar.part")
    other.write_bytes(b"y")
    transfer.throw_away(target)
    assert list(target.parent.iterdir()) == [other]
