"""Schedules of your own; what `--sched` reads otherwise is tested in `test_scheduler.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from timm_gcp.schedules import register_schedule
from timm_gcp.schedules import spec as module
from timm_gcp.schedules.spec import parse, schedule_names


@dataclass(frozen=True)
class HalfCosine:
    end: float
    floor: float = 0.0

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(t / per_epoch / self.end, 1))) / 2


@dataclass
class NoCurve:
    end: float


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    monkeypatch.setattr(module, "GENERAL_FORMS", dict(module.GENERAL_FORMS))


def test_a_registered_curve_is_read_with_its_options():
    register_schedule("gcp_half_cosine", HalfCosine)
    register_schedule("gcp_half_cosine", HalfCosine)
    assert "gcp_half_cosine" in schedule_names()
    shape = parse("gcp_half_cosine:end=10,floor=0.5").shape
    assert [shape(t) for t in (0, 5, 10, 12)] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert parse("gcp_half_cosine:end=10,stretch=10").stretch_from == 10
    with pytest.raises(ValueError, match="needs end"):
        parse("gcp_half_cosine")
    with pytest.raises(ValueError, match=r"has no option start\. Known: end, floor, stretch"):
        parse("gcp_half_cosine:end=3,start=1")


@pytest.mark.parametrize("name", ["cosine", "gcp_", "gcp_a b", 3])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="name begins with 'gcp_', such as 'gcp_cosine'"):
        register_schedule(name, HalfCosine)


@pytest.mark.parametrize("name", ["gcp_poly", "gcp_resnet_norm"])
def test_taken_names_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}' exists already"):
        register_schedule(name, HalfCosine)


@pytest.mark.parametrize("form", [math.cos, HalfCosine(3.0), int, NoCurve])
def test_other_forms_are_refused(form):
    with pytest.raises(ValueError, match="must be a dataclass with __call__"):
        register_schedule("gcp_mine", form)
