#!/usr/bin/env bash
# Cut the bundled Cora graph into four partitions, train three models on four workers, GCN also as it was published, and
# print one table, with what it would take to gather all parts at one worker.
#
#   bash scripts/demo.sh [--cuda]
#
# Partitions go to data/partitions, each run to a directory of its own below outputs/demo.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh "$@"
python=$root/.venv/bin/python

echo "demo: partitions of Cora"
"$python" main.py app=partition_data dataset_name=cora num_partitions=4 \
    hydra.run.dir=outputs/demo/partition

started=$(date +%Y%m%d-%H%M%S)
runs=()
run() {
    local run=outputs/demo/$started-$1
    mkdir -p "$run"
    echo "demo: $1; its log is $run/console.log"
    "$python" main.py --config-name "node_classification_$2" dataset_name=cora num_partitions=4 "hydra.run.dir=$run" \
        "${@:3}" >"$run/console.log" 2>&1 || {
        status=$?
        cat "$run/console.log" >&2
        exit "$status"
    }
    runs+=("$run")
}
for model in gcn sage gat; do
    run "$model" "$model" app=train
done
run published gcn app=train +experiment=retexo exchange=plain report.label=published
run gather gcn app=plan
echo
"$python" scripts/demo_table.py "${runs[@]}"
