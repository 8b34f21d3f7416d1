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
from timm_gcp.common.messages import in_lines

# subcommand -> (module, one-line help). A command module has two functions:
# `add_arguments(parser)` declares its options, `main(args)` runs it and returns the exit status.
COMMANDS = {
    "quickstart": ("timm_gcp.commands.quickstart", "train GAP and GCP twins on real digits and compare them"),
    "train": ("timm_gcp.commands.train", "run a recipe with timm's own parts"),
    "validate": ("timm_gcp.commands.validate", "measure accuracy on a data set"),
    "predict": ("timm_gcp.commands.predict", "classify images"),
    "data": ("timm_gcp.commands.data", "lay out a data set for timm's readers"),
    "weights": ("timm_gcp.commands.weights", "list, import, fetch, export and push pretrained weights"),
    "export": ("timm_gcp.commands.export", "write a model or checkpoint as an ONNX file"),
    "cost": ("timm_gcp.commands.cost", "parameters, GMACs and time per image of GCP and GAP"),
    "plot": ("timm_gcp.commands.plot", "draw schedules and convergence curves"),
    "robustness": ("timm_gcp.commands.robustness", "ImageNet-C and ImageNet-P scores"),
    "landscape": ("timm_gcp.commands.landscape", "loss Lipschitzness and gradient predictiveness"),
    "detect": ("timm_gcp.commands.detect", "train, evaluate and run detectors"),
    "reproduce": ("timm_gcp.commands.reproduce", "every table and figure of the paper"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `timm-gcp COMMAND ...`; `argv` defaults to the process's own arguments. Returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="timm-gcp", description="Global covariance pooling for timm.")
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = argv[0] if argv else ""
    run = None
    for name, (module_name, summary) in COMMANDS.items():
        sub = subparsers.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )
        if name == chosen:
            module = importlib.import_module(module_name)
            module.add_arguments(sub)
            run = module.main
    args = parser.parse_args(argv)
    if run is None:  # argparse has already reported an unknown command
        return 2
    try:
        status = int(run(args) or 0)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has gone, as in `| head -1`
        _drop_output()
        return 141  # what a shell reports for a process that SIGPIPE ended
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"timm-gcp {chosen}: error: {in_lines(error)}", file=sys.stderr)
        if isinstance(error, OSError):
            _drop_output()
        return 1


def _version() -> str:
    """Our version, and those of what does the work, as a bug report needs them."""
    return f"timm-gcp {__version__} (timm {version('timm')}, torch {version('torch')}, Python {python_version()})"


def _drop_output() -> None:
    """Send what is still in the buffer of a closed or full output nowhere, so that Python's exit can't fail on it."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: an output without a file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
