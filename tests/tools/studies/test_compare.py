"""The study tool: its configurations, the held-out images, the paired test, and a whole study on a few images."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import timm
import torch
import yaml
from PIL import Image
from robustness_sets import write_fashion_mnist
from safetensors.torch import load_file
from scipy.stats import binomtest
from toy_images import TINY, image_folder
from toy_studies import STUDY, write_study

from timm_gcp.train.curves import RunCurve

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")
PUBLISHED = [
    "caltech101",
    "caltech101_efficientnet",
    "fashion_mnist",
    "imagenette",
    "tiny_imagenet",
    "tiny_imagenet_ten",
    "tiny_imagenet_whole",
    "tokens",
]


def test_shipped_configurations_are_studies_of_known_models(tool) -> None:
    from timm_gcp.train.options import resolve_args

    for path in (TOOLS / "configs").glob("*.yaml"):
        study = tool("study_config").read_study(path)
        for module in study.modules:
            tool(module)
        folders = [cell.folder for entry in study.entries for cell in entry.cells({})]
        assert len(set(folders)) == len(folders)
        for entry in study.entries:
            assert resolve_args(entry.recipe, entry.keys).epochs == entry.keys["epochs"]
            assert timm.is_model(entry.keys["model"].removeprefix("gcp:"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"runs": {}}, "is not a study: it needs `runs`"),
        ({"colour": 1}, "unknown key colour; known are title, data"),
        ({"runs": {"a": {"lr": 1}}}, "unknown key lr; known are recipe, keys"),
        ({"data": {"held_out": 0.1}}, "data.pixels, the side of the stored images, must be at least 1, got None"),
        ({"data": {"pixels": 8, "held_out": 1.5}}, "data.held_out must be a share between 0 and 1, got 1.5"),
        ({"runs": {"a": {"against": "b"}}}, "run a is set against 'b'; runs are a"),
        ({"runs": {"a": {"reach": "b"}}}, "run a is to reach 'b'; runs are a"),
        ({"recipe": None}, "run one has no recipe"),
        ({"data": {"pixels": 8, "size": 1}}, "unknown key size; known are pixels, held_out, train_per_class"),
        ({"data": {"pixels": 8, "train_per_class": 1}}, "data.train_per_class must be 2 or more images, got 1"),
        ({"data": {"pixels": 8, "limit_per_class": "all"}}, "data.limit_per_class must be 2 or more images, got 'all'"),
        ({"data": {"pixels": 8, "groups": 1}}, "data.groups must be 2 or more classes to train on, got 1"),
        ({"data": {"pixels": 8, "channels": 2}}, r"data.channels must be 1 \(grey\) or 3 \(colour\), got 2"),
        (
            {"data": {"pixels": 8, "train_per_class": 9, "dataset": "torch/mnist"}},
            "data.train_per_class draws from one folder, without dataset",
        ),
        ({"runs": {"a": {"tuned_as": "b"}}}, "run a is tuned as 'b', which is not a run with trials"),
    ],
)
def test_bad_study_is_refused(tool, tmp_path: Path, changes, text) -> None:
    with pytest.raises(ValueError, match=text):
        tool("study_config").read_study(write_study(tmp_path / "s.yaml", **changes))


def test_missing_study(tool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no study at"):
        tool("study_config").read_study(tmp_path / "none.yaml")


def test_hold_out_takes_the_same_share_of_each_class(tool) -> None:
    targets = torch.tensor([0] * 20 + [1] * 40)
    kept, held = tool("image_tensors").hold_out(targets, 0.1)
    assert torch.bincount(targets[held]).tolist() == [2, 4]
    assert sorted(torch.cat((kept, held)).tolist()) == list(range(60))
    assert torch.equal(held, tool("image_tensors").hold_out(targets, 0.1)[1])
    with pytest.raises(ValueError, match="class 1 has 2 training images, too few to hold out 10%"):
        tool("image_tensors").hold_out(torch.tensor([0] * 20 + [1] * 2), 0.1)


def test_packed_images_are_the_resized_centre(tool, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "data", train=2, validation=2)
    images, targets = tool("image_tensors").packed(folder, "val", 16, tmp_path / "cache")
    assert images.shape == (4, 3, 16, 16)
    assert targets.tolist() == [0, 0, 1, 1]
    assert images[0, 0].float().mean() > images[0, 1].float().mean() + 50  # class 0 is brightest in red
    again, _ = tool("image_tensors").packed("gone", "val", 16, tmp_path / "cache")
    assert torch.equal(images, again)
    with pytest.raises(FileNotFoundError, match="no folder 'gone'"):
        tool("image_tensors").packed("gone", "train", 16, tmp_path / "cache")


def class_folders(root: Path, counts: dict[str, int]) -> Path:
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for index in range(count):
            Image.new("RGB", (40, 40), (60 * number, 8 * index, 0)).save(root / name / f"{index}.png")
    return root


def test_a_draw_takes_as_many_images_of_each_class_and_leaves_classes_out(tool, tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "data", {"Background": 2, "ants": 9, "bees": 6})
    study = tool("study_config").Study("toy", 32, 0.1, (), train_per_class=4, exclude=("Background",))
    draws = [tool("image_tensors").study_images(study, folder, tmp_path / "cache", seed) for seed in (0, 1, 0)]
    (images, targets), (others, rest) = draws[0]
    assert torch.bincount(targets).tolist() == [4, 4]
    assert torch.bincount(rest).tolist() == [5, 2]
    assert set(images[:, 0].unique().tolist() + others[:, 0].unique().tolist()) == {60, 120}
    greens = [image[1, 0, 0].item() for image in torch.cat((images[targets == 0], others[rest == 0]))]
    assert sorted(greens) == [8 * index for index in range(9)]
    assert torch.equal(images, draws[2][0][0])
    assert not torch.equal(images, draws[1][0][0])
    with pytest.raises(ValueError, match="class 1 has 6 images, too few to train on 6 and test on others"):
        tool("image_tensors").study_images(replace(study, train_per_class=6), folder, tmp_path / "cache", 0)


def test_a_limit_takes_the_first_images_of_each_class_and_leaves_the_test_images(tool, tmp_path: Path) -> None:
    for split, counts in (("train", {"ants": 5, "bees": 4}), ("val", {"ants": 3, "bees": 2})):
        class_folders(tmp_path / "data" / split, counts)
    study = tool("study_config").Study("toy", 32, 0.1, (), limit_per_class=3)
    (images, targets), (_, rest) = tool("image_tensors").study_images(study, tmp_path / "data", tmp_path / "cache", 0)
    assert images[:, 1, 0, 0].tolist() == [0, 8, 16] * 2
    assert targets.tolist() == [0] * 3 + [1] * 3 and torch.bincount(rest).tolist() == [3, 2]
    with pytest.raises(ValueError, match="class 1 has 4 training images, not 5: lower limit_per_class"):
        tool("image_tensors").study_images(replace(study, limit_per_class=5), tmp_path / "data", tmp_path / "cache", 0)


def test_groups_merge_neighbouring_classes_after_the_limit(tool, tmp_path: Path) -> None:
    counts = {"ants": 3, "bees": 2, "cats": 3, "dogs": 2}
    for split in ("train", "val"):
        class_folders(tmp_path / "data" / split, counts)
    study = tool("study_config").Study("toy", 32, 0.1, (), limit_per_class=2, groups=2)
    (images, targets), (_, rest) = tool("image_tensors").study_images(study, tmp_path / "data", tmp_path / "cache", 0)
    assert images[:, 0, 0, 0].tolist() == [0, 0, 60, 60, 120, 120, 180, 180]
    assert targets.tolist() == [0] * 4 + [1] * 4 and torch.bincount(rest).tolist() == [5, 5]
    with pytest.raises(ValueError, match=r"data\.groups must divide the 4 classes, got 3"):
        tool("image_tensors").study_images(replace(study, groups=3), tmp_path / "data", tmp_path / "cache", 0)


def test_a_named_set_is_read_in_grey(tool, tmp_path: Path) -> None:
    images, labels = numpy.arange(4 * 28 * 28).reshape(4, 28, 28) % 251, numpy.array([1, 0, 1, 0])
    for split in ("train", "t10k"):
        write_fashion_mnist(tmp_path / "data" / "FashionMNIST" / "raw", images, labels, packed=False, split=split)
    study = tool("study_config").Study("toy", 28, 0.5, (), dataset="torch/fashion_mnist", channels=1)
    (found, targets), (tested, _) = tool("image_tensors").study_images(study, tmp_path / "data", tmp_path / "cache", 0)
    assert targets.tolist() == labels.tolist() and found.shape == tested.shape == (4, 1, 28, 28)
    assert torch.equal(found[:, 0], torch.from_numpy(images.astype("uint8")))
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"other' does not hold torch/fashion_mnist: lay it out there first"):
        tool("image_tensors").study_images(study, tmp_path / "other", tmp_path / "elsewhere", 0)


def test_images_that_cannot_be_had_are_named_before_any_training(tool, tmp_path: Path) -> None:
    packed = tool("image_tensors").packed
    folder = class_folders(tmp_path / "data", {"ants": 3})
    (folder / "ants" / "1.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"1\.png can't be read as an image: replace it or take it out"):
        packed(folder, "", 32, tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match="has no val/ or validation/: the study needs train/ and val/"):
        packed(folder, "val", 32, tmp_path / "cache")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images in folders of classes"):
        packed(tmp_path / "empty", "", 32, tmp_path / "cache")
    assert not (tmp_path / "cache").is_dir() or not list((tmp_path / "cache").iterdir())


def test_mean_per_class_weighs_classes_not_images(tool) -> None:
    assert tool("compare_report").mean_per_class([0, 0, 0, 1], [True, True, True, False]) == 50


def test_mcnemar_is_the_exact_binomial_test(tool) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(2, 500, generator=generator) < torch.tensor([[0.8], [0.72]])).tolist()
    ours, theirs, p = tool("compare_report").mcnemar(first, second)
    assert ours == sum(a and not b for a, b in zip(first, second, strict=True))
    assert p == pytest.approx(binomtest(ours, ours + theirs, 0.5).pvalue, rel=1e-12)
    assert tool("compare_report").mcnemar([True], [True]) == (0, 0, 1.0)


def test_a_run_of_another_schedule_is_compared_with_too(tool, tmp_path: Path) -> None:
    """`against` is the twin under the same schedule, `reach` the one that trained longer: a column each."""
    runs = {"slow": {}, "one": {}, "two": {"against": "one", "reach": "slow"}, "late": {"reach": "slow"}}
    study = tool("study_config").read_study(write_study(tmp_path / "s.yaml", runs=runs))
    report = tool("compare_report")
    curves = {"slow": (30.0, 55.0), "one": (40.0, 50.0), "two": (50.0, 55.0), "late": (10.0, 20.0)}
    right = {"slow": (True, True, False), "late": (False, False, True)}
    found = {}
    for name, top1 in curves.items():
        hits = right.get(name, (True, False, False))
        curve = RunCurve(name, (0, 1), top1, top1)
        found[name] = {0: report.Outcome(curve, 1.0, 100 * sum(hits) / 3, 1.0, hits, 50.0)}
    lines = [line.split("|") for line in report.results_table(study, found).splitlines()[2:]]
    cells = {line[1].strip(): [cell.strip() for cell in line[-4:-2]] for line in lines}
    assert cells == {
        "slow": ["", ""],
        "one": ["", ""],
        "two": ["1", "slow: 2; -33.33; 0 : 1, 1"],
        "late": ["", "slow: never; -33.33; 1 : 2, 1"],
    }
    for entry in study.entries:
        object.__setattr__(entry, "reach", None)
    assert "another schedule" not in report.results_table(study, found)


def test_whole_study_then_nothing_left_to_do(tool, tmp_path: Path, monkeypatch, capsys) -> None:
    data = image_folder(tmp_path / "data", train=16, validation=6)
    config = write_study(tmp_path / "toy.yaml")
    compare = tool("compare")
    command = ["compare.py", str(config), "--data-dir", str(data), "--output", str(tmp_path / "runs")]
    monkeypatch.setenv("PYTHONPATH", str(TOOLS.parents[1]))
    monkeypatch.setattr(sys, "argv", [*command, "--docs", str(tmp_path / "docs")])
    assert compare.main() == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    count = sum(p.numel() for p in timm.create_model(TINY, num_classes=2).parameters())
    assert f"| Two | {count:,} | 1 |" in page
    test = json.loads((tmp_path / "runs" / "one-seed0" / "test.json").read_text())
    assert test["mean_per_class"] == pytest.approx(test["top1"])  # as many images in each class
    assert "| one | lr 0.01 |" in page
    assert (tmp_path / "docs" / "curves.png").stat().st_size > 1000
    chosen = yaml.safe_load((tmp_path / "runs" / "one-seed0" / "args.yaml").read_text())["lr"]
    trials = {
        lr: float((tmp_path / f"runs/one-tune-lr{lr}-seed0/summary.csv").read_text().splitlines()[-1].split(",")[3])
        for lr in (0.01, 0.05)
    }
    assert trials[chosen] == max(trials.values())

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.tar")}
    assert compare.main() == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.tar")} == before
    monkeypatch.setattr(sys, "argv", ["compare.py", str(config), "--tables", "--docs", str(tmp_path / "docs")])
    assert compare.main() == 0
    assert (tmp_path / "docs" / "results.md").read_text() == page
    figure = ["--runs", "two", "--figure", str(tmp_path / "two.png")]
    monkeypatch.setattr(sys, "argv", ["compare.py", str(config), "--tables", "--docs", str(tmp_path / "docs"), *figure])
    assert compare.main() == 0
    assert (tmp_path / "two.png").stat().st_size > 1000
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [*command, "--list"])
    assert compare.main() == 0
    assert all(line.startswith("done") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        (["--runs", "three"], "no run three in .*; it has one, two"),
        (["--tables", "--docs", "nowhere"], "no finished run in"),
        (["--tables", "--docs", "nowhere", "--figure", "a.png"], "no finished run in"),
        (["--data-dir", "gone"], "no folder 'gone'"),
    ],
)
def test_errors_are_one_sentence(tool, tmp_path: Path, monkeypatch, capsys, extra, text) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", str(write_study(tmp_path / "s.yaml")), *extra])
    assert tool("compare").main() == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(text, error)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tables_are_those_of_the_records(tool, tmp_path: Path, monkeypatch, name) -> None:
    published = TOOLS.parents[1] / "docs" / name
    shutil.copytree(published / "runs", tmp_path / "runs")
    config = TOOLS / "configs" / f"{name}.yaml"
    monkeypatch.setattr(sys, "argv", ["compare.py", str(config), "--tables", "--docs", str(tmp_path)])
    assert tool("compare").main() == 0
    assert (tmp_path / "results.md").read_text() == (published / "results.md").read_text()


def test_a_study_without_its_start_weights_does_not_begin(tool, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("STUDY_WEIGHTS", raising=False)
    config = write_study(tmp_path / "s.yaml", keys={**STUDY["keys"], "model_kwargs": {"start": "photos"}})
    command = ["compare.py", str(config), "--data-dir", "gone", "--output", str(tmp_path / "runs")]
    for extra, text in (([], "starts from the weights 'photos'.* --weights"), (["--weights", "w"], "no .*photos")):
        monkeypatch.setattr(sys, "argv", [*command, *extra])
        assert tool("compare").main() == 1
        assert re.search(text, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def flat_folder(root: Path, classes: int = 3, per_class: int = 12) -> Path:
    """Class folders beside each other, as Caltech-101's, and one to leave out."""
    made = image_folder(root / "made", train=per_class, validation=1, classes=classes)
    flat = root / "flat"
    (made / "train").rename(flat)
    (flat / "c0").rename(flat / "zebra")
    (flat / "background").mkdir()
    (flat / "background" / "0.png").write_bytes(b"no image")
    return flat


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data": {"pixels": 8, "train_per_class": 1}}, "train_per_class must be 2 or more images, got 1"),
        ({"data": {"pixels": 8, "colours": 1}}, "unknown key colours; known are pixels"),
        ({"runs": {"a": {"tuned_as": "b"}}}, "run a is tuned as 'b', which"),
    ],
)
def test_bad_draw_is_refused(tool, tmp_path: Path, changes, text) -> None:
    with pytest.raises(ValueError, match=text):
        tool("study_config").read_study(write_study(tmp_path / "s.yaml", **changes))


