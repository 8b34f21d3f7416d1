"""Each table and figure from end to end on a handful of images, by `--limit`; and what the command refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from PIL import Image

from timm_gcp.cli import main
from timm_gcp.reproduce.catalog import ITEMS

TRIAL = ("--limit", 4, "--device", "cpu")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A folder that several tables share: what one has trained the others don't train again."""
    return tmp_path_factory.mktemp("shared")


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The CSV that was written, checked against the Markdown beside it."""
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    text = (folder / f"{name}.md").read_text()
    assert text.startswith(f"{ITEMS[name].title}: ") and "A trial with --limit 4" in text
    for row in rows:
        assert f"| {' | '.join([row[label] for label in ITEMS[name].labels])} |" in text
    return rows


def run(folder: Path, *words: object) -> list[dict[str, str]]:
    """Run in a trial and return the table."""
    assert main(["reproduce", *map(str, [*words, *TRIAL]), "--output", str(folder)]) == 0
    return table(folder, str(words[0]))


def test_table_1(shared, images):
    rows = run(shared, "table1", "--data-dir", images, "--models", "resnet18")
    assert [row["method"] for row in rows] == ["GAP", "GCP", "GCP", "GCP", "GAP + K-FAC"]
    cosine, conditioned = "cosine with the gradient, ours", "condition number, ours"
    assert float(rows[0][cosine]) == pytest.approx(1, abs=1e-5)  # C is a constant matrix
    assert float(rows[1][cosine]) > 0.9  # five iterations are nearly the exact root
    assert float(rows[3][conditioned]) == pytest.approx(1, abs=1e-3)  # F⁻¹ whitens in the eigenbasis
    assert rows[4][cosine] == "" and float(rows[4][conditioned]) > 1


def test_table_2_and_the_figures_that_share_its_runs(shared, images, capsys):
    rows = run(shared, "table2", "--data-dir", images, "--models", "shufflenet_v2_x1_0")
    assert [row["top-1, paper"] for row in rows] == ["67.96", "71.17"]
    assert [row["epochs, ours"] for row in rows] == ["2", "2"]
    assert all(0 <= float(row["top-1, ours"]) <= 100 for row in rows)
    assert rows[0]["matching epoch, ours"] == ""
    capsys.readouterr()
    rows = run(
        shared, "fig3", "--data-dir", images, "--models", "shufflenet_v2_x1_0-gap-norm", "shufflenet_v2_x1_0-gcp-adju"
    )
    printed = capsys.readouterr().out
    assert "== 1/2 train/shufflenet_v2_x1_0-gap-norm: finished" in printed and "timm-gcp train" not in printed
    assert [row["top-1, released"] for row in rows] == ["67.96", "71.17"]
    assert Image.open(shared / "fig3.png").width > 300


def test_table_3(command, out):
    assert command("table3")[0] == 0
    rows = list(csv.DictReader((out / "table3.csv").open(newline="")))
    assert len(rows) == 9 and Image.open(out / "table3.png").width > 800
    for row in rows:
        if (row["backbone"], row["lr"]) != ("MobileNetV2", "LR_adju"):  # which the release computes otherwise
            assert float(row["largest relative difference, ours"]) < 1e-9


def test_table_4(shared, images):
    pytest.importorskip("imagecorruptions", reason="the robustness extra isn't installed")
    rows = run(shared, "table4", "--data-dir", images, "--models", "shufflenet_v2_x1_0")
    assert [row["mCE, paper"] for row in rows] == ["92.7", "85.2"]
    for row in rows:
        assert row["mCE, ours"] == row["mFR, ours"] == ""  # no AlexNet in a trial
        for name in ("clean error %", "error under corruption %", "flips %"):
            assert 0 <= float(row[f"{name}, ours"]) <= 100
        assert float(row["top-5 distance, ours"]) >= 0


def test_table_5_and_figure_5(out, images):
    rows = run(out, "table5", "--data-dir", images, "--models", "mobilenetv2_100_gcp_d128")
    assert [(row["lr"], row["D"], row["top-1, paper"]) for row in rows] == [
        ("LR_norm", "128", "73.28"),
        ("LR_adju", "128", "72.58"),
    ]
    assert all(row["top-1, ours"] for row in rows)
    assert run(out, "fig5", "--data-dir", images, "--models", "mobilenetv2_100_gcp_d128") == rows
    assert Image.open(out / "fig5.png").width > 300


def test_table_6(out, images, coco):
    pytest.importorskip("faster_coco_eval", reason="the detection extra isn't installed")
    words = ("--data-dir", images, "--coco-dir", coco, "--models", "fasterrcnn_resnet50_gcp_d")
    (row,) = run(out, "table6", *words)
    assert row["AP, paper"] == "36.6" and 0 <= float(row["AP, ours"]) <= 100
    assert row["APL, ours"] == ""  # there are no large objects
    assert (out / "train" / "resnet50-gcp-norm" / "summary.csv").is_file()


def test_table_7(out, images, coco):
    pytest.importorskip("faster_coco_eval", reason="the detection extra isn't installed")
    words = ("--data-dir", images, "--coco-dir", coco, "--models", "maskrcnn_resnet50_gcp_m")
    (row,) = run(out, "table7", *words)
    assert row["AP, paper"] == "34.7" and 0 <= float(row["AP, ours"]) <= 100


def test_table_8(out, images, coco):
    pytest.importorskip("faster_coco_eval", reason="the detection extra isn't installed")
    rows = run(out, "table8", "--data-dir", images, "--coco-dir", coco, "--models", "resnet18")
    assert [row["method"] for row in rows] == ["w/o DS", "w/ DS"]
    for row in rows:
        assert 0 <= float(row["top-1, ours"]) <= 100 and 0 <= float(row["AP, ours"]) <= 100


def test_table_9(out, images, capsys):
    rows = run(out, "table9", "--models", "resnet18")
    for row in rows:
        assert float(row["parameters (M), ours"]) == pytest.approx(float(row["parameters (M), paper"]), abs=0.006)
        assert float(row["GMACs, ours"]) == pytest.approx(float(row["GMACs, paper"]), abs=0.02)
        assert float(row["training (ms/image), ours"]) > 0 and float(row["inference (ms/image), ours"]) > 0
        assert row["top-1, ours"] == ""
    capsys.readouterr()
    (row,) = run(out, "table9", "--data-dir", images, "--models", "resnet18_gcp")  # trains where there are images
    printed = capsys.readouterr().out
    assert "train/resnet18-gcp-8k-norm: new" in printed and "cost/resnet18-gcp-8k: finished" in printed
    assert row["top-1, paper"] == "75.07" and 0 <= float(row["top-1, ours"]) <= 100


def test_figure_1(shared, images):
    rows = run(shared, "fig1", "--data-dir", images, "--models", "resnet18")
    assert [(row["pooling"], row["lr"]) for row in rows] == [("GAP", "LR_norm"), ("GCP", "LR_fast")]
    assert Image.open(shared / "fig1.png").width > 300


def test_figure_2(out, images):
    rows = run(out, "fig2", "--data-dir", images, "--models", "mobilenetv2_100")
    assert [row["pooling"] for row in rows] == ["GAP", "GCP"]
    for row in rows:
        assert row["probes, ours"] == "2"
        assert float(row["mean width of Δl, ours"]) > 0 and float(row["mean width of Δg, ours"]) > 0
    assert Image.open(out / "fig2.png").width > 800


def test_figure_4(shared, images):
    rows = run(shared, "fig4", "--data-dir", images, "--models", "resnet18-gcp-fast", "resnet18-gcp-poly-8-53")
    assert [row["ρ-e_f"] for row in rows] == ["8-53", "11-53"]
    assert [row["top-1, released"] for row in rows] == ["", "72.02"]
    assert Image.open(shared / "fig4.png").width > 800


def test_appendix_2(command, out):
    assert command("appendixII")[0] == 0
    rows = list(csv.DictReader((out / "appendix2.csv").open(newline="")))
    assert len(rows) == 6 and all(row["float64, ours"] for row in rows)


def test_an_unfinished_run_goes_on_and_one_of_other_settings_is_refused(command, out, images, tmp_path):
    words = ("table2", "--data-dir", images, "--models", "shufflenet_v2_x1_0-gcp-adju", *TRIAL)
    assert command(*words)[0] == 0
    folder = out / "train" / "shufflenet_v2_x1_0-gcp-adju"
    lines = (folder / "summary.csv").read_text().splitlines()
    (folder / "summary.csv").write_text("\n".join(lines[:2]) + "\n")  # as if cut off in the second epoch
    (folder / "last.pth.tar").write_bytes((folder / "checkpoint-0.pth.tar").read_bytes())

    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, _, errors = command("table2", "--data-dir", images, "--models", words[4], "--limit", 6, "--device", "cpu")
    assert status == 1 and len(errors.splitlines()) == 1
    assert "was begun with batch_size 4, not 6; limit 4, not 6: choose another --output" in errors
    assert {path: path.read_bytes() for path in folder.iterdir()} == before

    status, printed, _ = command(*words)
    assert status == 0 and "adju: unfinished" in printed and "--resume" in printed and "epoch 2/2" in printed
    assert "epoch 1/2" not in printed
    assert len((folder / "summary.csv").read_text().splitlines()) == 3


def test_a_dry_run_writes_nothing_and_asks_for_nothing(command, out, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, printed, _ = command("table2", "--dry-run", "--gpus", 4, "--models", "resnet18")
    assert status == 0 and not out.exists()
    lines = printed.splitlines()
    assert lines[:2] == [
        "# Table 2: GAP under LR_norm and GCP under LR_adju",
        "# 2 jobs, 4 GPUs; results in " + str(out),
    ]
    assert [line.split(" -c ")[0] for line in lines if not line.startswith("#")] == [
        "torchrun --nproc-per-node=4 train.py",
        "torchrun --nproc-per-node=4 train.py",
    ]
    status, printed, _ = command("table3", "--dry-run")
    assert status == 0 and "nothing to run" in printed


@pytest.mark.parametrize("name", ITEMS)
def test_every_plan_can_be_printed(name, command, out):
    status, printed, _ = command(name, "--dry-run")
    assert status == 0 and printed.startswith(f"# {ITEMS[name].title}: ") and not out.exists()


def test_a_trial_has_a_folder_of_its_own(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for words, folder in (([], "reproduce"), (["--limit", "8"], "reproduce-limit-8")):
        assert main(["reproduce", "table5", "--dry-run", *words]) == 0
        assert f"results in output/{folder}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table2"], "this needs IMAGENET: give its folder"),
        (["table2", "--data-dir", "nowhere"], "--data-dir 'nowhere' is not IMAGENET"),
        (["table8", "--data-dir", "images"], "this needs COCO: give its folder"),
        (["table2", "--models", "alexnet"], "Table 2 has no rows of 'alexnet'; --models takes mobilenetv2_100, "),
        (["table2", "--weights", "published"], "--weights published is for table4, table6, table7"),
        (["table2", "--data-dir", "images", "--gpus", "4"], "4 GPUs train with timm's own train.py"),
        (["table2", "--train-py", "nowhere/train.py"], "no file 'nowhere/train.py'"),
        (["table2", "--limit", "1"], "--limit must be at least 4 images. Got 1."),
        (["table11"], "no table or figure 'table11'; there are table1, "),
    ],
)
def test_refusals_are_one_sentence(words, message, command, images, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").symlink_to(images)
    status, _, errors = command(*words)
    assert status == 1 and len(errors.splitlines()) == 1
    assert message in errors and errors.startswith("timm-gcp reproduce: error: ")
    assert not out.exists()
