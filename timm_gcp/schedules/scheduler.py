"""The closed-form curves as a timm `Scheduler`, and the factory behind train.py's `--sched gcp_…`.

The rate is a pure function of the epoch or update that the training loop hands in, so a resumed run continues with
the very rates of the uninterrupted one: there is no counter to restore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from timm.scheduler.scheduler import Scheduler

from timm_gcp.schedules.curves import Shape
from timm_gcp.schedules.spec import parse


class ClosedFormScheduler(Scheduler):
    """Applies a shape of `timm_gcp.schedules` to every parameter group's base rate.

    A group's rate is base × shape(t), at least `lr_min`, times its `lr_scale` (layer decay) if it has one. It is set
    in the constructor too, since train.py steps a scheduler only after the first epoch (or update).

    Args:
        optimizer: its groups' `lr` (or `initial_lr`, after a resume) are the base rates.
        shape: curve, `shape(t, per_epoch) -> factor`.
        t_in_epochs: True to follow `step(epoch)`, False to follow `step_update(num_updates)`.
        updates_per_epoch: updates in one epoch; needed when `t_in_epochs` is False.
        stretch: (from, to) epochs: a curve drawn for `from` epochs is run through in `to`. None leaves it as it is.
        warmup_t: length of a linear warm-up from `warmup_lr_init` to the base rate, in epochs or updates.
        warmup_lr_init: rate at the start of the warm-up.
        warmup_prefix: True to start the curve after the warm-up, False to let the warm-up cover its beginning.
        hold_t: from this time on (warm-up prefix not counted) the rate of the tick before is held: the cool-down.
            None lets the curve run to its own end.
        lr_min: lower bound of the rate.
        noise_range_t: when to add timm's noise, in epochs or updates.
        noise_pct: limit of the noise, relative to the rate.
        noise_std: its standard deviation.
        noise_seed: its seed.

    Raises:
        ValueError: A bad combination of the above.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        shape: Shape,
        t_in_epochs: bool = True,
        updates_per_epoch: int = 0,
        stretch: tuple[float, float] | None = None,
        warmup_t: float = 0,
        warmup_lr_init: float = 0.0,
        warmup_prefix: bool = False,
        hold_t: float | None = None,
        lr_min: float = 0.0,
        noise_range_t: Any = None,
        noise_pct: float = 0.67,
        noise_std: float = 1.0,
        noise_seed: int = 42,
    ) -> None:
        super().__init__(
            optimizer,
            param_group_field="lr",
            t_in_epochs=t_in_epochs,
            noise_range_t=noise_range_t,
            noise_pct=noise_pct,
            noise_std=noise_std,
            noise_seed=noise_seed,
        )
        if not t_in_epochs and updates_per_epoch < 1:
            raise ValueError(f"`updates_per_epoch` must be at least 1 to step per update. Got {updates_per_epoch}.")
        if stretch is not None and not min(stretch) > 0:
            raise ValueError(f"`stretch` must be two positive numbers of epochs. Got {stretch}.")
        if warmup_t < 0 or lr_min < 0:
            raise ValueError(f"`warmup_t` and `lr_min` must not be negative. Got {warmup_t} and {lr_min}.")
        if hold_t is not None and hold_t < 1:
            raise ValueError(f"`hold_t` must be at least 1. Got {hold_t}.")
        self.shape = shape
        self.per_epoch = 1 if t_in_epochs else updates_per_epoch
        self.stretch = stretch
        self.warmup_t = warmup_t
        self.warmup_lr_init = warmup_lr_init
        self.warmup_prefix = warmup_prefix
        self.hold_t = hold_t
        self.lr_min = lr_min
        self.update_groups(self._add_noise(self._get_lr(0), 0))

    def factor(self, t: float) -> float:
        """Factor of the base rate at epoch or update `t`, warm-up left aside."""
        if self.warmup_prefix:
            t = max(t - self.warmup_t, 0)
        if self.hold_t is not None:
            t = min(t, self.hold_t - 1)
        if self.stretch is None:
            return self.shape(t, self.per_epoch)
        # Whole numbers are multiplied first, so that a curve's corners fall on the epochs that they should.
        drawn, run = self.stretch
        return self.shape(t * drawn, self.per_epoch * run)

    def _get_lr(self, t: float) -> list[float]:
        if t < self.warmup_t:
            start = self.warmup_lr_init
            return [start + t * (base - start) / self.warmup_t for base in self.base_values]
        factor = self.factor(t)
        return [max(base * factor, self.lr_min) for base in self.base_values]

    def state_dict(self) -> dict[str, Any]:
        """timm's state without the shape, which is code: plain numbers only, so any loader takes it."""
        return {key: value for key, value in super().state_dict().items() if key != "shape"}


def create(
    optimizer: torch.optim.Optimizer,
    sched: str,
    num_epochs: int = 300,
    cooldown_epochs: int = 0,
    min_lr: float = 0.0,
    warmup_lr: float = 1e-5,
    warmup_epochs: int = 0,
    warmup_prefix: bool = False,
    noise: float | Sequence[float] | None = None,
    noise_pct: float = 0.67,
    noise_std: float = 1.0,
    noise_seed: int = 42,
    step_on_epochs: bool = True,
    updates_per_epoch: int = 0,
    **_other_schedules: Any,
) -> tuple[ClosedFormScheduler, int]:
    """Build the scheduler that `sched` names (see `timm_gcp.schedules.spec`), by timm's factory arguments.

    Unknown keywords are those of timm's other schedules (decay rate, cycles, …) and have no meaning here.

    Returns:
        The scheduler and the number of epochs to train: `num_epochs`, plus the cool-down, plus a prefixed warm-up.

    Raises:
        ValueError: An unknown schedule or option, or a per-update schedule that is stepped per epoch.
    """
    spec = parse(sched)
    if num_epochs < 1:
        raise ValueError(f"`num_epochs` must be at least 1. Got {num_epochs}.")
    if spec.per_update and step_on_epochs:
        raise ValueError(
            f"Schedule '{sched}' falls with every update. Add `sched_on_updates: true` to the recipe "
            "(--sched-on-updates on the command line)."
        )
    if not step_on_epochs and updates_per_epoch < 1:
        raise ValueError(f"`updates_per_epoch` must be at least 1 to step per update. Got {updates_per_epoch}.")
    ticks = 1 if step_on_epochs else updates_per_epoch
    noise_range = None
    if noise is not None:
        points = [point * num_epochs * ticks for point in ([noise] if isinstance(noise, (int, float)) else noise)]
        noise_range = points[0] if len(points) == 1 else points
    scheduler = ClosedFormScheduler(
        optimizer,
        spec.shape,
        t_in_epochs=step_on_epochs,
        updates_per_epoch=updates_per_epoch,
        stretch=None if spec.stretch_from is None else (spec.stretch_from, num_epochs),
        warmup_t=warmup_epochs * ticks,
        warmup_lr_init=warmup_lr,
        warmup_prefix=warmup_prefix,
        hold_t=num_epochs * ticks if cooldown_epochs else None,
        lr_min=min_lr,
        noise_range_t=noise_range,
        noise_pct=noise_pct,
        noise_std=noise_std,
        noise_seed=noise_seed,
    )
    return scheduler, num_epochs + cooldown_epochs + (warmup_epochs if warmup_prefix else 0)
