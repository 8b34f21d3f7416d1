"""Shared options: one spelling in every command."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

import pytest

from timm_gcp.cli import COMMANDS
from timm_gcp.commands.options import SHARED, check_weights


def parsers(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of a command and those of its subcommands."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, inner in action.choices.items():
                yield from parsers(inner, f"{name} {sub}")


def all_parsers() -> dict[str, argparse.ArgumentParser]:
    found = {}
    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).add_arguments(parser)
        found.update(parsers(parser, name))
    return found


def test_the_same_flags_in_every_command():
    seen: dict[str, set[str]] = {name: set() for name in SHARED}
    for command, parser in all_parsers().items():
        for action in parser._actions:
            if action.dest in SHARED:
                assert set(SHARED[action.dest][0]) <= set(action.option_strings), (command, action.dest)
                seen[action.dest].add(command)
    assert {"validate", "train", "robustness c", "robustness p", "detect eval", "detect train"} <= seen["workers"]
    for command in ("validate", "predict", "export", "robustness c", "landscape probe"):
        assert command in seen["pretrained"], command
        assert any("--checkpoint" in action.option_strings for action in all_parsers()[command]._actions), command


def test_checks():
    args = argparse.Namespace(pretrained=True, checkpoint="x")
    with pytest.raises(ValueError, match="--pretrained and --checkpoint name two sources of weights"):
        check_weights(args)
