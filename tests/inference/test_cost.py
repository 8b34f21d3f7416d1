"""Cost: counts by hand, Appendix V's figures, and the command."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from commands import status_of
from torch import nn

from timm_gcp import cli
from timm_gcp.inference import cost


def macs(name: str, older: bool = False, **kwargs) -> float:
    with torch.device("meta"):
        model = timm.create_model(name, **kwargs)
    if older:  # the stride of a stage in its first 1×1 convolution, as in the ResNet of 2015
        for block in (model.layer2[0], model.layer3[0], model.layer4[0]):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return cost.count_macs(model, (3, 224, 224)) / 1e9


def test_counts_by_hand():
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.Flatten(), nn.Linear(5 * 4 * 4, 7)).train()
    assert cost.count_macs(model, (3, 4, 4)) == 16 * 3 * 5 * 9 + 80 * 7
    assert model.training and next(model.parameters()).device.type == "cpu"


def test_pooling_is_counted_as_products():
    """At D = 8 < N = 49: reduction, covariance, and K = 5 steps that each take more than one D×D product."""
    with torch.device("meta"):
        model = timm.create_model("shufflenet_v2_x1_0_gcp", reduce_dim=8)
    whole = cost.count_macs(model, (3, 224, 224))
    model.global_pool.reduction, model.fc = nn.Identity(), nn.Identity()
    model.conv5 = nn.Conv2d(464, 8, 1)  # the same width without the layers in between
    fewer = cost.count_macs(model, (3, 224, 224))
    model.global_pool = nn.Identity()
    pooling = fewer - cost.count_macs(model, (3, 224, 224))
    assert 49 * 8**2 + 5 * 8**3 < pooling < 49 * 8**2 + 20 * 8**3
    assert whole > fewer


@pytest.mark.parametrize("name", cost.PAPER_MODELS)
def test_appendix_v(name):
    parameters, gmacs = cost.PAPER[name]
    with torch.device("meta"):
        model = timm.create_model(name, reduce_dim=(256, 128))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(parameters, abs=0.006)
    ours = macs(name, older="50" in name or "101" in name, reduce_dim=(256, 128))
    # The reasons that the command prints, checked: the older ResNet, and 0.1 that nothing explains.
    assert ours == pytest.approx(gmacs + (0.1 if name == "resnet34_gcp" else 0), abs=0.02)


@pytest.mark.parametrize(("name", "older"), [("resnet18", False), ("resnet34", False), ("resnet50", True)])
def test_gap_twins_of_appendix_v(name, older):
    assert macs(name, older) == pytest.approx(cost.PAPER[name][1], abs=0.01)
    assert cost.twin(f"{name}_gcp") == cost.twin(f"{name}_gcp_d128") == name


class Clock:
    """Stands still but for the seconds that each step takes."""

    def __init__(self, *durations: float) -> None:
        self.now, self.durations = 0.0, list(durations)

    def perf_counter(self) -> float:
        return self.now

    def step(self) -> None:
        self.now += self.durations.pop(0)


@pytest.mark.parametrize(
    ("durations", "seconds", "wanted"),
    [
        ((9, 9, 4, 6, 8), 1e9, (2, 4 / 3, 8 / 3, 3)),  # two of warm-up
        ((9, 9, 3, 6, 8), 22, (1.5, 1, 2, 2)),  # the third is not begun
        ((9, 6), 5, (2, 2, 2, 1)),  # one of warm-up, one timed
    ],
)
def test_times_are_per_image_and_bounded(durations, seconds, wanted, monkeypatch):
    clock = Clock(*durations)
    monkeypatch.setattr(cost.time, "perf_counter", clock.perf_counter)
    timing = cost.time_steps(clock.step, 3, 3, torch.device("cpu"), seconds)
    assert (timing.median, timing.fastest, timing.slowest, timing.steps) == pytest.approx(wanted)
    if seconds == 1e9:
        assert str(timing) == "2000.00 (1333.33 to 2666.67)"


def test_command(capsys):
    options = ["cost", "--model", "shufflenet_v2_x1_0_gcp", "--img-size", "64", "--batch-size", "2", "--repeats", "1"]
    assert cli.main([*options, "--device", "cpu", "--model-kwargs", "reduce_dim=32"]) == 0
    out, progress = capsys.readouterr()
    assert "{'reduce_dim': 32}" in out and "median of 1 steps, fastest and slowest" in out
    assert progress.splitlines() == ["1/2 shufflenet_v2_x1_0", "2/2 shufflenet_v2_x1_0_gcp"]
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| shuffle")]
    assert [row[0].strip() for row in rows] == ["shufflenet_v2_x1_0", "shufflenet_v2_x1_0_gcp"]
    assert all(float(cell.split()[0]) > 0 for row in rows for cell in row[1:])
    assert cli.main([*options, "--device", "cpu", "--no-time", "--json"]) == 0
    gap, gcp = json.loads(capsys.readouterr().out)
    assert gap["inference"] is None and gcp["parameters"] > gap["parameters"]


def test_command_without_arguments_is_appendix_v(capsys):
    assert cli.main(["cost", "--no-time", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "| resnet50_gcp | 32.32 | 6.35 | - | - | 32.32 | 6.19 |" in out and "3x3" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "resnet50"], "'resnet50' is not a GCP model; choose from convnext_tiny_gcp, "),
        (["--model", "no_gcp_net"], "'no_gcp_net' is not a GCP model"),
        (["--img-size", "0"], "--img-size: must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size: must be at least 1, got 0"),
        (["--seconds", "0"], "--seconds: must be above 0, got 0"),
        (["--repeats", "-1"], "--repeats: must be at least 1, got -1"),
    ],
)
def test_refusals(options, message, capsys):
    assert status_of("cost", *options) in (1, 2)
    assert message in capsys.readouterr().err
