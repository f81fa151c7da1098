#!/usr/bin/env bash
# Cut the bundled Cora graph into four partitions, train three models on four workers, GCN also as it was published,
# predict every node's class by the first one, and compare all in a table and on a page.
#
#   bash scripts/demo.sh [--cuda]
#
# Partitions go to data/partitions, everything else to a new directory below outputs/demo.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
bash scripts/setup.sh "$@"
python=$root/.venv/bin/python
out=outputs/demo/$(date +%Y%m%d-%H%M%S)

# run NAME ARGUMENTS: the command into $out/NAME, with its output in console.log there.
run() {
    local run=$out/$1
    mkdir -p "$run"
    echo "demo: $1; its log is $run/console.log"
    "$python" main.py "${@:2}" dataset_name=cora num_partitions=4 "hydra.run.dir=$run" >"$run/console.log" 2>&1 || {
        status=$?
        cat "$run/console.log" >&2
        exit "$status"
    }
}
run partitions app=partition_data
for model in gcn sage gat; do
    run "$model" --config-name "node_classification_$model" app=train
done
run published --config-name node_classification_gcn app=train +experiment=retexo exchange=plain report.label=published
run predictions --config-name node_classification_gcn app=predict "checkpoint_dir=$out/gcn" predict.format=csv
run report app=report "report.runs=$out"
cat "$out/report/console.log"
echo "demo: $out/report/report.html compares the runs; $out/predictions/predictions.csv has the classes"
