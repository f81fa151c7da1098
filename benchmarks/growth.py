"""Growth of bytes, memory and work with graph size and number of partitions.

    python benchmarks/growth.py [--nodes 100000] [--parts 1 2 4 8 16 64] [--weak 20000]
        [--figure docs/img/growth.svg]

Synthetic graphs (10 edges per node, 128 features, 8 classes, homophily 0.9; split 0.08 / 0.02 /
0.90), GCN. All figures are predicted as by `app=plan`, for 30 rounds per layer: MB of the published
scheme (plain), of the defaults without compression (exact) and of the defaults (lean); private
memory and in-edges of the largest worker with the defaults. A worker's in-edges are what it
aggregates once per layer; with P parts its rounds have 1/P of the training nodes. `--weak N`
adds graphs of N nodes per part.
"""

import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import common
import pandas as pd

from retexo.plan.memory import worker_memory
from retexo.plan.traffic import architecture_of, estimate_traffic
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

GRAPH = (
    "dataset_name=synthetic",
    "synthetic.features=128",
    "synthetic.classes=8",
    "synthetic.homophily=0.9",
    "seed=0",
)
ROUNDS = 30
DRAWN = {
    "all, lean": "MB sent, defaults",
    "a worker, lean": "MB sent per worker",
    "memory": "MiB, largest worker",
    "edges": "in-edges, largest worker",
}


class Case(NamedTuple):
    nodes: int
    parts: int
    method: str
    weak: bool = False


def settings_of(*overrides: str) -> Settings:
    return compose([*GRAPH, *overrides])


def growth(case: Case, folder: Path) -> dict[str, float]:
    """Return the figures of one graph and number of partitions; MB by kind and method."""
    graph = (
        f"synthetic.nodes={case.nodes}",
        f"synthetic.edges={5 * case.nodes}",
        f"num_partitions={case.parts}",
        f"partition_method={case.method}",
        f"partition_dir={folder}",
    )
    settings = settings_of(*graph)
    meta = common.partition(settings)
    directory, partitions = common.read_partitions(settings)
    exact = estimate_traffic(settings_of(*graph, "+experiment=exact").train, directory, partitions)
    plain = estimate_traffic(
        settings_of(*graph, "+experiment=retexo", "exchange=plain").train, directory, partitions
    )
    lean = estimate_traffic(settings.train, directory, partitions)
    architecture = architecture_of(settings.train, directory, partitions)
    num_train = sum(int(part.train_mask.sum()) for part in partitions)
    memory = [worker_memory(part, architecture, settings.train, num_train) for part in partitions]
    methods = {"plain": plain, "exact": exact, "lean": lean}
    kinds = ["features", "embeddings", "predictions"]
    volumes = {
        **{f"rows, {name}": estimate.total([0, 0], kinds) for name, estimate in methods.items()},
        "setup": exact.total([0, 0], ["setup"]),
        **{f"all, {name}": estimate.total([ROUNDS] * 2) for name, estimate in methods.items()},
        "centralized": common.centralized_bytes(settings, directory, partitions),
    }
    found = {name: num_bytes / 1e6 for name, num_bytes in volumes.items()}
    return {
        "cut, %": 100 * meta.cut_edges / meta.num_edges,
        "halo": sum(part.halo for part in meta.parts),
        "cover": meta.cover_rows or 0,
        **found,
        "a worker, lean": found["all, lean"] / case.parts,
        "memory": max(memory) / 2**20,
        "edges": max(len(part.src) for part in partitions),
    }


def draw(rows: dict[Case, dict[str, float]], path: Path) -> None:
    """Write an svg: bytes, bytes per worker, memory and edges of the largest worker against the
    number of parts, for the largest graph of `--nodes` and for `--weak`.
    """
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "retexo"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(DRAWN), figsize=(3.4 * len(DRAWN), 3.4))
    lines: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    largest = max((case.nodes for case in rows if not case.weak), default=0)
    for case, row in rows.items():
        if case.weak:
            lines[f"{case.method}, {case.nodes // case.parts:,} nodes a part"][case.parts] = row
        elif case.nodes == largest:
            lines[f"{case.method}, {case.nodes:,} nodes"][case.parts] = row
    for panel, (column, label) in zip(panels, DRAWN.items(), strict=True):
        for name, line in lines.items():
            values = [row[column] or None for row in line.values()]  # no 0 on a log axis
            panel.plot(list(line), values, marker="o", label=name)
        panel.set(xscale="log", yscale="log", xlabel="parts", title=label)
        parts = sorted({count for line in lines.values() for count in line})
        panel.set_xticks(parts, [str(count) for count in parts])
        panel.minorticks_off()
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[100_000])
    parser.add_argument("--weak", type=int, help="also graphs of this many nodes per part")
    parser.add_argument("--parts", type=int, nargs="*", default=[1, 2, 4, 8, 16, 64])
    parser.add_argument("--weak-parts", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--methods", nargs="*", default=["random", "metis"])
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    print(common.machine())
    cases = [Case(*each) for each in product(arguments.nodes, arguments.parts, arguments.methods)]
    if arguments.weak:
        cases += [
            Case(arguments.weak * parts, parts, method, weak=True)
            for parts, method in product(arguments.weak_parts, arguments.methods)
        ]
    rows = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            rows[case] = growth(case, Path(folder))
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=Case._fields)
    print(table.to_string(float_format="{:,.2f}".format))
    if arguments.figure:
        draw(rows, arguments.figure)


if __name__ == "__main__":
    main()
