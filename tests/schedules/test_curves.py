"""Closed forms against the authors' own numbers, and what happens past their ends."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from timm_gcp.schedules.curves import TABLE_3, Exponential, LinearPerUpdate, Polynomial, StagedLinear, Steps
from timm_gcp.schedules.spec import GENERAL_FORMS, is_ours, parse, schedule_names

AUTHORS = json.loads((Path(__file__).parents[1] / "data" / "lr.json").read_text())


def row_name(authors_name: str) -> str:
    """MobileNetV2's LR_adju goes by two names: as the paper prints it, and as the released script computes it."""
    return "gcp_" + authors_name.removesuffix("_paper")


@pytest.mark.parametrize("authors_name", AUTHORS)
def test_rates_are_the_authors(authors_name):
    row = TABLE_3[row_name(authors_name)]
    expected = AUTHORS[authors_name]
    assert len(expected) == row.epochs
    assert [row.lr(epoch) for epoch in range(row.epochs)] == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("authors_name", AUTHORS)
@pytest.mark.parametrize("per_epoch", [1, 3, 5005])
def test_updates_agree_with_epochs_at_every_boundary_bit_for_bit(authors_name, per_epoch):
    row = TABLE_3[row_name(authors_name)]
    for epoch in range(row.epochs):
        assert row.lr(epoch * per_epoch, per_epoch) == row.lr(epoch)


@pytest.mark.parametrize(("name", "epochs"), [("norm", 240), ("fast", 60), ("adju", 100)])
def test_shufflenet_is_linear_in_the_update(name, epochs):
    row, per_epoch = TABLE_3[f"gcp_shufflenetv2_{name}"], 7
    total = epochs * per_epoch
    assert (row.epochs, row.per_update) == (epochs, True)
    for step in range(total):
        assert row.lr(step, per_epoch) == 0.5 * (1 - step / total)


def test_table_3_has_nine_rows_and_the_released_variant():
    assert len(TABLE_3) == 9 + 1
    assert {row.batch_size for row in TABLE_3.values()} == {256, 96, 192, 1024}


def test_resnet_curves_start_above_the_base_rate():
    assert TABLE_3["gcp_resnet_fast"].lr(0) == pytest.approx(0.1 * (53 / 52) ** 11, rel=1e-14)
    assert TABLE_3["gcp_resnet_adju"].lr(0) == pytest.approx(0.1 * (50 / 49) ** 2, rel=1e-14)
    assert TABLE_3["gcp_resnet_fast"].lr(1) == TABLE_3["gcp_resnet_adju"].lr(1) == 0.1


def test_paper_and_script_differ_for_mobilenet():
    paper, script = TABLE_3["gcp_mobilenetv2_adju"], TABLE_3["gcp_mobilenetv2_adju_released"]
    assert paper.lr(49) == pytest.approx(6e-2 - 5.9e-2 / 50 * 49, rel=1e-12)
    assert paper.lr(50) > 4 * paper.lr(49)
    assert all(script.lr(e + 1) < script.lr(e) for e in range(150))
    assert paper.lr(149) == script.lr(149)
    # Table 2's matching epoch, 68: the rate that the script first reaches there is the printed curve's of epoch 45.
    assert all(script.lr(e) > script.lr(68) for e in range(68))
    assert paper.lr(45) > script.lr(68) > paper.lr(46)


@pytest.mark.parametrize("name", TABLE_3)
def test_past_the_end_nothing_rises_or_turns_negative_or_complex(name):
    row = TABLE_3[name]
    rates = [row.lr(row.epochs + t / 4) for t in range(1200)]
    assert all(isinstance(rate, float) and rate >= 0 and math.isfinite(rate) for rate in rates)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))


@pytest.mark.parametrize(
    ("shape", "end", "last"),
    [
        (Polynomial(power=2, start=1, end=50), 50, 0.0),
        (Polynomial(power=11, start=1, end=53), 53, 0.0),
        (Polynomial(power=0.5, start=0, end=10), 10, 0.0),
        (StagedLinear((0, 50), (6e-2, 1e-2), (1e-3, 3e-3), 100), 100, 3e-3 / 6e-2),
        (LinearPerUpdate(60), 60, 0.0),
    ],
)
def test_the_last_value_is_held(shape, end, last):
    assert shape(end) == last
    assert {shape(end + extra) for extra in (0.5, 1, 2, 100)} == {last}


def test_polynomial_is_equation_9():
    shape = Polynomial(power=3.5, start=2, end=20)
    for epoch in range(20):
        assert shape(epoch) == pytest.approx((1 - (epoch - 2) / 18) ** 3.5, rel=1e-14)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Polynomial(power=0), "`power` must be positive"),
        (lambda: Polynomial(start=5, end=5), "`end` finite and after it"),
        (lambda: Exponential(1.5), r"`rate` must be in \(0, 1\]. Got 1.5"),
        (lambda: Steps(every=0), "`every` must be positive"),
        (lambda: Steps(factor=2), "`factor` must be in"),
        (lambda: StagedLinear((0,), (1.0, 2.0), (0.0,), 5), "Every stage needs"),
        (lambda: StagedLinear((0, 9), (1.0, 0.5), (0.5, 0.1), 5), "ascend to a finite end"),
        (lambda: StagedLinear((0,), (0.1,), (0.2,), 5), "0 <= final <= initial"),
        (lambda: LinearPerUpdate(0), "`epochs` must be positive"),
    ],
)
def test_bad_constants_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_specs_build_the_rows_by_their_general_forms():
    equal = {
        "gcp_poly:power=11,start=1,end=53": "gcp_resnet_fast",
        "gcp_poly:power=2, start=1, end=50": "gcp_resnet_adju",
        "gcp_exp:rate=0.98": "gcp_mobilenetv2_norm",
        "gcp_steps:every=30,factor=0.1": "gcp_resnet_norm",
        "gcp_linear:epochs=60": "gcp_shufflenetv2_fast",
        "gcp_staged:starts=0/50/100,initial=6e-2/1e-2/1e-3,final=1e-3/1e-4/1e-5,end=150": "gcp_mobilenetv2_adju",
    }
    for text, name in equal.items():
        assert parse(text).shape == TABLE_3[name].shape
        assert parse(text).per_update == TABLE_3[name].per_update == (name == "gcp_shufflenetv2_fast")
        assert parse(text).stretch_from is None


def test_stretch_is_off_unless_written():
    assert all(parse(name).stretch_from is None for name in TABLE_3)
    assert parse("gcp_resnet_adju:stretch").stretch_from == 50
    assert parse("gcp_poly:stretch=40").stretch_from == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gcp_nothing", "Unknown schedule 'gcp_nothing'. Known: gcp_resnet_norm"),
        ("gcp_resnet_norm:power=3", "has no option power. Known: stretch"),
        ("gcp_resnet_norm:stretch=40", "`stretch` takes no value"),
        ("gcp_poly:rho=3", "has no option rho. Known: power, start, end, stretch"),
        ("gcp_poly:power=two", "`power` must be a number. Got 'two'"),
        ("gcp_poly:power=2,power=3", "gives `power` twice"),
        ("gcp_poly:stretch", "`stretch` must be a number"),
        ("gcp_poly:stretch=-3", "`stretch` must be a positive number"),
        ("gcp_exp", "needs rate. Write gcp_exp:rate="),
    ],
)
def test_bad_specs_say_what_is_known(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_names():
    assert schedule_names() == [*TABLE_3, *GENERAL_FORMS]
    assert all(is_ours(name) for name in schedule_names())
    assert not is_ours("cosine") and not is_ours(None)
