"""Options such as `--model-kwargs reduce_dim=64 norm=sqrt`: names of arguments with Python's plain values."""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Sequence
from typing import Any


class NamedValues(argparse.Action):
    """Collects `name=value` words into a dict, as timm's scripts read them: what isn't a Python literal is text."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Set the option; words that are no `name=value`, and NaN or infinity, are refused."""
        words = [values] if isinstance(values, str) else list(values or ())
        found = {}
        for word in filter(None, words):
            name, separator, text = word.partition("=")
            if not separator or not name.isidentifier():
                parser.error(f"argument {option_string}: takes name=value, such as reduce_dim=64, got {word!r}")
            found[name] = _literal(text)
            if isinstance(found[name], float) and not math.isfinite(found[name]):
                parser.error(f"argument {option_string}: {name} must be a finite number, got {text}")
        setattr(namespace, self.dest, found)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        pass
    try:
        value = float(text)  # nan and inf, which Python doesn't write as literals
    except ValueError:
        return text
    return text if math.isfinite(value) else value
