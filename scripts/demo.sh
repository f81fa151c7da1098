#!/usr/bin/env bash
# Cut the bundled Cora graph into four partitions, train three models on four workers, and print one table.
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
for model in gcn sage gat; do
    run=outputs/demo/$started-$model
    mkdir -p "$run"
    echo "demo: training $model; its log is $run/console.log"
    "$python" main.py --config-name "node_classification_$model" app=train dataset_name=cora num_partitions=4 \
        "hydra.run.dir=$run" >"$run/console.log" 2>&1 || {
        status=$?
        cat "$run/console.log" >&2
        exit "$status"
    }
    runs+=("$run")
done
echo
"$python" scripts/demo_table.py "${runs[@]}"
