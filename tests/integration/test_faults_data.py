"""Hostile and broken options, data and recipes: one line that names what is wrong, and a disk as it was before.

A table of inputs for each command. `TIMM_GCP_TRACEBACK` lets errors through that no command means to raise, so that
these fail here.
"""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import status_of
from detection_sets import make_set
from PIL import Image
from toy_images import TINY, image_folder

from timm_gcp import cli
from timm_gcp.train.callback import PrintEpochs
from timm_gcp.weights.checkpoint import read_checkpoint


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Images, a trained run, its weight folder, a COCO set: what commands are let loose on."""
    root = tmp_path_factory.mktemp("world")
    image_folder(root / "toy", train=8, validation=4)
    make_set(root / "coco", 2, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        assert status_of(*TRAIN, "--output", "runs", "--experiment", "ok") == 0
        assert status_of("weights", "export", "--checkpoint", "runs/ok", "--to", "weights") == 0
    (root / "recipes").mkdir()
    (root / "list.yaml").write_text("- 1\n")
    (root / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    return root


@pytest.fixture(autouse=True)
def here(world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv(cli.TRACEBACK, "1")


@pytest.fixture(autouse=True, scope="module")
def bounded():
    """Input that asks for too much memory fails here instead of taking the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if not torch.cuda.is_available():  # CUDA reserves addresses far beyond its memory
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def refused(capsys, world, words, *parts):
    """Run a command that must fail with one line with all `parts` in it, and change nothing."""
    before = files(world)
    capsys.readouterr()
    assert status_of(*words) in (1, 2)
    lines = capsys.readouterr().err.strip().splitlines()
    assert "error: " in lines[-1] and not any("Traceback" in line for line in lines)
    if not lines[0].startswith("usage: "):
        assert len([line for line in lines if line.startswith("timm-gcp ")]) == 1
    for part in parts:
        assert part in lines[-1]
    assert files(world) == before


TRAIN = ("train", "--data-dir", "toy", "--model", TINY, "--img-size", 32, "-b", 8, "-j", 0, "--epochs", 1)
TRAIN += ("--device", "cpu", "--lr", 0.01, "--warmup-epochs", 0)

TRAIN_FAULTS = [
    *((f"--{key}", value) for key, values in {
        "lr": ("nan", "inf", "-1", "0", "x"), "hflip": ("7", "nan"), "reprob": ("5",), "smoothing": ("-1", "2"),
        "momentum": ("2", "-1"), "model-ema-decay": ("7", "nan"), "crop-pct": ("-1", "0", "nan"), "std": ("0", "nan"),
        "mean": ("nan", "inf"), "img-size": ("0", "10000000"), "num-classes": ("0", "-3", "1000000000"),
        "epochs": ("0",),
        "weight-decay": ("-1",), "workers": ("-1", "100000"), "seed": ("-1", str(2**70)), "in-chans": ("0", "-1"),
        "validation-batch-size": ("0",), "start-epoch": ("-1",), "mixup": ("inf",), "drop-path": ("2",),
        "warmup-lr": ("nan",),
        "scale": ("0.5",), "ratio": ("0",), "aa": ("x",), "interpolation": ("foo",), "train-interpolation": ("foo",),
        "remode": ("foo",), "train-crop-mode": ("foo",), "eval-metric": ("x",), "class-map": ("/nope",),
        "val-split": ("tset",), "train-split": ("trian",), "dataset": ("bogus/x", "torch/nope", "hfds/"),
        "experiment": ("../../x",), "initial-checkpoint": ("/nope",), "pretrained-path": ("/nope",),
        "resume": ("/nope", "toy"), "device-modules": ("../x",), "model-kwargs": ("foo", "foo=nan"),
        "opt-kwargs": ("foo",),
        "bn-eps": ("0",), "color-jitter": ("-1",), "clip-grad": ("0",), "opt-betas": ("1.5",),
    }.items() for value in values),
    ("--input-size", "3", "32"), ("--scale", "0.9", "0.1"), ("--lr-noise", "0.1", "0.2", "0.3"),
    ("--decay-milestones", "3", "1"), ("-c", "list.yaml"), ("-c", "binary.yaml"), ("-c", "nowhere"),
]  # fmt: skip


