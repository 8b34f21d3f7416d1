"""The timm scheduler: first epoch, warm-up, cool-down, layer decay, updates, and resume bit for bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from timm.scheduler import StepLRScheduler

from timm_gcp.schedules.curves import TABLE_3, Polynomial
from timm_gcp.schedules.scheduler import ClosedFormScheduler, create

AUTHORS = json.loads((Path(__file__).parents[1] / "data" / "lr.json").read_text())
EVERY = [*TABLE_3, "gcp_resnet_adju:stretch", "gcp_poly:power=3,start=0,end=9,stretch=9"]


def make_optimizer(lr: float = 0.1, scales: tuple[float, ...] = ()) -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr_scale": scale} for scale in scales]
    return torch.optim.SGD(groups or [torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)


def group_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def train(optimizer, sched, epochs, updates=4, start=0, on_updates=False, **settings) -> list[list[float]]:
    """Rates of every update, in the order in which train.py calls a scheduler."""
    scheduler, epochs = create(
        optimizer, sched, num_epochs=epochs, step_on_epochs=not on_updates, updates_per_epoch=updates, **settings
    )
    if start > 0:
        scheduler.step_update(start * updates) if on_updates else scheduler.step(start)
    seen = []
    for epoch in range(start, epochs):
        done = epoch * updates
        for _ in range(updates):
            seen.append(group_rates(optimizer))
            done += 1
            scheduler.step_update(num_updates=done, metric=0.0)
        scheduler.step(epoch + 1, 0.0)
    return seen


@pytest.mark.parametrize("authors_name", AUTHORS)
def test_a_run_sees_the_authors_rates_from_the_first_epoch_on(authors_name):
    row = TABLE_3["gcp_" + authors_name.removesuffix("_paper")]
    optimizer = make_optimizer(row.base_lr)
    name = "gcp_" + authors_name.removesuffix("_paper")
    seen = [rate for (rate,) in train(optimizer, name, row.epochs, updates=1)]
    assert seen == pytest.approx(AUTHORS[authors_name], rel=1e-12, abs=0)


@pytest.mark.parametrize("name", ["norm", "fast", "adju"])
def test_shufflenet_falls_with_every_update(name):
    epochs, updates = TABLE_3[f"gcp_shufflenetv2_{name}"].epochs, 3
    seen = train(make_optimizer(0.5), f"gcp_shufflenetv2_{name}", epochs, updates, on_updates=True)
    total = epochs * updates
    assert [rate for (rate,) in seen] == [0.5 * (1 - step / total) for step in range(total)]


@pytest.mark.parametrize("sched", EVERY)
def test_the_number_of_epochs_moves_nothing_unless_stretched(sched):
    on_updates = "shufflenet" in sched
    short = train(make_optimizer(), sched, 6, on_updates=on_updates)
    long = train(make_optimizer(), sched, 9, on_updates=on_updates)
    assert (short == long[: len(short)]) == ("stretch" not in sched)


def test_stretch_runs_the_whole_curve_in_the_given_epochs():
    row = TABLE_3["gcp_resnet_adju"]
    seen = [rate for (rate,) in train(make_optimizer(), "gcp_resnet_adju:stretch", 15, updates=1)]
    assert seen == pytest.approx([row.lr(epoch * 50 / 15) for epoch in range(15)], rel=1e-14)
    assert train(make_optimizer(), "gcp_resnet_adju:stretch", 50) == train(make_optimizer(), "gcp_resnet_adju", 50)


@pytest.mark.parametrize("epochs", [7, 10, 30, 70, 195, 390])
def test_stretched_steps_fall_where_they_should(epochs):
    seen = train(make_optimizer(), "gcp_resnet_norm:stretch", epochs, updates=1)
    assert [rate for (rate,) in seen] == [0.1 * 0.1 ** (epoch * 100 // (epochs * 30)) for epoch in range(epochs)]


@pytest.mark.parametrize("sched", EVERY)
@pytest.mark.parametrize("on_updates", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup_epochs": 2, "warmup_lr": 1e-4},
        {"warmup_epochs": 2, "warmup_prefix": True, "cooldown_epochs": 2},
        {"noise": [0.2, 0.8]},
    ],
)
def test_resume_continues_bit_for_bit(sched, on_updates, settings):
    if "shufflenet" in sched and not on_updates:
        on_updates = True
    scales = (1.0, 0.65, 0.1)
    whole = train(make_optimizer(0.1, scales), sched, 8, on_updates=on_updates, **settings)
    for start in (0, 1, 3, 7):
        # What a checkpoint holds: groups whose `lr` has moved on and whose `initial_lr` has not.
        before = make_optimizer(0.1, scales)
        train(before, sched, 8, on_updates=on_updates, **settings)
        after = make_optimizer(0.1, scales)
        after.load_state_dict(copy.deepcopy(before.state_dict()))
        assert train(after, sched, 8, start=start, on_updates=on_updates, **settings) == whole[start * 4 :]


def test_rates_inside_an_epoch_depend_on_the_update_alone():
    optimizer = make_optimizer()
    scheduler, _ = create(optimizer, "gcp_resnet_adju", 50, step_on_epochs=False, updates_per_epoch=10)
    for update in (499, 3, 120, 57):
        scheduler.step_update(update)
        assert group_rates(optimizer) == [TABLE_3["gcp_resnet_adju"].lr(update, 10)]


def test_epoch_and_update_stepping_meet_at_epoch_boundaries():
    for sched in ("gcp_resnet_norm", "gcp_resnet_adju", "gcp_mobilenetv2_adju"):
        by_epoch = train(make_optimizer(), sched, 40, updates=3)
        by_update = train(make_optimizer(), sched, 40, updates=3, on_updates=True)
        assert by_epoch[::3] == by_update[::3]


def test_layer_decay_scales_every_rate():
    plain = train(make_optimizer(), "gcp_resnet_adju", 5)
    scaled = train(make_optimizer(0.1, (1.0, 0.25)), "gcp_resnet_adju", 5)
    assert scaled == [[rate, 0.25 * rate] for (rate,) in plain]


def test_the_base_rate_scales_the_curve():
    once, twice = (train(make_optimizer(lr), "gcp_mobilenetv2_adju", 60, updates=1) for lr in (0.06, 0.12))
    assert [b for (b,) in twice] == [2 * a for (a,) in once]


def test_warm_up_covers_the_beginning_or_precedes_it():
    row = TABLE_3["gcp_resnet_adju"]
    ramp = [1e-3 + t * (0.1 - 1e-3) / 4 for t in range(4)]
    within = [r for (r,) in train(make_optimizer(), "gcp_resnet_adju", 10, 1, warmup_epochs=4, warmup_lr=1e-3)]
    assert within == [*ramp, *(row.lr(epoch) for epoch in range(4, 10))]
    prefix = train(make_optimizer(), "gcp_resnet_adju", 10, 1, warmup_epochs=4, warmup_lr=1e-3, warmup_prefix=True)
    assert [r for (r,) in prefix] == [*ramp, *(row.lr(epoch) for epoch in range(10))]


@pytest.mark.parametrize("on_updates", [False, True])
def test_cool_down_holds_the_last_rate(on_updates):
    seen = train(make_optimizer(), "gcp_resnet_adju", 50, cooldown_epochs=3, on_updates=on_updates)
    assert len(seen) == 53 * 4
    assert {rate for (rate,) in seen[50 * 4 :]} == {seen[50 * 4 - 1][0]} != {0.0}


def test_lower_bound_and_epochs_beyond_the_end():
    seen = [rate for (rate,) in train(make_optimizer(), "gcp_resnet_fast", 90, 1)]
    assert seen[53:] == [0.0] * 37
    floored = [rate for (rate,) in train(make_optimizer(), "gcp_resnet_fast", 90, 1, min_lr=1e-4)]
    assert floored == [max(rate, 1e-4) for rate in seen]


def test_gradient_accumulation_counts_updates_not_batches():
    """train.py hands over updates per epoch after accumulation: 8 batches in 2 updates are 2 steps of the curve."""
    seen = train(make_optimizer(0.5), "gcp_shufflenetv2_adju", 100, updates=2, on_updates=True)
    assert [rate for (rate,) in seen] == [0.5 * (1 - step / 200) for step in range(200)]


def test_state_is_plain_numbers(tmp_path):
    scheduler, _ = create(make_optimizer(), "gcp_resnet_adju:stretch", 15, noise=0.5)
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh, _ = create(make_optimizer(), "gcp_resnet_adju:stretch", 15, noise=0.5)
    fresh.load_state_dict(state)
    assert [fresh._get_lr(t) for t in range(15)] == [scheduler._get_lr(t) for t in range(15)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"sched": "gcp_shufflenetv2_adju", "num_epochs": 100},
            "falls with every update. Add `sched_on_updates: true`",
        ),
        ({"sched": "gcp_linear:epochs=5", "num_epochs": 5}, "falls with every update"),
        ({"sched": "gcp_resnet_adju", "num_epochs": 0}, "`num_epochs` must be at least 1. Got 0"),
        ({"sched": "gcp_resnet_adju", "step_on_epochs": False}, "`updates_per_epoch` must be at least 1"),
    ],
)
def test_bad_settings_of_the_factory(settings, message):
    with pytest.raises(ValueError, match=message):
        create(make_optimizer(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"t_in_epochs": False}, "`updates_per_epoch` must be at least 1"),
        ({"stretch": (0, 5)}, "`stretch` must be two positive"),
        ({"warmup_t": -1}, "`warmup_t` and `lr_min` must not be negative"),
        ({"lr_min": -1.0}, "`warmup_t` and `lr_min` must not be negative"),
        ({"hold_t": 0}, "`hold_t` must be at least 1"),
    ],
)
def test_bad_settings_of_the_scheduler(settings, message):
    with pytest.raises(ValueError, match=message):
        ClosedFormScheduler(make_optimizer(), Polynomial(), **settings)


@pytest.mark.parametrize(
    "sched, step", [("gcp_steps:every=3,factor=0.5", (3, 0.5)), ("gcp_exp:rate=0.9", (1, 0.9))], ids=["steps", "exp"]
)
def test_steps_are_timms(sched, step):
    """Per epoch they are `--sched step`; the names stay for what that lacks: `:stretch`, and the rows of Table 3."""
    ours, _ = create(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), sched, num_epochs=9)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = StepLRScheduler(optimizer, decay_t=step[0], decay_rate=step[1])
    for epoch in range(9):
        assert ours._get_lr(epoch) == pytest.approx(theirs._get_lr(epoch), rel=1e-12)
