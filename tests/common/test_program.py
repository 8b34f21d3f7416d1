"""Which program runs: the rule itself, then real processes in which torch is, or is not, imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from timm_gcp.common.program import is_command_line

ROOT = Path(__file__).parents[2]
SCRIPT = "from timm_gcp.cli import main\nimport sys\nstatus = main()\nsys.exit(status)\n"  # as installers write it
PLAIN = """
import sys
sys.argv = ["timm-gcp", "weights", "list"]
import timm_gcp
assert "resnet50_gcp" in sys.modules["timm"].list_models()
assert callable(timm_gcp.swap_pooling)
"""


def rule(monkeypatch, argv: list[str], orig_argv: list[str], main: str | None) -> bool:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    module = SimpleNamespace() if main is None else SimpleNamespace(__file__=main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return is_command_line()


@pytest.mark.parametrize("main", ["/usr/bin/timm-gcp", "bin/timm-gcp.exe/__main__.py", "bin/timm-gcp-script.py"])
def test_the_installed_script(monkeypatch, main):
    assert rule(monkeypatch, ["whatever"], ["python", "whatever"], main)


@pytest.mark.parametrize("before", [[], ["-u", "-X", "importtime"]])
@pytest.mark.parametrize("named", [["-m", "timm_gcp.cli"], ["-mtimm_gcp.cli"]])
@pytest.mark.parametrize("after", [[], ["weights", "list"]])
def test_the_module(monkeypatch, before, named, after):
    assert rule(monkeypatch, ["-m", *after], ["python", *before, *named, *after], None)


@pytest.mark.parametrize(
    "argv, orig_argv, main",
    [
        (["timm-gcp", "--help"], ["python", "demo.py"], "demo.py"),  # a script that calls the command itself
        (["demo.py", "-m", "timm_gcp.cli"], ["python", "demo.py", "-m", "timm_gcp.cli"], "demo.py"),
        (["-c"], ["python", "-c", "import timm_gcp"], None),
        (["-m", "timm_gcp.cli"], ["python", "-m", "pytest", "timm_gcp.cli"], None),
        (["-m", "x"], ["python", "-m", "timm_gcp.run", "x"], None),
        (["bin/timm-gcp", "train"], ["python", "-c", "from multiprocessing.spawn import spawn_main"], None),
        ([], ["python"], None),
        (["x"], ["python", "x"], "timm-gcp/x.py"),
        (["x"], ["python", "x"], "timm-gcp.py"),
    ],
)
def test_other_programs(monkeypatch, argv, orig_argv, main):
    assert not rule(monkeypatch, argv, orig_argv, main)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Packages that a process imported, by Python's own report."""
    return {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}


@pytest.fixture
def ways(tmp_path) -> list[list[object]]:
    """The two ways to start the command."""
    script = tmp_path / "timm-gcp"
    script.write_text(SCRIPT)
    return [[script], ["-m", "timm_gcp.cli"]]


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--help"], "landscape"),
        (["--version"], "torch"),
        (["weights", "list"], "resnet50_gcp.norm_in1k"),
        (["weights", "list", "--json"], '"params"'),
        (["weights", "import", "--help"], "--triangle-order"),
    ],
)
def test_answers_without_torch(ways, words, shown):
    for way in ways:
        done = run(*way, *words)
        assert shown in done.stdout
        assert not imported(done) & {"torch", "timm", "torchvision", "numpy"}


def test_models_are_registered_where_a_command_needs_them(ways):
    for way in ways:
        done = run(*way, "cost", "--model", "shufflenet_v2_x1_0_gcp", "--no-time", "--img-size", "64")
        assert "shufflenet_v2_x1_0_gcp" in done.stdout


def test_any_other_program_registers_the_models(tmp_path):
    script = tmp_path / "demo.py"
    script.write_text(PLAIN)
    run(script, "-m", "timm_gcp.cli")


def test_public_names_are_there_before_they_are_needed(tmp_path):
    script = tmp_path / "timm-gcp"
    script.write_text(
        "import sys, timm_gcp\nassert 'torch' not in sys.modules\n"
        "assert set(timm_gcp.__all__) <= {name for name in timm_gcp.__all__ if hasattr(timm_gcp, name)}\n"
        "assert not hasattr(timm_gcp, 'other') and timm_gcp.swap_pooling is timm_gcp.models.swap_pooling\n"
        "assert callable(timm_gcp.functional.covariance)\n"
    )
    run(script)
