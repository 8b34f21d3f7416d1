"""Table 4's plan: what is measured against AlexNet, on disk and on the fly, with own and with released weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")

from timm_gcp.reproduce.catalog import ITEMS
from timm_gcp.reproduce.robustness import folder, label
from timm_gcp.reproduce.runs import classifier
from timm_gcp.reproduce.setup import Setup
from timm_gcp.robustness.corruptions import SEVERITIES, TEST_CORRUPTIONS
from timm_gcp.robustness.perturbations import TEST_PERTURBATIONS
from timm_gcp.robustness.results import read_baseline, result_path
from timm_gcp.weights import store

ITEM = ITEMS["table4"]


def lines(setup: Setup, *models: str) -> list[str]:
    return [" ".join(job.command) for job in ITEM.plan(ITEM.choose(models), setup)]


def dry(**options) -> Setup:
    return Setup(Path("out"), data_dir=Path("IMAGENET"), dry_run=True, **options)


def test_both_benchmarks_on_disk():
    found = lines(dry(imagenet_c=Path("C"), imagenet_p=Path("P")), "mobilenetv2_100")
    assert [line.split()[1] for line in found] == ["train", "train", "robustness", "robustness", "robustness"]
    c, alexnet, p = found[2:]
    runs = (
        "--model mobilenetv2_100_gcp mobilenetv2_100_gcp --checkpoint out/train/mobilenetv2_100-gap-norm/last.pth.tar "
    )
    runs += "out/train/mobilenetv2_100-gcp-norm/last.pth.tar --label MobileNetV2 + GAP MobileNetV2 + GCP "
    assert c == f"timm-gcp robustness c {runs}--data-dir C --clean-dir IMAGENET/val --output out/robustness/c"
    assert alexnet == (
        "timm-gcp robustness p --model torchvision:alexnet --pretrained --label alexnet --data-dir P "
        "--output out/robustness/p-alexnet"
    )
    assert p == (
        f"timm-gcp robustness p {runs}--data-dir P --baseline out/robustness/p-alexnet/alexnet_p.json "
        "--output out/robustness/p"
    )


def test_on_the_fly_alexnet_is_measured_on_the_same_images():
    found = [line for line in lines(dry(), "resnet18") if "robustness" in line]
    assert len(found) == 4 and all("--data-dir IMAGENET/val --on-the-fly" in line for line in found)
    assert ["torchvision:alexnet" in line for line in found] == [True, False, True, False]
    assert ["--baseline" in line for line in found] == [False, True, False, True]


def test_another_number_of_classes_has_no_alexnet(images, tmp_path):
    found = lines(Setup(tmp_path, data_dir=images), "resnet18")
    assert not any("alexnet" in line or "--baseline" in line for line in found)
    assert f"--data-dir {images / 'validation'} --on-the-fly" in found[-1]


def test_released_weights_take_the_place_of_trainings(tmp_path, monkeypatch):
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    found = lines(dry(published=True), "resnet18", "shufflenet_v2_x1_0")
    assert all("robustness" in line for line in found)
    where = store.stored_folder("resnet18.norm_in1k")
    models = f"shufflenet_v2_x1_0.norm_in1k shufflenet_v2_x1_0_gcp.norm_in1k local-dir:{where} resnet18_gcp.norm_in1k"
    assert f"--model {models} --pretrained" in found[1] and "out/robustness/c-published" in found[1]


def test_released_weights_know_the_classes_of_imagenet(images, tmp_path):
    with pytest.raises(ValueError, match=r"ImageNet's 1000 classes, here are 2: leave out --weights published\.$"):
        lines(Setup(tmp_path, data_dir=images, published=True), "resnet18")
    with pytest.raises(ValueError, match=r"here are 2: leave out --weights published or --limit 4\.$"):
        lines(Setup(tmp_path, data_dir=images, published=True, limit=4), "resnet18")


def test_released_weights_that_are_not_here_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TIMM_GCP_HOME", str(tmp_path / "home"))
    for split in ("train", "val"):
        for number in range(1000):
            (tmp_path / "images" / split / f"n{number:04d}").mkdir(parents=True)
    message = r"the weights resnet18.norm_in1k are not on this machine: `timm-gcp weights fetch resnet18.norm_in1k`"
    with pytest.raises(FileNotFoundError, match=message):
        lines(Setup(tmp_path, data_dir=tmp_path / "images", published=True), "resnet18")


def write_results(setup: Setup, run, c_factor: float, p_factor: float, alexnet: dict) -> None:
    """Results that are a multiple of AlexNet's, and AlexNet's own for ImageNet-P."""
    own = label(run)
    errors = {
        name: {str(s): c_factor * error for s in SEVERITIES} for name, error in alexnet["corruption_error"].items()
    }
    errors = {name: errors[name] for name in TEST_CORRUPTIONS}
    content = {"model": own, "corruption_error": errors, "clean_error": c_factor * alexnet["clean_error"]}
    results = {("c", own, folder("c", setup)): content}
    for name, factor, place in (
        (own, p_factor, folder("p", setup)),
        ("alexnet", 1.0, setup.output / "robustness" / "p-alexnet"),
    ):
        flips = dict.fromkeys(TEST_PERTURBATIONS, 0.2 * factor)
        content = {"model": name, "flip_probability": flips, "top5_distance": flips, "settings": {"difficulty": 1}}
        results["p", name, place] = content
    for (benchmark, name, place), written in results.items():
        path = result_path(place, benchmark, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(written))


def test_scores_are_normalised_by_alexnet(tmp_path):
    (tmp_path / "C").mkdir()
    setup = Setup(
        tmp_path, data_dir=Path("IMAGENET"), imagenet_c=tmp_path / "C", imagenet_p=tmp_path / "C", dry_run=True
    )
    run = classifier("resnet18", "GCP", "norm")
    (row,) = ITEM.choose(["resnet18_gcp"])
    assert ITEM.measure(row, setup) == (None,) * 8
    alexnet = read_baseline("alexnet", "c")
    write_results(setup, run, 0.8, 0.5, alexnet)
    mce, relative, mfr, mt5d, clean, error, flips, distance = ITEM.measure(row, setup)
    assert (mce, relative) == (pytest.approx(80), pytest.approx(80))
    assert (mfr, mt5d) == (pytest.approx(50), pytest.approx(50))
    assert clean == pytest.approx(80 * alexnet["clean_error"]) and 0 < error < 100
    assert (flips, distance) == (pytest.approx(10), pytest.approx(0.1))
    jobs = {job.folder.name: job for job in ITEM.plan([row], setup)}
    assert all(jobs[name].finished() for name in ("c", "p", "p-alexnet"))
    path = result_path(folder("c", setup), "c", label(run))
    content = json.loads(path.read_text())
    del content["corruption_error"]["fog"]["3"]
    path.write_text(json.dumps(content))
    assert not jobs["c"].finished()
