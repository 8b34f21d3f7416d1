"""Files over HTTP on loopback, with the faults of real servers."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

PAGE = b"<!DOCTYPE html><title>Google Drive - Quota exceeded</title>"


class FileServer:
    """Serves `content` under every name in `names` (all, where it is empty) and logs what is asked for.

    Attributes:
        content: The bytes of the file.
        names: Names that exist; empty: any.
        ranges: The Range header of each request.
        paths: The path of each request.
        honours: Whether ranges are served.
        breaks: How many of the next answers stop half-way.
        code: Status of every answer, where not 200 or 206.
        etag: Whether answers carry a strong ETag.
        kind: Content type.
        sized: Whether the length is told.
    """

    def __init__(self) -> None:
        self.content = b""
        self.names: set[str] = set()
        self.ranges: list[str | None] = []
        self.paths: list[str] = []
        self.honours = True
        self.breaks = 0
        self.code = 0
        self.etag = True
        self.kind = "application/octet-stream"
        self.sized = True
        handler = type("Handler", (_Handler,), {"files": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    files: FileServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        files, asked = self.files, self.headers.get("Range")
        files.ranges.append(asked)
        files.paths.append(self.path)
        name = self.path.rpartition("/")[2]
        if files.code or (files.names and name not in files.names):
            self.send_error(files.code or 404)
            return
        tag, total = f'"{hashlib.sha256(files.content).hexdigest()}"', len(files.content)
        if not files.honours or self.headers.get("If-Range", tag) != tag:
            asked = None
        start = int(asked.split("=")[1].split("-")[0]) if asked else 0
        if asked and start >= total:
            self.send_error(416)
            return
        body = files.content[start:]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Type", files.kind)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if files.sized:
            self.send_header("Content-Length", str(len(body)))
        if files.etag:
            self.send_header("ETag", tag)
        self.end_headers()
        if files.breaks:
            files.breaks -= 1
            body = body[: len(body) // 2]
        with contextlib.suppress(OSError):
            self.wfile.write(body)


@pytest.fixture
def file_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server on loopback; the variables that forbid downloads are unset."""
    for variable in ("TIMM_GCP_OFFLINE", "HF_HUB_OFFLINE", "TIMM_GCP_MIRROR", "TIMM_GCP_HUB_ORG"):
        monkeypatch.delenv(variable, raising=False)
    files = FileServer()
    yield files
    files.stop()
