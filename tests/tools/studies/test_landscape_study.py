"""The landscape of a study's runs on a few images: same trainings, probes, tables, refusals."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from toy_images import image_folder
from toy_studies import STUDY, write_study

TOOLS = Path(__file__).parents[3] / "tools" / "studies"
pytestmark = pytest.mark.skipif(not TOOLS.is_dir(), reason="tools/ comes with a checkout, not with the wheel")
UNTUNED = {"tune": {}, "runs": {"one": {"label": "One"}, "two": {"keys": {"momentum": 0.5}, "against": "one"}}}


def test_probed_runs_are_the_studys_and_leave_their_landscape(run_tool, tool, tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", train=16, validation=6)
    config = write_study(tmp_path / "toy.yaml", **UNTUNED)
    words = [config, "--data-dir", data, "--output", tmp_path / "out", "--docs", tmp_path / "docs"]
    words += ["--runs", "one", "two", "--every", 1, "--images", 4, "--points", 3]
    assert run_tool("landscape_study", *words) == 0
    page = (tmp_path / "docs" / "results.md").read_text()
    probes = {name: (tmp_path / "docs" / f"{name}.csv").read_text() for name in ("one", "two")}
    assert [text.count("\n") for text in probes.values()] == [7, 7]  # three updates an epoch
    assert "3 step sizes in [0.05, " in page
    assert "**Updates 0 to 5**" in page
    assert "**Updates 3 to 5**" in page
    assert "| One | 6 |" in page
    assert (tmp_path / "docs" / "landscape.png").stat().st_size > 1000

    study = tool("study_config").read_study(config)
    cell = study.entry("two").cells({})[0]
    tool("compare").train_cell(cell, study, str(data), tmp_path / "plain", test=False)
    plain, probed = ((tmp_path / name / "two-seed0" / "summary.csv").read_text() for name in ("plain", "out"))
    assert plain == probed
    assert f"{float(plain.splitlines()[-1].split(',')[3]):.2f} |" in page

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.tar")}
    assert run_tool("landscape_study", *words) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.tar")} == before
    assert run_tool("landscape_study", config, "--tables", "--docs", tmp_path / "docs", "--runs", "one", "two") == 0
    assert (tmp_path / "docs" / "results.md").read_text() == page


def test_a_study_without_its_start_weights_does_not_begin(run_tool, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delenv("STUDY_WEIGHTS", raising=False)
    keys = {**STUDY["keys"], "model_kwargs": {"start": "photos"}}
    words = [write_study(tmp_path / "toy.yaml", **UNTUNED, keys=keys), "--data-dir", "gone", "--runs", "one"]
    for extra, text in (([], "starts from the weights 'photos'.* --weights"), (["--weights", "w"], "no .*photos")):
        assert run_tool("landscape_study", *words, *extra) == 1
        assert re.search(text, capsys.readouterr().err)


def test_published_tables_are_those_of_the_csv_files(run_tool, tmp_path: Path) -> None:
    published = TOOLS.parents[1] / "docs" / "landscape"
    shutil.copytree(published, tmp_path / "docs")
    config = TOOLS / "configs" / "tiny_imagenet.yaml"
    words = ["--tables", "--docs", tmp_path / "docs", "--runs", "gap-adju", "gcp-adju"]
    assert run_tool("landscape_study", config, *words) == 0
    results = (published / "results.md").read_text()
    assert (tmp_path / "docs" / "results.md").read_text() == results
    assert results.partition("-->")[2].strip() in published.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("changes", "words", "text"),
    [
        ({}, ["--runs", "three"], "no run three in .*; it has one, two"),
        ({}, ["--runs", "one", "--data-dir", "gone"], "no folder 'gone'"),
        ({"tune": {"lr": [0.1], "epochs": 1}}, ["--runs", "one", "--data-dir", "x"], "run one is tuned: .*--records"),
        ({}, ["--runs", "one", "--tables", "--docs", "gone"], "No such file .*one.csv"),
    ],
)
def test_errors_are_one_sentence(run_tool, tmp_path: Path, monkeypatch, capsys, changes, words, text) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_study(tmp_path / "toy.yaml", **{**UNTUNED, **changes})
    assert run_tool("landscape_study", config, *words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(text, error)
