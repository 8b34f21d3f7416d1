"""The hook: our schedules reach timm's factory wherever it is bound, and timm's own stay as they are."""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import types

import pytest
import timm.scheduler
import torch
from timm.scheduler import create_scheduler_v2, scheduler_factory

import timm_gcp.train_hook as hook
from timm_gcp.schedules.scheduler import ClosedFormScheduler

TIMM_SCHEDULES = ["cosine", "tanh", "step", "multistep", "plateau", "poly"]


def make_optimizer(lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(factory, **kwargs) -> tuple[list[float], int | str]:
    """Rates of some epochs, or the name of the error: timm 1.0.20's plateau does not fit today's torch."""
    optimizer = make_optimizer()
    try:
        scheduler, epochs = factory(optimizer, **kwargs)
    except TypeError as error:
        return [], str(error)
    seen = [optimizer.param_groups[0]["lr"]]
    for epoch in range(1, 12):
        scheduler.step(epoch, metric=1.0)
        seen.append(optimizer.param_groups[0]["lr"])
    return seen, epochs


def test_every_binding_of_timm_is_reached():
    for module in (timm.scheduler, scheduler_factory, sys.modules[__name__]):
        scheduler, epochs = module.create_scheduler_v2(make_optimizer(), sched="gcp_resnet_adju", num_epochs=50)
        assert isinstance(scheduler, ClosedFormScheduler)
        assert epochs == 50


def test_positional_arguments_and_the_legacy_factory():
    scheduler, epochs = create_scheduler_v2(make_optimizer(), "gcp_resnet_fast", 30)
    assert isinstance(scheduler, ClosedFormScheduler) and epochs == 30
    args = types.SimpleNamespace(sched="gcp_resnet_fast", epochs=30, warmup_epochs=0)
    scheduler, epochs = timm.scheduler.create_scheduler(args, make_optimizer())
    assert isinstance(scheduler, ClosedFormScheduler) and epochs == 30


@pytest.mark.filterwarnings("ignore:PlateauLRScheduler is deprecated")
@pytest.mark.parametrize("name", TIMM_SCHEDULES)
@pytest.mark.parametrize("extra", [{}, {"warmup_epochs": 2, "cooldown_epochs": 1}, {"noise": 0.3}])
def test_timms_own_schedules_are_unchanged(name, extra):
    original = scheduler_factory.create_scheduler_v2._timm_gcp_original
    settings = dict(sched=name, num_epochs=10, decay_milestones=[3, 6], **extra)
    assert rates(create_scheduler_v2, **settings) == rates(original, **settings)
    assert rates(original, **settings)[0] or name == "plateau"


def test_install_twice_changes_nothing():
    before = scheduler_factory.create_scheduler_v2
    hook.install()
    hook.install()
    assert scheduler_factory.create_scheduler_v2 is before
    assert not hasattr(before._timm_gcp_original, "_timm_gcp_original")


def test_a_module_bound_to_the_original_is_rebound(monkeypatch):
    late = types.ModuleType("train")
    late.create_scheduler_v2 = scheduler_factory.create_scheduler_v2._timm_gcp_original
    unrelated = types.ModuleType("unrelated")
    unrelated.create_scheduler_v2 = other = lambda: None
    monkeypatch.setitem(sys.modules, "train", late)
    monkeypatch.setitem(sys.modules, "unrelated", unrelated)
    hook.install()
    assert late.create_scheduler_v2 is scheduler_factory.create_scheduler_v2
    assert unrelated.create_scheduler_v2 is other


def test_keys_that_the_training_script_does_not_read_are_named(monkeypatch):
    script = types.ModuleType("train")
    script.create_scheduler_v2 = scheduler_factory.create_scheduler_v2._timm_gcp_original
    script.parser = argparse.ArgumentParser()
    script.parser.add_argument("--epochs", type=int)
    script.parser.set_defaults(epochs=3, kd_model_name="resnet50_gcp")
    monkeypatch.setitem(sys.modules, "train", script)
    with pytest.warns(UserWarning, match="train has no option for kd_model_name of the recipe"):
        hook.install()


def test_a_misspelt_schedule_of_ours_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"Unknown schedule 'gcp_resnet_norn'.*gcp_resnet_norm.*gcp_poly"):
        create_scheduler_v2(make_optimizer(), sched="gcp_resnet_norn", num_epochs=3)


SCRIPT = """
from timm.scheduler import create_scheduler_v2
import importlib, torch

def main():
    importlib.import_module("timm_gcp.train_hook")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, epochs = create_scheduler_v2(optimizer=optimizer, sched="gcp_resnet_adju", num_epochs=50)
    print(type(scheduler).__name__, epochs, optimizer.param_groups[0]["lr"])

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("how", ["script", "import"])
def test_scripts_that_bound_the_factory_first(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["train.py"] if how == "script" else ["-c", "import train; train.main()"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ClosedFormScheduler", "50", str(0.1 * (1 + 1 / 49) ** 2)]


def test_without_the_hook_nothing_trains(tmp_path):
    """timm alone raises, or (older releases) returns no scheduler, which train.py itself stumbles over at once."""
    code = """
        import torch
        from timm.scheduler import create_scheduler_v2
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        try:
            scheduler, _ = create_scheduler_v2(optimizer, sched="gcp_resnet_adju", num_epochs=50)
            scheduler.t_in_epochs
        except (ValueError, AttributeError):
            print("stopped")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["stopped"], done.stderr
