"""Downloads of the authors' files: the order of the sources, what is thrown away, the digest, the network forbidden."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from file_server import PAGE, FileServer
from file_server import file_server as file_server  # a fixture

from timm_gcp.weights import catalog as table
from timm_gcp.weights import download as downloads
from timm_gcp.weights import drive, transfer
from timm_gcp.weights.download import DownloadError, allowed, download

NAME = "shufflenet_v2_x1_0.fast_in1k"
ENTRY = table.WEIGHTS[NAME]
FILE = "ShuffleNetV2_GAP_LRfast.pth.tar"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_server: FileServer) -> Path:
    """The downloads folder; the server stands for Google Drive."""
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))  # gdown keeps cookies there
    monkeypatch.setattr(drive, "DRIVE_URL", file_server.url + "/drive?id={id}")
    file_server.content = saved(tmp_path / "good.pth", 1)
    return tmp_path / "home" / "downloads"


def saved(path: Path, value: float) -> bytes:
    torch.save({"state_dict": {"weight": torch.full((2000,), value)}}, path)
    return path.read_bytes()


def test_drive_is_asked_for_the_listed_id(file_server: FileServer, folder: Path) -> None:
    path = download(NAME, quiet=True)
    assert path == folder / FILE and path.read_bytes() == file_server.content
    assert file_server.paths == [f"/drive?id={ENTRY.google_drive_id}"]
    assert download(NAME, quiet=True) == path and len(file_server.paths) == 1, "a complete one is not repeated"


def test_the_mirror_comes_first(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_MIRROR", f"{file_server.url}/mirror")
    download(NAME, quiet=True).unlink()
    assert file_server.paths == [f"/mirror/{FILE}"]
    download(NAME, f"{file_server.url}/mine", quiet=True).unlink()
    assert file_server.paths[1:] == ["/mine"], "what is named comes before"
    file_server.names = {f"drive?id={ENTRY.google_drive_id}"}
    download(NAME, quiet=True)
    assert file_server.paths[2:] == [f"/mirror/{FILE}", f"/drive?id={ENTRY.google_drive_id}"], "it has no such file"


def test_a_folder_as_mirror(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = folder.parent.parent / "mirror"
    mirror.mkdir()
    monkeypatch.setenv("TIMM_GCP_MIRROR", str(mirror))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not allowed(NAME)
    with pytest.raises(
        DownloadError, match=r"HF_HUB_OFFLINE=1 forbids the network\. TIMM_GCP_MIRROR .* not have the file"
    ):
        download(NAME)
    (mirror / FILE).write_bytes(file_server.content[:-700])
    with pytest.raises(ValueError, match=f"came from {mirror} and is thrown away. By hand: save https://drive.google"):
        download(NAME)
    assert list(folder.iterdir()) == [] and (mirror / FILE).is_file()
    (mirror / FILE).write_bytes(file_server.content)
    assert allowed(NAME) and download(NAME).read_bytes() == file_server.content
    assert not file_server.paths, "no network"


@pytest.mark.parametrize("variable", downloads.OFFLINE)
def test_offline(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert downloads.offline() == "" and allowed(NAME)
    monkeypatch.setenv(variable, "0")
    assert downloads.offline() == ""
    monkeypatch.setenv(variable, "True")
    monkeypatch.setenv("TIMM_GCP_MIRROR", file_server.url)
    assert not allowed(NAME)
    for url in (None, file_server.url):
        with pytest.raises(DownloadError, match=f"{variable}=True forbids the network. Unset it, or name a folder"):
            download(NAME, url)
    assert not file_server.paths


def test_mirror_that_fails(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_MIRROR", file_server.url)
    file_server.code = 500
    message = rf"{FILE} did not arrive from {file_server.url}: it answers 500 .*TIMM_GCP_MIRROR=PLACE.*By hand: save"
    with pytest.raises(DownloadError, match=message):
        download(NAME, quiet=True)
    file_server.code, file_server.breaks = 0, 1
    with pytest.raises(DownloadError, match=r"broke off after .*What has arrived is kept: the next attempt goes on"):
        download(NAME, quiet=True)
    assert download(NAME, quiet=True).read_bytes() == file_server.content
    assert file_server.ranges[-1] is not None and file_server.ranges[-1].startswith("bytes=")


def test_neither_has_it(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_MIRROR", file_server.url)
    file_server.names = {"none"}
    with pytest.raises(
        DownloadError, match=r"did not arrive from .*drive\?id=.* TIMM_GCP_MIRROR .*not have the file \(404"
    ):
        download(NAME, quiet=True)


@pytest.mark.parametrize("by_drive", [True, False])
def test_a_page_or_a_cut_file(
    file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, by_drive: bool
) -> None:
    good = file_server.content
    if not by_drive:
        monkeypatch.setenv("TIMM_GCP_MIRROR", file_server.url)
    for served, message in ((PAGE, "web page"), (good[:-700], "cut short|damaged"), (b"", "is empty")):
        file_server.content = served
        with pytest.raises((ValueError, DownloadError), match=f"(?s)({message}).*By hand: save https://drive"):
            download(NAME, quiet=True)
        assert not list(folder.iterdir())
    file_server.content = good
    assert download(NAME, quiet=True).read_bytes() == good


def test_what_lies_there_never_blocks(file_server: FileServer, folder: Path) -> None:
    folder.mkdir(parents=True)
    for stale in (file_server.content[:-700], PAGE, b""):
        (folder / FILE).write_bytes(stale)
        assert download(NAME, quiet=True).read_bytes() == file_server.content


def test_the_digest(file_server: FileServer, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = download(NAME, quiet=True)
    assert downloads.pinned(ENTRY) is None, "only a file that could be used counts"
    first = transfer_digest(path)
    downloads.pin(ENTRY, first)
    downloads.pin(ENTRY, "0" * 64)
    assert downloads.pinned(ENTRY) == first
    kept = folder.parent / "digests" / f"{FILE}.sha256"
    assert kept.read_text() == f"{first}  {FILE}\n"
    assert download(NAME, quiet=True) == path
    good, file_server.content = file_server.content, saved(tmp_path / "other.pth", 2)
    path.write_bytes(file_server.content)  # in `downloads` already, and over the network
    second = transfer_digest(path)
    message = (
        rf"is another file than before: its SHA-256 is {second}, that of the first download {first}\. Where .*remove "
    )
    with pytest.raises(ValueError, match=message + str(kept)):
        download(NAME, quiet=True)
    assert not path.exists()
    file_server.content = good
    download(NAME, quiet=True).unlink()
    file_server.content = (tmp_path / "other.pth").read_bytes()
    kept.write_text("")
    download(NAME, quiet=True)


def transfer_digest(path: Path) -> str:
    from timm_gcp.common.files import file_sha256

    return file_sha256(path)


def test_no_room_no_rights_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"No published weights are called 'resnet18_gcp.x'. Known: "):
        download("resnet18_gcp.x")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 9_000_000}))
    with pytest.raises(transfer.RoomError, match=r"needs 9\.1 MB in .* and the disk has 9\.0 MB free"):  # 4 × 2.28 M
        download(NAME, quiet=True)
    monkeypatch.undo()
    monkeypatch.delenv("TIMM_GCP_OFFLINE", raising=False)
    monkeypatch.setenv("TIMM_GCP_HOME", "/dev/null/x")
    with pytest.raises(RuntimeError, match=f"{FILE} could not be written: .*set TIMM_GCP_HOME to a folder on another"):
        download(NAME)


def test_without_gdown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gdown", None)
    with pytest.raises(ImportError, match=r"needs gdown: pip install .* By hand: save"):
        download(NAME)


def test_shown_url_of_drive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(drive, "from_drive", lambda url, target, *rest: asked.append(url) or tiny.checkpoint(target))
    download(NAME, "https://drive.google.com/uc?id=x", quiet=True)
    assert asked == ["https://drive.google.com/uc?id=x"]
