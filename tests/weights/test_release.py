"""`timm-gcp weights release` with synthetic authors' files against a Hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic
import timm
import torch
from file_server import FileServer
from file_server import file_server as file_server  # a fixture
from hub_server import HubServer
from hub_server import hub_server as hub_server  # a fixture
from PIL import Image

from timm_gcp.cli import main
from timm_gcp.weights import catalog as table
from timm_gcp.weights import download, drive, hub, store
from timm_gcp.weights import release as releasing
from timm_gcp.weights.importing import import_file

GCP, GAP, LACKING = (f"shufflenet_v2_x1_0{name}" for name in ("_gcp.norm_in1k", ".fast_in1k", ".norm_in1k"))
COMMAND = ["weights", "release", "--org", "mine", "--licence", "mit"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_server: FileServer) -> Path:
    """The folder of the store; a folder as mirror, an empty server in the place of Google Drive."""
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TIMM_GCP_MIRROR", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    monkeypatch.setattr(drive, "DRIVE_URL", file_server.url + "/drive?id={id}")
    file_server.names = {"none"}
    return tmp_path / "home"


def put(name: str, seed: int = 0) -> Path:
    """The authors' file of an entry, in the mirror."""
    from timm_gcp.weights import mirror

    entry, folder = table.WEIGHTS[name], mirror.folder()
    assert folder is not None
    path = folder / download.file_name(entry)
    weights = {f"module.{key}": value for key, value in synthetic.state_dict(entry.architecture.authors, seed).items()}
    torch.save({"epoch": 100, "state_dict": weights, "best_acc1": torch.tensor(70.0)}, path)
    return path


def logits(name: str) -> torch.Tensor:
    with torch.inference_mode():
        return timm.create_model(name, pretrained=True).eval()(synthetic.image()[:1]).double()


def test_release_and_go_on(
    hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(GCP)
    monkeypatch.setattr(table, "matching", lambda pattern: [LACKING, GCP])
    assert main(COMMAND) == 1, "one fails, and the other is published"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{LACKING}  ") and "failed" in lines[0] and "did not arrive from" in lines[0]
    assert lines[1].split() == [GCP, "uploaded", f"mine/{GCP}"] and lines[2] == "1 uploaded, 1 failed"
    card = (hub_server.root / "mine" / GCP / "README.md").read_text()
    assert f'timm.create_model("hf-hub:mine/{GCP}"' in card and "Licence: mit" in card and "not been measured" in card

    hub_server.log.clear()
    monkeypatch.setattr(table, "matching", lambda pattern: [GCP])
    assert main(COMMAND) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{GCP}  there already  mine/{GCP}",
        "1 there already",
    ]
    assert not any(line.startswith(("POST", "PUT")) for line in hub_server.log)

    monkeypatch.setenv("TIMM_GCP_HOME", str(home.with_name("another")))
    monkeypatch.setenv("TIMM_GCP_HUB_ORG", "mine")
    expected = synthetic.golden(table.ARCHITECTURES["shufflenet_v2_x1_0_gcp"].authors)[:1].double()
    found = logits(f"hf-hub:mine/{GCP}")
    assert (found - expected).norm() < 1e-3 * expected.norm()
    assert torch.equal(logits("shufflenet_v2_x1_0_gcp"), found) and store.find(GCP) is None, "from the Hub"


def test_accuracy_is_compared(
    hub_server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(GAP)
    for number in range(1000):  # two images, and a file for each other class that is none
        image = tmp_path / "val" / f"n{number:08}" / "x.png"
        image.parent.mkdir(parents=True)
        image.write_bytes(b"")
        if number < 2:
            Image.new("RGB", (40, 40), (90 * number, 10, 200)).save(image)
    words = [*COMMAND, GAP, "--data-dir", str(tmp_path / "val"), "--workers", "0", "--device", "cpu"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "(published 66.13%)" in out and "tolerance 0.2 points: not published. Check that --data-dir" in out
    assert not hub_server.root.exists() or not list(hub_server.root.glob("mine/*")), "nothing is created"
    assert main([*words, "--tolerance", "100"]) == 0
    top1 = capsys.readouterr().out.split("top-1 ")[1].split("%")[0]
    card = (hub_server.root / "mine" / GAP / "README.md").read_text()
    assert f"| `timm-gcp validate` on this file | {top1} |" in card and "not been measured" not in card
    assert json.loads((hub_server.root / "mine" / GAP / "config.json").read_text())["num_classes"] == 1000


def test_dry_run_touches_nothing(
    hub_server: HubServer, file_server: FileServer, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_file(put(GAP))
    before = sorted(home.rglob("*"))
    assert main(["weights", "release", "--org", "mine", "--dry-run", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 41 and lines[-1].startswith("40 to release, accuracy measured on ") and "--licence" in lines[-1]
    )
    assert f"{store.find(GAP)} -> mine/{GAP}" in "\n".join(lines)
    assert f"ResNet101_GCP_LRadju.pth.tar from {tmp_path / 'mirror'} -> mine/resnet101_gcp.adju_in1k" in lines[-2]
    assert not hub_server.log and not file_server.paths and sorted(home.rglob("*")) == before


def test_what_is_refused_at_once(
    hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, message in (
        (["nothing"], "No weights match 'nothing'"),
        (["--tolerance", "-1"], "--tolerance takes points of accuracy, at least 0. Got -1"),
        (["--data-dir", "nowhere"], "no folder 'nowhere': give ImageNet's validation images"),
        (["--licence", ""], "not ours to publish. The authors' repository states no licence."),
    ):
        assert main([*COMMAND, *words]) == 1
        assert message in capsys.readouterr().err
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(COMMAND) == 1
    assert "takes uploads with a token only: `hf auth login`" in capsys.readouterr().err
    assert not hub_server.log


def test_what_the_hub_does_wrong(
    hub_server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_file(put(GAP))
    download.pin(table.WEIGHTS[GAP], "0" * 64)
    outcomes = list(releasing.release([GAP], "mine", "mit"))
    assert outcomes[0].state == "failed" and "was made of a file with the SHA-256" in outcomes[0].text
    assert f"weights fetch {GAP} --force" in outcomes[0].text
    (home / "digests" / "ShuffleNetV2_GAP_LRfast.pth.tar.sha256").unlink()
    hub_server.fail("model.safetensors", "500")
    (outcome,) = releasing.release([GAP], "mine", "mit")
    assert outcome.state == "failed" and f"The Hub refused the request for mine/{GAP}" in outcome.text
    hub_server.faults.clear()
    monkeypatch.setattr(hub, "published_digest", lambda repo: "elsewhere")
    (outcome,) = releasing.release([GAP], "mine", "mit")
    assert outcome.state == "failed" and "with the SHA-256 elsewhere, not " in outcome.text
    monkeypatch.setattr(store, "find", lambda name: None)
    monkeypatch.setattr("timm_gcp.weights.fetch.fetch", lambda name: None)
    (outcome,) = releasing.release([GAP], "mine", "mit")
    assert "has just been removed from the store" in outcome.text
