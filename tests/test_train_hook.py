"""The hook: our schedules reach timm's factory wherever it is bound, and timm's own stay as they are."""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import types

import pytest
import timm.models
import timm.scheduler
import timm.utils
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_train_py_takes_the_cpu_where_there_is_no_cuda(monkeypatch):
    kept = []
    monkeypatch.setattr(hook, "keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(sys, "argv", ["train.py", "-c", "recipe.yaml"])
    args = argparse.Namespace(device="cuda")
    with pytest.warns(UserWarning, match="torch sees no CUDA device: training on the CPU"):
        device = timm.utils.init_distributed_device(args)
    assert device == torch.device("cpu") and args.device == "cpu" and kept == [True]
    monkeypatch.setattr(sys, "argv", ["train.py", "--device", "cuda"])
    with pytest.raises(AssertionError, match="CUDA is not available"):  # asked for: timm's own refusal
        timm.utils.init_distributed_device(argparse.Namespace(device="cuda"))
    assert kept == [True]


def test_train_py_takes_swaps_by_name():
    """`create_model` and the name of a run's folder, where train.py has bound them."""
    model = timm.create_model("gcp:test_resnet", pretrained=False, num_classes=3, reduce_dim=4, bn_eps=None)
    assert model.global_pool.dim == 4 and model.num_classes == 3
    assert timm.models.safe_model_name("gcp:test_resnet") == "gcp_test_resnet"
    assert timm.models.safe_model_name("resnet18.a1_in1k") == "resnet18_a1_in1k"
    assert not hasattr(timm.create_model("test_resnet").global_pool, "dim")
    with pytest.raises(FileNotFoundError, match="pretrained_backbone=True starts the backbone from its timm weights"):
        timm.create_model("gcp:test_resnet", pretrained=True)
    with pytest.raises(ValueError, match="'gcp:' names no model"):
        timm.create_model("gcp:")


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