def test_fine_tuning_study(tool, tmp_path: Path, monkeypatch) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    backbone = timm.create_model("mobilenetv2_100", num_classes=7)
    (tmp_path / "weights" / "start").mkdir(parents=True)
    save_file(backbone.state_dict(), tmp_path / "weights" / "start" / "model.safetensors")
    keys = {**STUDY["keys"], "model": "started_mobilenetv2_gcp", "model_kwargs": {"start": "start"}, "epochs": 1}
    config = write_study(
        tmp_path / "toy.yaml",
        modules=["started"],
        data={"pixels": 32, "held_out": 0.25, "train_per_class": 8, "exclude": ["background"]},
        keys=keys,
        tune=None,
        runs={
            "gap": {"keys": {"gp": "avg"}, "tune": {"lr": [0.01, 0.02]}},
            "gcp": {
                "keys": {"model_kwargs": {"start": "start", "reduce_dim": 8}},
                "tuned_as": "gap",
                "against": "gap",
            },
            "principal": {
                "keys": {"model_kwargs": {"start": "start", "reduce_dim": 8, "head_act_layer": "identity"}},
                "tuned_as": "gap",
                "principal": True,
            },
        },
    )
    command = ["compare.py", str(config), "--data-dir", str(flat_folder(tmp_path)), "--output", str(tmp_path / "runs")]
    monkeypatch.setenv("PYTHONPATH", f"{TOOLS.parents[1]}:{TOOLS}")
    monkeypatch.setattr(
        sys, "argv", [*command, "--weights", str(tmp_path / "weights"), "--docs", str(tmp_path / "docs")]
    )
    assert tool("compare").main() == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "Mean per class" in page
    rates = {
        run: yaml.safe_load((tmp_path / "runs" / f"{run}-seed0" / "args.yaml").read_text())["lr"]
        for run in ("gap", "gcp")
    }
    assert rates["gap"] == rates["gcp"]

    start = tmp_path / "runs" / "starts" / "principal-seed0.safetensors"
    begun = {
        run: yaml.safe_load((tmp_path / "runs" / f"{run}-seed0" / "args.yaml").read_text())["initial_checkpoint"]
        for run in ("gcp", "principal")
    }
    assert begun == {"gcp": "", "principal": str(start)}
    directions = load_file(start)["global_pool.reduction.0.conv.weight"].flatten(1)
    torch.testing.assert_close(directions @ directions.mT, torch.eye(8), atol=1e-5, rtol=0)


