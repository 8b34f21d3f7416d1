"""One epoch of training, step for step as timm's train.py runs it, with hooks for tools that watch a run."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.utils import NativeScaler, dispatch_clip_grad
from torch import Tensor, nn
from tqdm import tqdm

from timm_gcp.common.device import mixed_precision
from timm_gcp.train.build import Loaders
from timm_gcp.train.callback import Callback
from timm_gcp.train.progress import Progress

_REFRESH = 0.5  # seconds between two readings of the loss for the progress bar


@dataclass
class Precision:
    """Mixed precision of a run: the context of its forward passes and the scaler of float16 gradients."""

    autocast: AbstractContextManager[Any] = field(default_factory=nullcontext)
    scaler: NativeScaler | None = None


def make_precision(args: argparse.Namespace, device: torch.device) -> Precision:
    """Autocast and loss scaler that `amp` and `amp_dtype` ask for."""
    if not args.amp:
        return Precision()
    scaler = NativeScaler(device="cuda") if device.type == "cuda" and args.amp_dtype == "float16" else None
    return Precision(mixed_precision(device, True, args.amp_dtype), scaler)


def updates_in(loaders: Loaders, args: argparse.Namespace) -> int:
    """Optimizer updates per epoch."""
    return math.ceil(len(loaders.train) / args.grad_accum_steps)


def mean_rate(optimizer: torch.optim.Optimizer) -> float:
    """Learning rate, averaged over the parameter groups as train.py reports it."""
    return sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)


def train_one_epoch(
    epoch: int,
    task: Any,
    loaders: Loaders,
    optimizer: torch.optim.Optimizer,
    args: argparse.Namespace,
    device: torch.device,
    precision: Precision,
    scheduler: Any = None,
    callbacks: Sequence[Callback] = (),
    epochs: int | None = None,
) -> float:
    """Train for one epoch, of `epochs` in all, and return the mean training loss.

    Raises:
        RuntimeError: The loss is no longer finite.
    """
    if args.mixup_off_epoch and epoch >= args.mixup_off_epoch:
        if loaders.mixup is not None:
            loaders.mixup.mixup_enabled = False
        elif getattr(loaders.train, "mixup_enabled", False):
            loaders.train.mixup_enabled = False
    model = task.get_trainable_module()
    model.train()
    batches, accumulate = len(loaders.train), args.grad_accum_steps
    remainder = batches % accumulate  # the last update of an epoch may have fewer batches
    updates = updates_in(loaders, args)
    first = step = epoch * updates
    loss_sum, images_seen = torch.zeros((), dtype=torch.float64, device=device), 0
    started = shown = time.perf_counter()
    of = f"/{epochs}" if epochs else ""
    bar = tqdm(loaders.train, desc=f"epoch {epoch + 1}{of}", total=batches, leave=False, disable=None)
    optimizer.zero_grad()
    for index, (images, target) in enumerate(bar):
        divisor = accumulate if index < batches - remainder else remainder
        update_now = index == batches - 1 or (index + 1) % accumulate == 0
        images, target = images.to(device), target.to(device)
        if loaders.mixup is not None:
            images, target = loaders.mixup(images, target)
        if args.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if update_now:
            _call(callbacks, step, model, (images, target))
        with precision.autocast:
            loss = task(images, target)["loss"]
        if accumulate > 1:
            loss = loss / divisor
        _backward(loss, optimizer, task, args, precision.scaler, update_now)
        loss_sum += loss.detach().double() * divisor * len(images)
        images_seen += len(images)
        if not update_now:
            continue
        optimizer.zero_grad()
        step += 1
        task.update_ema(step=step)
        made, now = step - first, time.perf_counter()
        report = (made - 1) % args.log_interval == 0 or index == batches - 1
        if report or (not bar.disable and now - shown > _REFRESH):
            mean, lr = loss_sum.item() / images_seen, mean_rate(optimizer)
            if not math.isfinite(mean):
                raise RuntimeError(
                    f"the training loss became {loss.item()} in epoch {epoch}, by update {step} "
                    f"(rate {lr:.3g}): lower --lr, add --clip-grad, or use "
                    "--amp-dtype bfloat16 in place of float16."
                )
            rate, shown = images_seen / (now - started), now
            bar.set_postfix_str(f"loss {mean:.3f}, rate {lr:.3g}, {rate:.0f} images/s", refresh=False)
            if report:
                left = (updates - made) * (now - started) / made
                last = loss.item() * divisor
                progress = Progress(epoch, epochs or epoch + 1, made - 1, updates, last, mean, lr, rate, left)
                for callback in callbacks:
                    callback.on_progress(progress)
        if scheduler is not None:
            scheduler.step_update(num_updates=step)
    if hasattr(optimizer, "sync_lookahead"):
        optimizer.sync_lookahead()
    return loss_sum.item() / images_seen


def _call(callbacks: Sequence[Callback], step: int, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    for callback in callbacks:
        if step % callback.every == 0:
            callback.on_update(step, model, batch)


def _backward(
    loss: Tensor,
    optimizer: torch.optim.Optimizer,
    task: Any,
    args: argparse.Namespace,
    scaler: NativeScaler | None,
    update_now: bool,
) -> None:
    """Backward pass, and the optimizer's step when the update is complete."""
    second_order = getattr(optimizer, "is_second_order", False)
    parameters = None
    if args.clip_grad is not None:
        parameters = task.get_clip_parameters(exclude_head=args.clip_mode == "agc")
    if scaler is not None:
        clip = {"clip_grad": args.clip_grad, "clip_mode": args.clip_mode, "parameters": parameters}
        scaler(loss, optimizer, **clip, create_graph=second_order, need_update=update_now)
        return
    loss.backward(create_graph=second_order)
    if update_now:
        if parameters is not None:
            dispatch_clip_grad(parameters, value=args.clip_grad, mode=args.clip_mode)
        optimizer.step()
