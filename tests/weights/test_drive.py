"""Downloads of the authors' files: gdown's own code against an HTTP server on loopback."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import timm
import tiny
import torch

from timm_gcp.cli import main
from timm_gcp.weights import catalog as table
from timm_gcp.weights import drive

pytest.importorskip("gdown", reason="an optional extra: pip install 'timm-gcp[download]'")
NAME = "shufflenet_v2_x1_0.fast_in1k"


class FileServer:
    """Serves `content` with ranges; `breaks` downloads stop half-way."""

    def __init__(self) -> None:
        self.content = b""
        self.breaks = 0
        self.ranges: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                asked = self.headers.get("Range")
                server.ranges.append(asked)
                start = int(asked.split("=")[1].split("-")[0]) if asked else 0
                body = server.content[start:]
                self.send_response(206 if asked else 200)
                if asked:
                    total = len(server.content)
                    self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if server.breaks:
                    server.breaks -= 1
                    body = body[: len(body) // 2]
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/file"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path))  # gdown keeps cookies there
    files = FileServer()
    yield files
    files.http.shutdown()
    files.http.server_close()


def test_fetch_imports_and_does_not_repeat_itself(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = timm.create_model("shufflenet_v2_x1_0").eval()
    server.content = tiny.checkpoint(tmp_path / "x.pth", model).read_bytes()
    assert main(["weights", "fetch", NAME, "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert f'timm.create_model("{NAME}", pretrained=True)' in out and "ShuffleNetV2_GAP_LRfast.pth.tar" in out
    assert table.NO_LICENCE in err and "%" in err, "with progress"
    assert torch.equal(tiny.logits(timm.create_model(NAME, pretrained=True)), tiny.logits(model))
    asked = len(server.ranges)
    assert main(["weights", "fetch", NAME, "--url", server.url]) == 0
    assert "on this machine already" in capsys.readouterr().out and len(server.ranges) == asked
    assert main(["weights", "fetch", NAME, "--url", server.url, "--force"]) == 0


def test_a_broken_download_is_resumed(server: FileServer, tmp_path: Path) -> None:
    server.content = tiny.checkpoint(tmp_path / "x.pth").read_bytes()
    server.breaks = 1
    with pytest.raises(
        RuntimeError, match=r"did not arrive from http(.|\n)*What has arrived is kept(.|\n)*By hand: save "
    ):
        drive.download(NAME, server.url, quiet=True)
    partial = next((tmp_path / "home" / "downloads").iterdir())
    kept = partial.stat().st_size
    assert 0 < kept < len(server.content)
    path = drive.download(NAME, server.url, quiet=True)
    assert path.read_bytes() == server.content and path.name == "ShuffleNetV2_GAP_LRfast.pth.tar"
    assert server.ranges[-1] is not None and server.ranges[-1].startswith(f"bytes={kept}-")


def test_a_page_instead_of_the_file(server: FileServer, tmp_path: Path) -> None:
    server.content = b"<!DOCTYPE html><title>Google Drive - Quota exceeded</title>"
    with pytest.raises(
        ValueError, match=r"is a web page, not weights.*By hand: save https://drive\.google\.com/open\?id="
    ):
        drive.download(NAME, server.url, quiet=True)
    assert list((tmp_path / "home" / "downloads").iterdir()) == [], "or it would pass for the finished download"


def test_the_listed_id_is_asked_for(server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server.content = tiny.checkpoint(tmp_path / "x.pth").read_bytes()
    monkeypatch.setattr(drive, "DRIVE_URL", server.url + "?id={id}")
    urls: list[str] = []
    import gdown

    original = gdown.download
    monkeypatch.setattr(gdown, "download", lambda **kwargs: urls.append(kwargs["url"]) or original(**kwargs))
    drive.download(NAME, quiet=True)
    assert urls == [f"{server.url}?id={table.WEIGHTS[NAME].google_drive_id}"]
    monkeypatch.setattr(gdown, "download", lambda **kwargs: None)
    with pytest.raises(RuntimeError, match="did not arrive"):
        drive.download("resnet18_gcp.norm_in1k", quiet=True)


def test_unknown_name_and_missing_gdown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"No published weights are called 'resnet18_gcp.x'. Known: "):
        drive.download("resnet18_gcp.x")
    monkeypatch.setitem(sys.modules, "gdown", None)
    with pytest.raises(ImportError, match=r"needs gdown: pip install 'timm-gcp\[download\]'. By hand: save"):
        drive.download(NAME)


def test_what_lies_in_downloads_never_blocks(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = timm.create_model("shufflenet_v2_x1_0").eval()
    good = server.content = tiny.checkpoint(tmp_path / "x.pth", model).read_bytes()
    foreign = tiny.checkpoint(tmp_path / "y.pth").read_bytes()
    folder = tmp_path / "home" / "downloads"
    folder.mkdir(parents=True)
    file = folder / "ShuffleNetV2_GAP_LRfast.pth.tar"
    for stale in (good[:-700], b"<html>quota</html>", b""):  # of an earlier attempt
        file.write_bytes(stale)
        assert drive.download(NAME, server.url, quiet=True).read_bytes() == good
    file.unlink()
    for number in range(2):
        (folder / f"{file.name}{number}.part").write_bytes(b"<html>" * (number + 1))
    assert drive.download(NAME, server.url, quiet=True).read_bytes() == good
    file.unlink()
    (folder / f"{file.name}x.part").write_bytes(good + b"more than there is")
    with contextlib.suppress(RuntimeError):  # a part that is too long: gdown's versions differ in what they do
        drive.download(NAME, server.url, quiet=True)
    assert drive.download(NAME, server.url, quiet=True).read_bytes() == good
    file.unlink()
    for served, message in ((good[:-700], "cut short"), (foreign, "do not fit")):
        server.content = served
        for options in ([], ["--force"]):
            assert main(["weights", "fetch", NAME, "--url", server.url, *options]) == 1
            assert message in capsys.readouterr().err
            assert list(folder.iterdir()) == []
    server.content = good
    assert main(["weights", "fetch", NAME, "--url", server.url]) == 0
