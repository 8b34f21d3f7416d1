"""A fine-tuned model keeps its answers: train, validate, export, local folder, Hub, prediction, robustness, ONNX."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from hub_server import hub_server  # noqa: F401
from timm.data import create_dataset, create_transform, resolve_data_config
from timm.utils import CheckpointSaver
from toy_images import image_folder

from timm_gcp import train_hook
from timm_gcp.cli import main
from timm_gcp.weights.checkpoint import safe_types
from timm_gcp.weights.source import read_source

ARCH = "shufflenet_v2_x1_0_gcp"
SMALL = {"repeats": [1, 1, 1], "channels": [8, 8, 16, 16, 32], "reduce_dim": 8}
# Colours with all defaults, and grey with everything changed; 64 px, since corruptions need at least 32.
CASES: dict[str, dict[str, Any]] = {
    "colour": {"classes": 2, "channels": 3, "size": 32, "model_kwargs": SMALL},
    "grey": {
        "classes": 3,
        "channels": 1,
        "size": 64,
        "model_kwargs": {**SMALL, "output_stride": 16, "reduce_dim": 6, "n_iter": 3},
        "mean": [0.37],
        "std": [0.21],
        "crop_pct": 1.0,
    },
}


def words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", *_texts(value))]


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{key}={item}" for key, item in value.items()]
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    kept = {key: case[key] for key in ("model_kwargs", "mean", "std", "crop_pct") if key in case}
    return {
        "model": ARCH,
        "num_classes": case["classes"],
        "in_chans": case["channels"],
        "img_size": case["size"],
        **kept,
    }


def by_our_command(case: dict[str, Any], data: Path, output: Path) -> Path:
    more = {"data_dir": data, "output": output, "experiment": "run", "epochs": 1, "warmup_epochs": 0, "batch_size": 8,
            "lr": 0.02, "workers": 0, "device": "cpu"}  # fmt: skip
    assert main(["train", *words({**settings_of(case), **more})]) == 0
    return output / "run"


def by_train_py(case: dict[str, Any], data: Path, output: Path) -> Path:
    """The steps of train.py that make a checkpoint, with the hook imported as `device_modules` imports it."""
    train_hook.install()
    args = argparse.Namespace(**{"mean": None, "std": None, "crop_pct": None, "interpolation": "", "gp": None,
                                 "input_size": None, "dataset": "", "data_dir": str(data), "eval_metric": "top1",
                                 "bn_eps": None, "bn_momentum": None, **settings_of(case)})  # fmt: skip
    torch.manual_seed(1)
    model = timm.create_model(
        args.model, num_classes=args.num_classes, in_chans=args.in_chans, global_pool=args.gp, **args.model_kwargs
    )
    config = resolve_data_config(vars(args), model=model)
    mode = "L" if case["channels"] == 1 else "RGB"
    timm.data.dataset_factory.create_dataset("", root=str(data), split="train", is_training=True, input_img_mode=mode)
    with torch.no_grad():  # statistics of the images, for want of training
        model.train()(images_of(data, config)[0])
    output.mkdir()
    saver = CheckpointSaver(model, torch.optim.SGD(model.parameters(), 0.1), args, checkpoint_dir=str(output))
    saver.save_checkpoint(0, metric=50.0)
    return output


def images_of(data: Path, config: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    mode = "L" if config["input_size"][0] == 1 else "RGB"
    dataset = create_dataset("", root=str(data), split="validation", input_img_mode=mode)
    dataset.transform = create_transform(**config, is_training=False)
    samples = [dataset[index] for index in range(len(dataset))]
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def json_of(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    capsys.readouterr()
    assert main([*command, "--device", "cpu", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("train", [by_our_command, by_train_py])
@pytest.mark.parametrize("case", CASES)
def test_same_answers_everywhere(case, train, tmp_path, capsys, monkeypatch, hub_server):  # noqa: F811
    """The same accuracy and the same logits at each stop, whoever trained the model."""
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    wanted = CASES[case]
    data = image_folder(tmp_path / "data", train=8, validation=3, classes=wanted["classes"], size=wanted["size"])
    run = train(wanted, data, tmp_path / "out")
    names = [f"c{index}" for index in range(wanted["classes"])]

    # The source: built by hand from what the run was asked for.
    settings = settings_of(wanted)
    model = timm.create_model(
        ARCH, num_classes=wanted["classes"], in_chans=wanted["channels"], **settings["model_kwargs"]
    )
    best = read_source(run)
    model.load_state_dict(best.state_dict)
    config = resolve_data_config(settings, model=model)
    images, labels = images_of(data, config)
    with torch.inference_mode():
        logits = model.eval()(images)
    top1 = 100 * (logits.argmax(1) == labels).double().mean().item()

    def agrees(network: Any, stop: str) -> None:
        found = resolve_data_config({}, model=network)
        pixels, _ = images_of(data, found)
        with torch.inference_mode():
            torch.testing.assert_close(network.eval()(pixels), logits, rtol=1e-5, atol=1e-5, msg=stop)
        assert list(network.pretrained_cfg["label_names"]) == names, stop

    assert best.record.full and best.record.label_names == tuple(names) and best.record.class_map
    options = ("--data-dir", str(data), "--workers", "0")
    report = json_of(capsys, "validate", "--checkpoint", str(run), *options)
    assert report["top1"] == pytest.approx(top1) and [row["name"] for row in report["per_class"]] == names

    folder = tmp_path / "exported"
    assert main(["weights", "export", "--checkpoint", str(run), "--to", str(folder), "--data-dir", str(data)]) == 0
    assert f"top-1 {top1:.2f}%" in capsys.readouterr().out
    agrees(timm.create_model(f"local-dir:{folder}", pretrained=True), "local-dir")
    report = json_of(capsys, "validate", "--model", f"local-dir:{folder}", *options)
    assert report["top1"] == pytest.approx(top1) and [row["name"] for row in report["per_class"]] == names

    push = ["weights", "push", f"{ARCH}.mine", "--checkpoint", str(run), "--repo-org", "me"]
    assert main(push) == 1 and "under which licence" in capsys.readouterr().err
    assert main([*push, "--licence", "mit"]) == 0
    card = (hub_server.root / "me" / f"{ARCH}.mine" / "README.md").read_text()
    assert f"hf-hub:me/{ARCH}.mine" in card and "license: mit" in card and ", ".join(names) in card
    agrees(timm.create_model(f"hf-hub:me/{ARCH}.mine", pretrained=True), "hf-hub")

    files = sorted((data / "validation").rglob("*.png"))
    entries = json_of(capsys, "predict", *map(str, files), "--checkpoint", str(run), "--topk", "9")
    probabilities = logits.softmax(1)
    for entry, row in zip(entries, probabilities, strict=True):
        found = {item["name"]: item["probability"] for item in entry["top"]}
        assert [found[name] for name in names] == pytest.approx(row.tolist(), abs=1e-4)

    scores = json_of(
        capsys, "robustness", "c", "--checkpoint", str(run), "--data-dir", str(data / "validation"), "--on-the-fly",
        "--corruptions", "brightness", "--severities", "1", "--partial", "--baseline", "none", "--workers", "0",
        "--output", str(tmp_path / "robustness"),
    )  # fmt: skip
    assert scores["models"][0]["clean_error"] == pytest.approx(1 - top1 / 100)

    onnx_agrees(timm.create_model(f"local-dir:{folder}", pretrained=True, exportable=True), images, logits, tmp_path)


def onnx_agrees(network: Any, images: torch.Tensor, logits: torch.Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = str(tmp_path / "model.onnx")
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network.eval(), (images[:2],), file, dynamo=True, dynamic_shapes=({0: batch},), input_names=["x"], verbose=False
    )
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), logits, rtol=1e-3, atol=1e-4)


# What was lost in silence: each setting of a run, by the record in its checkpoint.


@pytest.mark.parametrize(
    "changed",
    [
        {"bn_eps": 0.5},
        {"normalization": "log", "n_iter": 1},
        {"output_stride": 16},
        {"global_pool": "avg"},
        {"reduce_dim": (16, 8)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_no_setting_is_lost(changed, tmp_path, capsys):
    network, folder = exported(ARCH, {**SMALL, **changed}, tmp_path)
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(loaded(x), network.eval()(x), rtol=1e-5, atol=1e-5)
    key = next(iter(changed))
    other = {"bn_eps": 0.25, "normalization": "newton_schulz", "output_stride": 32, "global_pool": "gcp"}.get(key, 4)
    arguments = ["weights", "export", "--checkpoint", str(tmp_path / "last.pth.tar"), "--to", str(tmp_path / "no")]
    assert main([*arguments, "--model-kwargs", f"{key}={other}"]) == 1
    assert f"{key}={other} was given, but" in capsys.readouterr().err and not (tmp_path / "no").exists()


def exported(arch: str, kwargs: dict[str, Any], tmp_path: Path) -> tuple[Any, Path]:
    """A model, and the folder made of a checkpoint that the hook completed."""
    train_hook._classes.clear()  # of another test's data set
    torch.manual_seed(0)
    network = timm.create_model(arch, num_classes=4, **kwargs)
    args = argparse.Namespace(model=arch, img_size=64)
    CheckpointSaver(network, torch.optim.SGD(network.parameters(), 0.1), args, checkpoint_dir=str(tmp_path))._save(
        tmp_path / "last.pth.tar", 0
    )
    assert main(["weights", "export", "--checkpoint", str(tmp_path), "--to", str(tmp_path / "out")]) == 0
    return network, tmp_path / "out"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"architecture": "resnet18_gcp", "model_args": {"num_classes": 4, "reduce_dim": 8}}, "resnet18_gcp"),
        ({"model_args": {**SMALL, "reduce_dim": 16, "num_classes": 4}}, "create the model with reduce_dim=8"),
        ({"model_args": {**SMALL, "num_classes": 3}}, "The file has 4 classes"),
    ],
    ids=["architecture", "reduce_dim", "num_classes"],
)
def test_a_record_that_contradicts_its_weights(stated, message, tmp_path, capsys):
    exported(ARCH, SMALL, tmp_path)
    with safe_types():
        checkpoint = torch.load(tmp_path / "last.pth.tar", weights_only=True)
    checkpoint["args"].timm_gcp = {**checkpoint["args"].timm_gcp, **stated}
    torch.save(checkpoint, tmp_path / "last.pth.tar")
    picture = next(image_folder(tmp_path / "data", train=1, validation=1, classes=1).rglob("*.png"))
    for command in (
        ["predict", str(picture), "--checkpoint", str(tmp_path / "last.pth.tar"), "--device", "cpu"],
        ["weights", "export", "--checkpoint", str(tmp_path / "last.pth.tar"), "--to", str(tmp_path / "no")],
    ):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
    assert not (tmp_path / "no").exists()


def test_another_accuracy_is_no_export(tmp_path, capsys, monkeypatch):
    from timm_gcp.inference import evaluate

    data = image_folder(tmp_path / "data", train=1, validation=3, classes=4)
    real, answers = evaluate.validate, []

    def spoilt(*args, **kwargs):
        found = real(*args, **kwargs)
        answers.append(found)
        return found if len(answers) == 1 else replace(found, targets=found.predictions[:, 0])

    monkeypatch.setattr(evaluate, "validate", spoilt)
    exported(ARCH, SMALL, tmp_path)
    arguments = ["weights", "export", "--checkpoint", str(tmp_path), "--data-dir", str(data)]
    assert main([*arguments, "--to", str(tmp_path / "no")]) == 1
    assert "the checkpoint has top-1" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_last_stage_is_not_lost(tmp_path):
    kwargs = {"last_stage": "stride2", "channels": (8, 8, 16, 16), "reduce_dim": 8}
    network, folder = exported("resnet18_gcp", kwargs, tmp_path)
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert loaded.forward_features(x).shape[-1] == 2
        torch.testing.assert_close(loaded(x), network.eval()(x), rtol=1e-5, atol=1e-5)


def test_class_map_is_not_lost(tmp_path, capsys):
    data = image_folder(tmp_path / "data", train=6, validation=4, classes=3)
    (tmp_path / "map.txt").write_text("c2\nc0\nc1\n")
    case = {**CASES["colour"], "classes": 3}
    more = {"data_dir": data, "output": tmp_path, "experiment": "run", "epochs": 1, "warmup_epochs": 0, "batch_size": 6,
            "lr": 0.05, "workers": 0, "device": "cpu", "class_map": tmp_path / "map.txt"}  # fmt: skip
    assert main(["train", *words({**settings_of(case), **more})]) == 0
    record = read_source(tmp_path / "run").record
    assert record.class_map == {"c2": 0, "c0": 1, "c1": 2} and record.label_names == ("c2", "c0", "c1")
    report = json_of(
        capsys, "validate", "--checkpoint", str(tmp_path / "run"), "--data-dir", str(data), "--workers", "0"
    )
    assert report["top1"] == pytest.approx(record.metrics["top1"])
    assert [row["name"] for row in report["per_class"]] == ["c2", "c0", "c1"]
    export = ["weights", "export", *("--checkpoint", str(tmp_path / "run")), "--to", str(tmp_path / "out")]
    assert main([*export, "--data-dir", str(data)]) == 0
    assert f"top-1 {record.metrics['top1']:.2f}% in" in capsys.readouterr().out
    (tmp_path / "other.txt").write_text("c0\nc1\nc2\n")
    checkpoint, valid = ["--checkpoint", str(tmp_path / "run")], data / "validation"
    other = ["--class-map", str(tmp_path / "other.txt")]
    validate = ["validate", *checkpoint, "--data-dir", str(data), "--device", "cpu", "--workers", "0"]
    predict = ["predict", str(valid / "c0" / "0.png"), *checkpoint]
    robustness = ["robustness", "c", *checkpoint, "--data-dir", str(valid), "--on-the-fly", "--device", "cpu"]
    for command in (validate, predict, robustness):
        assert main([*command, *other]) == 1
        assert "has 'c2' as class 2, but the weights were trained with it as class 0" in capsys.readouterr().err
    (valid / "c2").rename(valid / "c9")  # another class in its place
    for command in (validate, robustness):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert "are not the model's (3): the model's c2 missing or empty there; c9 unknown to the model" in error
        assert len(error.strip().splitlines()) == 2  # what was taken from the checkpoint, and the error


def test_cost_of_a_checkpoint(tmp_path, capsys):
    network, folder = exported(ARCH, SMALL, tmp_path)
    (cost,) = json_of(capsys, "cost", "--checkpoint", str(folder), "--no-time")
    assert cost["parameters"] == sum(p.numel() for p in network.parameters()) and SimpleNamespace(**cost).macs > 0
