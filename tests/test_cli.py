"""The command line's own behaviour: outputs that nobody reads, or that are full."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from timm_gcp import cli


@pytest.fixture
def lines(monkeypatch):
    """A command that prints as many lines as it is told to."""
    module = SimpleNamespace(
        add_arguments=lambda parser: parser.add_argument("count", type=int),
        main=lambda args: print("\n".join(map(str, range(args.count)))),
    )
    monkeypatch.setitem(sys.modules, "printing", module)
    monkeypatch.setitem(cli.COMMANDS, "print", ("printing", "print lines"))
    return lambda count: cli.main(["print", str(count)])


@pytest.mark.parametrize("count", [3, 100000])  # fewer and more than a buffer holds
def test_a_closed_pipe_ends_the_command_quietly(lines, monkeypatch, capfd, count):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:  # leaving it flushes, as Python's exit does
        monkeypatch.setattr(sys, "stdout", output)
        assert lines(count) == 141
    monkeypatch.undo()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line(lines, monkeypatch, capfd):
    with open("/dev/full", "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert lines(3) == 1
    monkeypatch.undo()
    assert capfd.readouterr().err == "timm-gcp print: error: [Errno 28] No space left on device\n"


def test_output_without_a_file(lines, capsys):
    assert lines(2) == 0 and capsys.readouterr().out == "0\n1\n"
