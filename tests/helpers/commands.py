"""Runs a command of timm-gcp in this process."""

from __future__ import annotations

from timm_gcp import cli


def status_of(*words: object) -> int:
    """Exit status of `timm-gcp WORDS…`: 2 where `argparse` refuses the options."""
    try:
        return cli.main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
