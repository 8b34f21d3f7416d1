"""`timm-gcp reproduce TABLE`: every table and figure of the paper by one command; see docs/reproduce.md."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from timm_gcp.common.ranges import WORKERS, whole

_EXAMPLES = """examples:
  timm-gcp reproduce list
  timm-gcp reproduce table2 --data-dir IMAGENET --dry-run
  timm-gcp reproduce table2 --data-dir IMAGENET --models resnet18 --train-py pytorch-image-models/train.py
  timm-gcp reproduce table8 --data-dir IMAGENET --coco-dir COCO
  timm-gcp reproduce fig2 --data-dir IMAGES --limit 16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("table", metavar="TABLE", help="table1 to table9, fig1 to fig5, appendix2, or list")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="ImageNet: folders train and val (COCO will do, too)"
    )
    parser.add_argument("--coco-dir", type=Path, metavar="DIR", help="COCO: folders annotations, train2017 and val2017")
    parser.add_argument("--imagenet-c", type=Path, metavar="DIR", help="ImageNet-C; made on the fly when left out")
    parser.add_argument("--imagenet-p", type=Path, metavar="DIR", help="ImageNet-P; made on the fly when left out")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of runs and tables (output/reproduce)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="rows of these backbones or models only")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--limit", type=int, metavar="N", help="a trial on N images per split, in a folder of its own")
    parser.add_argument(
        "--weights", choices=("trained", "published"), default="trained",
        help="tables 4, 6 and 7: train the classifiers (trained), or take the released weights",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="processes of each training (one for each GPU there is; one in a trial)"
    )
    parser.add_argument("--train-py", type=Path, metavar="FILE", help="timm's train.py, which several GPUs need")
    parser.add_argument("--device", metavar="NAME", help="device (cuda where there is one)")
    parser.add_argument(
        "-j", "--workers", type=whole(WORKERS), metavar="N", help="processes that load images, for each GPU"
    )


def main(args: argparse.Namespace) -> int:
    """Print or run the plan."""
    from timm_gcp.reproduce.run import reproduce

    return reproduce(args, _run)


def _run(words: Sequence[str]) -> int:
    """Run another subcommand in this process; its errors come through as they are."""
    module = importlib.import_module(f"timm_gcp.commands.{words[0]}")
    parser = argparse.ArgumentParser(prog=f"timm-gcp {words[0]}")
    module.add_arguments(parser)
    return int(module.main(parser.parse_args(list(words[1:]))) or 0)
