#!/usr/bin/env bash
# Three sites that keep their data train one model: each runs one command, on its own folder. Here on one machine.
#
#   bash examples/sites.sh [FOLDER [SETTING=VALUE ...]]
#
# FOLDER (outputs/sites) gets the site folders, and a run directory of each site. PYTHON and MASTER_PORT may be set.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
folder=${1:-outputs/sites}

PYTHONPATH=$root "$python" examples/make_sites.py "$folder" north east south

# On machines of their own: the same command, with distributed.master_addr=ADDRESS OF north and no distributed.interface.
site() {
    "$python" main.py --config-name node_classification_gcn app=train dataset_name=parts "dataset_file=$folder/$2" \
        num_partitions=3 parts_per_node=1 "node_rank=$1" distributed.interface=lo \
        "distributed.master_port=${MASTER_PORT:-10011}" "hydra.run.dir=$folder/run-$2" "${@:3}"
}
site 1 east "${@:2}" >"$folder/east.log" 2>&1 &
site 2 south "${@:2}" >"$folder/south.log" 2>&1 &
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
site 0 north "${@:2}"
wait
