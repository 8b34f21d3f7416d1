"""Fig. 2's probes in a run of timm's train.py on several GPUs: the functions behind `landscape_hook`.

train.py has no callbacks. Once installed, its task probes every n-th batch before the update, as `timm-gcp landscape
train` does in one process: the first process gathers the batch of all, so that the step sizes mean what they mean
there, and writes the CSV. The settings are JSON in the variable TIMM_GCP_LANDSCAPE: csv, every, low, high, points.

The number of the update comes from the schedule: train.py tells it after every update, and where a resumed run starts.
That is why the recipe's schedule must be one of this package's.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from timm.task import ClassificationTask
from torch import Tensor

from timm_gcp import train_hook
from timm_gcp.landscape import LandscapeCallback
from timm_gcp.reproduce.jobs import LANDSCAPE_VARIABLE

KEYS = ("csv", "every", "low", "high", "points")


class Probes:
    """Follows a run's updates and probes every n-th batch.

    Args:
        csv: File of the measurements; a resumed run continues it.
        every: Updates from probe to probe.
        low: Smallest step size.
        high: Largest step size.
        points: Number of step sizes.
    """

    def __init__(self, csv: str, every: int, low: float, high: float, points: int) -> None:
        self.callback = LandscapeCallback(csv, low, high, points, every=every)
        self.step = 0
        self._probed = -1

    def follow(self, create: Callable[..., tuple[Any, int]]) -> Callable[..., tuple[Any, int]]:
        """The factory of schedules, whose schedules tell this object the number of the update."""

        @functools.wraps(create)
        def created(*args: Any, **kwargs: Any) -> tuple[Any, int]:
            scheduler, epochs = create(*args, **kwargs)
            updates = kwargs["updates_per_epoch"]
            step, step_update = scheduler.step, scheduler.step_update

            def at_epoch(epoch: int, *rest: Any, **more: Any) -> Any:
                self.step = epoch * updates
                return step(epoch, *rest, **more)

            def at_update(num_updates: int, *rest: Any, **more: Any) -> Any:
                self.step = num_updates
                return step_update(num_updates, *rest, **more)

            scheduler.step, scheduler.step_update = at_epoch, at_update
            return scheduler, epochs

        return created

    def before(self, model: Any, images: Tensor, targets: Tensor) -> None:
        """Probe the batch that is about to be trained on, where its update is one of every n."""
        if self.step % self.callback.every or self.step == self._probed:
            return
        self._probed = self.step
        images, targets = gathered(images), gathered(targets)
        if not dist.is_initialized() or dist.get_rank() == 0:
            with torch.autocast(images.device.type, enabled=False):
                self.callback.on_update(self.step, model, (images, targets))


def gathered(part: Tensor) -> Tensor:
    """The parts of all processes, one after the other; this one's alone where there are no others."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return part
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts)


def install(probes: Probes) -> None:
    """Let every classification task probe before its training passes, and our schedules count for it."""
    forward = ClassificationTask.forward

    @functools.wraps(forward)
    def probed(task: Any, input: Tensor, target: Tensor) -> Any:
        model = task.trainable_module
        if model.training and torch.is_grad_enabled():
            probes.before(model, input, target)
        return forward(task, input, target)

    ClassificationTask.forward = probed  # type: ignore[method-assign, assignment]
    train_hook.create = probes.follow(train_hook.create)


def from_environment() -> Probes:
    """The probes that TIMM_GCP_LANDSCAPE asks for.

    Raises:
        ValueError: The variable is missing or not JSON with the five keys, or the CSV holds probes of other step sizes.
    """
    text = os.environ.get(LANDSCAPE_VARIABLE, "")
    try:
        content = json.loads(text)
        settings = {key: content[key] for key in KEYS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{LANDSCAPE_VARIABLE} must be JSON with the keys {', '.join(KEYS)}, as timm-gcp reproduce fig2 sets it. "
            f"Got {text!r} ({error})."
        ) from error
    return Probes(**settings)
