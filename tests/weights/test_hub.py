"""Uploads, downloads and their failures, over HTTP: huggingface_hub's own client against a Hub on loopback."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import timm
import tiny
import torch
from hub_server import HubServer, point_to, running
from hub_server import hub_server as hub_server  # a fixture
from huggingface_hub import constants
from safetensors.torch import save_file

from timm_gcp.weights import catalog as table
from timm_gcp.weights import hub, hub_errors, store
from timm_gcp.weights.importing import import_file

REPO = f"org/{tiny.NAME}"


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIMM_GCP_HUB_ORG", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return import_file(
        tiny.checkpoint(tmp_path / "x.pth"), tiny.NAME, model_args=tiny.ARGS, data_config=tiny.DATA
    ).folder


def pushed(**kwargs: str | bool) -> str:
    return hub.push(hub.prepare(tiny.NAME, "org", **kwargs))  # type: ignore[arg-type]


def load(name: str = f"hf-hub:{REPO}", **kwargs: object) -> torch.nn.Module:
    return timm.create_model(name, pretrained=True, **kwargs)


def test_round_trip(hub_server: HubServer, folder: Path) -> None:
    address = pushed(private=True)
    assert address.startswith(f"{hub_server.url}/{REPO}/commit/") and hub_server.private[REPO]
    repository = hub_server.root / REPO
    assert sorted(path.name for path in repository.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    for name in ("config.json", "model.safetensors"):
        assert (repository / name).read_bytes() == (folder / name).read_bytes()
    assert huggingface_hub.HfApi().list_repo_files(REPO) == ["README.md", "config.json", "model.safetensors"]
    assert torch.equal(tiny.logits(load()), tiny.logits(tiny.model()))
    adapted = load(num_classes=3, in_chans=1)
    assert tiny.logits(adapted, 1).shape == (2, 3)
    features = load(features_only=True)
    assert len(features(tiny.image())) == 5
    pushed()  # again: the repository exists


def test_described_is_sent_and_nothing_else(hub_server: HubServer, folder: Path) -> None:
    upload = hub.prepare(tiny.NAME, "org")
    text = upload.describe()
    assert f"repository  {REPO} (public" in text and f"commit      Add {tiny.NAME}" in text
    assert not hub_server.log, "describing asks no server"
    hub.push(upload)
    sent = {path.name: path for path in (hub_server.root / REPO).iterdir()}
    assert sent.keys() == upload.files.keys()
    for name, path in sent.items():
        assert f"file        {name}  {path.stat().st_size:,} bytes  sha256 {hub._digest(path)}" in text
    assert (sent["README.md"]).read_text() in text
    assert "(private" in dataclasses.replace(upload, private=True).describe()


def test_revisions(hub_server: HubServer, folder: Path) -> None:
    commit = pushed().rsplit("/", 1)[1]
    assert torch.equal(tiny.logits(load(f"hf-hub:{REPO}@{commit}")), tiny.logits(tiny.model()))
    with pytest.raises(Exception, match="404") as caught:  # timm reads config.json before it asks us
        load(f"hf-hub:{REPO}@nowhere")
    assert (
        hub_errors.explain(caught.value, REPO)
        == f"The repository {REPO} has no such revision. Check what follows the @."
    )


def test_offline_with_a_filled_cache(hub_server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed()
    load()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub_server.log.clear()
    assert torch.equal(tiny.logits(load()), tiny.logits(tiny.model()))
    assert not hub_server.log
    with pytest.raises(Exception, match="cannot find the requested files in the local cache") as caught:
        load("hf-hub:org/other.x")
    assert "not in the local cache" in (hub_errors.explain(caught.value, "org/other.x") or "")


def test_tag_from_the_hub(hub_server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`pretrained=True` finds a published tag: here the GAP ShuffleNetV2, the smallest of the table."""
    name = "shufflenet_v2_x1_0.fast_in1k"
    model = timm.create_model("shufflenet_v2_x1_0").eval()
    import_file(tiny.checkpoint(tmp_path / "ShuffleNetV2_GAP_LRfast.pth.tar", model))
    hub.push(hub.prepare(name, "mine", licence="MIT"))
    assert "Licence: MIT" in (hub_server.root / "mine" / name / "README.md").read_text()
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "another machine"))
    with pytest.raises(FileNotFoundError, match="is not published; set TIMM_GCP_HUB_ORG"):
        load(name)
    monkeypatch.setenv("TIMM_GCP_HUB_ORG", "mine")
    assert torch.equal(tiny.logits(load(name)), tiny.logits(model))
    answer = (
        r"No weights for shufflenet_v2_x1_0\.norm_in1k on this machine(.|\n)*no repository mine/(.|\n)*weights fetch"
    )
    with pytest.raises(RuntimeError, match=answer):
        load("shufflenet_v2_x1_0")
    monkeypatch.delenv("TIMM_GCP_HUB_ORG")
    monkeypatch.setattr(table, "HUB_ORG", "mine")
    monkeypatch.setattr(table, "ON_THE_HUB", frozenset({name}))
    assert torch.equal(tiny.logits(load(name)), tiny.logits(model))


SCRIPT = """
import sys, timm, torch
from timm_gcp.cli import main
name, output = sys.argv[1:]
assert main(["weights", "push", name, "--repo-org", "org", "--licence", "mit"]) == 0
model = timm.create_model(f"hf-hub:org/{name}", pretrained=True)
torch.save(model.state_dict(), output)
"""