@pytest.mark.parametrize("words", TRAIN_FAULTS, ids=" ".join)
def test_train(world, capsys, words):
    key = words[0].lstrip("-").replace("-", "_")
    where = "list.yaml" if words[-1] == "list.yaml" else words[-1] if key == "c" else ""
    refused(capsys, world, [*TRAIN, "--output", "runs", "--experiment", "new", *words], where)
    shown = {"model_kwargs": "--model-kwargs", "opt_kwargs": "--opt-kwargs"}
    with pytest.MonkeyPatch.context() as patch:  # the line names the option
        patch.setenv(cli.TRACEBACK, "1")
        status_of(*TRAIN, "--output", "runs", "--experiment", "new", *words)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    if key not in ("c", "dataset"):
        assert shown.get(key, key) in line or f"--{key.replace('_', '-')}" in line or key.replace("_", " ") in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gp", "foo"), "Invalid pool type: foo"),
        (("--model-kwargs", "foo=1"), "unexpected keyword argument 'foo'"),
        (("--opt-kwargs", "foo=1"), "unexpected keyword argument 'foo'"),
        (("--opt", "foo"), "the optimizer 'foo' can't be made"),
        (("--sched", "foo"), "the schedule 'foo' can't be made"),
        (("--model", "foo"), "Unknown model (foo)"),
        (("--model-kwargs", "global_pool=avg", "--gp", "max"), "model_kwargs has global_pool, which a key of"),
        (("--device", "foo"), "got 'foo'"),
        (("--pretrained-path", "weights/model.safetensors"), "--pretrained-path is read with --pretrained only"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_train_names_the_value(world, capsys, words, said):
    refused(capsys, world, [*TRAIN, "--output", "runs", "--experiment", "new", *words], said)


@pytest.mark.parametrize(
    "line",
    ["epochs: .inf", "epochs: .nan", "model: null", "model: [a]", "lr: .nan", "lr: yes", "batch_size: null",
    "scale: []",
     "workers: null", "seed: null", "opt: null", "mixup: null", "eval_metric: null", "std: [0.5, 0, 1]", "epochs: 1e3",
     "model_kwargs: [1]", "model_kwargs: {1: 2}", "hflip: 7", "learning_rate: 1",
     "lr: !!python/object/apply:os.getcwd []",
     "lr: 1e999", "train_split: null"],
)  # fmt: skip
def test_recipes(world, capsys, line, tmp_path):
    (tmp_path / "r.yaml").write_text(line + "\n")
    words = ["train", "-c", tmp_path / "r.yaml", "--data-dir", "toy", "--device", "cpu", "--output", "runs"]
    refused(capsys, world, words, "r.yaml", line.split(":")[0])


V = ("validate", "--data-dir", "toy", "--device", "cpu", "-j", 0)
CHECKPOINT = ("--checkpoint", "runs/ok")
PREDICT = ("predict", "toy/validation/c0/0.png", "--device", "cpu")
PROBE = ("landscape", "probe", *CHECKPOINT, "--data-dir", "toy", "--output", "l.csv")
WRONG = [
    ("--mean", "nan"), ("--std", "0"), ("--std", "inf"), ("--std", "1", "2"), ("--crop-pct", "-1"),
    ("--crop-pct", "nan"),
    ("--img-size", "0"), ("--img-size", "1000000000"), ("--in-chans", "0"), ("--in-chans", "5"),
    ("--interpolation", "foo"),
    ("--model-kwargs", "foo"), ("--model-kwargs", "foo=1"), ("--model-kwargs", "global_pool=foo"), ("-b", "0"),
    ("-b", "9" * 30), ("--class-map", "/nope"), ("--data-config", "/nope"), ("--device", "foo"), ("--num-classes", "0"),
    ("--num-classes", "-3"), ("--num-classes", "12"), ("--use-ema",), ("--model", "foo"),
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
@pytest.mark.parametrize("command", [(*V, *CHECKPOINT), (*PREDICT, *CHECKPOINT)], ids=["validate", "predict"])
def test_options_of_models(world, capsys, command, words):
    option = words[0].lstrip("-").replace("-", "_")
    line = {"model_kwargs": "foo", "b": "--batch-size", "class_map": "/nope", "data_config": "/nope"}.get(option, "")
    refused(capsys, world, [*command, *words], line)


@pytest.mark.parametrize(
    "command",
    [
        (*V, "--pretrained"),
        V,
        PREDICT,
        ("export", "--onnx", "x.onnx"),
        ("robustness", "c", "--pretrained", "--on-the-fly", "--data-dir", "toy/validation", "--output", "rob"),
        ("landscape", "probe", "--pretrained", "--lr", "0.1", "--data-dir", "toy", "--output", "l.csv", "-b", 4),
    ],
    ids=["validate", "validate folder", "predict", "export", "robustness", "landscape"],
)
def test_a_classifier_of_another_size_is_never_measured(world, capsys, command):
    """Its weights would be random; and nothing recommends it."""
    said = "--num-classes 12, but the weights of local-dir:weights have 2 classes"
    refused(capsys, world, [*command, "--model", "local-dir:weights", "--num-classes", 12], said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*V, *CHECKPOINT, "--val-split", "tset"), "'toy' has no folder 'tset', it has train, validation"),
        ((*V, *CHECKPOINT, "--dataset", "bogus/x"), "no data set 'bogus/x'"),
        ((*V, *CHECKPOINT, "--data-dir", "/nope"), "no folder '/nope'"),
        ((*V, *CHECKPOINT, "--compare", "foo"), "Unknown model (foo)"),
        ((*V, *CHECKPOINT, "--output", "list.yaml"), "'list.yaml': that is there already"),
        ((*PREDICT, *CHECKPOINT, "--topk", "0"), "--topk: must be at least 1, got 0"),
        ((*PREDICT, *CHECKPOINT, "--csv", "toy"), "'toy': that is a folder: name a file"),
        ((*PREDICT, *CHECKPOINT, "--csv", "/proc/nope/x.csv"), "'/proc/nope'"),
        (("predict", "", *CHECKPOINT), "an empty name was given"),
        (("predict", "/nope.png", *CHECKPOINT), "'/nope.png' names no file"),
        (("cost", "--no-time", "--seconds", "nan"), "--seconds: must be a finite number, got nan"),
        (("cost", "--no-time", "--img-size", 10**9), "--img-size: must be at least 1 and at most 16384"),
        (("cost", "--no-time", "--model", "resnet18_gcp", "--model-kwargs", "foo=1"), "keyword argument 'foo'"),
        (("export", *CHECKPOINT, "--onnx", "x.onnx", "--batch-sizes", "0"), "--batch-sizes: must be at least 1, got 0"),
        (("quickstart", "--epochs", "0"), "--epochs: must be at least 1, got 0"),
        (("quickstart", "--device", "foo"), "got 'foo'"),
        ((*PROBE, "--low", "0"), "--low: must be above 0"),
        ((*PROBE, "--high", "nan"), "--high: must be"),
        ((*PROBE, "--points", "1"), "--points: must be"),
        ((*PROBE, "--seed", 2**70), "--seed: must be"),
        (("landscape", *TRAIN, "--csv", "l.csv", "--chunk-size", "0"), "--chunk-size: must be at least 1"),
        (("robustness", "c", *CHECKPOINT, "--data-dir", "toy", "--limit", "0"), "--limit: must be at least 1"),
        (("robustness", "p", *CHECKPOINT, "--data-dir", "toy", "--seed", "-1"), "--seed: must be at least 0"),
        (("robustness", "c", *CHECKPOINT, "--data-dir", "toy", "--mean", "nan"), "--mean: must be a finite number"),
        (("reproduce", "table2", "--data-dir", "toy", "--workers", "-1"), "--workers: must be at least 0, got -1"),
        (("detect", "predict", "x.png", "--checkpoint", "c", "--output", "o", "--score-threshold", "nan"),
        "--score-threshold"),
    ],
    ids=lambda value: " ".join(map(str, value))[-60:] if isinstance(value, tuple) else None,
)  # fmt: skip
def test_other_commands(world, capsys, words, said):
    refused(capsys, world, words, said)


