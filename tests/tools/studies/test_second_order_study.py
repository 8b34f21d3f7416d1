"""The equations along a study's run on a few images: the same training, its looks, tables, refusals."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from toy_images import TINY, image_folder
from toy_studies import write_study

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")
GCP = {"model": f"gcp:{TINY}", "model_kwargs": {"reduce_dim": 8}, "img_size": 64}  # maps of 2×2
UNTUNED = {"tune": {}, "runs": {"one": {"keys": GCP}, "avg": {}}}


def test_watched_run_is_the_studys_and_leaves_its_equations(run_tool, tool, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", train=16, validation=6)
    config = write_study(tmp_path / "toy.yaml", **UNTUNED)
    words = [config, "--data-dir", data, "--run", "one", "--every", 2, "--images", 4]
    words += ["--output", tmp_path / "out", "--docs", tmp_path / "docs"]
    assert run_tool("second_order_study", *words) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    rows = (tmp_path / "docs" / "equations.csv").read_text().splitlines()
    assert [float(row.split(",")[0]) for row in rows[1:]] == [0, 2, 4]  # three updates an epoch, two epochs
    assert "| cosine (ratio of norms) | update 0 | update 2 | update 4 |" in page
    assert (tmp_path / "docs" / "equations.png").stat().st_size > 1000
    assert len((tmp_path / "docs" / "spectra.csv").read_text().splitlines()) > 8

    study = tool("study_config").read_study(config)
    tool("compare").train_cell(study.entry("one").cells({})[0], study, str(data), tmp_path / "plain", test=False)
    plain, watched = ((tmp_path / name / "one-seed0" / "summary.csv").read_text() for name in ("plain", "out"))
    assert plain == watched

    before = (tmp_path / "out" / "one-seed0" / "last.pth.tar").stat().st_mtime_ns
    assert run_tool("second_order_study", *words) == 0
    assert (tmp_path / "out" / "one-seed0" / "last.pth.tar").stat().st_mtime_ns == before
    assert run_tool("second_order_study", config, "--tables", "--docs", tmp_path / "docs") == 0
    assert (tmp_path / "docs" / "results.md").read_text() == page


def test_published_tables_are_those_of_the_csv_files(run_tool, tmp_path: Path) -> None:
    published = TOOLS.parents[1] / "docs" / "optimization"
    shutil.copytree(published, tmp_path / "docs")
    assert run_tool("second_order_study", "unread.yaml", "--tables", "--docs", tmp_path / "docs") == 0
    results = (published / "results.md").read_text()
    assert (tmp_path / "docs" / "results.md").read_text() == results
    assert results.partition("-->")[2].strip() in published.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("changes", "words", "text"),
    [
        ({}, ["--run", "three", "--data-dir", "x"], "no run three in .*; it has avg, one"),
        ({}, ["--run", "one", "--data-dir", "gone"], "no folder 'gone'"),
        ({"tune": {"lr": [0.1], "epochs": 1}}, ["--run", "one", "--data-dir", "x"], "run one is tuned: .*--records"),
        (
            {"runs": {"one": {"keys": {"model_kwargs": {"start": "x"}}}}},
            ["--run", "one", "--data-dir", "x"],
            "--weights",
        ),
        ({}, ["--tables", "--docs", "gone"], "No such file .*equations.csv"),
    ],
)
def test_errors_are_one_sentence(run_tool, tmp_path: Path, monkeypatch, capsys, changes, words, text) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STUDY_WEIGHTS", raising=False)
    config = write_study(tmp_path / "toy.yaml", **{**UNTUNED, **changes})
    assert run_tool("second_order_study", config, *words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(text, error)


def test_a_run_without_covariance_pooling_is_refused(run_tool, tmp_path: Path, capsys) -> None:
    data = image_folder(tmp_path / "data", train=16, validation=6)
    config = write_study(tmp_path / "toy.yaml", **UNTUNED)
    words = ["--data-dir", data, "--run", "avg", "--output", tmp_path / "out", "--docs", tmp_path / "docs"]
    assert run_tool("second_order_study", config, *words) == 1
    assert re.search("has no GlobalCovPool2d", capsys.readouterr().err)
