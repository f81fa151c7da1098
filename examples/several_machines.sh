#!/usr/bin/env bash
# Two machines with two partitions each train one model; here both are this machine (loopback).
#
#   bash examples/several_machines.sh [FOLDER [SETTING=VALUE ...]]
#
# FOLDER (outputs/several-machines) gets the partitions and a run directory of each node.
# The variables PYTHON and MASTER_PORT may be set.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
folder=${1:-outputs/several-machines}
mkdir -p "$folder"
rm -rf "$folder/node0" "$folder/node1" # of an earlier run

data=(dataset_name=cora num_partitions=4 "partition_dir=$folder/partitions")
"$python" main.py app=partition_data "${data[@]}"

# On machines of their own: the same command with node_rank=0 on one and 1 on the other, distributed.master_addr=ADDRESS
# OF THE FIRST instead of the interface, and on each the json files and its own parts of the partition directory.
node() {
    "$python" main.py --config-name node_classification_gcn app=train "${data[@]}" parts_per_node=2 "node_rank=$1" \
        distributed.interface=lo "distributed.master_port=${MASTER_PORT:-10011}" "hydra.run.dir=$folder/node$1" "${@:2}"
}
node 1 "${@:2}" >"$folder/node1.log" 2>&1 &
trap 'kill $! 2>/dev/null || true' EXIT
node 0 "${@:2}"
wait $!