DETECT = ("detect", "train", "--data-dir", "coco", "--output", "det", "--norm", "bn", "--trainable-layers", 5)


@pytest.mark.parametrize(
    "words",
    [("--lr", "nan"), ("--lr", "0"), ("--momentum", "2"), ("--hflip", "7"), ("--min-size", "0"), ("--epochs", "0"),
     ("--seed", "-1"), ("--workers", "-1"), ("--decay-rate", "nan"), ("--anchor-sizes", "0"),
     ("--trainable-layers", "6"),
     ("--batch-size", "x"), ("--clip-grad", "-1"), ("--rpn-proposals", "1000000000000")],
    ids=" ".join,
)  # fmt: skip
def test_detect_train(world, capsys, words):
    refused(capsys, world, [*DETECT, *words], words[0])


def test_a_run_is_not_overwritten(world, capsys):
    refused(
        capsys, world, [*TRAIN, "--output", "runs", "--experiment", "ok"],
        "'runs/ok' holds a run already: go on with it by --resume runs/ok/last.pth.tar, choose another --experiment",
    )  # fmt: skip
    shutil.copytree("runs/ok", "runs/other")
    words = [*TRAIN, "--output", "runs", "--experiment", "other"]
    refused(capsys, world, [*words, "--resume", "runs/ok/last.pth.tar"], "'runs/other' holds a run already")
    Path("runs/other/checkpoint-9.pth.tar").write_bytes(b"of another run")
    assert status_of(*words, "--force") == 0
    assert not Path("runs/other/checkpoint-9.pth.tar").exists()
    assert status_of(*words, "--resume", "runs/other/last.pth.tar", "--epochs", 2) == 0
    shutil.rmtree("runs/other")


