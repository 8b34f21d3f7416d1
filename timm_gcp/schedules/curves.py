"""Learning-rate curves of the paper as closed forms of time: pure arithmetic, no optimizer, no state.

A *shape* maps time to a factor of the base rate. Time is counted in epochs from 0, or, for a finer step, as `t`
ticks of which `per_epoch` make one epoch; both are handed over so that no shape ever sees a rounded quotient more
often than it must. `TABLE_3` holds the paper's nine rows, and MobileNetV2's LR_adju as the authors' script computes it,
which is what its recipe runs (docs/recipes.md says why).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = Callable[..., float]  # (t, per_epoch=1.0) -> factor of the base rate


def _require(good: bool, message: str) -> None:
    if not good:
        raise ValueError(message)


@dataclass(frozen=True)
class Polynomial:
    """Polynomial decay, Eq. 9: `(1 - (e - start) / (end - start)) ** power`, zero from `end` on.

    Before `start` the factor is above one: with the paper's `start=1`, epoch 0 runs above the base rate.

    Args:
        power: ρ, the decay rate; positive.
        start: e_s, the epoch at which the factor is one.
        end: e_f, the epoch at which the factor reaches zero; after `start`.

    Raises:
        ValueError: A power that is not positive or an end that is not after the start.
    """

    power: float = 2.0
    start: float = 1.0
    end: float = 50.0

    def __post_init__(self) -> None:
        _require(0 < self.power < math.inf, f"`power` must be positive and finite. Got {self.power}.")
        _require(
            0 <= self.start < self.end < math.inf,
            f"`start` must be at least 0 and `end` finite and after it. Got start={self.start}, end={self.end}.",
        )

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        """Factor at time `t`, of which `per_epoch` make one epoch."""
        remaining = 1 - (t / per_epoch - self.start) / (self.end - self.start)
        # A negative base is where the formula turns negative (odd power), complex (fractional) or rising (even).
        return max(remaining, 0.0) ** self.power


@dataclass(frozen=True)
class Exponential:
    """Exponential decay: `rate ** e` (MobileNetV2's LR_norm and LR_fast).

    Args:
        rate: factor per epoch, in (0, 1].

    Raises:
        ValueError: A rate outside (0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        _require(0 < self.rate <= 1, f"`rate` must be in (0, 1]. Got {self.rate}.")

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        """Factor at time `t`, of which `per_epoch` make one epoch."""
        return self.rate ** (t / per_epoch)


@dataclass(frozen=True)
class Steps:
    """Piecewise constant decay: `factor ** (e // every)` (ResNet's LR_norm).

    Args:
        every: epochs between drops; positive.
        factor: what each drop multiplies by, in (0, 1].

    Raises:
        ValueError: An interval that is not positive or a factor outside (0, 1].
    """

    every: float = 30.0
    factor: float = 0.1

    def __post_init__(self) -> None:
        _require(0 < self.every < math.inf, f"`every` must be positive and finite. Got {self.every}.")
        _require(0 < self.factor <= 1, f"`factor` must be in (0, 1]. Got {self.factor}.")

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        """Factor at time `t`, of which `per_epoch` make one epoch."""
        return self.factor ** ((t / per_epoch) // self.every)


@dataclass(frozen=True)
class StagedLinear:
    """Linear decay in stages: `l_s - (l_s - l_e) / length * (e - n)` in each (MobileNetV2's LR_adju, Section 4.1).

    The factor is that rate over the first stage's initial rate, so a base rate equal to the latter gives the rates as
    written and another one scales them all. After the last stage its final rate is held.

    Args:
        starts: n, the first epoch of each stage; ascending from 0.
        initial: l_s, the rate at each stage's start.
        final: l_e, the rate that each stage runs towards; at most `initial`.
        end: the epoch at which the last stage reaches its final rate.

    Raises:
        ValueError: Lists of unequal length, epochs out of order, or a stage that rises or is negative.
    """

    starts: tuple[float, ...]
    initial: tuple[float, ...]
    final: tuple[float, ...]
    end: float

    def __post_init__(self) -> None:
        sizes = len(self.starts), len(self.initial), len(self.final)
        _require(
            0 < sizes[0] == sizes[1] == sizes[2],
            f"Every stage needs a start, an initial and a final rate. Got {sizes}.",
        )
        bounds = (*self.starts, self.end)
        _require(
            bounds[0] == 0 and all(a < b for a, b in itertools.pairwise(bounds)) and bounds[-1] < math.inf,
            f"Stages must start at 0 and ascend to a finite end. Got starts={self.starts}, end={self.end}.",
        )
        _require(
            all(0 <= low <= high < math.inf for high, low in zip(self.initial, self.final, strict=True))
            and self.initial[0] > 0,
            f"Rates must be 0 <= final <= initial in every stage, and the first initial rate positive. "
            f"Got initial={self.initial}, final={self.final}.",
        )

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        """Factor at time `t`, of which `per_epoch` make one epoch."""
        epoch = min(t / per_epoch, self.end)
        stage = max(i for i, start in enumerate(self.starts) if start <= epoch or i == 0)
        start, stop = self.starts[stage], (*self.starts, self.end)[stage + 1]
        high, low = self.initial[stage], self.final[stage]
        rate = high - (high - low) / (stop - start) * (epoch - start)
        return max(rate, low) / self.initial[0]


@dataclass(frozen=True)
class LinearPerUpdate:
    """Linear decay to zero over all updates: `1 - step / total` (ShuffleNetV2, all three rows).

    Args:
        epochs: length of the run, total = epochs × updates per epoch; positive.

    Raises:
        ValueError: A length that is not positive.
    """

    epochs: float

    def __post_init__(self) -> None:
        _require(0 < self.epochs < math.inf, f"`epochs` must be positive and finite. Got {self.epochs}.")

    def __call__(self, t: float, per_epoch: float = 1.0) -> float:
        """Factor at time `t`, of which `per_epoch` make one epoch."""
        return max(1 - t / (self.epochs * per_epoch), 0.0)


@dataclass(frozen=True)
class Row:
    """One row of Table 3: base rate, trained epochs, total batch size (Table 2) and the shape over them."""

    base_lr: float
    epochs: int
    batch_size: int
    shape: Shape
    per_update: bool = False

    def lr(self, t: float, per_epoch: float = 1.0) -> float:
        """Learning rate at epoch `t`, or at update `t` with `per_epoch` updates in an epoch."""
        return self.base_lr * self.shape(t, per_epoch)


_STAGES = (0.0, 50.0, 100.0)

TABLE_3: dict[str, Row] = {
    "gcp_resnet_norm": Row(0.1, 100, 256, Steps(every=30, factor=0.1)),
    "gcp_resnet_fast": Row(0.1, 30, 256, Polynomial(power=11, start=1, end=53)),
    "gcp_resnet_adju": Row(0.1, 50, 256, Polynomial(power=2, start=1, end=50)),
    "gcp_mobilenetv2_norm": Row(0.045, 400, 96, Exponential(0.98)),
    "gcp_mobilenetv2_fast": Row(0.06, 100, 96, Exponential(0.92)),
    "gcp_mobilenetv2_adju": Row(
        0.06, 150, 192, StagedLinear(_STAGES, initial=(6e-2, 1e-2, 1e-3), final=(1e-3, 1e-4, 1e-5), end=150)
    ),
    # As printed the rate jumps up at epochs 50 and 100. The script aims each stage at the next one's initial rate.
    "gcp_mobilenetv2_adju_released": Row(
        0.06, 150, 192, StagedLinear(_STAGES, initial=(6e-2, 1e-2, 1e-3), final=(1e-2, 1e-3, 1e-5), end=150)
    ),
    "gcp_shufflenetv2_norm": Row(0.5, 240, 1024, LinearPerUpdate(240), per_update=True),
    "gcp_shufflenetv2_fast": Row(0.5, 60, 1024, LinearPerUpdate(60), per_update=True),
    "gcp_shufflenetv2_adju": Row(0.5, 100, 1024, LinearPerUpdate(100), per_update=True),
}