def test_environment_alone(folder: Path, tmp_path: Path) -> None:
    """A process of its own, with nothing but the client's documented variables set."""
    with running(tmp_path / "hub") as server:
        # Xet is the Hub's own storage protocol; a server without it takes uploads as plain blobs.
        variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_x"}
        environment = {**os.environ, **variables, "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-c", SCRIPT, tiny.NAME, str(tmp_path / "loaded.pth")]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=240)
    loaded, source = torch.load(tmp_path / "loaded.pth", weights_only=True), tiny.model().state_dict()
    assert loaded.keys() == source.keys() and all(torch.equal(loaded[key], source[key]) for key in source)


def test_missing_weights(hub_server: HubServer, folder: Path) -> None:
    pushed()
    (hub_server.root / REPO / "model.safetensors").unlink()
    with pytest.raises(RuntimeError, match=f"The repository {REPO} lacks the weights: no model.safetensors"):
        load()


def test_connection_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_to("http://127.0.0.1:9", tmp_path / "hf", monkeypatch)
    with pytest.raises(RuntimeError, match=f"could not be reached for {REPO}.*Nothing was published"):
        pushed()
    with pytest.raises(OSError, match="cannot find the requested files in the local cache") as caught:
        load()
    assert f"The Hub could not be reached for {REPO}" in (hub_errors.explain(caught.value, REPO) or "")
    monkeypatch.setenv("TIMM_GCP_HUB_ORG", "org")
    with pytest.raises(RuntimeError, match=r"resnet18_gcp.norm_in1k on this machine(.|\n)*could not be reached"):
        load("resnet18_gcp")


def test_truncated_download_is_resumed(hub_server: HubServer, folder: Path) -> None:
    pushed()
    hub_server.fail("model.safetensors", "half-once")
    assert torch.equal(tiny.logits(load()), tiny.logits(tiny.model()))


def test_server_dying_half_way(hub_server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed()
    hub_server.fail("model.safetensors", "die")
    with pytest.raises(
        RuntimeError, match=f"(broke off|could not be reached|connection .* broke|did not).* {REPO}|{REPO} "
    ):
        load()


def test_truncated_file_on_the_server(hub_server: HubServer, folder: Path) -> None:
    pushed()
    hub_server.fail("model.safetensors", "short")
    with pytest.raises(
        RuntimeError, match=f"weights of {REPO} in the local cache are cut short .*incomplete.*hf cache rm"
    ):
        load()


@pytest.mark.parametrize("code", ["500", "403"])
def test_refusals(hub_server: HubServer, folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_server.fail("/preupload/main", code)
    with pytest.raises(RuntimeError, match=f"refused the request for {REPO}: .*{code}.*Nothing was published"):
        pushed()


def test_nothing_to_push(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = r"No weight folder resnet18_gcp.x on this machine to upload. There: "
    with pytest.raises(
        FileNotFoundError, match=text + r"mobilenetv2_100\.caltech101, mobilenetv2_100_gcp_d128\.caltech101, "
    ):
        hub.prepare("resnet18_gcp.x")
    monkeypatch.setattr(table, "BUNDLED", tmp_path)
    with pytest.raises(FileNotFoundError, match=text + "none"):
        hub.prepare("resnet18_gcp.x")
    with pytest.raises(ValueError, match=r"named ARCH\.TAG"):
        hub.prepare("resnet18_gcp")


def test_third_party_weights_need_a_licence(tmp_path: Path) -> None:
    model = timm.create_model("shufflenet_v2_x1_0").eval()
    path = tiny.checkpoint(tmp_path / "ShuffleNetV2_GAP_LRadju.pth.tar", model)
    name = import_file(path).name
    refusal = (
        r"is not ours to publish\. The authors' repository states no licence\. With permission .*--licence SPDX-ID"
    )
    with pytest.raises(ValueError, match=refusal):
        hub.prepare(name)
    upload = hub.prepare(name, licence="Apache-2.0")
    card = upload.files["README.md"]
    assert isinstance(card, bytes) and b"license: apache-2.0" in card and b"states no licence" not in card
    # The same under a name of your own: the naming of the tensors tells where they come from.
    theirs = {key.replace("global_pool.reduction.0.conv", "dimension_reduction.0")
                 .replace("global_pool.reduction.0.bn", "dimension_reduction.1"): value
              for key, value in tiny.model().state_dict().items()}  # fmt: skip
    torch.save(theirs, path)
    import_file(path, tiny.NAME, model_args=tiny.ARGS, data_config=tiny.DATA)
    with pytest.raises(ValueError, match=refusal):
        hub.prepare(tiny.NAME)


def test_card_is_made_where_the_folder_has_none(folder: Path) -> None:
    (folder / "README.md").unlink()
    card = hub.prepare(tiny.NAME).files["README.md"]
    assert isinstance(card, bytes) and tiny.NAME.encode() in card


def test_other_errors_are_not_the_hubs(hub_server: HubServer, folder: Path) -> None:
    assert hub_errors.explain(KeyError("x"), "a/b") is None
    assert "did not arrive whole" in (
        hub_errors.explain(OSError("Consistency check failed: file should be 5"), "a/b") or ""
    )
    pushed()
    config = json.loads((hub_server.root / REPO / "config.json").read_text())
    config["model_args"]["reduce_dim"] = 16
    (hub_server.root / REPO / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="The file's covariance is 8 wide, the model's 16"):
        load()


def test_a_broken_upload_is_not_explained_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", fail)
    with pytest.raises(KeyError, match="a bug"):
        pushed()


def test_weights_of_a_stored_name_win_over_the_hub(hub_server: HubServer, folder: Path) -> None:
    hub_server.log.clear()
    load(tiny.NAME)
    assert store.find(tiny.NAME) == folder and not hub_server.log


def test_safetensors_without_metadata_can_be_pushed(folder: Path, hub_server: HubServer) -> None:
    save_file(tiny.model().state_dict(), folder / "model.safetensors")
    assert pushed()
