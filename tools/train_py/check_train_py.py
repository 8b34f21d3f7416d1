"""Runs every recipe, and each way of training, through timm's unmodified train.py on a CPU: one pass/fail line each.

    python tools/train_py/check_train_py.py --train-py PATH/TO/train.py [--timm FOLDER] [--only WORD ...]

train.py is not in timm's package: take it from a clone of timm's repository. It is copied alone into a scratch folder,
so that it meets the installed timm, or the one in `--timm` (`pip install --target FOLDER timm==X`), not the clone's.
timm's other scripts (validate.py, …; inference.py needs pandas) run from the clone, by `python -m timm_gcp.run`. Images
are noise; what is checked is that runs finish, and with the right rates. Takes about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import script_checks  # noqa: F401  (enters the checks of timm's other scripts)
from train_py_bench import Bench, CheckFailed
from train_py_checks import CHECKS


def main() -> int:
    """Run the checks; exit status 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-py", required=True, type=Path, help="timm's train.py")
    parser.add_argument("--timm", type=Path, help="folder with another timm to use (default: the installed one)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="checks whose name has one of these")
    args = parser.parse_args()
    if not args.train_py.is_file():
        parser.error(f"no such file: {args.train_py}")
    checks = {name: run for name, run in CHECKS.items() if not args.only or any(word in name for word in args.only)}
    if not checks:
        parser.error(f"no check has one of {args.only} in its name. Known: {', '.join(CHECKS)}")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), args.train_py, args.timm)
        print(bench.versions(), flush=True)
        for name, check in checks.items():
            started = time.perf_counter()
            try:
                note = check(bench)
            except CheckFailed as failure:
                failed += 1
                print(f"FAIL  {name}: {failure}", flush=True)
            else:
                print(f"pass  {name}: {note} ({time.perf_counter() - started:.0f} s)", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
