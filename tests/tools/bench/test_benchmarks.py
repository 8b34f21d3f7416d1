"""The benchmark scripts: the baseline is the authors' algorithm, the accounting is right, the tables are written."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import bench_allocator
import bench_common
import bench_forms
import bench_models
import bench_pooling
import bench_poolings
import numpy as np
import pytest
import torch
from libc import needs_glibc
from reference_pooling import reference_pool

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("case", range(5))
def test_reference_is_the_authors_algorithm(case):
    """To rounding error, the float32 centring matrix included."""
    golden = np.load(ROOT / "tests" / "data" / "authors" / "pooling_golden.npz")
    x = torch.tensor(golden[f"x{case}"], requires_grad=True)
    value = reference_pool(x)
    (grad,) = torch.autograd.grad(value, x, torch.tensor(golden[f"gvec{case}"]))
    torch.testing.assert_close(value.detach(), torch.tensor(golden[f"vec{case}"]), atol=1e-13, rtol=0)
    torch.testing.assert_close(grad, torch.tensor(golden[f"gx{case}"]), atol=1e-13, rtol=0)


def test_saved_bytes_counts_each_storage_once():
    x = torch.ones(10, 10, requires_grad=True)
    assert bench_common.saved_bytes(lambda: (x * x).sin()) == 2 * 400  # x, twice the same storage, and x·x


def test_peak_bytes():
    def run():
        a = torch.ones(1000)
        b = a + 1
        del a
        return b + 1

    assert bench_common.peak_bytes(run, torch.device("cpu")) == 2 * 4000


def test_operations_are_counted_by_kind_and_timed_alone(monkeypatch):
    a, cpu, threads = torch.randn(2, 8, 8), torch.device("cpu"), torch.get_num_threads()
    seen = []
    monkeypatch.setattr(bench_common, "seconds_of", lambda run, device: seen.append(run().shape) or 0.5)

    def run():
        torch.baddbmm(a, a @ a.mT, a, alpha=0.5) + a @ a.mT
        return a.exp().mul_(2).mT

    each = bench_common.alone(run, 1, cpu)
    assert each.kernels_ms == pytest.approx(1500)  # two products of one kind, one of another
    assert each.all_ms == pytest.approx(3000) and each.calls == 6  # and a sum, exp, mul_; no view
    assert seen == [(2, 8, 8)] * 20 and torch.get_num_threads() == threads  # each kind warmed up and timed once


def test_an_operation_timed_alone_has_the_arguments_it_had():
    a, cpu = torch.randn(3, 4, 4), torch.device("cpu")
    index = torch.tensor([[3, 0]]).expand(3, -1)
    counter = torch.zeros(1)
    assert bench_common.alone(lambda: torch.linalg.eigh(a @ a.mT), 2, cpu).kernels_ms > 0
    gather = bench_common.alone(lambda: a.flatten(1).gather(1, index), 2, cpu)  # an index out of range would raise
    assert gather.all_ms > gather.kernels_ms == 0 and gather.calls == 1
    bench_common.alone(lambda: counter.add_(1), 5, cpu)
    assert counter.item() == 1  # timing works on copies


def test_interleaved_gives_the_median_of_each_run():
    turns = []
    times = bench_common.interleaved(
        {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, 2, torch.device("cpu"), ""
    )
    assert turns == ["a", "b"] * (2 + bench_common.WARM_UP)
    assert set(times) == {"a", "b"} and min(times.values()) >= 0


def test_missing_reference_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        bench_pooling.authors_pool(tmp_path / "nowhere.py")


def test_pooling_benchmark_writes_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_pooling, "SHAPES", [(2, 8, 3)])
    monkeypatch.setattr(
        sys, "argv", ["bench_pooling.py", "--rounds", "1", "--modes", "float32", "--output", str(tmp_path)]
    )
    assert bench_pooling.main() == 0
    rows = list(csv.DictReader((tmp_path / "pooling_cpu.csv").open()))
    assert rows[0]["B, D, map"] == "2, 8, 3×3" and float(rows[0]["ours f+b"]) > 0
    assert (tmp_path / "pooling_cpu.md").read_text().strip() == capsys.readouterr().out.strip()
    assert (tmp_path / "pooling_cpu.png").stat().st_size > 0


def test_both_forms_are_measured_beside_what_is_taken(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_forms, "SIDES", (3, 10))
    monkeypatch.setattr(bench_forms, "BATCHES", (2,))
    monkeypatch.setattr(sys, "argv", ["bench_forms.py", "--rounds", "1", "--output", str(tmp_path)])
    assert bench_forms.main() == 0
    with (tmp_path / "forms_cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["map"], row["training, auto"], row["inference, auto"]) for row in rows] == [
        ("3×3", "products", "products"),
        ("10×10", "spectral", "products"),
    ]
    for what in ("training", "inference"):
        products, spectral = (float(rows[0][f"{what}, {form}"]) for form in ("products", "spectral"))
        assert float(rows[0][f"{what}, spectral / products"]) == pytest.approx(spectral / products)
    assert (tmp_path / "forms_cpu.md").read_text().strip() == capsys.readouterr().out.strip()


@needs_glibc
def test_both_ways_with_freed_memory_take_turns(no_allocator_settings, tmp_path, monkeypatch, capsys):
    options = ["--model", "test_resnet_gcp", "--img-size", "32", "--num-classes", "3", "--batch-size", "2"]
    command = ["bench_allocator.py", *options, "--rounds", "1", "--threads", "1", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    assert bench_allocator.main() == 0
    with (tmp_path / "allocator_cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["run"]) for row in rows] == [
        ("test_resnet_gcp", "inference"),
        ("test_resnet_gcp", "training step"),
    ]
    for row in rows:
        ms = {key: float(row[key]) for key in ("GAP, given back", "GAP, kept", "GCP, given back", "GCP, kept")}
        assert float(row["GCP: kept / given back"]) == pytest.approx(ms["GCP, kept"] / ms["GCP, given back"])
        assert float(row["GCP / GAP, kept"]) == pytest.approx(ms["GCP, kept"] / ms["GAP, kept"])
        assert float(row["GCP peak MB, kept"]) > 50
    assert (tmp_path / "allocator_cpu.md").read_text().strip() == capsys.readouterr().out.strip()


def test_the_allocator_benchmark_refuses_what_it_would_not_measure(monkeypatch, capsys):
    for settings, options, sentence in (
        ("1", [], "the environment sets glibc's allocator"),
        ("", ["--rounds", "0"], "--rounds 0: give at least 1"),
    ):
        monkeypatch.setattr(bench_allocator, "has_settings", lambda settings=settings: bool(settings))
        monkeypatch.setattr(sys, "argv", ["bench_allocator.py", *options])
        with pytest.raises(SystemExit):
            bench_allocator.main()
        assert sentence in capsys.readouterr().err


def test_a_process_that_ends_early_is_told():
    args = argparse.Namespace(threads=1, batch_size=1, device=torch.device("cpu"), num_classes=3, img_size=32)
    sentence = "a process of no_such_model_gcp ended before its time"
    with (
        bench_allocator.server(False, "no_such_model_gcp", {}, args) as ask,
        pytest.raises(RuntimeError, match=sentence),
    ):
        ask("inference")


@pytest.mark.parametrize("kept", [True, False])
def test_model_benchmark_writes_its_table(tmp_path, monkeypatch, kept):
    monkeypatch.setattr(bench_models, "MODELS", [("shufflenet_v2_x1_0_gcp", {"reduce_dim": 8})])
    monkeypatch.setattr(
        sys, "argv", ["bench_models.py", "--rounds", "1", "--batch-size", "2", "--output", str(tmp_path)]
    )
    monkeypatch.setattr(bench_models, "keep_freed_memory", lambda: kept)
    assert bench_models.main() == 0
    assert ("freed memory kept" in (tmp_path / "models_cpu.md").read_text()) == kept
    rows = list(csv.DictReader((tmp_path / "models_cpu.csv").open()))
    assert float(rows[0]["train ratio"]) > 0


def test_every_pooling_has_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_poolings, "SHAPES", [(2, 8, 3)])
    monkeypatch.setattr(sys, "argv", ["bench_poolings.py", "--rounds", "1", "--output", str(tmp_path)])
    assert bench_poolings.main() == 0
    with (tmp_path / "poolings_cpu.csv").open() as file:
        rows = {row["pooling"]: row for row in csv.DictReader(file)}
    assert set(bench_poolings.NORMALIZATIONS) < set(rows)
    assert len(rows) == 1 + len(bench_poolings.NORMALIZATIONS) + len(bench_poolings.CROSS_NORMALIZATIONS) + 1
    assert (rows["average"]["numbers"], rows["isice"]["numbers"], rows["cross svd"]["numbers"]) == ("8", "36", "16")
    assert all(float(row["f+b"]) > 0 for row in rows.values())
    assert "SoT, 6 heads of 24" in capsys.readouterr().out
