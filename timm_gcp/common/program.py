"""Which program this process runs: the `timm-gcp` command, or anything else."""

from __future__ import annotations

import sys
from pathlib import PurePath

SCRIPTS = ("timm-gcp", "timm-gcp.exe", "timm-gcp-script.py")  # as installers name it on the platforms
MODULE = "timm_gcp.cli"


def is_command_line() -> bool:
    """Whether the main program of this process is `timm-gcp` itself, as a script or as `python -m timm_gcp.cli`.

    True while the command starts, when it imports the package. False in every other program, in scripts that call
    `timm_gcp.cli.main`, and in worker processes of the command, whose main program is multiprocessing's.
    """
    if sys.argv[:1] == ["-m"]:  # so it stands until Python has found the module, for which it imports the package
        named = sys.orig_argv[-len(sys.argv)]
        return named in (MODULE, f"-m{MODULE}")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    parts = PurePath(main).parts if isinstance(main, str) else ()
    return bool(parts) and (parts[-1] in SCRIPTS or parts[-2:] == (SCRIPTS[1], "__main__.py"))
