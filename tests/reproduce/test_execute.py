"""What is skipped, what goes on, what is refused, and how commands are run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from timm_gcp.reproduce.execute import SETTINGS, execute, show, state
from timm_gcp.reproduce.jobs import Job


class Recorder:
    """Jobs that write `result`, or `checkpoint` when they are cut off, and the commands that were run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran, self.cut_off = folder, [], False

    def job(self, name: str = "a", **settings) -> Job:
        folder = self.folder / name
        checkpoint = folder / "checkpoint"
        return Job(
            folder,
            ("timm-gcp", "train", name),
            {"lr": 0.1, "ratio": (1, 2), **settings},
            (folder / "result").is_file,
            lambda: ("--resume", "checkpoint") if checkpoint.is_file() else (),
            fresh=(folder / "probes",),
        )

    def run(self, words) -> int:
        self.ran.append(list(words))
        (self.folder / words[1] / ("checkpoint" if self.cut_off else "result")).write_text("")
        return 0


@pytest.fixture
def recorder(tmp_path) -> Recorder:
    return Recorder(tmp_path)


def test_new_jobs_run_in_order_and_finished_ones_do_not_run_again(recorder, capsys):
    jobs = [recorder.job("a"), recorder.job("b")]
    execute(jobs, recorder.run)
    assert recorder.ran == [["train", "a"], ["train", "b"]]
    assert "== 2/2" in capsys.readouterr().out
    assert json.loads((recorder.folder / "a" / SETTINGS).read_text()) == {"lr": 0.1, "ratio": [1, 2]}
    execute(jobs, recorder.run)
    assert len(recorder.ran) == 2
    assert [state(job) for job in jobs] == ["finished", "finished"]


def test_an_unfinished_job_goes_on(recorder):
    recorder.cut_off = True
    with pytest.raises(RuntimeError, match=r"a ended without all of its results; see what it printed"):
        execute([recorder.job()], recorder.run)
    (recorder.folder / "a" / "probes").write_text("kept")
    assert state(recorder.job()) == "unfinished"
    recorder.cut_off = False
    execute([recorder.job()], recorder.run)
    assert recorder.ran[-1] == ["train", "a", "--resume", "checkpoint"]
    assert (recorder.folder / "a" / "probes").is_file()


def test_one_that_left_no_checkpoint_starts_afresh(recorder):
    job = recorder.job()
    with pytest.raises(RuntimeError, match="failed with exit status 3; run this again to let it go on"):
        execute([job], lambda words: 3)
    (job.folder / "probes").write_text("of the first try")
    execute([job], recorder.run)
    assert recorder.ran == [["train", "a"]] and not (job.folder / "probes").exists()


def test_other_settings_are_refused_before_anything_runs_and_nothing_is_lost(recorder):
    recorder.cut_off = True
    with pytest.raises(RuntimeError, match="ended without"):
        execute([recorder.job("b")], recorder.run)
    before = {path: path.read_bytes() for path in recorder.folder.rglob("*") if path.is_file()}
    ran = len(recorder.ran)
    message = r"b' was begun with lr 0.1, not 0.2; wd None, not 1: choose another --output, .* Nothing was changed\.$"
    with pytest.raises(ValueError, match=message):
        execute([recorder.job("a"), recorder.job("b", lr=0.2, wd=1)], recorder.run)
    assert len(recorder.ran) == ran
    assert {path: path.read_bytes() for path in recorder.folder.rglob("*") if path.is_file()} == before


def test_finished_ones_of_other_settings_are_not_taken_either(recorder):
    execute([recorder.job()], recorder.run)
    with pytest.raises(ValueError, match=r"was begun with lr 0\.1, not 0\.2"):
        show([recorder.job(lr=0.2)])


def test_foreign_and_damaged_folders_are_refused(recorder):
    job = recorder.job()
    job.folder.mkdir()
    assert state(job) == "new"
    (job.folder / ".part").write_text("")  # of a write that was cut off
    assert state(job) == "new"
    (job.folder / "summary.csv").write_text("epoch\n")
    with pytest.raises(ValueError, match="holds files, but no run that timm-gcp reproduce began"):
        state(job)
    (job.folder / SETTINGS).write_text("{")
    with pytest.raises(ValueError, match=r"reproduce.json' is damaged \(.*\): choose another --output"):
        state(job)


def test_the_plan_is_a_script(recorder):
    execute([recorder.job("a")], recorder.run)
    recorder.cut_off = True
    with pytest.raises(RuntimeError, match="ended without"):
        execute([recorder.job("b")], recorder.run)
    jobs = [recorder.job(name) for name in "abc"]
    jobs.append(Job(recorder.folder / "d", ("torchrun", "train.py", "a b"), {}, bool, environment={"X": '{"a":1}'}))
    parent = recorder.folder.name
    assert show(jobs).splitlines() == [
        f"# {parent}/a: finished",
        f"# {parent}/b: unfinished",
        "timm-gcp train b --resume checkpoint",
        f"# {parent}/c: new",
        "timm-gcp train c",
        f"# {parent}/d: new",
        """X='{"a":1}' torchrun train.py 'a b'""",
    ]


def test_an_action_takes_the_place_of_its_command(tmp_path):
    result = tmp_path / "x" / "result"
    job = Job(tmp_path / "x", ("timm-gcp", "cost"), {}, result.is_file, action=lambda: result.write_text(""))
    execute([job], lambda words: pytest.fail("a command was run"))


def test_torchrun_starts_a_process_for_each_gpu(tmp_path, capfd):
    """The script takes train.py's place; gloo and nccl stay out of it."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "rank = os.environ['RANK']\n"
        "words = [os.environ['WORLD_SIZE'], os.environ['X'], *sys.argv[2:]]\n"
        "pathlib.Path(sys.argv[1], rank).write_text(' '.join(words))\n"
    )
    folder = tmp_path / "run"
    job = Job(
        folder,
        ("torchrun", "--nproc-per-node=2", str(script), str(folder), "--lr", "0.1"),
        {},
        lambda: all((folder / rank).is_file() for rank in "01"),
        environment={"X": "y"},
    )
    execute([job], lambda words: pytest.fail("run in this process"))
    assert (folder / "0").read_text() == (folder / "1").read_text() == "2 y --lr 0.1"
    script.write_text("raise SystemExit(3)")
    failing = Job(tmp_path / "other", job.command, {}, bool, environment={"X": "y"})
    with pytest.raises(RuntimeError, match="failed with exit status 1"):
        execute([failing], lambda words: 0)
