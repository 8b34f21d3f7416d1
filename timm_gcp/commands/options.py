"""Options that several subcommands have, spelt once: the same flags, words and checks in each of them."""

from __future__ import annotations

import argparse
from typing import Any

from timm_gcp.common.ranges import COUNT, WORKERS, whole

SHARED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "pretrained": (("--pretrained",), {"action": "store_true", "help": "load the model's pretrained weights"}),
    "batch_size": (("-b", "--batch-size"), {"type": whole(COUNT), "metavar": "N", "help": "images per forward pass"}),
    "workers": (
        ("-j", "--workers"),
        {"type": whole(WORKERS), "default": 2, "metavar": "N", "help": "processes that load images"},
    ),
    "json": (("--json",), {"action": "store_true", "help": "print JSON in place of the tables"}),
}


def add_shared(parser: Any, name: str, **changes: Any) -> None:
    """Add the shared option `name` to a parser or a group of one, its default or help changed where they differ."""
    flags, keywords = SHARED[name]
    parser.add_argument(*flags, dest=name, **{**keywords, **changes})


def check_weights(args: argparse.Namespace) -> None:
    """Check that one source of weights is named, not two.

    Raises:
        ValueError: `--pretrained` and `--checkpoint` are both given.
    """
    if args.pretrained and args.checkpoint:
        raise ValueError("--pretrained and --checkpoint name two sources of weights: give one of them.")
