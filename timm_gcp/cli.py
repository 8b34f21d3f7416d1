"""The `timm-gcp` command line: one subcommand per module, imported only when it is asked for."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from platform import python_version

from timm_gcp import __version__
from timm_gcp.common.failures import one_line
from timm_gcp.common.freed_memory import keep_freed_memory
from timm_gcp.common.program import is_command_line

# subcommand -> (module, one-line help). A command module has two functions: `add_arguments(parser)` declares its
# options, `main(args)` runs it and returns the exit status. The models are registered before `main`, unless a third
# function, `needs_models(args)`, says that it makes none: the command can then do without torch.
COMMANDS = {
    "quickstart": ("timm_gcp.commands.quickstart", "train GAP and GCP twins on real digits and compare them"),
    "init": ("timm_gcp.commands.init", "start a new covariance head from the principal components of its features"),
    "train": ("timm_gcp.commands.train", "run a recipe with timm's own parts"),
    "validate": ("timm_gcp.commands.validate", "measure accuracy on a data set"),
    "predict": ("timm_gcp.commands.predict", "classify images"),
    "data": ("timm_gcp.commands.data", "lay out a data set for timm's readers"),
    "weights": ("timm_gcp.commands.weights", "list, import, fetch, export, push and release pretrained weights"),
    "demo": ("timm_gcp.commands.demo", "classify photos in the browser and see where models look"),
    "export": ("timm_gcp.commands.export", "write a model or checkpoint as an ONNX file"),
    "cost": ("timm_gcp.commands.cost", "parameters, GMACs and time per image of GCP and GAP"),
    "plot": ("timm_gcp.commands.plot", "draw schedules and convergence curves"),
    "robustness": ("timm_gcp.commands.robustness", "ImageNet-C and ImageNet-P scores"),
    "landscape": ("timm_gcp.commands.landscape", "loss Lipschitzness and gradient predictiveness"),
    "detect": ("timm_gcp.commands.detect", "train, evaluate and run detectors"),
    "reproduce": ("timm_gcp.commands.reproduce", "every table and figure of the paper"),
}

EXPECTED = (ValueError, OSError, ImportError, RuntimeError, MemoryError)  # what commands raise on purpose
TRACEBACK = "TIMM_GCP_TRACEBACK"  # environment variable: let other errors through
KEPT = "Finished files are whole and stay; what was under way was dropped: run the command again."


def main(argv: Sequence[str] | None = None) -> int:
    """Run `timm-gcp COMMAND ...`; `argv` defaults to the process's own arguments. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = argv[0] if argv else ""
    if is_command_line() or __name__ == "__main__":  # this process is ours to set up
        keep_freed_memory()
    try:
        try:
            return _run(argv, chosen)
        finally:  # before the interpreter does it, where nobody could catch that the output is closed or full
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as in `| head -1`
        _drop_output()
        return 141  # what a shell reports for a process that SIGPIPE ended
    except KeyboardInterrupt as stop:  # Ctrl-C
        _say(chosen, f"interrupted. {one_line(stop) if stop.args else KEPT}")
        return 130  # what a shell reports for a process that SIGINT ended
    except Exception as error:
        if os.environ.get(TRACEBACK) and not isinstance(error, EXPECTED):
            raise
        where = "" if isinstance(error, EXPECTED) else f" (unexpected {type(error).__name__}; {TRACEBACK}=1 says where)"
        _say(chosen, f"error: {one_line(error)}{where}")
        if isinstance(error, OSError):
            _drop_output()
        return 1


def _run(argv: list[str], chosen: str) -> int:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(prog="timm-gcp", description="Global covariance pooling for timm.")
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    module = None
    for name, (module_name, summary) in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(sub)
    args = parser.parse_args(argv)
    if module is None:  # argparse has already reported an unknown command
        return 2
    if getattr(module, "needs_models", lambda args: True)(args):
        importlib.import_module("timm_gcp.models")
    return int(module.main(args) or 0)


def _say(command: str, sentence: str) -> None:
    """Print a line on the standard error, which may be closed or full itself."""
    with contextlib.suppress(OSError, ValueError):
        print(f"timm-gcp {command}: {sentence}", file=sys.stderr, flush=True)


def _version() -> str:
    """Our version, and those of what does the work, as a bug report needs them."""
    return f"timm-gcp {__version__} (timm {version('timm')}, torch {version('torch')}, Python {python_version()})"


def _drop_output() -> None:
    """Send what is still in the buffer of a closed or full output nowhere, so that Python's exit can't fail on it."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: an output without a file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
