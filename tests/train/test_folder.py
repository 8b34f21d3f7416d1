"""A run's folder: another run in it is not lost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from timm_gcp.train.folder import begin_run, check_free, kept, run_folder


def settings(**values):
    return SimpleNamespace(**{"output": "", "experiment": "", **values})


def test_names(tmp_path):
    assert str(run_folder(settings(), "now")) == "output/train/now"
    assert run_folder(settings(output=str(tmp_path), experiment="a/b"), "now") == tmp_path / "a" / "b"
    for name in ("../x", "/abs", "a/../../b"):
        with pytest.raises(ValueError, match="leads out of the folder of runs: name that with --output"):
            run_folder(settings(experiment=name), "now")


@pytest.mark.parametrize("name", ["last.pth.tar", "model_best.pth.tar", "checkpoint-3.pth.tar", "summary.csv"])
def test_another_run_is_refused_or_replaced(tmp_path, name):
    (tmp_path / name).write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (None, "", "elsewhere/last.pth.tar"):
        with pytest.raises(FileExistsError, match=r"holds a run already: .* or replace it by --force"):
            begin_run(tmp_path, resume, False)
    begin_run(tmp_path, str(tmp_path / "last.pth.tar"), False)
    begin_run(tmp_path, str(tmp_path / "last.pth.tar"), True)
    assert (tmp_path / name).read_text() == "old"  # going on with a run replaces nothing
    check_free(tmp_path, None, True)
    begin_run(tmp_path, None, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_settings_alone_are_no_run(tmp_path):
    (tmp_path / "args.yaml").write_text("lr: 1\n")
    begin_run(tmp_path, None, False)
    begin_run(tmp_path / "new", None, False)


def test_what_was_kept(tmp_path):
    assert kept(tmp_path) == f"{tmp_path} has no checkpoint of it: start again."
    (tmp_path / "last.pth.tar").touch()
    assert kept(tmp_path).endswith(f"go on with --resume {tmp_path / 'last.pth.tar'}.")
    with pytest.raises(FileExistsError, match=r"go on with it by --resume .*last.pth.tar"):
        check_free(tmp_path, None, False)
