"""A Hugging Face Hub on loopback for tests: create, upload (inline and LFS), list, download with ranges; and faults.

It speaks what huggingface_hub and timm ask for, keeps repositories as folders, and logs every request. `HubServer.fail`
makes a file misbehave the way networks and servers do.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

LFS_FROM = 5_000_000  # bytes from which a file is uploaded as a blob of its own, as the Hub does for weights
FAULTS = {
    "half": "announces the whole file, sends half, closes the connection (every time)",
    "half-once": "the same, the first time only",
    "short": "serves half the file as if it were all of it",
    "die": "sends half, then the whole server stops",
    "500": "answers 500",
    "401": "answers 401",
    "403": "answers 403",
}


class HubServer:
    """The server; `url` for HF_ENDPOINT, `root/ORG/NAME` are the repositories, `log` the requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[str] = []
        self.faults: dict[str, str] = {}
        self.private: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def fail(self, suffix: str, fault: str) -> None:
        """Make downloads of, or requests to, paths that end in `suffix` misbehave; see FAULTS."""
        assert fault in FAULTS, fault
        self.faults[suffix] = fault

    def fault(self, path: str) -> str | None:
        return next((fault for suffix, fault in self.faults.items() if path.endswith(suffix)), None)

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        self.hub.log.append(f"{self.command} {self.path}")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        parts = path.strip("/").split("/")
        fault = self.hub.fault(path)
        if fault in ("500", "403", "401"):
            return self._reply(int(fault), {"error": "fault"})
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            return self._describe(self.hub.root / parts[2] / parts[3], parts)
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._send_file(self.hub.root / parts[0] / parts[1], parts[3], "/".join(parts[4:]), fault)
        return self._reply(404, {"error": "NotFound"})

    def do_POST(self) -> None:
        body = self._body()
        path = urllib.parse.urlparse(self.path).path
        parts = path.strip("/").split("/")
        if self.hub.fault(path) in ("500", "403", "401"):
            return self._reply(int(str(self.hub.fault(path))), {"error": "fault"})
        if parts == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._lfs(json.loads(body))
        if parts[4:5] == ["preupload"]:
            files = json.loads(body)["files"]
            modes = ["lfs" if file["size"] >= LFS_FROM else "regular" for file in files]
            replies = [
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}
                for file, mode in zip(files, modes, strict=True)
            ]
            return self._reply(200, {"files": replies})
        if parts[4:5] == ["commit"]:
            return self._commit(f"{parts[2]}/{parts[3]}", body)
        if parts[1:2] == ["validate-yaml"]:
            return self._reply(200, {"errors": [], "warnings": []})
        return self._reply(404, {"error": "NotFound"})

    def do_PUT(self) -> None:
        self.hub.blobs[self.path.rsplit("/", 1)[1]] = self._body()
        self._reply(200, {})

    def _create(self, query: dict[str, Any]) -> None:
        repo = f"{query.get('organization') or 'me'}/{query['name']}"
        folder = self.hub.root / repo
        existed = folder.is_dir()
        folder.mkdir(parents=True, exist_ok=True)
        self.hub.private.setdefault(repo, query.get("visibility", "") == "private" or bool(query.get("private")))
        self._reply(409 if existed else 200, {"url": f"{self.hub.url}/{repo}", "id": "1", "name": repo})

    def _lfs(self, query: dict[str, Any]) -> None:
        objects = [
            {**item, "actions": {"upload": {"href": f"{self.hub.url}/blobs/{item['oid']}", "header": {}}}}
            for item in query["objects"]
        ]
        self._reply(200, {"transfer": "basic", "objects": objects}, {"Content-Type": "application/vnd.git-lfs+json"})

    def _commit(self, repo: str, body: bytes) -> None:
        folder = self.hub.root / repo
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                self._store(folder / value["path"], base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                self._store(folder / value["path"], self.hub.blobs.pop(value["oid"]))
        commit = _revision(folder)
        url = f"{self.hub.url}/{repo}/commit/{commit}"
        self._reply(200, {"success": True, "commitUrl": url, "commitOid": commit, "hookOutput": ""})

    def _describe(self, folder: Path, parts: list[str]) -> None:
        if not folder.is_dir():
            return self._error(404, "RepoNotFound")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [str(path.relative_to(folder)) for path in files]
        if parts[4:5] == ["tree"]:
            tree = [
                {"type": "file", "path": name, "oid": _blob_id(path), "size": path.stat().st_size}
                for name, path in zip(names, files, strict=True)
            ]
            return self._reply(200, tree)
        return self._reply(
            200,
            {
                "_id": "1",
                "id": f"{parts[2]}/{parts[3]}",
                "sha": _revision(folder),
                "private": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": name} for name in names],
            },
        )

    def _send_file(self, folder: Path, revision: str, name: str, fault: str | None) -> None:
        if not folder.is_dir():
            return self._error(404, "RepoNotFound")
        commit = _revision(folder)
        if revision not in ("main", commit):
            return self._error(404, "RevisionNotFound")
        if not (folder / name).is_file():
            return self._error(404, "EntryNotFound", {"X-Repo-Commit": commit})
        content = (folder / name).read_bytes()
        if fault == "short":
            content = content[: len(content) // 2]
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        start = 0
        if asked := self.headers.get("Range"):
            start = int(asked.split("=")[1].split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        code = 206 if asked else 200
        if self.command == "GET" and fault in ("half", "half-once", "die"):
            return self._send_half(code, content[start:], headers, name, fault)
        return self._reply(code, content[start:], headers)

    def _send_half(self, code: int, content: bytes, headers: dict[str, str], name: str, fault: str) -> None:
        self._head(code, len(content), headers)
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self.close_connection = True
        if fault == "half-once":
            self.hub.faults = {suffix: kind for suffix, kind in self.hub.faults.items() if not name.endswith(suffix)}
        if fault == "die":
            threading.Thread(target=self.hub.stop, daemon=True).start()

    def _store(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def _error(self, code: int, kind: str, headers: dict[str, str] | None = None) -> None:
        self._reply(code, {"error": kind}, {"X-Error-Code": kind, **(headers or {})})

    def _reply(self, code: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._head(code, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, code: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while length := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)


def _blob_id(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


def _revision(folder: Path) -> str:
    """A commit id that changes with the content: names, sizes and times of the files."""
    digest = hashlib.sha1()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        stat = path.stat()
        digest.update(f"{path.relative_to(folder)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def running(root: Path) -> Iterator[HubServer]:
    """A server over `root`, stopped at the end."""
    server = HubServer(root)
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.stop()


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A loopback Hub that huggingface_hub of this process talks to, with an empty cache of its own."""
    from huggingface_hub import constants

    with running(tmp_path / "hub") as server:
        point_to(server.url, tmp_path / "hf", monkeypatch)
        assert server.url == constants.ENDPOINT
        yield server


def point_to(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what HF_ENDPOINT, HF_HOME and HF_TOKEN set; the client reads those only once, when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_loopback")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # the client waits between its attempts
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