def test_a_detectors_run_is_not_overwritten(world, capsys):
    Path("det").mkdir()
    for name in ("last.pth", "summary.csv", "results.json", "metrics.json"):
        Path("det", name).write_text("of another run")
        refused(capsys, world, DETECT, "'det' holds a run already: go on with it by --resume last")
        Path("det", name).unlink()
    Path("det").rmdir()


def test_quickstart_replaces_nothing_unasked(world, capsys, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "mine.txt").write_text("precious")
    refused(capsys, tmp_path, ["quickstart", "--output", tmp_path], "has weights already: choose another --output")


def test_weights_of_a_diverged_model_are_never_the_best(world, capsys, monkeypatch):
    """The loss of validation becomes NaN in the first epoch, is finite in the second, infinite in the third."""
    from timm_gcp.inference import evaluate as module

    real, seen = module.evaluate, []

    def broken(*args, **options):
        from dataclasses import replace

        result = real(*args, **options)
        seen.append(result)
        return replace(result, loss=[float("nan"), result.loss, float("inf")][len(seen) - 1])

    monkeypatch.setattr(module, "evaluate", broken)
    for metric, folder in (("loss", "a"), ("top1", "b")):
        seen.clear()
        words = [*TRAIN, "--epochs", 3, "--output", "nan", "--experiment", folder, "--eval-metric", metric]
        assert status_of(*words) == 0
        best = read_checkpoint(f"nan/{folder}/model_best.pth.tar")
        assert best["epoch"] == 1 and "at epoch 2; nan" in capsys.readouterr().out
        assert read_checkpoint(f"nan/{folder}/last.pth.tar")["epoch"] == 2
    seen.clear()
    assert status_of(*TRAIN, "--output", "nan", "--experiment", "c") == 1
    assert "no epoch ended with a finite validation loss, so nan/c has no model_best" in capsys.readouterr().err
    assert sorted(path.name for path in Path("nan/c").glob("*.tar")) == ["checkpoint-0.pth.tar", "last.pth.tar"]
    shutil.rmtree("nan")


