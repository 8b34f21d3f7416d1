"""The table of ranges: every numeric key is in it, recipes and command line alike are checked by it."""

from __future__ import annotations

import math

import pytest

from timm_gcp.common.recipe import list_recipes
from timm_gcp.train.options import OPTIONS, TRAIN_PY_ONLY, resolve_args
from timm_gcp.train.ranges import CHOICES, RANGES, check_policy, check_value

NUMERIC = sorted(name for name, option in OPTIONS.items() if option.type in (int, float))


def test_every_number_has_a_range_that_holds_its_default():
    assert set(RANGES) == set(NUMERIC) and set(CHOICES) < set(OPTIONS)
    for name, option in OPTIONS.items():
        for value in option.default if option.many and option.default else [option.default]:
            if value is not None:
                check_value(name, value, "default")


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, -1e300, "nan", "inf", 10**400, None, True, "x", [[1]]]
)
def test_no_number_is_everything(name, value, tmp_path):
    """Of what no key can be, nothing gets through, and nothing but ValueError comes out."""
    unbounded = RANGES[name].low == -math.inf
    nullable = ("color_jitter", "drop", "ratio", "scale", "smoothing", "weight_decay")
    if value is None and (OPTIONS[name].default is None or name in nullable):
        assert getattr(resolve_args(None, {name: None}), name) is None
        return
    if value == -1e300 and unbounded:
        return
    with pytest.raises(ValueError, match=f"option: {name} "):
        resolve_args(None, {name: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hflip", 7, "hflip must be at least 0 and at most 1, got 7.0"),
        ("smoothing", -1, "smoothing must be at least 0 and below 1, got -1.0"),
        ("epochs", math.inf, "epochs must be int, got inf"),
        ("epochs", 10**12, "epochs must be at least 1 and at most 1000000, got 1000000000000"),
        ("scale", 0.5, r"scale takes 2 values, the least and the largest share of the area, got \[0.5\]"),
        ("scale", [0.9, 0.1], r"scale must rise from value to value, got \[0.9, 0.1\]"),
        ("mean", [], "mean is empty: give its values, or leave it out"),
        ("input_size", [3, 32], "input_size takes 3 values, channels, height and width"),
        ("lr_noise", [0.1, 0.2, 0.3], "lr_noise takes 1 or 2 values"),
        ("decay_milestones", [3, 1], "decay_milestones must rise"),
        ("interpolation", "foo", "interpolation must be one of '', 'nearest'.*, got 'foo'"),
        ("remode", "foo", "remode must be one of 'const', 'rand', 'pixel', got 'foo'"),
        ("model", None, "model must be str, got None"),
        ("opt", None, "opt must be str, got None"),
        ("model_kwargs", {1: 2}, r"model_kwargs maps names of arguments to values, got \{1: 2\}"),
    ],
)
def test_refusals(key, value, message):
    with pytest.raises(ValueError, match=message):
        resolve_args(None, {key: value})


def test_nulls_that_stand_for_something():
    args = resolve_args(None, {"class_map": None, "amp": None, "opt_kwargs": None, "color_jitter": None, "lr": None})
    assert (args.class_map, args.amp, args.opt_kwargs, args.color_jitter, args.lr) == ("", False, {}, None, None)


@pytest.mark.parametrize("policy", ["x", "rand-q9", "randx"])
def test_policies_that_timm_does_not_know(policy):
    with pytest.raises(ValueError, match=f"--aa '{policy}' is not an AutoAugment policy of timm"):
        check_policy({"aa": policy})


@pytest.mark.parametrize("policy", [None, "", "rand-m9-mstd0.5-inc1", "augmix-m5-w4", "original", "v0", "3a"])
def test_policies_that_timm_knows(policy):
    check_policy({"aa": policy})


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_pass(name):
    from timm_gcp.common.recipe import find_recipe, read_recipe

    values = {key: value for key, value in read_recipe(find_recipe(name)).items() if key not in TRAIN_PY_ONLY}
    resolve_args(None, values)
