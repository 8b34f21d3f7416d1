"""A training run: a recipe carried out with timm's own parts.

The keys are train.py's, and so are the files: `args.yaml`, `summary.csv`, `model_best.pth.tar`. On the CPU the losses
are train.py's too, digit for digit. It is for one process; train.py itself does the rest.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from timm_gcp.common.device import fast_kernels, pick_device
from timm_gcp.common.files import write_text
from timm_gcp.common.interrupt import on_interrupt
from timm_gcp.train.build import (
    Loaders,
    build_criterion,
    build_loaders,
    build_model,
    build_optimizer,
    build_scheduler,
    check_sources,
    images_in,
    resolve_data,
    resolve_rate,
    trained_size,
)
from timm_gcp.train.callback import Callback
from timm_gcp.train.data import check_data
from timm_gcp.train.folder import begin_run, check_free, kept, run_folder
from timm_gcp.train.loop import Precision, make_precision, mean_rate, train_one_epoch, updates_in
from timm_gcp.train.progress import Start
from timm_gcp.train.saver import WholeSaver
from timm_gcp.train.summary import Summary
from timm_gcp.weights.fit import load_whole
from timm_gcp.weights.swap_names import plain_name

_logger = logging.getLogger(__name__)

LoaderFactory = Callable[[argparse.Namespace, dict[str, Any], torch.device], Loaders]


@dataclass
class Run:
    """A finished training run.

    Attributes:
        folder: Where `args.yaml`, `summary.csv` and the checkpoints are.
        rows: The rows of `summary.csv` that this call added.
        best_metric: Best value of `eval_metric`.
        best_epoch: Its epoch, counted from 0.
        model: The model after the last epoch.
    """

    folder: Path
    model: Any
    rows: list[dict[str, float]] = field(default_factory=list)
    best_metric: float | None = None
    best_epoch: int | None = None


def train(
    args: argparse.Namespace,
    callbacks: Sequence[Callback] = (),
    loaders: LoaderFactory = build_loaders,
    force: bool = False,
) -> Run:
    """Train by a resolved recipe (`resolve_args`).

    Args:
        args: A value for each of `train.options.OPTIONS`; not changed.
        callbacks: Watchers, called in this order.
        loaders: Makes the loaders from `(args, data config, device)`, where not timm's are to be used.
        force: Replace another run in the run's folder.

    Raises:
        FileExistsError: The run's folder holds another run.
        ValueError: A key has a value that can't be used; says which and what is allowed.
        FileNotFoundError: A checkpoint to start from is missing.
        RuntimeError: The loss is no longer finite.
        OSError: A file can't be written.
    """
    from timm.models import safe_model_name
    from timm.task import ClassificationTask
    from timm.utils import random_seed

    from timm_gcp.train.checkpoint import resume

    args = argparse.Namespace(**vars(args))
    _import_modules(args)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("timm-gcp train runs in one process: start timm's train.py with torchrun for several.")
    device = pick_device(args.device)
    fast_kernels(device)
    args.device = str(device)
    check_sources(args)
    if args.experiment:
        check_free(run_folder(args, ""), args.resume, force)
    if loaders is build_loaders:
        check_data(args)
    text = yaml.safe_dump(vars(args), default_flow_style=False)

    random_seed(args.seed, 0)
    model = build_model(args, device)
    data_config = resolve_data(args, model)
    made = loaders(args, data_config, device)
    args.lr = resolve_rate(args)
    recorded = _recorded(args, model, data_config, made)
    task: Any = ClassificationTask(model, build_criterion(args), device=device, verbose=False)
    optimizer = build_optimizer(args, model)
    precision = make_precision(args, device)

    start, averaged = 0, None
    if args.resume:
        full = not args.no_resume_opt
        start, averaged = resume(args.resume, task, optimizer if full else None, precision.scaler if full else None)
    if args.start_epoch is not None:
        start = args.start_epoch
    if args.model_ema:
        task.setup_ema(decay=args.model_ema_decay, use_warmup=args.model_ema_warmup)
        if averaged is not None:
            load_whole(task.get_trainable_module(ema=True).module, averaged, args.resume)
    if args.torchcompile:
        task.compile(backend=args.torchcompile, mode=args.torchcompile_mode)

    updates = updates_in(made, args)
    scheduler, epochs = build_scheduler(args, optimizer, updates)
    if scheduler is not None and start > 0:
        scheduler.step_update(start * updates) if args.sched_on_updates else scheduler.step(start)

    name = [
        datetime.now().strftime("%Y%m%d-%H%M%S"),
        safe_model_name(plain_name(args.model)),
        str(data_config["input_size"][-1]),
    ]
    folder = run_folder(args, "-".join(name))
    folder.mkdir(parents=True, exist_ok=True)
    begin_run(folder, args.resume, force)
    write_text(folder / "args.yaml", text)
    metric = args.eval_metric if made.val is not None else "loss"
    saver = WholeSaver(
        model=model,
        optimizer=optimizer,
        args=recorded,
        amp_scaler=precision.scaler,
        task=task,
        checkpoint_dir=str(folder),
        recovery_dir=str(folder),
        decreasing=metric == "loss",
        max_history=args.checkpoint_hist,
    )
    if args.resume and Path(args.resume).resolve().parent == folder.resolve():
        saver.load_state_dict_from_checkpoint(args.resume)
    summary = Summary(folder / "summary.csv", start)

    run = Run(folder, model)
    facts = Start(
        model=args.model,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_classes=int(args.num_classes),
        data_config=data_config,
        weights_size=trained_size(args, model),
        train_images=images_in(made.train),
        val_images=None if made.val is None else images_in(made.val),
        batch_size=args.batch_size,
        updates=updates,
        first_epoch=start,
        epochs=epochs,
        lr=args.lr,
        device=str(device),
        resumed=str(args.resume or ""),
    )
    with on_interrupt(lambda: kept(folder)):
        for callback in callbacks:
            callback.on_start(facts)
        for epoch in range(start, epochs):
            _set_epoch(made.train, epoch)
            loss = train_one_epoch(epoch, task, made, optimizer, args, device, precision, scheduler, callbacks, epochs)
            validated = (epoch + 1) % args.val_interval == 0 or epoch + 1 == epochs
            score = None
            if validated:
                row = {"epoch": epoch, "train_loss": loss, **_validate(task, made, args, device, precision)}
                row["lr"] = mean_rate(optimizer)
                summary.write(row)
                run.rows.append(row)
                score = row["train_loss" if made.val is None else f"eval_{metric}"]
                run.best_metric, run.best_epoch = saver.save_checkpoint(epoch, metric=_ranked(row, score))
            if scheduler is not None:
                scheduler.step(epoch + 1, score)
            if validated:
                for callback in callbacks:
                    callback.on_epoch_end(epoch, epochs, row, folder)
    return run


def _ranked(row: dict[str, float], score: float) -> float | None:
    """The score of an epoch, None where it or the validation loss is not finite: such weights are never the best."""
    if math.isfinite(score) and math.isfinite(row.get("eval_loss", 0.0)):
        return score
    _logger.warning(
        "epoch %d: the validation loss is %s; its checkpoint is not counted among the best.",
        row["epoch"] + 1, row.get("eval_loss", score),
    )  # fmt: skip
    return None


def _recorded(
    args: argparse.Namespace, model: Any, data_config: dict[str, Any], loaders: Loaders
) -> argparse.Namespace:
    """The run's arguments with the model record, as its checkpoints keep them."""
    from timm_gcp.weights.classes import classes_of
    from timm_gcp.weights.record_sources import record_of, with_record

    config = {**data_config, "crop_mode": "center"}  # as validation crops
    try:
        return with_record(args, record_of(model, config, args, classes_of(getattr(loaders.train, "dataset", None))))
    except ValueError as error:
        warnings.warn(f"the checkpoints of this run won't say how to build their model: {error}", stacklevel=2)
        return args


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell whatever shuffles that an epoch begins."""
    for part in (loader, getattr(loader, "dataset", None), getattr(loader, "sampler", None)):
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def _import_modules(args: argparse.Namespace) -> None:
    """Put our schedules in place and import what the recipe names."""
    importlib.import_module("timm_gcp.train_hook").install()
    for module in args.device_modules or ():
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the module does when it is imported
            raise ValueError(f"device_modules: can't import {module!r}: {error}") from error


def _validate(
    task: Any, loaders: Loaders, args: argparse.Namespace, device: torch.device, precision: Precision
) -> dict[str, float]:
    """Validation metrics of the averaged weights where there are such, else of the model."""
    from timm_gcp.inference.evaluate import evaluate

    if loaders.val is None:
        return {}
    model = task.get_eval_model(ema=True) if args.model_ema else task.get_eval_model()
    result = evaluate(model, loaders.val, device, channels_last=args.channels_last, autocast=precision.autocast)
    if result.unreadable:
        _logger.warning(
            "%d validation images can't be read and are not counted, the first: %s",
            len(result.unreadable), result.unreadable[0],
        )  # fmt: skip
    return {f"eval_{name}": value for name, value in result.metrics.items()}