def test_ctrl_c_in_training(world, capsys, monkeypatch):
    def stop(self, epoch, epochs, row, folder):
        raise KeyboardInterrupt

    words = [*TRAIN, "--epochs", 3, "--output", "stopped", "--experiment", "x"]
    monkeypatch.setattr(PrintEpochs, "on_start", lambda self, start: stop(self, 0, 0, {}, ""))
    assert status_of(*words) == 130
    assert "interrupted. stopped/x has no checkpoint of it: start again." in capsys.readouterr().err
    monkeypatch.setattr(PrintEpochs, "on_start", lambda self, start: None)
    monkeypatch.setattr(PrintEpochs, "on_epoch_end", stop)
    assert status_of(*words) == 130
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("timm-gcp train: interrupted. stopped/x/last.pth.tar holds the run")
    assert line.endswith("go on with --resume stopped/x/last.pth.tar.")
    monkeypatch.undo()
    monkeypatch.chdir(world)
    assert status_of(*words, "--resume", "stopped/x/last.pth.tar") == 0
    assert len(Path("stopped/x/summary.csv").read_text().splitlines()) == 4
    shutil.rmtree("stopped")


def test_a_full_disk_in_training(world, capsys):
    """The checkpoint doesn't fit: one line, and no temporary file stays."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        assert status_of(*TRAIN, "--output", "full", "--experiment", "x") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: the checkpoint of epoch 1 can't be written to 'full/x'" in line and "make room on its disk" in line
    assert sorted(path.name for path in Path("full/x").iterdir()) == ["args.yaml", "summary.csv"]
    shutil.rmtree("full")


@pytest.mark.parametrize("kind", ["c", "p"])
def test_robustness_does_not_score_an_unreadable_image(kind, world, capsys, tmp_path):
    folder = shutil.copytree("toy/validation", tmp_path / "images")
    broken = next(folder.rglob("*.png"))
    broken.write_bytes(b"no image")
    part = ["--corruptions", "brightness"] if kind == "c" else ["--perturbations", "brightness"]
    words = [
        "robustness",
        kind,
        "--on-the-fly",
        "--partial",
        "--data-dir",
        folder,
        "--workers",
        "0",
        *part,
        *CHECKPOINT,
    ]
    assert status_of(*words, "--output", tmp_path / "out") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("timm-gcp robustness: error: ") and broken.name in error
    assert not list((tmp_path / "out").glob("*_[cp].json"))


def test_unreadable_images_are_counted_and_named(world, capsys, tmp_path):
    data = shutil.copytree("toy", tmp_path / "toy")
    (data / "validation" / "c0" / "1.png").write_bytes(b"no image")
    words = [*V, *CHECKPOINT, "--data-dir", data, "--json"]
    assert status_of(*words) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["images"] == 7 and report["unreadable"] == 1
    assert "c0/1.png" in captured.err and "--allow-unreadable" in captured.err
    assert status_of(*words, "--allow-unreadable") == 0


def test_sixteen_bit_grey_is_one_image_everywhere(world, tmp_path):
    """The upper 8 bits, in detection and in robustness as in classification."""
    from timm_gcp.detection.coco_data import read_image
    from timm_gcp.inference.images import open_image
    from timm_gcp.robustness.sources import FolderSource

    pixels = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "0.png")
    expected = np.asarray(pixels >> 8, dtype=np.uint8)
    path = tmp_path / "a" / "0.png"
    assert np.array_equal(np.asarray(open_image(path, 1)), expected)
    assert np.array_equal((read_image(path, 1)[0] * 255).round().byte().numpy(), expected)
    image, _ = FolderSource(tmp_path, 2, None, None, None).read(0)
    assert np.array_equal(np.asarray(image)[..., 1], expected)
