"""Broken and hostile weights, command by command: one sentence, a status other than 0, an unchanged disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import memory
import pytest
import tiny
import torch
from hub_server import HubServer, hub_server  # noqa: F401 - a fixture
from toy_images import TINY, image_folder

from timm_gcp import cli
from timm_gcp.weights import store


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    with memory.limited():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data"), train=4, validation=1, classes=3)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))


def tree(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
        if path.relative_to(root).parts not in (("home",), ("home", "weights"))
    }


def refused(arguments: list[Any], message: str, root: Path, capsys: pytest.CaptureFixture[str], *names: Any) -> str:
    """Run a command that has to refuse in one sentence, leaving everything under `root` as it is; the sentence."""
    before = tree(root)
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) not in (0, None)
    error = capsys.readouterr().err.strip()
    assert (
        message in error and "Traceback" not in error and "weights_only" not in error.replace("(weights_only=True)", "")
    )
    assert len(error.splitlines()) == 1, error
    assert all(str(name) in error for name in names), error
    assert "\x1b" not in error
    assert tree(root) == before
    return error


def reading(path: Path, data: Path) -> dict[str, list[Any]]:
    """Every command that reads a checkpoint of a classifier or of a detector, by name."""
    image = next((data / "validation").rglob("*.png"))
    train = ["train", "--model", TINY, "--data-dir", data, "--num-classes", "3", "--device", "cpu", "--output", "out",
             "--workers", "0", "--batch-size", "4", "--img-size", "32"]  # fmt: skip
    return {
        "import": ["weights", "import", path, "--as", f"{tiny.ARCH}.x"],
        "export": ["weights", "export", tiny.ARCH, path, "--to", "out"],
        "push": ["weights", "push", f"{tiny.ARCH}.x", "--checkpoint", path, "--licence", "mit", "--dry-run"],
        "predict": ["predict", image, "--checkpoint", path, "--device", "cpu"],
        "validate": ["validate", "--data-dir", data, "--checkpoint", path, "--device", "cpu", "--workers", "0"],
        "onnx": ["export", "--checkpoint", path, "--onnx", "out.onnx"],
        "detect predict": ["detect", "predict", image, "--checkpoint", path, "--output", "out", "--device", "cpu"],
        "resume": [*train, "--resume", path],
        "initial": [*train, "--initial-checkpoint", path],
        "pretrained path": [*train, "--pretrained", "--pretrained-path", path],
    }


COMMANDS = (
    "import", "export", "push", "predict", "validate", "onnx", "detect predict", "resume", "initial",
    "pretrained path",
)  # fmt: skip
FEW = ("page", "checksum", "payload", "stride 0", "meta", "overlap")  # for those that share the reader
CLASSIFIERS = ("import", "export", "push", "predict", "validate", "onnx")


@pytest.mark.parametrize("command", COMMANDS)
def test_unreadable_files(command: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    kinds = hostile.UNREADABLE if command in ("import", "predict", "resume") else FEW
    for kind in kinds:
        write, message = hostile.UNREADABLE[kind]
        path = tmp_path / f"{kind}.pth"
        write(path)
        refused(reading(path, data)[command], message, tmp_path, capsys, path.name)


@pytest.mark.parametrize("command", CLASSIFIERS)
def test_unusable_weights(command: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    for kind, (write, message) in hostile.UNUSABLE.items():
        if command not in ("import", "predict") and kind not in ("nan", "int8"):
            continue
        path = tmp_path / f"{kind}.pth"
        write(path)
        refused(reading(path, data)[command], message, tmp_path, capsys, path.name)


@pytest.mark.parametrize("command", ["import", "predict"])
def test_a_checkpoints_own_arguments(command: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    for kind, (changed, message) in hostile.ARGUMENTS.items():
        path = tmp_path / f"{kind}.pth"
        hostile.save(path, **changed)
        refused(reading(path, data)[command], message, tmp_path, capsys, path.name)


def test_what_is_taken_from_a_checkpoint_is_said(data: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pth"
    hostile.save(path)
    assert cli.main([str(word) for word in reading(path, data)["predict"]]) == 0
    said = capsys.readouterr().err
    assert f"{path}: {tiny.ARCH}, num_classes 3" in said and "by the arguments of its training run" in said
    hostile.save(path, model_kwargs={**hostile.SETTINGS["model_kwargs"], "drop_rate": 0.5, "foo": 1})
    given = [*reading(path, data)["predict"], "--model-kwargs", "foo=1"]
    assert "foo" in refused(given, "can't be built with", tmp_path, capsys, path.name)


@pytest.mark.parametrize("kind", hostile.CONFIGS)
def test_broken_configurations(kind: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    config, message = hostile.CONFIGS[kind]
    folder = hostile.folder(tmp_path / "folder", config)
    image = next((data / "validation").rglob("*.png"))
    name = f"local-dir:{folder}"
    refused(["predict", image, "--model", name, "--device", "cpu"], message, tmp_path, capsys, folder)
    refused(["predict", image, "--checkpoint", folder, "--device", "cpu"], message, tmp_path, capsys, folder)
    if kind == "no JSON":
        given = ["validate", "--data-dir", data, "--model", name, "--device", "cpu"]
        refused(given, message, tmp_path, capsys, folder)
        refused(["train", "--model", name, "--pretrained", "--data-dir", data, "--num-classes", "3", "--device", "cpu",
                 "--output", "out"], message, tmp_path, capsys, folder)  # fmt: skip
    if kind not in ("no JSON", "null", "unknown argument", "two names", "many classes"):
        return
    shutil.copytree(folder, tmp_path / "home" / "weights" / f"{tiny.ARCH}.x")
    given = ["weights", "push", f"{tiny.ARCH}.x", "--licence", "mit", "--dry-run"]
    refused(given, message, tmp_path, capsys, f"{tiny.ARCH}.x")
    assert cli.main(["weights", "list"]) == 0
    capsys.readouterr()
    refused(["predict", image, "--model", f"{tiny.ARCH}.x", "--device", "cpu"], message, tmp_path, capsys)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_incomplete_folders(missing: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    folder = hostile.folder(tmp_path / "folder")
    (folder / missing).unlink()
    image = next((data / "validation").rglob("*.png"))
    refused(["predict", image, "--model", f"local-dir:{folder}", "--device", "cpu"], "", tmp_path, capsys, folder)


def test_folders_with_unusable_weights(data: Path, tmp_path: Path, capsys: Any) -> None:
    image = next((data / "validation").rglob("*.png"))
    broken = {**hostile.weights(), "fc.bias": torch.full((3,), torch.nan)}
    folder = hostile.folder(tmp_path / "folder", tensors=broken)
    text = "NaN or infinite values in fc.bias"
    refused(["predict", image, "--model", f"local-dir:{folder}", "--device", "cpu"], text, tmp_path, capsys, folder)
    shutil.copytree(folder, tmp_path / "home" / "weights" / f"{tiny.ARCH}.x")
    refused(["predict", image, "--model", f"{tiny.ARCH}.x", "--device", "cpu"], text, tmp_path, capsys, tiny.ARCH)
    push = ["weights", "push", f"{tiny.ARCH}.x", "--licence", "mit", "--dry-run"]
    refused(push, text, tmp_path, capsys, tiny.ARCH)


HUB = {
    "no such repository": ("nobody/else", None, "has no repository nobody/else"),
    "no such revision": ("someone/model@v9", None, "has no such revision"),
    "no such name": ("a/b/c", None, "is not a name of a repository"),
    "401": ("someone/model", ("config.json", "401"), "someone/model"),
    "403": ("someone/model", ("model.safetensors", "403"), "someone/model"),
    "500": ("someone/model", ("config.json", "500"), "someone/model"),
    "dropped": ("someone/model", ("model.safetensors", "half"), "broke off in the middle of someone/model"),
}


@pytest.mark.parametrize("kind", HUB)
def test_repositories(kind: str, data: Path, tmp_path: Path, capsys: Any, hub_server: HubServer) -> None:  # noqa: F811
    hostile.folder(hub_server.root / "someone" / "model")
    repo, fault, message = HUB[kind]
    if fault:
        hub_server.fail(*fault)
    image = next((data / "validation").rglob("*.png"))
    given = ["predict", str(image), "--model", f"hf-hub:{repo}", "--device", "cpu"]
    assert cli.main(given) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and error.count("error:") == 1 and "Traceback" not in error


def test_hostile_repositories(data: Path, tmp_path: Path, capsys: Any, hub_server: HubServer) -> None:  # noqa: F811
    image = next((data / "validation").rglob("*.png"))
    for number, kind in enumerate(["null", "no architecture", "unknown argument", "many classes", "std 0"]):
        config, message = hostile.CONFIGS[kind]
        hostile.folder(hub_server.root / "someone" / f"model{number}", config)
        given = ["predict", str(image), "--model", f"hf-hub:someone/model{number}", "--device", "cpu"]
        assert cli.main(given) == 1
        error = capsys.readouterr().err.strip()
        assert message in error and f"someone/model{number}" in error and len(error.splitlines()) == 1
    broken = {**hostile.weights(), "fc.bias": torch.full((3,), torch.inf)}
    hostile.folder(hub_server.root / "someone" / "nan", tensors=broken)
    assert cli.main(["predict", str(image), "--model", "hf-hub:someone/nan", "--device", "cpu"]) == 1
    assert "NaN or infinite values in fc.bias" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["as saved", "deflated", "legacy"])
def test_every_kind_of_archive_gives_the_same_weights(order: str, tmp_path: Path) -> None:
    from timm_gcp.weights.checkpoint import read_checkpoint

    path = tmp_path / "x.pth"
    hostile.save(path, zipped=order != "legacy")
    if order == "deflated":
        hostile.deflate(path)
    found = read_checkpoint(path)["state_dict"]
    assert all(torch.equal(found[name], tensor) for name, tensor in hostile.weights().items())


def test_classifiers_without_classes(data: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pth"
    hostile.save(path, {"fc.weight": torch.zeros(0, 10), "fc.bias": torch.zeros(0)}, num_classes=None)
    for command in CLASSIFIERS:
        refused(reading(path, data)[command], "", tmp_path, capsys, path.name)


def test_export_replaces_weight_folders_alone(tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    run.mkdir()
    hostile.save(run / "model_best.pth.tar")
    (run / "summary.csv").write_text("epoch\n0\n")
    given = ["weights", "export", "--checkpoint", run, "--force", "--to"]
    refused([*given, run], "is not a weight folder", tmp_path, capsys, run)
    for name in ("notes", "empty weights"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("mine")
        refused([*given, tmp_path / name], "is not a weight folder", tmp_path, capsys, name)
    refused([*given, run / "summary.csv"], "is not a weight folder", tmp_path, capsys, "summary.csv")
    target = tmp_path / "out"
    assert cli.main([str(word) for word in [*given, target]]) == 0
    assert cli.main([str(word) for word in [*given, target]]) == 0  # a weight folder of your own
    (target / "optimizer.pt").write_text("mine")
    capsys.readouterr()
    refused([*given, target], "it holds optimizer.pt", tmp_path, capsys, target)


def test_a_failing_replacement_keeps_the_old_copy(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "x.pth"
    hostile.save(path)
    given = ["weights", "import", str(path), "--as", f"{tiny.ARCH}.x", "--force"]
    assert cli.main(given) == 0
    kept = tree(tmp_path / "home")
    rename = Path.rename
    for fails_at in range(1, 4):
        calls: list[Path] = []

        def failing(self: Path, target: Any, calls: list[Path] = calls, fails_at: int = fails_at) -> Path:
            calls.append(self)
            if len(calls) == fails_at:
                raise PermissionError(13, "no")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", failing)
        assert cli.main(given) == 1
        monkeypatch.undo()
        monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
        assert tree(tmp_path / "home") == kept, fails_at
        assert "Could not write" in capsys.readouterr().err


def test_a_killed_replacement_is_put_back(tmp_path: Path) -> None:
    folder = hostile.folder(tmp_path / "home" / "weights" / f"{tiny.ARCH}.x")
    aside = folder.parent / ".replaced-999999999-abc"  # no process has this number
    aside.mkdir()
    folder.rename(aside / folder.name)
    assert store.find(f"{tiny.ARCH}.x") == folder and not aside.exists()
    running = folder.parent / f".replaced-{__import__('os').getpid()}-abc"
    running.mkdir()
    folder.rename(running / folder.name)
    assert store.find(f"{tiny.ARCH}.x") is None, "another process is at it"


def test_strays_in_the_store(tmp_path: Path, capsys: Any) -> None:
    hostile.folder(tmp_path / "home" / "weights" / "no name")
    hostile.folder(tmp_path / "home" / "weights" / "resnet18_gcp")
    hostile.folder(tmp_path / "home" / "weights" / f"{tiny.ARCH}.x")
    (tmp_path / "home" / "weights" / "a file").write_text("x")
    (tmp_path / "home" / "weights" / f"{tiny.ARCH}.file").write_text("x")
    assert cli.main(["weights", "list", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert f"{tiny.ARCH}.x" in names and "no name" not in names


DETECTORS = {
    "a classifier": (lambda path: hostile.save(path), "it lacks detector"),
    "name": (lambda path: detector(path, name="hf-hub:a/b"), "its model is 'hf-hub:a/b'"),
    "source": (lambda path: detector(path, checkpoint="/etc/passwd"), "its checkpoint is '/etc/passwd'"),
    "huge": (lambda path: detector(path, min_size=10**9), "its min_size is '1000000000'"),
    "wide": (lambda path: detector(path, fpn_channels=8192, head_channels=8192), "bytes of memory for the detector"),
    "kind": (lambda path: detector(path, detector="yolo"), ""),
    "classes": (lambda path: detector(path, num_classes=7), "1 categories for 7 classes"),
    "weights": (lambda path: detector(path, numbers=2_000_000), "missing: "),
}


def detector(path: Path, numbers: int = 2, **changed: Any) -> None:
    spec = {"detector": "fasterrcnn", "name": "resnet18_gcp", "num_classes": 2, "image_mean": [0.5] * 3,
            "image_std": [0.5] * 3, **changed}  # fmt: skip
    content = {
        "detector": spec,
        "categories": {1: "cat"},
        "model": {"x": torch.ones(numbers)},
        "epoch": 1,
        "history": [],
    }
    torch.save(content, path)


@pytest.mark.parametrize("kind", DETECTORS)
def test_detectors(kind: str, data: Path, tmp_path: Path, capsys: Any) -> None:
    write, message = DETECTORS[kind]
    path = tmp_path / "detector.pth"
    write(path)
    refused(reading(path, data)["detect predict"], message, tmp_path, capsys, *([path] if kind != "kind" else []))


def test_a_run_resumed_from_another(data: Path, tmp_path: Path, capsys: Any) -> None:
    import timm

    good = {"state_dict": timm.create_model(TINY, num_classes=3).state_dict(), "epoch": 0, "version": 2}
    cases = {
        "no optimizer": (good, "holds no optimizer state"),
        "optimizer": ({**good, "optimizer": {"state": 1, "param_groups": []}}, "its optimizer state is not one of"),
        "optimizer list": ({**good, "optimizer": [1]}, "its optimizer state is not one of"),
        "weights": ({**good, "state_dict": hostile.weights()}, "the weights do not fit"),
        "bare": (dict(good["state_dict"]), "is not a training checkpoint"),
        "text": ({**good, "state_dict": "x"}, "is not a training checkpoint"),
    }
    for kind, (content, message) in cases.items():
        path = tmp_path / f"{kind}.pth"
        torch.save(content, path)
        refused(reading(path, data)["resume"], message, tmp_path, capsys, path.name)
    torch.save({"x": torch.ones(1)}, tmp_path / "foreign.pth")
    given = reading(tmp_path / "foreign.pth", data)["initial"]
    refused(given, "the weights do not fit", tmp_path, capsys, "foreign.pth")
