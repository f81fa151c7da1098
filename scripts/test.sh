#!/usr/bin/env bash
# Lint, types and all tests, in the project's own environment; stops at the first that fails.
#
#   bash scripts/test.sh [ARGUMENTS OF PYTEST]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh --dev
export PATH="$root/.venv/bin:$PATH"

ruff check .
mypy
python -m pytest "$@"
