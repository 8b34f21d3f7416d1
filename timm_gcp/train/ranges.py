"""Which values each key of a training recipe may have: one table, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm_gcp.common.ranges import (
    CLASSES,
    COUNT,
    CROP,
    NOT_NEGATIVE,
    PIXELS,
    POSITIVE,
    PROBABILITY,
    SEED,
    WORKERS,
    Range,
)
from timm_gcp.weights.data_config import INTERPOLATIONS

_FINITE = Range()
_SHARE = Range(0, 1, below=True)  # 1 would leave nothing, or never forget
_FACTOR = Range(0, 1, above=True)
_EPOCHS = Range(0, 10**6)

RANGES: dict[str, Range] = {
    "num_classes": CLASSES,
    "img_size": PIXELS,
    "in_chans": PIXELS,
    "input_size": PIXELS,
    "crop_pct": CROP,
    "mean": _FINITE,
    "std": POSITIVE,
    "batch_size": COUNT,
    "validation_batch_size": COUNT,
    "grad_accum_steps": COUNT,
    "head_init_scale": _FINITE,
    "head_init_bias": _FINITE,
    "opt_eps": NOT_NEGATIVE,
    "opt_betas": _SHARE,
    "momentum": _SHARE,
    "weight_decay": NOT_NEGATIVE,
    "clip_grad": POSITIVE,
    "layer_decay": _FACTOR,
    "layer_decay_min_scale": PROBABILITY,
    "layer_decay_no_opt_scale": PROBABILITY,
    "lr": POSITIVE,
    "lr_base": POSITIVE,
    "lr_base_size": COUNT,
    "lr_noise": NOT_NEGATIVE,
    "lr_noise_pct": NOT_NEGATIVE,
    "lr_noise_std": NOT_NEGATIVE,
    "lr_cycle_mul": POSITIVE,
    "lr_cycle_decay": NOT_NEGATIVE,
    "lr_cycle_limit": COUNT,
    "lr_k_decay": POSITIVE,
    "warmup_lr": NOT_NEGATIVE,
    "min_lr": NOT_NEGATIVE,
    "epochs": Range(1, 10**6),
    "epoch_repeats": _EPOCHS,
    "start_epoch": _EPOCHS,
    "decay_milestones": _EPOCHS,
    "decay_epochs": POSITIVE,
    "warmup_epochs": _EPOCHS,
    "cooldown_epochs": _EPOCHS,
    "patience_epochs": _EPOCHS,
    "decay_rate": NOT_NEGATIVE,
    "scale": _FACTOR,
    "ratio": POSITIVE,
    "hflip": PROBABILITY,
    "vflip": PROBABILITY,
    "color_jitter": NOT_NEGATIVE,
    "color_jitter_prob": PROBABILITY,
    "grayscale_prob": PROBABILITY,
    "gaussian_blur_prob": PROBABILITY,
    "reprob": PROBABILITY,
    "recount": Range(1, 1000),
    "mixup": NOT_NEGATIVE,
    "cutmix": NOT_NEGATIVE,
    "mixup_prob": PROBABILITY,
    "mixup_switch_prob": PROBABILITY,
    "mixup_off_epoch": _EPOCHS,
    "smoothing": _SHARE,
    "drop": _SHARE,
    "drop_path": _SHARE,
    "drop_block": _SHARE,
    "bn_momentum": PROBABILITY,
    "bn_eps": POSITIVE,
    "model_ema_decay": PROBABILITY,
    "seed": SEED,
    "log_interval": COUNT,
    "val_interval": COUNT,
    "checkpoint_hist": COUNT,
    "workers": WORKERS,
}

CHOICES: dict[str, tuple[str, ...]] = {
    "amp_dtype": ("float16", "bfloat16"),
    "clip_mode": ("norm", "value", "agc"),
    "eval_metric": ("top1", "top5", "loss"),
    "interpolation": ("", *INTERPOLATIONS),
    "lr_base_scale": ("", "linear", "sqrt"),
    "mixup_mode": ("batch", "pair", "elem"),
    "remode": ("const", "rand", "pixel"),
    "train_crop_mode": ("rrc", "rkrc", "rkrr"),
    "train_interpolation": ("", *INTERPOLATIONS),
    "worker_seeding": ("all", "part"),
}

# Lists of a fixed length, and what their items are.
_LENGTHS: dict[str, tuple[tuple[int, ...], str]] = {
    "input_size": ((3,), "channels, height and width"),
    "scale": ((2,), "the least and the largest share of the area"),
    "ratio": ((2,), "the least and the largest ratio of width to height"),
    "lr_noise": ((1, 2), "the first epoch of the noise, or the first and the last, as shares of the whole"),
}
_RISING = ("scale", "ratio", "lr_noise", "decay_milestones")


def check_value(key: str, value: Any, where: str) -> None:
    """Check one number or word against the tables.

    Raises:
        ValueError: It is outside the key's range, or not one of its choices; names the key.
    """
    allowed = RANGES.get(key)
    wrong = allowed.wrong(value) if allowed is not None else ""
    if key in CHOICES and value not in CHOICES[key]:
        wrong = f"one of {', '.join(map(repr, CHOICES[key]))}"
    if wrong:
        shown = repr(value) if isinstance(value, str) else value
        raise ValueError(f"{where}: {key} must be {wrong}, got {shown}.")


def check_list(key: str, values: list[Any], where: str) -> None:
    """Check how many values a list has, and their order where it matters.

    Raises:
        ValueError: It is empty, has another length than the key needs, or falls where it has to rise.
    """
    lengths, meaning = _LENGTHS.get(key, ((), ""))
    if lengths and len(values) not in lengths:
        raise ValueError(f"{where}: {key} takes {' or '.join(map(str, lengths))} values, {meaning}, got {values}.")
    if not values and key != "device_modules":
        raise ValueError(f"{where}: {key} is empty: give its values, or leave it out.")
    if key in _RISING and sorted(values) != values:
        raise ValueError(f"{where}: {key} must rise from value to value, got {values}.")


def check_policy(values: Mapping[str, Any]) -> None:
    """Check the AutoAugment policy of a recipe.

    Raises:
        ValueError: timm knows no such policy, or can't read its parts.
    """
    from timm.data.auto_augment import augment_and_mix_transform, auto_augment_transform, rand_augment_transform

    policy = values.get("aa")
    if not policy:
        return
    kinds = {"rand": rand_augment_transform, "augm": augment_and_mix_transform}
    try:
        kinds.get(policy[:4], auto_augment_transform)(policy, {"translate_const": 100, "img_mean": (124, 116, 104)})
    except (AssertionError, ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
        raise ValueError(
            f"--aa {policy!r} is not an AutoAugment policy of timm ({error}): give one such as 'rand-m9-mstd0.5', "
            "'augmix-m5-w4' or 'original'."
        ) from error
