#!/usr/bin/env python3
"""Private memory of the largest worker: measured, and forecast by app=plan.

    python benchmarks/memory.py GRAPH.npz ... [--models gcn sage gat] [--options ...]

Four random parts, seed 0, split .08 / .02 / .90, five rounds a layer, with the defaults and with
+experiment=retexo; each npz file has the form of dataset_name=file. A synthetic graph of 200,000
nodes, two million edges (each direction counted) and 128 features stands beside them. Peaks are
sampled ten times a second (summary.json, peak_private_bytes).
"""

import tempfile
from pathlib import Path

import common

from retexo.plan.memory import worker_memory
from retexo.plan.traffic import find_architecture
from retexo.settings.compose import compose

PARTS = (
    "split=fraction",
    "split.train=0.08",
    "split.val=0.02",
    "split.test=0.9",
    "num_partitions=4",
    "partition_method=random",
    "seed=0",
    "num_rounds=[5]",
)
SYNTHETIC = (
    "dataset_name=synthetic",
    "synthetic.nodes=200000",
    "synthetic.edges=1000000",
    "synthetic.features=128",
    "synthetic.classes=8",
)


def main() -> None:
    parser = common.parser(__doc__, models=list(common.MODELS), options=[])
    parser.add_argument("files", nargs="*", type=Path, metavar="GRAPH.npz")
    args = parser.parse_args()
    graphs = {
        file.stem: ("dataset_name=file", f"dataset_file={file.resolve()}") for file in args.files
    }
    print(common.machine())
    print(f"{'graph':16}{'model':6}{'settings':10}{'measured':>10}{'forecast':>10}  MiB")
    for name, graph in {**graphs, "synthetic": SYNTHETIC}.items():
        with tempfile.TemporaryDirectory() as folder:
            for model in args.models:
                for kind, experiment in (("default", ()), ("retexo", ("+experiment=retexo",))):
                    measured, forecast = compare(
                        folder, *graph, *PARTS, *experiment, f"model={model}", *args.options
                    )
                    print(
                        f"{name:16}{model:6}{kind:10}{measured:10.0f}{forecast:10.0f}"
                        f"  {forecast / measured:.2f}",
                        flush=True,
                    )


def compare(folder: str, *overrides: str) -> tuple[float, float]:
    """Train; return the largest worker's private MiB, measured and forecast."""
    parts = Path(folder, "parts")
    settings = compose([*overrides, f"partition_dir={parts}"])
    if not parts.exists():
        common.partition(settings)
    summary = common.train(settings, folder)
    directory, partitions = common.read_partitions(settings)
    architecture = find_architecture(settings, directory, partitions)
    num_train = sum(int(part.train_mask.sum()) for part in partitions)
    forecast = [worker_memory(part, architecture, settings, num_train) for part in partitions]
    return max(summary["peak_private_bytes"]) / 2**20, max(forecast) / 2**20


if __name__ == "__main__":
    main()
