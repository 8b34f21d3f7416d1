"""Modes of the benchmarks, what a device refuses, the budget of seconds, and the GPU script's own checks."""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import bench_models
import bench_modes
import bench_pooling
import pytest
import torch
from bench_modes import collect, device_of, parse_mode

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


def test_a_mode_is_its_words():
    mode = parse_mode("channels_last+bfloat16+compiled", CPU)
    assert (mode.precision, mode.channels_last, mode.compiled, mode.graphs) == ("bfloat16", True, True, False)
    assert mode.memory_format == torch.channels_last and mode.dtype == torch.bfloat16
    with mode.autocast(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    with parse_mode("compiled", CPU).autocast(CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_tf32_holds_inside_and_nowhere_else():
    assert not torch.backends.cuda.matmul.allow_tf32  # torch's default
    with bench_modes.Mode("tf32", precision="tf32").products():
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        with bench_modes.Mode("float32").products():
            assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("float31", "'float31'; join words of float32, tf32"),
        ("float16+bfloat16", "2 precisions; give one of"),
        ("float16+graphs", "use bfloat16"),
        ("tf32", "needs a CUDA GPU for tf32; leave it out on --device cpu"),
        ("bfloat16+graphs", "needs a CUDA GPU for graphs"),
    ],
)
def test_a_mode_that_cannot_be_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        parse_mode(text, CPU)


def test_an_old_gpu_has_no_tf32(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "T4")
    with pytest.raises(ValueError, match=r"T4 has no TF32.*leave it out"):
        parse_mode("tf32", torch.device("cuda"))


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(argparse.ArgumentTypeError, match="torch finds none"):
        device_of("cuda")
    with pytest.raises(argparse.ArgumentTypeError, match="'gpu' is no device"):
        device_of("gpu")


def test_collect_names_what_it_leaves_out(tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 100.0])
    monkeypatch.setattr(bench_modes.time, "monotonic", lambda: next(clock))

    def refused():
        raise RuntimeError("out of memory.\nmore")

    jobs = [("a", lambda: {"x": 1.0}), ("b", refused), ("c", lambda: {"x": 2.0})]
    args = SimpleNamespace(seconds=50.0, output=tmp_path, device=CPU)
    assert collect(jobs, "t_cpu", "about", args) == [{"x": 1.0}]
    text = (tmp_path / "t_cpu.md").read_text()
    assert text.endswith("Left out: b (RuntimeError: out of memory); c (after 50 s).\n")
    assert not list(tmp_path.glob("*.part"))


def test_collect_without_a_row_ends_with_a_sentence(tmp_path):
    with pytest.raises(SystemExit, match="No row was measured: a \\(RuntimeError: no\\)"):
        collect(
            [("a", lambda: (_ for _ in ()).throw(RuntimeError("no")))],
            "t",
            "",
            SimpleNamespace(seconds=None, output=tmp_path, device=CPU),
        )


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_main(module, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", [module.__name__, "--rounds", "1", *map(str, options)])
    return module.main()


def test_pooling_modes_have_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_modes, "WARM_UP", 1)
    run_main(bench_pooling, monkeypatch, "--shape", 2, 8, 3, "--without", "eigh", "--output", tmp_path,
             "--modes", "float32", "bfloat16+channels_last")  # fmt: skip
    rows = read(tmp_path / "pooling_cpu.csv")
    assert [row["mode"] for row in rows] == ["float32", "bfloat16+channels_last"]
    assert all(row["eigh f+b"] == "" and float(row["ours f+b"]) > 0 for row in rows)
    assert float(rows[1]["reference saved MB"]) < float(rows[0]["reference saved MB"])  # half the bytes


def test_model_modes_and_batches_have_rows(tmp_path, monkeypatch):
    small = ("--model", "test_resnet_gcp", "--img-size", 32, "--num-classes", 5, "--output", tmp_path)
    run_main(bench_models, monkeypatch, *small, "--modes", "float16", "--batch-size", 2, 3)
    options = ("--modes", "compiled", "--compile-backend", "eager", "--batch-size", 2, "--name", "compiled")
    run_main(bench_models, monkeypatch, *small, *options)
    rows = [row for name in ("models", "compiled") for row in read(tmp_path / f"{name}_cpu.csv")]
    assert [(row["mode"], row["batch"]) for row in rows] == [("float16", "2"), ("float16", "3"), ("compiled", "2")]
    assert rows[2]["GCP peak MB"] == "" and float(rows[0]["GCP peak MB"]) > 0


@pytest.mark.parametrize(
    ("module", "options", "match"),
    [
        (bench_pooling, ("--modes", "tf32"), "needs a CUDA GPU"),
        (bench_pooling, ("--shape", 1, 8, 3, "--rows", 1), "which --shape replaces"),
        (bench_models, ("--model", "resnet18_gcp", "--rows", 1), "which --model replaces"),
        (bench_models, ("--model", "no_such_net_gcp"), "no_such_net"),
    ],
)
def test_options_that_exclude_each_other(module, options, match, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_main(module, monkeypatch, *options)
    assert match in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--device", "cpu"), "--device cpu needs --quick"),
        (("--device", "tpu"), "--device is tpu; give cuda or cpu"),
        (("--device",), "--device needs a value"),
        (("--fast",), "unknown option --fast"),
        (("--device", "cpu", "--quick", "--reference", "nowhere.py"), "is no file"),
        (("--device", "cpu", "--quick", "--output", "docs"), "another --output than docs"),
        ((), "torch finds no CUDA GPU"),
    ],
)
def test_gpu_script_refuses_in_one_sentence(options, match, tmp_path):
    python = tmp_path / "python"  # answers "is there everything?" with yes and "is there a GPU?" with no
    python.write_text('#!/bin/sh\ncase "$2" in *cuda*) exit 1 ;; *) exit 0 ;; esac\n')
    python.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "TIMM_TESTS_DIR"}
    done = subprocess.run(
        ["bash", "tools/bench/gpu.sh", *options],
        cwd=ROOT,
        env={**environment, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and match in done.stderr and len(done.stderr.splitlines()) == 1


def test_gpu_script_stays_below_eight_minutes():
    text = (ROOT / "tools/bench/gpu.sh").read_text()
    limits = next(line for line in text.splitlines() if line.startswith("limits=("))
    assert sum(map(int, limits.removeprefix("limits=(").rstrip(")").split())) < 480
