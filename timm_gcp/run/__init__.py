"""`python -m timm_gcp.run SCRIPT [argument ...]`: run a script of timm's repository over our models and schedules.

timm's validate.py, inference.py, benchmark.py and the others import timm alone, so that `--model resnet50_gcp` is
unknown to them. Here the models are registered first; the script then runs unchanged, as the main program.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = "usage: python -m timm_gcp.run SCRIPT [argument ...]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script named first in `argv` (default: the process's arguments) with the rest as its arguments.

    Returns:
        0 once the script has ended, 2 where there is none to run. A script that exits does so itself.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{(__doc__ or '').strip()}")
        return 0 if argv else 2
    script = Path(argv[0])
    if not script.is_file():
        print(f"no script {argv[0]!r}: name a file of timm's repository, such as PATH/validate.py.", file=sys.stderr)
        return 2
    import timm_gcp.train_hook  # noqa: F401  (registers models and schedules)

    sys.argv = [str(script), *argv[1:]]
    sys.path.insert(0, str(script.resolve().parent))  # as Python does for a script, for the modules beside it
    runpy.run_path(str(script), run_name="__main__")
    return 0
