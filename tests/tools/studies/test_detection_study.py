"""Detection sets made and converted, and the study that runs on such a set, at the smallest size."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import detection_report
import detection_study
import make_fmnist_detection as maker
import numpy as np
import pytest
import timm
import torch
import voc_to_coco
from PIL import Image

import timm_gcp  # noqa: F401  registers the models
from timm_gcp.detection.coco_data import CocoDataset, find_split


def write_idx(path, array, zipped):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(side.to_bytes(4, "big") for side in array.shape)
    with (gzip.open if zipped else open)(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    """Ten rings and bars in the files of Fashion-MNIST."""
    folder = tmp_path_factory.mktemp("fashion-mnist")
    rows, columns = np.mgrid[:28, :28] - 13.5
    radius = np.hypot(rows, columns)
    ring = np.where((radius > 6) & (radius < 12), 200, 0)
    bar = np.where((abs(columns) < 5) & (abs(rows) < 12), 250, 0)
    for prefix, zipped in (("train", True), ("t10k", False)):
        name = ".gz" if zipped else ""
        write_idx(folder / f"{prefix}-images-idx3-ubyte{name}", np.stack([ring, bar] * 5), zipped)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{name}", np.array([3, 8] * 5), zipped)
    return folder


@pytest.fixture(scope="module")
def made(items, tmp_path_factory):
    output = tmp_path_factory.mktemp("made")
    maker.build(items, output, {"train": 6, "val": 4}, canvas=64, seed=3)
    return output


def test_the_set_reads_as_coco_with_masks_that_fill_their_boxes(made):
    files = find_split(made, "train")
    data = CocoDataset(files.annotations, files.images, masks=True, in_chans=1)
    assert len(data) == 6 and list(data.categories) == list(range(1, 11)) and data.dropped["bad boxes"] == 0
    content = json.loads(files.annotations.read_text())
    areas = {}
    for annotation in content["annotations"]:
        areas.setdefault(annotation["image_id"], []).append(annotation["area"])
    for image, target in (data[i] for i in range(6)):
        assert image.shape == (1, 64, 64) and 1 <= len(target["boxes"]) <= 5
        assert target["masks"].sum(0).max() == 1  # a pixel belongs to one item
        assert target["masks"].sum((1, 2)).tolist() == areas[target["image_id"]]
        for box, mask, label in zip(target["boxes"], target["masks"], target["labels"], strict=True):
            assert int(label) in (4, 9)
            columns, rows = torch.nonzero(mask.any(0)).flatten(), torch.nonzero(mask.any(1)).flatten()
            assert box.tolist() == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
            inside = image[0][mask.bool()]
            assert inside.mean() > 0.35 > image[0][~target["masks"].bool().any(0)].mean()  # bright on dark


def test_a_silhouette_has_no_holes_and_no_surroundings():
    rows, columns = np.mgrid[:28, :28] - 13.5
    radius = np.hypot(rows, columns)
    ring = np.where((radius > 6) & (radius < 12), 200, maker.DARKEST)
    assert np.array_equal(maker.silhouette(ring.astype(np.uint8)), radius < 12)


def test_pictures_depend_on_the_seed_alone(items, made, tmp_path):
    maker.build(items, tmp_path, {"train": 2, "val": 1}, canvas=64, seed=3)
    for split, count in (("train", 2), ("val", 1)):
        for index in range(count):
            name = f"{split}/{index:06d}.png"
            assert np.array_equal(Image.open(tmp_path / name), Image.open(made / name))
    maker.build(items, tmp_path, {"train": 1, "val": 1}, canvas=64, seed=4)
    assert not np.array_equal(Image.open(tmp_path / "train/000000.png"), Image.open(made / "train/000000.png"))


def test_bad_arguments_are_named(items, tmp_path):
    with pytest.raises(ValueError, match=r"canvas must be at least 32 pixels\. Got 8"):
        maker.build(items, tmp_path, {"train": 1, "val": 1}, canvas=8)
    with pytest.raises(FileNotFoundError, match=r"neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz"):
        maker.build(tmp_path, tmp_path, {"train": 1, "val": 1})


def test_arms_are_parsed():
    arm = detection_study.parse_arm("GCP_M=resnet18_gcp,checkpoint=a.pth,last_stage=maxpool")
    assert arm == detection_study.Arm("GCP_M", "resnet18_gcp", "a.pth", "maxpool") and not arm.pretrained
    assert detection_study.parse_arm("GAP=resnet18.tv_in1k").pretrained
    assert detection_study.parse_arm("GAP=resnet18.tv_in1k").channels(0) == 3
    for text in ("resnet18", "a=", "a=b,norm=bn"):
        with pytest.raises(ValueError, match="an arm reads LABEL=MODEL"):
            detection_study.parse_arm(text)


def test_a_checkpoint_may_follow_the_seed():
    assert detection_study.parse_arm("a=resnet18,checkpoint=x-seed{seed}.pth").start(3) == "x-seed3.pth"
    assert detection_study.parse_arm("a=resnet18").start(3) is None


def test_arms_and_data_that_do_not_go_together_are_named(made, tmp_path, capsys):
    torch.save(timm.create_model("shufflenet_v2_x1_0", in_chans=1).state_dict(), tmp_path / "c.pth")
    words = ["--data-dir", str(made), "--output", str(tmp_path), "--arm", "a=resnet18.tv_in1k"]
    assert detection_study.main([*words, "--arm", f"b=shufflenet_v2_x1_0,checkpoint={tmp_path / 'c.pth'}"]) == 1
    assert "take images of [1, 3] channels; they must agree" in capsys.readouterr().err
    assert detection_study.main(["--data-dir", str(tmp_path), *words[2:]]) == 1
    assert "has neither annotations/instances_train.json" in capsys.readouterr().err


def test_a_study_runs_resumes_and_reports(made, tmp_path, capsys, monkeypatch):
    torch.save(timm.create_model("shufflenet_v2_x1_0", in_chans=1, num_classes=10).state_dict(), tmp_path / "c0.pth")
    words = ["--data-dir", str(made), "--output", str(tmp_path), "--recipe", "fmnist", "--masks"]
    words += ["--epochs", "1", "--workers", "0", "--device", "cpu", "--seeds", "0"]
    words += ["--arm", "scratch=shufflenet_v2_x1_0_gcp"]
    words += ["--arm", f"GAP=shufflenet_v2_x1_0,checkpoint={tmp_path}/c{{seed}}.pth"]
    assert detection_study.main(words) == 0
    printed = capsys.readouterr().out
    for name in ("convergence.png", "examples.png", "masks.png"):
        assert min(Image.open(tmp_path / name).size) > 300
    record = json.loads((tmp_path / "record.json").read_text())
    assert [arm["label"] for arm in record["arms"]] == ["scratch", "GAP"] and record["masks"]["label"] == "GAP"
    assert (tmp_path / "table.md").read_text() == detection_report.table(record) and "AP over scratch" in printed
    assert detection_study.main(["--table", str(tmp_path / "record.json")]) == 0
    assert capsys.readouterr().out == detection_report.table(record)

    def refuse(options):
        raise AssertionError("a finished run was started again")

    monkeypatch.setattr(detection_study, "run_training", refuse)
    assert detection_study.main(words) == 0
    assert json.loads((tmp_path / "record.json").read_text()) == record


def test_a_study_without_folders_is_refused(capsys):
    with pytest.raises(SystemExit):
        detection_study.main([])
    assert "a study needs --data-dir, --output and one --arm or more" in capsys.readouterr().err


VOC = """<annotation><size><width>9</width><height>9</height></size>
<object><name>dog</name><bndbox><xmin>3</xmin><ymin>1</ymin><xmax>5</xmax><ymax>20</ymax></bndbox></object>
<object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>40</xmax><ymax>30</ymax></bndbox></object>
</annotation>"""


@pytest.fixture
def voc(tmp_path):
    folder = tmp_path / "voc"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    for name, split in (("a", "trainval"), ("b", "test")):
        (folder / "Annotations" / f"{name}.xml").write_text(VOC)
        Image.new("RGB", (40, 30)).save(folder / "JPEGImages" / f"{name}.jpg")
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text(f"{name}\n")
    return folder


def test_voc_becomes_coco(voc, tmp_path):
    """VOC's first and last pixels, counted from 1, are inside the box; sizes are the images' own."""
    words = ["voc_to_coco.py", "--data-dir", str(voc), "--output", str(tmp_path / "coco")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", words)
        assert voc_to_coco.main() == 0
    for split in ("train", "val"):
        files = find_split(tmp_path / "coco", split)
        data = CocoDataset(files.annotations, files.images)
        assert list(data.categories.values()) == ["cat", "dog"]
        image, target = data[0]
        assert image.shape == (3, 30, 40)
        assert target["boxes"].tolist() == [[2, 0, 5, 20], [0, 1, 40, 30]] and target["labels"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("ImageSets/Main/test.txt", "test.txt: give a folder in Pascal VOC's layout and one of its splits"),
        ("Annotations/b.xml", "no annotation"),
        ("JPEGImages/b.jpg", r"no image b in .*JPEGImages"),
    ],
)
def test_what_voc_lacks_is_named(voc, tmp_path, broken, text):
    (voc / broken).unlink()
    with pytest.raises(FileNotFoundError, match=text):
        voc_to_coco.convert(voc, tmp_path / "coco", {"train": "trainval", "val": "test"})


@pytest.mark.parametrize("content", ["<annotation>", "<a><object><name>x</name></object></a>"])
def test_an_annotation_that_is_none_is_named(voc, tmp_path, content):
    (voc / "Annotations" / "b.xml").write_text(content)
    with pytest.raises(ValueError, match=r"b\.xml is no annotation in Pascal VOC's form"):
        voc_to_coco.convert(voc, tmp_path / "coco", {"train": "trainval", "val": "test"})


def test_the_table_compares_with_the_first_arm():
    def runs(*values):
        return [{"bbox": {"AP": value, "AP50": 2 * value, "AP75": value}} for value in values]

    record = {"seeds": [0, 1], "arms": [{"label": "a", "runs": runs(10, 20)}, {"label": "b", "runs": runs(30, 31)}]}
    assert detection_report.table(record).splitlines()[2:] == [
        "| a | 15.0 | 30.0 | 15.0 | 10.0 / 20.0 |  |",
        "| b | 30.5 | 61.0 | 30.5 | 30.0 / 31.0 | +15.5 |",
    ]


def test_the_page_shows_the_record():
    docs = Path(__file__).parents[3] / "docs"
    record = json.loads((docs / "detection" / "record.json").read_text())
    page = (docs / "detection.md").read_text(encoding="utf-8")
    shown = page.split("<!-- begin study -->\n")[1].split("<!-- end study -->")[0]
    assert shown == detection_report.table(record)
