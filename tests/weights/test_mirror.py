"""What `TIMM_GCP_MIRROR` may name."""

from __future__ import annotations

from pathlib import Path

import pytest
from file_server import FileServer
from file_server import file_server as file_server  # a fixture

from timm_gcp.weights import mirror
from timm_gcp.weights.transfer import MissingError

FILE = "ResNet18_GCP_LRnorm.pth.tar"


def test_a_server(file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_server.content, file_server.names = b"weights", {FILE}
    monkeypatch.setenv(mirror.VARIABLE, f"{file_server.url}/some where/".replace(" ", "%20"))
    assert mirror.folder() is None
    mirror.get(FILE, tmp_path / FILE, quiet=True)
    assert (tmp_path / FILE).read_bytes() == b"weights" and file_server.paths == [f"/some%20where/{FILE}"]
    with pytest.raises(MissingError, match="does not have the file"):
        mirror.get("other", tmp_path / "other", quiet=True)


@pytest.mark.parametrize("address", [str, Path.as_uri])
def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / FILE).write_bytes(b"weights")
    monkeypatch.setenv(mirror.VARIABLE, address(folder))
    assert mirror.folder() == folder
    mirror.get(FILE, tmp_path / FILE)
    assert (tmp_path / FILE).read_bytes() == b"weights"


def test_nothing_and_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mirror.VARIABLE, raising=False)
    assert mirror.place() == "" and mirror.folder() is None
    monkeypatch.setenv(mirror.VARIABLE, "s3://bucket")
    with pytest.raises(ValueError, match=r"TIMM_GCP_MIRROR is 's3://bucket': give an http\(s\):// address"):
        mirror.folder()
    monkeypatch.setenv(mirror.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"TIMM_GCP_MIRROR is '.*none', and there is no such folder: correct it"):
        mirror.folder()
