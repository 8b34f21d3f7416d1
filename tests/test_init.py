"""`import timm_gcp`: what it registers, in either order of imports, and what it leaves alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

import timm_gcp


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("imports", ["import timm, timm_gcp", "import timm_gcp, timm", "import timm_gcp, timm.models"])
def test_models_are_registered_whichever_comes_first(imports: str) -> None:
    check = (
        "import sys; spec = sys.modules['timm'].__spec__; "
        "print(len(__import__('timm').list_models('*_gcp*')), type(spec.loader).__name__)"
    )
    assert run(f"{imports}\n{check}") == "19 SourceFileLoader"  # eight of the paper, eleven swaps


def test_public_names() -> None:
    code = "import timm_gcp; print(timm_gcp.swap_pooling.__name__, timm_gcp.GlobalCovPool2d.__name__, dir(timm_gcp))"
    printed = run(code)
    assert printed.startswith("swap_pooling GlobalCovPool2d")
    assert all(name in printed for name in timm_gcp.__all__)
    assert timm_gcp.functional.global_cov_pool


def test_the_analyses_stay_out() -> None:
    code = (
        "import sys, timm, timm_gcp; print(sorted({name.split('.')[1] for name in sys.modules "
        "if name.startswith('timm_gcp.')} & {'train', 'commands', 'plots', 'detection', 'landscape', 'robustness'}))"
    )
    assert run(code) == "[]"
