"""Growth of bytes with graph size, cut and number of partitions; and the time of planning.

    python benchmarks/growth.py [--nodes 10000 30000 100000] [--parts 4 16 64] [--edges 10000000]

Synthetic graphs (10 edges per node, 128 features, 8 classes, homophily 0.9; split 0.08 / 0.02 /
0.90), GCN. MB are predicted by `app=plan` for 30 rounds per layer; plain is the published
scheme, lean the defaults. `--edges` times the cover of that many boundary edges on one core.
"""

import itertools
import tempfile
import time
from pathlib import Path

import common
import numpy as np
import pandas as pd
import psutil
import torch

from retexo.exchange.coding.elias_fano import encode_sorted
from retexo.exchange.cover import minimum_cover
from retexo.plan.traffic import estimate_traffic
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


def settings_of(*overrides: str) -> Settings:
    return compose([*GRAPH, *overrides])


def growth(nodes: int, parts: int, method: str, folder: Path) -> dict[str, str]:
    """Return the figures of one graph and number of partitions; MB by kind and method."""
    graph = (
        f"synthetic.nodes={nodes}",
        f"synthetic.edges={5 * nodes}",
        f"num_partitions={parts}",
        f"partition_method={method}",
        f"partition_dir={folder}",
    )
    settings = settings_of(*graph, "+experiment=exact")
    meta = common.partition(settings)
    directory, partitions = common.read_partitions(settings)
    start = time.perf_counter()
    exact = estimate_traffic(settings.train, directory, partitions)
    seconds = time.perf_counter() - start
    plain = estimate_traffic(
        settings_of(*graph, "+experiment=retexo", "exchange=plain").train, directory, partitions
    )
    lean = estimate_traffic(settings_of(*graph).train, directory, partitions)
    methods = {"plain": plain, "exact": exact, "lean": lean}
    kinds = ["features", "embeddings", "predictions"]
    volumes = {
        **{f"rows, {name}": estimate.total([0, 0], kinds) for name, estimate in methods.items()},
        "setup": exact.total([0, 0], ["setup"]),
        **{f"all, {name}": estimate.total([ROUNDS] * 2) for name, estimate in methods.items()},
        "centralized": common.centralized_bytes(settings, directory, partitions),
    }
    return {
        "cut": f"{meta.cut_edges / meta.num_edges:.1%}",
        "halo": f"{sum(part.halo for part in meta.parts):,}",
        "cover": f"{meta.cover_rows:,}",
        **{name: f"{num_bytes / 1e6:.2f}" for name, num_bytes in volumes.items()},
        "s to plan": f"{seconds:.1f}",
    }


def planning(edges: int) -> None:
    """Time code and cover of a random boundary, with unit weights and weights of sparse rows."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    vertices = edges // 5
    left, right = rng.integers(vertices, size=(2, edges))
    start = time.perf_counter()
    code = encode_sorted(np.sort(left * vertices + right), vertices * vertices)
    print(f"{edges:,} boundary edges, {vertices:,} rows and targets; one core")
    print(
        f"their code   {time.perf_counter() - start:6.1f} s, {len(code) / edges:.2f} bytes an edge"
    )
    for name, heaviest in (("equal", 2), ("unequal", 400)):
        weights = rng.integers(1, heaviest, size=(2, vertices))
        start = time.perf_counter()
        cover = minimum_cover(left, right, *weights)
        seconds = time.perf_counter() - start
        gap = cover.weight / cover.lower_bound - 1
        print(
            f"cover, {name:<7} weights {seconds:6.1f} s, at most {gap:.2%} above the smallest",
            flush=True,
        )
    peak = psutil.Process().memory_info().rss / 2**30
    print(f"memory {peak:.1f} GiB at the end")


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[10_000, 30_000, 100_000])
    parser.add_argument("--parts", type=int, nargs="*", default=[4, 8, 16, 64])
    parser.add_argument("--methods", nargs="*", default=["random", "metis"])
    parser.add_argument("--edges", type=int)
    arguments = parser.parse_args()
    print(common.machine())
    rows = {}
    for case in itertools.product(arguments.nodes, arguments.parts, arguments.methods):
        with tempfile.TemporaryDirectory() as folder:
            rows[case] = growth(*case, Path(folder))
    print(pd.DataFrame.from_dict(rows, orient="index").to_string())
    if arguments.edges:
        planning(arguments.edges)


if __name__ == "__main__":
    main()
