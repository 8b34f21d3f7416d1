"""The step benchmark: its parts are the model's own step, its floors count what they say, rows are kept on demand."""

from __future__ import annotations

import argparse
import csv
import sys

import bench_step
import pytest
import torch
from torch.nn.functional import cross_entropy

import timm_gcp

SMALL = ["--img-size", "64", "--num-classes", "3", "--batch-size", "2", "--rounds", "1", "--warm-up", "0"]


@pytest.fixture
def step():
    torch.manual_seed(0)
    args = argparse.Namespace(device=torch.device("cpu"), num_classes=3, batch_size=2, img_size=64)
    return bench_step.Step("shufflenet_v2_x1_0_gcp", {"reduce_dim": 8}, args)


def test_parts_are_the_head_of_the_model(step):
    seen: dict[str, torch.Tensor] = {}

    def keep(times, part, run, tensors):
        seen[part] = run()
        return seen[part]

    for optimizer in step.updates.values():
        optimizer.param_groups[0]["lr"] = 0.0
    step.head(keep)
    model = step.model
    found = {
        name: p.grad.clone() for name, p in model.named_parameters() if name.split(".")[0] in ("global_pool", "fc")
    }
    model.zero_grad()
    torch.manual_seed(0)
    assert list(seen) == [
        "clear", *(f"{part} forward" for part in ("reduction", "pooling", "classifier")),
        *(f"{part} backward" for part in ("classifier", "pooling", "reduction")), "update", "fused update",
    ]  # fmt: skip
    loss = seen["classifier forward"].detach()
    logits = model.fc(model.global_pool(step.maps))
    targets = [torch.tensor([a, b]) for a in range(3) for b in range(3)]
    wanted = min((cross_entropy(logits, y) for y in targets), key=lambda value: (value - loss).abs().item())
    torch.testing.assert_close(wanted, loss)
    wanted.backward()
    for name, p in model.named_parameters():
        if name in found:
            torch.testing.assert_close(p.grad, found[name], rtol=1e-4, atol=1e-6)


def test_floors_are_counted(step):
    batch, classes, width, (channels, height, length) = 2, 3, 36, step.maps.shape[1:]
    by_flops = step.floors(1.0, float("inf"))
    assert by_flops["classifier forward"] == 2e3 * batch * width * classes
    assert by_flops["classifier backward"] == 4e3 * batch * width * classes
    assert by_flops["reduction forward"] == 2e3 * batch * channels * 8 * height * length
    assert by_flops["update"] == 0
    by_bytes = step.floors(float("inf"), 1.0)
    parameters = sum(p.numel() for p in step.model.parameters())
    assert by_bytes["fused update"] == by_bytes["update"] == 5 * 4e3 * parameters
    weights = classes * (width + 1)
    assert by_bytes["classifier forward"] == 4e3 * (batch * width + weights + 1)
    assert by_bytes["classifier backward"] == 4e3 * (2 * batch * width + 2 * weights + 1)


def test_new_memory_is_a_time():
    assert abs(bench_step.new_memory(torch.zeros(10), 2)) < 1e3


def test_table(tmp_path, monkeypatch, capsys):
    timm_gcp.register("test_resnet")
    for model, keep in (
        ("test_resnet_gcp", []),
        ("shufflenet_v2_x1_0_gcp", ["--keep"]),
        ("test_resnet_gcp", ["--keep"]),
    ):
        monkeypatch.setattr(sys, "argv", ["bench_step.py", *SMALL, *keep, "--model", model, "--output", str(tmp_path)])
        assert bench_step.main() == 0
    with (tmp_path / "step_cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == ["shufflenet_v2_x1_0_gcp", "test_resnet_gcp"]
    for row in rows:
        for suffix in ("", ", fused"):
            gcp, gap = float(row[f"GCP step{suffix}"]), float(row[f"GAP step{suffix}"])
            assert float(row[f"ratio{suffix}"]) == pytest.approx(gcp / gap)
            parts = sum(
                float(row[part]) for part in ("clear", *bench_step.HEAD, "fused update" if suffix else "update")
            )
            assert parts == pytest.approx(gcp - gap, rel=1e-6, abs=1e-6)
        assert float(row["ratio at the floors"]) > 1
    page = (tmp_path / "step_cpu.md").read_text()
    assert "| shufflenet_v2_x1_0_gcp | " in page and "| test_resnet_gcp | " in page
    assert "classifier backward" in capsys.readouterr().out


def test_allocator_is_named(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    assert bench_step.allocator(cpu) == "system's"
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0")
    assert bench_step.allocator(cpu) == "heap"
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "65536")
    assert bench_step.allocator(cpu) == "system's"
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "4000000000")
    assert bench_step.allocator(cpu) == "heap"
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "1")
    assert bench_step.allocator(cpu) == "huge pages"
    assert bench_step.allocator(torch.device("meta")) == "torch's"


def test_rounds_are_checked(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench_step.py", "--rounds", "0"])
    with pytest.raises(SystemExit):
        bench_step.main()
    assert "--rounds 0 --warm-up 1: give at least 1 and at least 0" in capsys.readouterr().err
