"""The command lines for ImageNet and COCO: the recipes', with no more changed than a table says."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from timm_gcp.cli import COMMANDS
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.detection.options import OPTIONS as DETECT_OPTIONS
from timm_gcp.detection.options import resolve
from timm_gcp.reproduce.catalog import ITEMS
from timm_gcp.reproduce.detectors import detect_job
from timm_gcp.reproduce.jobs import LANDSCAPE_VARIABLE, epochs_in, shown, train_job, words
from timm_gcp.reproduce.runs import classifier, landscape, poly
from timm_gcp.reproduce.setup import Setup
from timm_gcp.train.options import OPTIONS, resolve_args

TRAIN_PY = json.loads((Path(__file__).resolve().parents[1] / "data" / "train_py_options.json").read_text())["defaults"]
# What a classifier's command line may change of its recipe.
FREE = {"data_dir", "output", "experiment", "model"}


def dry(**options: Any) -> Setup:
    return Setup(Path("out"), dry_run=True, **options)


def all_jobs(setup: Setup) -> list:
    jobs = {job.command: job for item in ITEMS.values() for job in item.plan(item.rows, setup)}
    return list(jobs.values())


def parsed(command: tuple[str, ...]) -> argparse.Namespace:
    """A `timm-gcp …` command line as the program reads it."""
    assert command[0] == "timm-gcp"
    module = importlib.import_module(COMMANDS[command[1]][0])
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(list(command[2:]))


def changes(command: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """Recipe of a `timm-gcp [landscape] train` line, and the keys that it sets otherwise."""
    args = parsed(command)
    given = {key: value for key, value in vars(args).items() if key in OPTIONS}
    before, after = (vars(resolve_args(args.config, keys)) for keys in ({}, given))
    return args.config, {key: after[key] for key in after if after[key] != before[key] and key not in FREE}


def test_classifiers_are_trained_by_their_recipes():
    jobs = [job for job in all_jobs(dry(data_dir=Path("IMAGENET"))) if job.command[1] == "train"]
    assert len(jobs) == 36 + 4 + 2 + 3 + 4 + 1  # Fig. 3, D = 128, Fig. 4's middle, w/ DS, 8k, ResNet-152
    for job in jobs:
        recipe, changed = changes(job.command)
        allowed: dict[str, Any] = {}
        name = job.folder.name
        if name.startswith("mobilenetv2_100-gap"):
            allowed = {"gp": "avg"}
        elif "-8k-" in name:
            allowed = {"model_kwargs": {"zero_init_last": False, "reduce_dim": (256, 128)}}
        elif name == "resnet18-gcp-poly-4-53":
            allowed = {"sched": "gcp_poly:power=4,start=1,end=53", "epochs": 53}
        elif name == "resnet18-gcp-poly-8-53":
            allowed = {"sched": "gcp_poly:power=8,start=1,end=53", "epochs": 53}
        assert changed == allowed, name
        assert (
            recipe == "poly_sweep"
            if "poly" in name
            else recipe.endswith(name.rsplit("-", 1)[1] + "_ds" * ("-ds-" in name))
        )
        args = parsed(job.command)
        assert (args.data_dir, args.output, args.experiment) == ("IMAGENET", "out/train", name)
        assert "-gap-" in name or args.model.startswith(f"{name.split('-gcp')[0]}_gcp")


def test_average_pooling_baselines():
    assert classifier("mobilenetv2_100", "GAP", "norm").model == "mobilenetv2_100_gcp"  # the authors' initial values
    assert classifier("shufflenet_v2_x1_0", "GAP", "norm").model == "shufflenet_v2_x1_0"
    run = classifier("resnet50", "GAP", "norm")
    assert run.model == "resnet50" and run.settings["model_kwargs"] == {"zero_init_last": False}
    assert {classifier(net, "GAP", "adju").architecture for net in ("mobilenetv2_100", "resnet18")} == {
        "mobilenetv2_100",
        "resnet18",
    }


def test_the_ends_of_the_sweep_are_lr_adju_and_lr_fast():
    from timm_gcp.schedules.spec import parse

    for (power, end), schedule in (((2, 50), "adju"), ((11, 53), "fast")):
        run = poly(power, end)
        assert run.name == f"resnet18-gcp-{schedule}"
        assert parse(run.settings["sched"]).shape == parse(f"gcp_poly:power={power},start=1,end={end}").shape


@pytest.mark.parametrize(
    ("net", "pooling", "epochs", "steps", "changed"),
    [
        ("mobilenetv2_100", "GAP", 38, 500_000, {"drop": 0.0, "gp": "avg"}),
        ("mobilenetv2_100", "GCP", 38, 500_000, {"drop": 0.0}),
        ("resnet18", "GAP", 20, 100_000, {}),
        ("resnet18", "GCP", 20, 100_000, {}),
    ],
)
def test_figure_2_is_lr_norm_without_dropout_for_the_papers_steps(net, pooling, epochs, steps, changed):
    (job,) = [
        job for job in ITEMS["fig2"].plan(ITEMS["fig2"].rows, dry()) if job.folder.name == f"{net}-{pooling.lower()}"
    ]
    recipe, found = changes(job.command)
    assert recipe == ("mobilenetv2_norm" if net.startswith("mobile") else "resnet_norm")
    assert found == {**changed, "epochs": epochs}
    batch = read_recipe(find_recipe(recipe))["batch_size"]
    assert (epochs - 1) * (1_281_167 // batch) < steps <= epochs * (1_281_167 // batch)
    args = parsed(job.command)
    assert (args.every, args.low, args.high, args.points) == (
        (1000, 0.045, 1.5, 50) if net.startswith("mobile") else (500, 0.1, 75.0, 50)
    )
    assert args.csv == f"out/landscape/{job.folder.name}/landscape.csv"


@pytest.mark.parametrize("gpus", [2, 4])
def test_several_gpus_run_train_py_on_the_recipes_batch(gpus):
    jobs = [job for job in all_jobs(dry(data_dir=Path("IMAGENET"), gpus=gpus)) if job.command[2] == "train.py"]
    assert len(jobs) == 50 + 4
    for job in jobs:
        line = list(job.command)
        assert line[:3] == ["torchrun", f"--nproc-per-node={gpus}", "train.py"]
        recipe = read_recipe(line[line.index("-c") + 1])
        assert int(line[line.index("--batch-size") + 1]) * gpus == recipe["batch_size"]
        assert line.count("--batch-size") == 1
        for word in line[3:]:
            assert not word.startswith("--") or word[2:].replace("-", "_") in TRAIN_PY
        if job.folder.parent.name == "landscape":
            place = line.index("--device-modules")
            assert line[place + 1 : place + 3] == ["timm_gcp.train_hook", "timm_gcp.reproduce.landscape_hook"]
            assert json.loads(job.environment[LANDSCAPE_VARIABLE])["every"] in (500, 1000)
        else:
            assert not job.environment and "--device-modules" not in line


@pytest.mark.parametrize("published", [False, True])
def test_detectors_are_trained_by_their_recipes(published):
    items = ("table6", "table7") if published else ("table6", "table7", "table8")
    setup = dry(data_dir=Path("IMAGENET"), coco_dir=Path("COCO"), published=published)
    plans = [job for name in items for job in ITEMS[name].plan(ITEMS[name].rows, setup)]
    jobs = {job.folder: job for job in plans if job.command[1] == "detect"}.values()
    assert len(jobs) == (12 if published else 12 + 4)
    for job in jobs:
        args = parsed(job.command)
        given = {key: value for key, value in vars(args).items() if key in DETECT_OPTIONS}
        before, after = (vars(resolve(keys, args.config)) for keys in ({}, given))
        changed = {key for key in after if after[key] != before[key]} - {"data_dir", "output"}
        assert args.data_dir == "COCO"
        if published:
            assert changed == set() and after["pretrained"]
            continue
        assert {"checkpoint"} <= changed <= {"checkpoint", "pretrained", "model"} and not after["pretrained"]
        assert after["model"] == before["model"].split(".")[0]  # resnet50 for resnet50.tv_in1k
        start = "gap-norm" if "gap" in args.config else "gcp-ds-norm" if "_ds" in args.config else "gcp-norm"
        net = args.config.split("_")[1]
        assert args.checkpoint == f"out/train/{net}-{start}/last.pth.tar"
        order = [other.folder.name for other in plans]
        assert order.index(f"{net}-{start}") < order.index(job.folder.name)


def test_detectors_of_published_weights_need_them_and_no_imagenet(coco, tmp_path, monkeypatch):
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    setup = Setup(tmp_path, data_dir=coco, published=True)
    item = ITEMS["table6"]
    with pytest.raises(FileNotFoundError, match=r"the weights resnet101_gcp\.norm_in1k are not on this machine"):
        item.plan(item.choose(["resnet101"]), setup)
    rows = [row for row in item.choose(["resnet50"]) if row.labels[2] == "GAP"]  # torchvision's
    assert [job.folder.name for job in item.plan(rows, setup)] == [
        "fasterrcnn_resnet50_gap-published",
        "maskrcnn_resnet50_gap-published",
    ]


def test_detectors_share_their_batch_too():
    job = detect_job("maskrcnn_resnet50_gcp_m", classifier("resnet50", "GCP", "norm"), dry(gpus=4))
    assert job.command[:6] == ("torchrun", "--nproc-per-node=4", "-m", "timm_gcp.cli", "detect", "train")
    assert job.command[-2:] == ("--batch-size", "2")
    with pytest.raises(ValueError, match=r"3 GPUs can't share the batch of 8 images of maskrcnn_resnet50_gcp_m"):
        detect_job("maskrcnn_resnet50_gcp_m", None, dry(gpus=3))


def test_train_py_is_needed_by_several_gpus_only(images, tmp_path):
    run = classifier("resnet18", "GCP", "adju")
    train_job(run, Setup(tmp_path, data_dir=images))
    with pytest.raises(ValueError, match=r"4 GPUs train with timm's own train.py, .* --train-py, or .* --gpus 1"):
        train_job(run, Setup(tmp_path, data_dir=images, gpus=4))
    with pytest.raises(ValueError, match=r"5 GPUs can't share the batch of 256 images of resnet18-gcp-adju"):
        train_job(run, dry(gpus=5))


def test_options_of_the_machine_are_no_settings(images, tmp_path):
    run = classifier("resnet18", "GCP", "adju")
    one = train_job(run, Setup(tmp_path, data_dir=images))
    other = train_job(run, Setup(tmp_path, data_dir=images, device="cpu", workers=7))
    assert one.settings == other.settings and one.command != other.command
    assert other.command[-4:] == ("--workers", "7", "--device", "cpu")
    assert one.settings["num_classes"] == 2 and one.settings["data"] == images.name
    assert train_job(run, dry(gpus=4)).settings == train_job(run, dry()).settings
    assert landscape("resnet18", "GCP").settings["epochs"] == 20


def test_words():
    keys = {"drop": 0.0, "amp": True, "pretrained": False, "scale": [0.1, 1], "model_kwargs": {"a": (1, 2)}}
    expected = ["--drop", "0.0", "--amp", "--no-pretrained", "--scale", "0.1", "1", "--model-kwargs", "a=(1,2)"]
    assert list(words(keys)) == expected


def test_paths_are_shown_as_the_shell_takes_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "a" / "b") == "a/b" and shown(Path("a/b")) == "a/b"
    assert shown(tmp_path.parent / "c") == str(tmp_path.parent / "c")


@pytest.mark.parametrize(
    ("text", "first", "epochs"),
    [
        ("epoch,eval_top1\n0,1\n1,2\n", 0, 2),
        ("epoch,eval_top1\n0,1\nepoch,eval_top1\n1,2\n2,3\n", 0, 3),  # train.py, resumed
        ("epoch,loss\n1.0,1\n12.0,2\n", 1, 12),
        ("epoch,eval_top1\n", 0, 0),
        ("", 0, 0),
        ("epoch,eval_top1\n0,1\n1", 0, 1),  # cut off
    ],
)
def test_epochs_in_a_summary(text, first, epochs, tmp_path):
    (tmp_path / "summary.csv").write_text(text)
    assert epochs_in(tmp_path / "summary.csv", first) == epochs
    assert epochs_in(tmp_path / "none.csv") == 0
