"""The table of keys that `timm-gcp train` implements, each as timm's train.py spells and reads it.

Everything else that train.py knows is named in `TRAIN_PY_ONLY`, so that a recipe which needs it is refused by name
instead of being run without it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timm_gcp.common.messages import did_you_mean
from timm_gcp.common.recipe import find_recipe, read_recipe
from timm_gcp.train.ranges import check_list, check_value


@dataclass(frozen=True)
class Option:
    """One key: its name in YAML (`batch_size`; on the command line `--batch-size`), type, default and meaning."""

    name: str
    type: type
    default: Any
    help: str
    many: bool = False  # a list of values
    flags: tuple[str, ...] = ()  # train.py's short forms


def _table(*rows: tuple[Any, ...]) -> dict[str, Option]:
    return {row[0]: Option(*row) for row in rows}


OPTIONS: dict[str, Option] = _table(
    # data
    ("data_dir", str, None, "folder of the data set"),
    ("dataset", str, "", "type/name of the data set, e.g. torch/fashion_mnist; empty for an image folder"),
    ("train_split", str, "train", "name of the training split"),
    ("val_split", str, "validation", "name of the validation split; empty for none"),
    ("dataset_download", bool, False, "let torchvision download the data set"),
    ("class_map", str, "", "file of class names in index order"),
    ("input_img_mode", str, None, "PIL mode of the images (RGB or L)"),
    # model
    ("model", str, "resnet50", "name of the model"),
    ("pretrained", bool, False, "start from the model's pretrained weights"),
    ("pretrained_path", str, None, "start from this file as if it were the pretrained weights"),
    ("initial_checkpoint", str, "", "load this checkpoint of the same model first"),
    ("resume", str, "", "go on from this checkpoint, optimizer state included"),
    ("no_resume_opt", bool, False, "resume the weights only"),
    ("num_classes", int, None, "classes; as many as the data have when left out"),
    ("gp", str, None, "global pooling; the model's own when left out"),
    ("img_size", int, None, "height and width of the input in pixels"),
    ("in_chans", int, None, "channels of the input; 3 when left out"),
    ("input_size", int, None, "channels, height and width of the input", True),
    ("crop_pct", float, None, "share of the image kept by the centre crop in validation"),
    ("mean", float, None, "mean of the pixels, per channel", True),
    ("std", float, None, "standard deviation of the pixels, per channel", True),
    ("interpolation", str, "", "resizing in validation"),
    ("batch_size", int, 128, "images per batch", False, ("-b",)),
    ("validation_batch_size", int, None, "images per batch in validation", False, ("-vb",)),
    ("channels_last", bool, False, "use the channels_last memory layout"),
    ("grad_accum_steps", int, 1, "batches per update"),
    ("grad_checkpointing", bool, False, "recompute activations in the backward pass"),
    ("model_kwargs", dict, {}, "further model arguments, name=value"),
    ("head_init_scale", float, None, "scale of the classifier's initial weights"),
    ("head_init_bias", float, None, "initial bias of the classifier"),
    ("torchcompile", str, None, "compile with this backend (without a value: inductor)"),
    ("torchcompile_mode", str, None, "mode of torch.compile"),
    # device
    ("device", str, None, "device; cuda where there is one, else cpu"),
    ("amp", bool, False, "mixed precision"),
    ("amp_dtype", str, "float16", "float16 or bfloat16"),
    ("device_modules", str, None, "Python modules to import first", True),
    # optimizer
    ("opt", str, "sgd", "optimizer (timm's sgd is Nesterov, momentum is not)"),
    ("opt_eps", float, None, "epsilon of the optimizer"),
    ("opt_betas", float, None, "betas of the optimizer", True),
    ("momentum", float, 0.9, "momentum"),
    ("weight_decay", float, 2e-5, "weight decay"),
    ("clip_grad", float, None, "clip gradients at this value"),
    ("clip_mode", str, "norm", "norm, value or agc"),
    ("layer_decay", float, None, "factor on the rate from layer to layer"),
    ("layer_decay_min_scale", float, 0, "smallest factor of layer decay"),
    ("layer_decay_no_opt_scale", float, None, "layers below this factor are frozen"),
    ("opt_kwargs", dict, {}, "further optimizer arguments, name=value"),
    # learning rate
    ("sched", str, "cosine", "schedule"),
    ("sched_on_updates", bool, False, "step the schedule at every update"),
    ("lr", float, None, "learning rate; set by lr_base when left out"),
    ("lr_base", float, 0.1, "learning rate at a batch of lr_base_size"),
    ("lr_base_size", int, 256, "batch size that lr_base refers to"),
    ("lr_base_scale", str, "", "linear or sqrt; by the optimizer when empty"),
    ("lr_noise", float, None, "epochs of noise on the rate, as shares of the whole", True),
    ("lr_noise_pct", float, 0.67, "limit of the noise"),
    ("lr_noise_std", float, 1.0, "standard deviation of the noise"),
    ("lr_cycle_mul", float, 1.0, "factor on the cycle length"),
    ("lr_cycle_decay", float, 0.5, "factor on the rate from cycle to cycle"),
    ("lr_cycle_limit", int, 1, "number of cycles"),
    ("lr_k_decay", float, 1.0, "k-decay of cosine and poly"),
    ("warmup_lr", float, 1e-5, "rate at the start of warm-up"),
    ("min_lr", float, 0, "lowest rate"),
    ("epochs", int, 300, "epochs"),
    ("epoch_repeats", float, 0.0, "repeats of the data set per epoch"),
    ("start_epoch", int, None, "first epoch, counted from 0"),
    ("decay_milestones", int, [90, 180, 270], "epochs of the multistep schedule", True),
    ("decay_epochs", float, 90, "epochs between steps"),
    ("warmup_epochs", int, 5, "epochs of warm-up"),
    ("warmup_prefix", bool, False, "warm-up comes before the epochs"),
    ("cooldown_epochs", int, 0, "epochs at the lowest rate after the schedule"),
    ("patience_epochs", int, 10, "patience of the plateau schedule"),
    ("decay_rate", float, 0.1, "factor of a step, or power of poly", False, ("--dr",)),
    # augmentation and regularization
    ("no_aug", bool, False, "no training augmentation"),
    ("train_crop_mode", str, None, "crop of training images"),
    ("scale", float, [0.08, 1.0], "range of the crop's area", True),
    ("ratio", float, [3.0 / 4.0, 4.0 / 3.0], "range of the crop's aspect ratio", True),
    ("hflip", float, 0.5, "probability of a horizontal flip"),
    ("vflip", float, 0.0, "probability of a vertical flip"),
    ("color_jitter", float, 0.4, "strength of colour jitter"),
    ("color_jitter_prob", float, None, "probability of colour jitter"),
    ("grayscale_prob", float, None, "probability of grey"),
    ("gaussian_blur_prob", float, None, "probability of blur"),
    ("aa", str, None, "AutoAugment policy"),
    ("reprob", float, 0.0, "probability of random erasing"),
    ("remode", str, "pixel", "fill of random erasing"),
    ("recount", int, 1, "areas of random erasing"),
    ("mixup", float, 0.0, "alpha of mixup"),
    ("cutmix", float, 0.0, "alpha of cutmix"),
    ("mixup_prob", float, 1.0, "probability of mixup or cutmix"),
    ("mixup_switch_prob", float, 0.5, "probability of cutmix when both are on"),
    ("mixup_mode", str, "batch", "batch, pair or elem"),
    ("mixup_off_epoch", int, 0, "epoch that turns mixup off, 0 for never"),
    ("smoothing", float, 0.1, "label smoothing"),
    ("train_interpolation", str, "random", "resizing in training"),
    ("drop", float, 0.0, "dropout before the classifier"),
    ("drop_path", float, None, "stochastic depth"),
    ("drop_block", float, None, "DropBlock rate"),
    ("bn_momentum", float, None, "momentum of batch-norm"),
    ("bn_eps", float, None, "epsilon of batch-norm"),
    # moving average of the weights
    ("model_ema", bool, False, "keep an exponential moving average of the weights"),
    ("model_ema_decay", float, 0.9998, "decay of the average"),
    ("model_ema_warmup", bool, False, "shorter memory at the start of the average"),
    # run
    ("seed", int, 42, "random seed"),
    ("worker_seeding", str, "all", "how workers are seeded"),
    ("log_interval", int, 50, "updates between two refreshes of the progress bar"),
    ("val_interval", int, 1, "epochs between validations"),
    ("checkpoint_hist", int, 10, "checkpoints kept"),
    ("workers", int, 4, "processes that load images", False, ("-j",)),
    ("pin_mem", bool, False, "pin the memory of batches"),
    ("no_prefetcher", bool, False, "normalise images in the workers"),
    ("output", str, "", "folder of runs; ./output/train when empty"),
    ("experiment", str, "", "name of the run's folder; date, model and size when empty"),
    ("eval_metric", str, "top1", "metric of the best checkpoint: top1, top5 or loss"),
)

# The remaining keys of train.py (timm 1.0.29.dev0): distillation, distribution, other loaders, logging services.
# fmt: off
TRAIN_PY_ONLY: frozenset[str] = frozenset({
    "data", "train_num_samples", "val_num_samples", "input_key", "target_key", "dataset_trust_remote_code", "fuser",
    "fast_norm", "torchscript", "model_dtype", "no_ddp_bb", "synchronize_step", "local_rank", "aug_repeats",
    "aug_splits", "jsd_loss", "bce_loss", "bce_sum", "bce_target_thresh", "bce_pos_weight", "resplit",
    "cutmix_minmax", "drop_connect", "sync_bn", "dist_bn", "split_bn", "model_ema_force_cpu", "recovery_interval",
    "save_images", "tta", "use_multi_epochs_loader", "log_wandb", "wandb_project", "wandb_tags", "wandb_resume_id",
    "train_img_sizes", "train_batch_sizes", "train_size_probs", "train_size_schedule", "train_size_schedule_spread",
    "train_size_random_mix", "train_batches_per_epoch", "train_steps_per_epoch", "variable_batch_loss_scale",
    "naflex_loader", "naflex_train_seq_lens", "naflex_max_seq_len", "naflex_patch_sizes", "naflex_patch_size_probs",
    "naflex_loss_scale", "naflex_patchify_channels_first", "kd_model_name", "kd_distill_type", "kd_loss_type",
    "distill_loss_weight", "task_loss_weight", "kd_temperature", "kd_student_feature_dim", "kd_teacher_feature_dim",
    "kd_token_distill_type",
})
# fmt: on

# Keys that may be null although they have a default: none, the whole range, or what another key says.
_MAY_BE_NULL = frozenset(
    {"color_jitter", "drop", "ratio", "scale", "smoothing", "train_interpolation", "val_split", "weight_decay"}
)


def unknown_key(key: str, where: str) -> str:
    """One sentence on a key that is not in `OPTIONS`: does train.py have it, or what was meant."""
    if key in TRAIN_PY_ONLY:
        return (
            f"{where}: timm's train.py has the key {key!r}, timm-gcp train does not: run this recipe with "
            "`python train.py -c RECIPE` from timm's repository."
        )
    hint = did_you_mean(key, [*OPTIONS, *TRAIN_PY_ONLY])
    return f"{where}: neither timm-gcp train nor timm's train.py has the key {key!r}.{hint}"


def resolve_args(recipe: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> argparse.Namespace:
    """Merge train.py's defaults, a recipe and overrides (the later wins) into one namespace of all `OPTIONS`.

    Args:
        recipe: Path of a recipe, or name of a shipped one.
        overrides: Key to value, strings allowed where train.py would parse them.

    Raises:
        FileNotFoundError: No such recipe.
        ValueError: An unknown key (says whether train.py has it) or a value of the wrong type or range.
    """
    values = {name: _copy(option.default) for name, option in OPTIONS.items()}
    if recipe is not None:
        path = find_recipe(recipe)
        values.update(_checked(read_recipe(path), f"recipe {str(path)!r}"))
    values.update(_checked(dict(overrides or {}), "option"))
    return argparse.Namespace(**values)


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value


def _checked(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key in given:
        if key not in OPTIONS:
            raise ValueError(unknown_key(key, where))
    return {key: _convert(OPTIONS[key], value, where) for key, value in given.items()}


def _convert(option: Option, value: Any, where: str) -> Any:
    if value is None:
        return _null(option, where)
    if option.many:
        items = value if isinstance(value, list | tuple) else [value]
        values = [_convert_one(option, item, where) for item in items]
        check_list(option.name, values, where)
        return values
    return _convert_one(option, value, where)


def _null(option: Option, where: str) -> Any:
    """What a null stands for: as in train.py, `color_jitter: null` means none, not the default."""
    if option.default is None or option.name in _MAY_BE_NULL:
        return None
    if option.default in ("", False) and option.type in (str, bool):
        return option.default
    if option.type is dict:
        return {}
    raise ValueError(f"{where}: {option.name} must be {_KINDS[option.type]}, got None.")


_KINDS = {bool: "a switch", dict: "a mapping", int: "int", float: "float", str: "str"}


def _convert_one(option: Option, value: Any, where: str) -> Any:
    wrong = ValueError(f"{where}: {option.name} must be {_KINDS[option.type]}, got {value!r}.")
    if option.type is bool or option.type is dict:
        if not isinstance(value, option.type):
            raise wrong
        if isinstance(value, dict) and not all(isinstance(key, str) and key.isidentifier() for key in value):
            raise ValueError(f"{where}: {option.name} maps names of arguments to values, got {value!r}.")
        return value
    if value is None or isinstance(value, bool | dict | list | tuple):
        raise wrong
    try:
        converted = option.type(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong from error
    if isinstance(value, float) and option.type is int and converted != value:
        raise wrong
    check_value(option.name, converted, where)
    return converted
