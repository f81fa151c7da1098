#!/usr/bin/env bash
# Three sites train one model without giving away their data: each runs one command on its own folder.
# Here all are on one machine.
#
#   bash examples/sites.sh [--secure] [FOLDER [SETTING=VALUE ...]]
#
# FOLDER (outputs/sites) gets the site folders and a run directory of each site, which the next run
# replaces. The variables PYTHON and MASTER_PORT may be set.
# --secure: traffic is encrypted, sums hide each site's share, and a site gives rows of at most 80 % of its
# nodes to another site. Before the run, app=plan at east shows what would leave it; afterwards
# disclosure.json shows what did. Needs the extra `sites`.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-$root/.venv/bin/python}
secure=()
if [[ ${1:-} == --secure ]]; then
    secure=(distributed.backend=sockets gradient.secure=true gradient.precision=fp32 sites.max_rows_shared=0.8)
    shift
fi
folder=${1:-outputs/sites}

# Site folders that are there, and credentials, are used again; the results of an earlier run are replaced.
sites=(north east south)
rm -rf "$folder/.unfinished" "${sites[@]/#/$folder/run-}" "$folder/plan-east"
PYTHONPATH=$root "$python" examples/make_sites.py "$folder/.unfinished" "${sites[@]}"
for name in "${sites[@]}"; do
    if [[ ! -e $folder/$name ]]; then mv "$folder/.unfinished/$name" "$folder/$name"; fi
done
rm -r "$folder/.unfinished"

# On machines of their own: the same command, with distributed.master_addr=ADDRESS OF north and no distributed.interface.
site() {
    local own=("${secure[@]}")
    if ((${#own[@]})); then own+=("distributed.credentials=$folder/credentials/$2"); fi
    "$python" main.py --config-name node_classification_gcn app=train dataset_name=parts "dataset_file=$folder/$2" \
        num_partitions=3 parts_per_node=1 "node_rank=$1" distributed.interface=lo "${own[@]}" \
        "distributed.master_port=${MASTER_PORT:-10011}" "hydra.run.dir=$folder/run-$2" "${@:3}"
}
if ((${#secure[@]})); then
    if [[ ! -d $folder/credentials ]]; then "$python" main.py credentials init "$folder/credentials" --sites "${sites[@]}"; fi
    site 1 east "${@:2}" app=plan "hydra.run.dir=$folder/plan-east"
fi
site 1 east "${@:2}" >"$folder/east.log" 2>&1 &
site 2 south "${@:2}" >"$folder/south.log" 2>&1 &
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
site 0 north "${@:2}"
wait
if ((${#secure[@]})); then echo "what left east:" && cat "$folder/run-east/disclosure.json"; fi