def test_principal_start_is_of_the_training_images_and_made_once(tool, tmp_path: Path) -> None:
    from timm_gcp.models.principal import init_reduction
    from timm_gcp.train.options import resolve_args

    keys = {
        "model": "resnet18_gcp",
        "model_kwargs": {"reduce_dim": 4},
        "img_size": 32,
        "crop_pct": 1.0,
        "batch_size": 4,
    }
    args = resolve_args("shufflenetv2_adju", {**STUDY["keys"], **keys, "num_classes": 2, "seed": 3})
    images = torch.randint(0, 256, (10, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    path = tmp_path / "starts" / "one.safetensors"
    assert tool("principal_start").principal_start(args, (images, torch.zeros(10, dtype=torch.int64)), path) == path
    torch.manual_seed(3)
    model = timm.create_model("resnet18_gcp", reduce_dim=4, num_classes=2)
    mean, std = (torch.tensor(model.pretrained_cfg[name])[:, None, None] * 255 for name in ("mean", "std"))
    init_reduction(model, [(images.float() - mean) / std])
    for name, tensor in load_file(path).items():
        torch.testing.assert_close(tensor, model.state_dict()[name], atol=1e-4, rtol=1e-4, msg=name)
    path.write_bytes(b"kept")
    tool("principal_start").principal_start(args, (images, torch.zeros(10, dtype=torch.int64)), path)
    assert path.read_bytes() == b"kept"
