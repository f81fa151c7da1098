#!/usr/bin/env bash
# What a change has to pass, in the project's own environment: lint, format, types, the form of deploy/ and .github/,
# all tests, and some tests once more without DGL. Types and forms are checked while the tests run, and shown at the end.
#
#   bash scripts/test.sh [--only-tests] [ARGUMENTS OF PYTEST]
#
#   --only-tests    the tests alone: the rest does not depend on Python's version
#
# With arguments of pytest, only the tests that they choose run. Three processes run a test file each at a time: on two
# cores that is fastest, because tests often wait. -n0 is one process.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh --dev
export PATH="$root/.venv/bin:$PATH"

checks=(mypy)
if (($# == 0)); then checks+=("bash scripts/check_deploy.sh .venv/check-deploy"); fi
if [[ ${1-} == --only-tests ]]; then
    shift
    checks=()
else
    if ! { ruff check . && ruff format --check .; }; then
        echo "test.sh: ruff failed; run .venv/bin/ruff check --fix . and .venv/bin/ruff format ." >&2
        exit 1
    fi
fi

said=$(mktemp)
# All checks, whatever the others find, in a process group of their own, which is ended with this script.
setsid bash -c 'failed=0
for each in "$@"; do $each || { failed=1; echo "test.sh: $each failed, see above"; }; done
exit $failed' checks "${checks[@]}" >"$said" 2>&1 &
checking=$!
trap 'kill -- "-$checking" 2>/dev/null || true; rm -f "$said"' EXIT

status=0
# Files in the order of their names: those that take long come first.
python -m pytest -n 3 --dist loadfile --no-loadscope-reorder "$@" || status=$?
if (($# == 0)); then
    python -m pytest --without-dgl -n 2 -k "not km1" tests/unit/partitioning/test_directory.py \
        tests/unit/partitioning/test_assign.py \
        "tests/integration/test_trainer_runs.py::test_every_trainer_says_the_same_things[lazy]" \
        tests/integration/test_inference.py::test_all_doors_give_the_same_predictions || status=$?
fi
checked=0
wait "$checking" || checked=$?
cat "$said"
if ((status)); then echo "test.sh: pytest failed" >&2; fi
exit $((status ? status : checked))
