"""Freed memory stays with a process that asks for it, counted in page faults, and with the programs that do."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from libc import needs_glibc

from timm_gcp import cli
from timm_gcp.common import freed_memory

# What the sixth of equal blocks of 64 MB takes from the system, as a share of it; the first ones find their place.
COUNT = """
import resource
import torch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(2**24).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for _ in range(5):
    faults()
print(faults() * resource.getpagesize() / 2**26)
"""
KEEP = "from timm_gcp.common.freed_memory import keep_freed_memory\nprint(keep_freed_memory())\n"


def run(*words: str, **environment: str) -> list[str]:
    """What a Python process prints, word by word."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=True,
        env=clean | {"OMP_NUM_THREADS": "1"} | environment,
    )
    return done.stdout.split()


@needs_glibc
def test_a_freed_block_is_used_again():
    kept, fresh = run("-c", KEEP + COUNT)
    assert kept == "True" and float(fresh) < 0.1
    (fresh,) = run("-c", COUNT)
    assert float(fresh) > 0.9


@needs_glibc
def test_settings_of_the_environment_stay():
    kept, fresh = run("-c", KEEP + COUNT, MALLOC_MMAP_THRESHOLD_="1000000")
    assert kept == "False" and float(fresh) > 0.9


@needs_glibc
def test_timm_scripts_keep_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(COUNT)
    (fresh,) = run("-m", "timm_gcp.run", str(script))
    assert float(fresh) < 0.1


@needs_glibc
def test_the_package_alone_leaves_the_process_as_it_is():
    (fresh,) = run("-c", "import timm_gcp\n" + COUNT)
    assert float(fresh) > 0.9


@pytest.mark.parametrize("name", freed_memory.SETTINGS)
def test_settings_are_seen(no_allocator_settings, monkeypatch, name):
    assert not freed_memory.has_settings()
    monkeypatch.setenv(name, "0")
    assert freed_memory.has_settings() and not freed_memory.keep_freed_memory()


def test_tunables_are_seen(no_allocator_settings, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=3")
    assert not freed_memory.has_settings()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=3:glibc.malloc.trim_threshold=1")
    assert freed_memory.has_settings()


@pytest.mark.parametrize("refused", [None, -4, -1])
def test_the_answer_of_the_library_is_told(no_allocator_settings, monkeypatch, refused):
    asked = []
    library = SimpleNamespace(
        gnu_get_libc_version=None, mallopt=lambda what, value: asked.append((what, value)) or int(what != refused)
    )
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(freed_memory.os, "name", "posix")
    assert freed_memory.keep_freed_memory() == (refused is None)
    assert asked == [(-4, 0), (-1, -1)][: 1 if refused == -4 else 2]


@pytest.mark.parametrize("system, library", [("nt", SimpleNamespace()), ("posix", SimpleNamespace(mallopt=None))])
def test_other_libraries_are_left_alone(no_allocator_settings, monkeypatch, system, library):
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(freed_memory.os, "name", system)
    assert not freed_memory.keep_freed_memory()


@pytest.mark.parametrize("own", [True, False])
def test_the_command_asks_in_its_own_process_alone(monkeypatch, capsys, own):
    asked = []
    monkeypatch.setattr(cli, "is_command_line", lambda: own)
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: asked.append(True))
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert asked == [True] * own and "timm-gcp" in capsys.readouterr().out
