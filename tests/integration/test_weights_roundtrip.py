"""Every architecture of the release, all the way: file -> import -> `pretrained=True`, and -> push -> Hub -> `hf-hub:`.

The files are synthetic, in the authors' layout and under their names; the logits are those of the authors' own models.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synthetic
import timm
import torch
from hub_server import HubServer
from hub_server import hub_server as hub_server  # a fixture

import timm_gcp  # noqa: F401
from timm_gcp.weights import catalog as table
from timm_gcp.weights import hub, store
from timm_gcp.weights.importing import import_file


def logits(name: str) -> torch.Tensor:
    model = timm.create_model(name, pretrained=True).eval()
    with torch.inference_mode():
        return model(synthetic.image()[:1]).double()


@pytest.mark.parametrize("arch", list(table.ARCHITECTURES))
def test_file_to_logits(arch: str, tmp_path: Path, hub_server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    authors = table.ARCHITECTURES[arch].authors
    expected = synthetic.golden(authors)[:1].double()
    entry = [entry for entry in table.WEIGHTS.values() if entry.arch == arch][-1]  # not the default tag
    path = tmp_path / f"{entry.source_name}.pth.tar"
    weights = {f"module.{key}": value for key, value in synthetic.state_dict(authors).items()}
    torch.save({"epoch": 100, "arch": authors, "state_dict": weights, "best_acc1": torch.tensor(70.0)}, path)
    del weights
    imported = import_file(path)
    path.unlink()
    assert imported.name == entry.name
    name = entry.name if arch in table.OURS else f"local-dir:{store.find(entry.name)}"
    stored = logits(name)
    assert (stored - expected).norm() < 1e-3 * expected.norm()

    upload = hub.prepare(entry.name, "org", licence="MIT")  # stands for the permission that publishing takes
    hub.push(upload)
    shutil.rmtree(tmp_path / "home")
    assert torch.equal(logits(f"hf-hub:{upload.repo}"), stored)
    shutil.rmtree(tmp_path / "hub")  # pytest keeps the folders of three runs; these are hundreds of megabytes each
    shutil.rmtree(tmp_path / "hf")
    assert any(line.startswith("PUT /blobs/") for line in hub_server.log), "large files travel as blobs"
