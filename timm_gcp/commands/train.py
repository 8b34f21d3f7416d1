"""`timm-gcp train`: run a recipe with timm's own parts, for those who have installed the package and nothing else.

The keys are train.py's, and so are the files: `args.yaml`, `summary.csv`, `model_best.pth.tar`. On the CPU the losses
are train.py's too, digit for digit. It is for one process; train.py itself does the rest.
"""

from __future__ import annotations

import argparse
from typing import Any

from timm_gcp.common.named_values import NamedValues
from timm_gcp.train.callback import PrintEpochs
from timm_gcp.train.options import OPTIONS, resolve_args, unknown_key
from timm_gcp.train.run import train


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `-c`, `--force` and every key of `train.options.OPTIONS`; other options are refused with a reason."""
    parser.allow_abbrev = False
    parser.usage = f"{parser.prog} -c RECIPE [--key value ...]"
    parser.add_argument(
        "-c", "--config", metavar="RECIPE", default=None, help="recipe: a file, or a shipped one's name"
    )
    parser.add_argument("--force", action="store_true", help="replace another run in the run's folder")
    for option in OPTIONS.values():
        flags = (*option.flags, "--" + option.name.replace("_", "-"))
        shown = f"{option.help} ({option.default!r})" if option.default not in (None, "", {}) else option.help
        common: dict[str, Any] = {"dest": option.name, "default": argparse.SUPPRESS, "help": shown.replace("%", "%%")}
        if option.type is bool:
            parser.add_argument(*flags, action="store_true", **common)
        elif option.type is dict:
            parser.add_argument(*flags, nargs="*", action=NamedValues, **common)
        elif option.name == "torchcompile":
            parser.add_argument(*flags, nargs="?", const="inductor", **common)
        else:
            parser.add_argument(*flags, nargs="+" if option.many else None, metavar="V", **common)
    parse = parser.parse_known_args

    def strict(args: Any = None, namespace: Any = None, **options: Any) -> tuple[Any, list[str]]:
        known, unknown = parse(args, namespace, **options)
        if unknown:
            key = unknown[0].split("=")[0].lstrip("-").replace("-", "_")
            parser.error(unknown_key(key, f"option {unknown[0]}"))
        return known, unknown

    parser.parse_known_args = strict  # type: ignore[method-assign, assignment]


def main(args: argparse.Namespace) -> int:
    """Run the recipe, printing a line per epoch and the best result."""
    given = {name: value for name, value in vars(args).items() if name in OPTIONS}
    run = train(resolve_args(args.config, given), [PrintEpochs()], force=args.force)
    if run.best_metric is not None:
        print(f"best {run.best_metric:.4g} at epoch {(run.best_epoch or 0) + 1}; {run.folder / 'model_best.pth.tar'}")
    elif not run.rows:
        print(f"nothing left to train; {run.folder}")
    else:
        raise RuntimeError(
            f"no epoch ended with a finite validation loss, so {run.folder} has no model_best.pth.tar: lower --lr, or "
            "check the data."
        )
    return 0
