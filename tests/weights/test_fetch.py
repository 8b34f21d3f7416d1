"""`pretrained=True` on a machine without the weights: the authors' file arrives by itself, once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import synthetic
import timm
import tiny
import torch
from file_server import FileServer
from file_server import file_server as file_server  # a fixture
from filelock import FileLock
from hub_server import HubServer, point_to
from hub_server import hub_server as hub_server  # a fixture

import timm_gcp  # noqa: F401
from timm_gcp.cli import main
from timm_gcp.weights import catalog as table
from timm_gcp.weights import drive, fetch, store

NAME = "shufflenet_v2_x1_0_gcp.norm_in1k"
FILE = "ShuffleNetV2_GCP_LRnorm.pth.tar"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The authors' file."""
    path = tmp_path_factory.mktemp("authors") / FILE
    arch = table.ARCHITECTURES["shufflenet_v2_x1_0_gcp"].authors
    weights = {f"module.{key}": value for key, value in synthetic.state_dict(arch).items()}
    torch.save({"epoch": 100, "arch": arch, "state_dict": weights, "best_acc1": torch.tensor(70.0)}, path)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_server: FileServer, content: bytes) -> Path:
    """The folder of the store; the server is the mirror."""
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIMM_GCP_MIRROR", file_server.url)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))  # gdown keeps cookies there
    monkeypatch.setattr(drive, "DRIVE_URL", file_server.url + "/drive?id={id}")
    file_server.content, file_server.names = content, {FILE}
    return tmp_path / "home"


def test_it_arrives_once(file_server: FileServer, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(7)
    with torch.random.fork_rng():
        timm.create_model("shufflenet_v2_x1_0_gcp")
        expected_draw = torch.rand(3)
    model = timm.create_model("shufflenet_v2_x1_0_gcp", pretrained=True).eval()
    assert torch.equal(torch.rand(3), expected_draw), "a download leaves the random numbers as they are"
    lines = [line for line in capsys.readouterr().err.replace("\r", "\n").splitlines() if "authors" in line]
    assert lines == [f"{NAME}: the authors' file {FILE}, converted. {table.NO_LICENCE} It is in {store.find(NAME)}"]
    with torch.inference_mode():
        expected = synthetic.golden(table.ARCHITECTURES["shufflenet_v2_x1_0_gcp"].authors)[:1].double()
        found = model(synthetic.image()[:1]).double()
    assert (found - expected).norm() < 1e-3 * expected.norm()
    assert list((home / "downloads").iterdir()) == [] and (home / "digests" / f"{FILE}.sha256").is_file()
    file_server.stop()
    again = timm.create_model(NAME, pretrained=True, num_classes=3)
    assert again.num_classes == 3 and "authors" not in capsys.readouterr().err
    assert fetch.fetch(NAME) is None


def test_failures_are_one_error(file_server: FileServer, home: Path) -> None:
    file_server.code = 500
    message = (
        rf"No weights for {NAME} on this machine(.|\n)*{FILE} did not arrive from {file_server.url}: it answers 500"
        rf"(.|\n)*timm-gcp weights fetch {NAME}\n(.|\n)*weights import {FILE} --as(.|\n)*TIMM_GCP_MIRROR=PLACE"
    )
    with pytest.raises(RuntimeError, match=message):
        timm.create_model("shufflenet_v2_x1_0_gcp", pretrained=True)
    file_server.code, file_server.content = 0, file_server.content[: len(file_server.content) // 2]
    with pytest.raises(ValueError, match="is thrown away"):
        timm.create_model("shufflenet_v2_x1_0_gcp", pretrained=True)
    assert store.find(NAME) is None and list((home / "downloads").iterdir()) == []


@pytest.mark.parametrize("variable", ["TIMM_GCP_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(file_server: FileServer, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(
        FileNotFoundError, match=rf"No weights for {NAME} on this(.|\n)*fetch {NAME}(.|\n)*weights import"
    ):
        timm.create_model("shufflenet_v2_x1_0_gcp", pretrained=True)
    assert not file_server.paths


def test_a_later_different_file(
    file_server: FileServer, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "fetch", NAME]) == 0
    out, err = capsys.readouterr()
    assert f"The download can be removed: {home / 'downloads' / FILE}" in out and table.NO_LICENCE in err
    assert main(["weights", "fetch", NAME]) == 0 and "already" in capsys.readouterr().out
    (home / "downloads" / FILE).unlink()
    other = timm.create_model("shufflenet_v2_x1_0_gcp")
    file_server.content = tiny.checkpoint(tmp_path / "x.pth", other).read_bytes()
    before = (store.stored_folder(NAME) / "config.json").stat().st_mtime_ns
    assert main(["weights", "fetch", NAME, "--force"]) == 1
    err = capsys.readouterr().err
    assert "is another file than before" in err and ".sha256 and fetch again" in err
    assert (store.stored_folder(NAME) / "config.json").stat().st_mtime_ns == before


def test_a_foreign_file_is_thrown_away(
    file_server: FileServer, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_server.content, good = tiny.checkpoint(tmp_path / "x.pth").read_bytes(), file_server.content
    for options in ([], ["--force"]):
        assert main(["weights", "fetch", NAME, *options]) == 1
        assert "do not fit" in (err := capsys.readouterr().err) and "The download is thrown away" in err
        assert list((home / "downloads").iterdir()) == [] and not (home / "digests").exists()
    file_server.content = good
    assert main(["weights", "fetch", NAME, "--url", f"{file_server.url}/{FILE}"]) == 0


def test_the_hub_lacks_it(
    hub_server: HubServer, file_server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("TIMM_GCP_HUB_ORG", "mine")
    file_server.code = 500
    with pytest.raises(RuntimeError, match=r"no repository mine/(.|\n)*it answers 500(.|\n)*weights fetch"):
        timm.create_model(NAME, pretrained=True)
    file_server.code = 0
    timm.create_model(NAME, pretrained=True)
    assert f"no repository mine/{NAME}" in (err := capsys.readouterr().err) and "The authors' file is next." in err
    assert store.find(NAME) is not None
    point_to("http://127.0.0.1:9", tmp_path / "hf2", monkeypatch)
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "another"))
    timm.create_model(NAME, pretrained=True)
    assert "could not be reached" in capsys.readouterr().err


SCRIPT = """
import timm, timm_gcp, torch
model = timm.create_model("shufflenet_v2_x1_0_gcp", pretrained=True)
print(float(sum(p.double().sum() for p in model.parameters())))
"""


def test_two_processes(file_server: FileServer, home: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    done = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], done
    assert done[0][0] == done[1][0] and len(file_server.paths) == 1
    assert sum("the authors' file" in err for _, err in done) == 1


def test_waiting_and_no_rights(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file_server: FileServer
) -> None:
    (home / "locks").mkdir(parents=True)
    held = threading.Event()

    def hold() -> None:
        with FileLock(home / "locks" / f"{NAME}.lock"):
            held.set()
            time.sleep(0.5)

    other = threading.Thread(target=hold)
    other.start()
    assert held.wait(10)
    monkeypatch.setattr(fetch, "_PATIENCE", 0.05)
    file_server.code = 500
    with pytest.raises(RuntimeError, match="it answers 500"):
        fetch.fetch(NAME)
    other.join()
    assert "another process is at it; waiting for" in capsys.readouterr().err
    monkeypatch.setenv("TIMM_GCP_HOME", "/dev/null/x")
    with pytest.raises(RuntimeError, match=r"\.lock could not be written: .*set TIMM_GCP_HOME"):
        fetch.fetch(NAME)
