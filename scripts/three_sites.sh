#!/usr/bin/env bash
# Three sites that keep their data train one model: each runs one command, on its own folder. Here on one machine.
#
#   bash scripts/three_sites.sh [FOLDER [SETTING=VALUE ...]]
#
# FOLDER (outputs/three-sites) gets the site folders, and a run directory of each site. PYTHON and MASTER_PORT may be set.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
folder=${1:-outputs/three-sites}
sites=(north east south)

PYTHONPATH=$root "$python" scripts/make_sites.py "$folder" "${sites[@]}"

# On machines of their own: the same command, with distributed.master_addr=ADDRESS OF north and no distributed.interface.
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true' EXIT
for rank in 0 1 2; do
    site=${sites[$rank]}
    "$python" main.py --config-name node_classification_gcn app=train dataset_name=parts "dataset_file=$folder/$site" \
        num_partitions=3 parts_per_node=1 "node_rank=$rank" distributed.interface=lo \
        "distributed.master_port=${MASTER_PORT:-10011}" "hydra.run.dir=$folder/run-$site" "${@:2}" \
        >"$folder/$site.log" 2>&1 &
    pids+=($!)
done

status=0
for rank in 0 1 2; do
    wait "${pids[$rank]}" || {
        status=$?
        echo "${sites[$rank]} failed:" >&2
        cat "$folder/${sites[$rank]}.log" >&2
    }
done
pids=()
[ "$status" = 0 ] && grep -v '^\[' "$folder/north.log"
exit "$status"
