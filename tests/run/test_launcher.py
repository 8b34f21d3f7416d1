"""The launcher: a script of timm's kind, unchanged, knows our models and schedules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from timm_gcp import __version__, cli
from timm_gcp.run import main

SCRIPT = """
import sys
from beside import WORD
from timm.models import create_model
from timm.scheduler import create_scheduler_v2

if __name__ == "__main__":
    model = create_model("resnet18_gcp", num_classes=3, reduce_dim=8)
    print(WORD, type(model).__name__, hasattr(create_scheduler_v2, "_timm_gcp_original"), *sys.argv[1:])
    sys.exit(7)
"""
TIMM_SCRIPTS = os.environ.get("TIMM_SCRIPTS", "")


def test_a_script_knows_our_models(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    command = [sys.executable, "-m", "timm_gcp.run", str(tmp_path / "script.py"), "--model", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split() == ["found", "ResNetGcp", "True", "--model", "x"]


def test_no_script(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: python -m timm_gcp.run SCRIPT")
    assert main(["--help"]) == 0
    capsys.readouterr()
    assert main(["no_such.py"]) == 2
    assert "no script 'no_such.py': name a file of timm's repository" in capsys.readouterr().err


@pytest.mark.skipif(not TIMM_SCRIPTS, reason="TIMM_SCRIPTS names no checkout of timm")
def test_timms_validate(tmp_path):
    from toy_images import image_folder

    data = image_folder(tmp_path, classes=3)
    arguments = ["--model", "shufflenet_v2_x1_0_gcp", "--num-classes", "3", "--data-dir", str(data), "--device", "cpu"]
    arguments += ["--model-kwargs", "reduce_dim=8", "--img-size", "32", "--workers", "0", "--batch-size", "8"]
    command = [sys.executable, "-m", "timm_gcp.run", str(Path(TIMM_SCRIPTS) / "validate.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"top1"' in done.stdout


def test_version(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.startswith(f"timm-gcp {__version__} (timm 1.")
