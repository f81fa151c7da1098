#!/usr/bin/env bash
# Lint, types, all tests, and some once more as where there is no DGL, in the project's own environment. Types are checked while the tests run, and told at the end.
#
#   bash scripts/test.sh [ARGUMENTS OF PYTEST]
#
# Three processes test, a file each at a time: on two cores that is fastest, for tests often wait. -n0 is one process.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh --dev
export PATH="$root/.venv/bin:$PATH"

ruff check .
ruff format --check .

said=$(mktemp)
mypy >"$said" 2>&1 &
types=$!
trap 'kill "$types" 2>/dev/null || true; rm -f "$said"' EXIT

status=0
# Files in the order of their names: those that take long come first.
python -m pytest -n 3 --dist loadfile --no-loadscope-reorder "$@" || status=$?
if (($# == 0)); then
    python -m pytest --without-dgl -n 2 -k "not km1" tests/unit/partitioning/test_directory.py \
        tests/unit/partitioning/test_assign.py tests/integration/test_trainer_runs.py || status=$?
fi
types_status=0
wait "$types" || types_status=$?
cat "$said"
if ((types_status)); then echo "test.sh: mypy found errors, above" >&2; fi
if ((status)); then echo "test.sh: pytest failed" >&2; fi
exit $((status ? status : types_status))
