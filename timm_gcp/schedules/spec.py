"""Reads the text that train.py's `--sched` carries: `NAME` or `NAME:option=value,option=value`.

Table 3's rows go by name alone. The general forms for your own runs take their constants as options, and `stretch`
draws a curve made for one number of epochs over the number that `--epochs` asks for; it is off unless written.

    gcp_resnet_adju                         the paper's row, whatever --epochs says
    gcp_resnet_adju:stretch                 the same curve over --epochs
    gcp_poly:power=11,start=1,end=53        Eq. 9
    gcp_exp:rate=0.9
    gcp_steps:every=30,factor=0.1
    gcp_staged:starts=0/50,initial=6e-2/1e-2,final=1e-3/1e-4,end=100
    gcp_linear:epochs=240                   per update, to zero
    gcp_poly:power=2,start=1,end=50,stretch=50
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from timm_gcp.schedules.curves import TABLE_3, Exponential, LinearPerUpdate, Polynomial, Shape, StagedLinear, Steps

PREFIX = "gcp_"

GENERAL_FORMS: dict[str, type] = {
    "gcp_poly": Polynomial,
    "gcp_exp": Exponential,
    "gcp_steps": Steps,
    "gcp_staged": StagedLinear,
    "gcp_linear": LinearPerUpdate,
}


@dataclass(frozen=True)
class Spec:
    """A parsed schedule: its shape, the epochs that it is drawn for when stretched (or None), and its kind of step."""

    shape: Shape
    stretch_from: float | None
    per_update: bool


def schedule_names() -> list[str]:
    """Every name that `--sched` accepts beyond timm's own, Table 3's rows first."""
    return [*TABLE_3, *GENERAL_FORMS]


def register_schedule(name: str, form: type) -> None:
    """Let `--sched NAME:option=value,…` build a curve of your own.

    Args:
        name: Begins with `gcp_`, then letters, digits or `_`; the same class may be registered again.
        form: A dataclass whose fields, all numbers, are the options. An instance is called with `(t, per_epoch=1.0)`,
            the time in ticks of which `per_epoch` make one epoch, and returns the factor of the base rate.

    Raises:
        ValueError: A name of another form or one that is taken, or a class that is not such a dataclass.
    """
    if not isinstance(name, str) or not name.startswith(PREFIX) or not name.isidentifier() or name == PREFIX:
        raise ValueError(f"A schedule's name begins with {PREFIX!r}, such as 'gcp_cosine'. Got {name!r}.")
    known = GENERAL_FORMS.get(name)
    same = known is not None and (known.__module__, known.__qualname__) == (
        getattr(form, "__module__", None),
        getattr(form, "__qualname__", None),
    )
    if name in TABLE_3 or (known is not None and not same):
        raise ValueError(f"The schedule {name!r} exists already. Choose a name beside {', '.join(schedule_names())}.")
    if not isinstance(form, type) or not is_dataclass(form) or "__call__" not in dir(form):
        raise ValueError(f"The schedule {name!r} must be a dataclass with __call__(t, per_epoch=1.0). Got {form!r}.")
    GENERAL_FORMS[name] = form


def is_ours(sched: str) -> bool:
    """Whether a `--sched` value is meant for this package: everything that begins with `gcp_`, misspelt or not."""
    return isinstance(sched, str) and sched.startswith(PREFIX)


def parse(sched: str) -> Spec:
    """Read a `--sched` value.

    Raises:
        ValueError: An unknown name or option, a missing constant, or a value that is not a number; the message
            lists what is known.
    """
    name, _, tail = sched.partition(":")
    options = _options(sched, tail)
    if name in TABLE_3:
        row = TABLE_3[name]
        stretch = options.pop("stretch", None)
        _reject_unknown(sched, options, ["stretch"])
        if stretch not in (None, ""):
            raise ValueError(f"Schedule '{sched}': `stretch` takes no value here, {name} is drawn for {row.epochs}.")
        return Spec(row.shape, None if stretch is None else row.epochs, row.per_update)
    if name in GENERAL_FORMS:
        form = GENERAL_FORMS[name]
        known = [field.name for field in fields(form)]
        stretch = options.pop("stretch", None)
        _reject_unknown(sched, options, [*known, "stretch"])
        missing = [field.name for field in fields(form) if field.default is MISSING and field.name not in options]
        if missing:
            raise ValueError(f"Schedule '{sched}' needs {', '.join(missing)}. Write {name}:{'=…,'.join(missing)}=….")
        values: dict[str, Any] = {
            key: _numbers(sched, key, text) if form is StagedLinear and key != "end" else _number(sched, key, text)
            for key, text in options.items()
        }
        stretch_from = None if stretch is None else _number(sched, "stretch", stretch)
        if stretch_from is not None and not stretch_from > 0:
            raise ValueError(f"Schedule '{sched}': `stretch` must be a positive number of epochs. Got {stretch}.")
        return Spec(form(**values), stretch_from, form is LinearPerUpdate)
    raise ValueError(f"Unknown schedule '{name}'. Known: {', '.join(schedule_names())}; timm's own need no prefix.")


def _options(sched: str, tail: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, tail.split(",")):
        key, _, value = (text.strip() for text in part.partition("="))
        if key in options:
            raise ValueError(f"Schedule '{sched}' gives `{key}` twice. Keep one.")
        options[key] = value
    return options


def _reject_unknown(sched: str, options: dict[str, str], known: list[str]) -> None:
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ValueError(f"Schedule '{sched}' has no option {', '.join(unknown)}. Known: {', '.join(known)}.")


def _number(sched: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Schedule '{sched}': `{key}` must be a number. Got '{text}'.") from None


def _numbers(sched: str, key: str, text: str) -> tuple[float, ...]:
    return tuple(_number(sched, key, part) for part in text.split("/"))
