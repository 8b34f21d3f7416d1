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
    assert capfd.readouterr().err == (
        "timm-gcp print: error: the disk is full: make room, or write elsewhere (No space left on device)\n"
    )


@pytest.fixture
def failing(monkeypatch):
    """A command that raises what it is told to."""

    def command(error):
        def run(args):
            raise error

        module = SimpleNamespace(add_arguments=lambda parser: None, main=run)
        monkeypatch.setitem(sys.modules, "failing", module)
        monkeypatch.setitem(cli.COMMANDS, "fail", ("failing", "fail"))
        return cli.main(["fail"])

    return command


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(13, "Permission denied", "a\nb"),
            r"'a\nb': permission denied: change its rights, or name another place",
        ),
        (FileNotFoundError("no folder 'x'."), "no folder 'x'."),
        (OSError(9999, "odd", "f"), "[Errno 9999] odd: 'f'"),
        (RuntimeError("several\n\tlines \x1b[31m"), r"several lines \x1b[31m"),
        (MemoryError(), "memory is used up: lower --batch-size, --img-size or --workers"),
    ],
)
def test_errors_are_one_line(failing, capsys, error, line):
    assert failing(error) == 1 and capsys.readouterr().err == f"timm-gcp fail: error: {line}\n"


def test_other_errors_are_one_line_unless_asked_for(failing, monkeypatch, capsys):
    monkeypatch.delenv(cli.TRACEBACK, raising=False)
    assert failing(KeyError("k")) == 1
    assert capsys.readouterr().err == (
        "timm-gcp fail: error: 'k' (unexpected KeyError; TIMM_GCP_TRACEBACK=1 says where)\n"
    )
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(KeyError):
        failing(KeyError("k"))


def test_ctrl_c_says_what_was_kept(failing, capsys):
    assert failing(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == f"timm-gcp fail: interrupted. {cli.KEPT}\n"
    assert failing(KeyboardInterrupt("the run is in r.")) == 130
    assert capsys.readouterr().err == "timm-gcp fail: interrupted. the run is in r.\n"


def test_a_closed_error_output(failing, monkeypatch):
    with open(os.devnull) as unwritable:
        monkeypatch.setattr(sys, "stderr", unwritable)
        assert failing(ValueError("x")) == 1
    monkeypatch.undo()


def test_output_without_a_file(lines, capsys):
    assert lines(2) == 0 and capsys.readouterr().out == "0\n1\n"
