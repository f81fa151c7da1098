#!/usr/bin/env bash
# What a release consists of, in dist/: wheel, sdist, their SHA-256 and the list of their packages (CycloneDX SBOM).
#
#   bash scripts/release.sh build [NAME]         # of the commit that is checked out
#   bash scripts/release.sh try PYTHON [...]     # install the wheel in an empty environment of each, and train on Cora
#
# NAME is the distribution's name, as in pyproject.toml unless given: a public index may have it already. The modules
# are called retexo and partitioning under every name.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "release: $1" >&2
    exit 2
}

build() {
    local own name file
    own=$(sed -n 's/^name = "\([^"]*\)".*/\1/p' pyproject.toml)
    name=${1:-$own}
    [[ $name != retexo ]] || fail "retexo: this name on the public index is somebody else's; choose another"
    python3 -m venv "$work/tools"
    "$work/tools/bin/pip" install -qq --no-deps --require-hashes -r requirements/release.txt
    mkdir "$work/source"
    git archive HEAD | tar x -C "$work/source"
    sed -i "s/^name = \"$own\"/name = \"$name\"/; s/\"$own\[/\"$name[/" "$work/source/pyproject.toml"
    rm -rf dist
    "$work/tools/bin/python" -m build --no-isolation --outdir dist "$work/source" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
    "$work/tools/bin/twine" --no-color check --strict dist/*
    file=$(basename dist/*.tar.gz .tar.gz)
    sed -i "s/^dynamic = .*/version = \"${file##*-}\"/" "$work/source/pyproject.toml"
    cat requirements/demo.txt requirements/torch.txt >"$work/packages.txt"
    PYTHONWARNINGS=ignore "$work/tools/bin/cyclonedx-py" requirements "$work/packages.txt" --output-reproducible \
        --pyproject "$work/source/pyproject.toml" --mc-type application --output-file "dist/$file.cdx.json"
    (cd dist && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS && cat SHA256SUMS)
}

try_wheel() {
    local python environment
    for python in "$@"; do
        environment=$work/${python##*/}
        "$python" -m venv "$environment"
        "$environment/bin/pip" install -qq --constraint constraints.txt dist/*.whl
        mkdir "$environment/run"
        (cd "$environment/run" && env -i PATH=/usr/bin:/bin "$environment/bin/retexo" app=train dataset_name=cora \
            num_partitions=2 'num_rounds=[30]' device=cpu hydra.run.dir=run >log 2>&1) || { cat "$environment/run/log"; exit 1; }
        "$environment/bin/python" - "$environment/run/run/summary.json" <<'CHECK'
import json, platform, sys
accuracy = json.load(open(sys.argv[1]))["test"]["accuracy"]
print(f"Python {platform.python_version()}: test accuracy on Cora {accuracy:.3f}")
sys.exit(accuracy < 0.8)
CHECK
        rm -rf "$environment"
    done
}

case ${1:-} in
build) build "${@:2}" ;;
try) try_wheel "${@:2}" ;;
*) fail "build [NAME], or try PYTHON [...]" ;;
esac
