"""`name=value` options."""

from __future__ import annotations

import argparse

import pytest

from timm_gcp.common.named_values import NamedValues


def parse(*words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", default={}, action=NamedValues)
    return parser.parse_args(["--model-kwargs", *words]).model_kwargs


def test_values_are_pythons_or_text():
    words = ("a=1", "b=0.5", "c=(1,2)", "d=sqrt", "e=True", "f=x=y", "g=", "", "h=1e3")
    assert parse(*words) == {
        "a": 1, "b": 0.5, "c": (1, 2), "d": "sqrt", "e": True, "f": "x=y", "g": "", "h": 1000.0,
    }  # fmt: skip
    assert parse() == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("foo", "takes name=value, such as reduce_dim=64, got 'foo'"),
        ("=1", "takes name=value"),
        ("a b=1", "takes name=value"),
        ("eps=nan", "eps must be a finite number, got nan"),
        ("eps=1e999", "eps must be a finite number, got 1e999"),
        ("eps=-Infinity", "eps must be a finite number"),
    ],
)
def test_refusals(capsys, word, message):
    with pytest.raises(SystemExit) as stop:
        parse(word)
    assert stop.value.code == 2 and f"argument --model-kwargs: {message}" in capsys.readouterr().err


def test_deep_nesting_is_text():
    deep = "(" * 100_000
    assert parse(f"a={deep}") == {"a": deep}
