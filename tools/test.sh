#!/usr/bin/env bash
# Install everything into a fresh virtual environment and run all checks: format, lint, types, layers, timm's own model
# tests over the models registered here, and this package's tests. Ends with pytest's summary line.
#
#   bash tools/test.sh                   the newest timm
#   TIMM_VERSION=1.0.31 bash tools/test.sh
#
# Environment: PYTHON (python3), VENV (.venv-test), TIMM_VERSION, WORKERS (2).
set -euo pipefail
cd "$(dirname "$0")/.."

VENV="${VENV:-.venv-test}"
WORKERS="${WORKERS:-2}"
rm -rf "$VENV"
"${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install -q --disable-pip-version-check -e '.[test]' ${TIMM_VERSION:+"timm==$TIMM_VERSION"}
export PATH="$PWD/$VENV/bin:$PATH"
export OMP_NUM_THREADS=1 MPLBACKEND=Agg

ruff format --check .
ruff check .
mypy timm_gcp
lint-imports --no-cache

# timm's tests are in its source distribution. GITHUB_ACTIONS=true is what timm's own CI sets: without it two of its
# tests try to download weights. Left out: its check that a transformer's pooled features are as wide as its tokens, which
# no covariance vector is.
TIMM_TESTS_DIR="$(python tests/helpers/timm_sdist.py)"
export TIMM_TESTS_DIR
GITHUB_ACTIONS=true TIMM_GCP_OFFLINE=1 python -m pytest -q -n "$WORKERS" -p timm_gcp -p no:cacheprovider \
    -c /dev/null --rootdir "$TIMM_TESTS_DIR" --confcutdir "$TIMM_TESTS_DIR" "$TIMM_TESTS_DIR/test_models.py" \
    -k "(gcp or shufflenet) and not (default_cfgs_non_std and (vit_small or deit_small))"

python -m pytest -q -n "$WORKERS"
