#!/usr/bin/env bash
# Build source distribution and wheel, check them, install the wheel into a bare virtual environment and run README's
# example there. CI and the release run it.
#
#   bash tools/release/check_wheel.sh           leaves both files in dist/
#
# Environment: PYTHON (python3), VENV (.venv-wheel).
set -euo pipefail
cd "$(dirname "$0")/../.."

VENV="${VENV:-.venv-wheel}"
rm -rf "$VENV" dist
"${PYTHON:-python3}" -m venv "$VENV-build"
"$VENV-build/bin/python" -m pip install -q --disable-pip-version-check build twine
"$VENV-build/bin/python" -m build --outdir dist .
"$VENV-build/bin/python" -m twine check --strict dist/*
rm -rf "$VENV-build"

"${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check dist/*.whl
elsewhere="$(mktemp -d)" # outside the checkout, where only what is installed can be imported
trap 'rm -rf "$elsewhere"' EXIT
"$VENV/bin/python" tools/release/readme_example.py > "$elsewhere/example.py"
python="$PWD/$VENV/bin/python"
cd "$elsewhere"
"$python" example.py
"$(dirname "$python")/timm-gcp" --version
"$(dirname "$python")/timm-gcp" weights list caltech101
