"""The growth benchmark: its rule is the package's own, what is too large is left out by name, files are written."""

from __future__ import annotations

import csv
import sys
from types import SimpleNamespace

import bench_growth
import pytest
import torch
from bench_growth import FULL, Size, choice, estimated_bytes, point, regions

from timm_gcp.ops.choice import SPECTRAL_MIN_SIDE

CPU = torch.device("cpu")


def test_quick_run_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["bench_growth.py", "--quick", "--rounds", "1", "--max-gb", "0.00004", "--output", str(tmp_path)]
    )
    assert bench_growth.main() == 0
    with (tmp_path / "growth_cpu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["swept"], row["B"], row["D"], row["N"]) for row in rows[:4]] == [
        ("N", "2", "16", "9"),
        ("N", "2", "16", "16"),
        ("N", "2", "16", "25"),
        ("D", "2", "8", "16"),
    ]
    for row in rows:
        for name in ("ours", "reference"):
            measured = f"{name}: " not in row["left out"]
            assert bool(row[f"{name} ms"]) == bool(row[f"{name} saved MB"]) == measured
    assert "GB, more than 4e-05" in rows[-1]["left out"] and rows[3]["left out"] == ""
    assert (tmp_path / "growth_cpu.png").stat().st_size > 0
    assert (tmp_path / "growth_cpu.md").read_text().strip() == capsys.readouterr().out.strip()


def test_a_quick_run_leaves_the_documentation_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_growth.py", "--quick"])
    with pytest.raises(SystemExit):
        bench_growth.main()
    assert "give another --output than docs/performance" in capsys.readouterr().err


def test_a_slow_run_ends_its_sweep():
    stopped: dict[str, str] = {}
    args = SimpleNamespace(device=CPU, rounds=1, max_gb=1.0, max_seconds=0.0)
    sweep = bench_growth.QUICK[1][0]
    assert "s, more than 0" in point(sweep, sweep.sizes[0], stopped, args)["left out"]
    assert "a smaller size took" in point(sweep, sweep.sizes[1], stopped, args)["left out"]


def test_shading_is_the_rule():
    by_positions, by_dim, by_batch = FULL[1]
    spans = list(regions(by_positions, CPU))
    assert spans == [
        (49, SPECTRAL_MIN_SIDE, "N×N, products"),
        (SPECTRAL_MIN_SIDE, 256, "N×N, spectral"),
        (256, 12544, "D×D, spectral"),
    ]
    assert [name for *_, name in regions(by_dim, CPU)] == ["D×D, products", "D×D, spectral", "N×N, spectral"]
    assert list(regions(by_batch, CPU)) == [(1, 512, "N×N, spectral")]


@pytest.mark.parametrize("size", [Size(4, 64, 7), Size(4, 32, 14), Size(2, 16, 40)])
@pytest.mark.parametrize("name", bench_growth.POOLS)
def test_estimate_is_within_a_factor_of_two_and_a_half(name, size):
    from bench_common import peak_bytes

    x = torch.randn(size.batch, size.dim, size.side, size.side, requires_grad=True)
    pool = bench_growth.POOLS[name]
    grad = torch.randn_like(pool(x.detach()))
    peak = peak_bytes(lambda: torch.autograd.grad(pool(x), x, grad), CPU)
    assert peak / 2.5 < estimated_bytes(name, size, CPU) < peak * 2.5, peak


def test_choice_follows_the_package():
    assert choice(256, 49, CPU) == ("N×N", "products") and choice(256, 196, CPU) == ("N×N", "spectral")
