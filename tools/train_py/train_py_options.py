"""Reads the options of train.py, release by release, out of a clone of timm's repository.

    python tools/train_py/train_py_options.py --repo PATH > tests/data/train_py_options.json

The tests check every key of every recipe against that file. Nothing is imported or run: names and defaults are taken
from the `add_argument` calls in the source.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from typing import Any

OLDEST = (1, 0, 20)  # the oldest release that this package supports


def git(repo: str, *command: str) -> str:
    """Output of a git command in `repo`."""
    return subprocess.run(["git", "-C", repo, *command], check=True, capture_output=True, text=True).stdout


def read_options(source: str) -> dict[str, Any]:
    """Option name (as argparse stores it) -> default, from the source of a train.py."""
    options: dict[str, Any] = {}
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"):
            continue
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        names = [argument.value for argument in call.args]
        if "--config" in names:  # no key of a recipe
            continue
        long_names = [name for name in names if name.startswith("--")]
        name = keywords["dest"].value if "dest" in keywords else (long_names or names)[0].lstrip("-").replace("-", "_")
        switch = getattr(keywords.get("action"), "value", None) == "store_true"
        default = keywords.get("default")
        # Defaults are literals, or arithmetic on them (3. / 4.).
        value = eval(compile(ast.Expression(default), "train.py", "eval"), {"__builtins__": {}}) if default else None
        options[name] = False if switch and value is None else value
    return dict(sorted(options.items()))


def releases(repo: str) -> list[str]:
    """Supported release tags, oldest first."""
    tags = re.findall(r"^v(\d+)\.(\d+)\.(\d+)$", git(repo, "tag"), flags=re.MULTILINE)
    return [f"v{a}.{b}.{c}" for a, b, c in sorted(tuple(map(int, t)) for t in tags) if (a, b, c) >= OLDEST]


def _span(having: list[str]) -> str:
    return f"{having[0]} to {having[-1]}"


def main() -> int:
    """Print the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", required=True, help="clone of github.com/huggingface/pytorch-image-models, with tags")
    args = parser.parse_args()
    versions: dict[str, dict[str, Any]] = {}
    for revision in [*releases(args.repo), "HEAD"]:
        version = git(args.repo, "show", f"{revision}:timm/version.py").split("'")[1]
        commit = git(args.repo, "rev-parse", f"{revision}^{{commit}}").strip()
        versions[version] = {
            "commit": commit,
            "options": read_options(git(args.repo, "show", f"{revision}:train.py")),
        }
    newest = list(versions)[-1]
    names = sorted({name for entry in versions.values() for name in entry["options"]})
    content = {
        "about": "Options of train.py in github.com/huggingface/pytorch-image-models, the timm versions that have "
        "each, and the newest version's defaults. PyPI's timm has no train.py; its newest release may be ahead.",
        "made_by": "python tools/train_py/train_py_options.py --repo PATH",
        "read_from": {version: entry["commit"] for version, entry in versions.items()},
        "versions": {name: _span([v for v, entry in versions.items() if name in entry["options"]]) for name in names},
        "defaults": versions[newest]["options"],
    }
    json.dump(content, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
