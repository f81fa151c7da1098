"""How bytes grow with the graph, the cut and the number of parts; and what planning itself takes.

    python benchmarks/growth.py [--nodes 10000 30000 100000] [--parts 4 16 64] [--lean] [--edges 10000000]

Synthetic graphs (10 edges a node, 128 features, 8 classes, homophily .9; split .08 / .02 / .90), GCN. MB are predicted
by `app=plan`, with 30 rounds a layer and 10 for lean. `--lean` trains where a good cut pays: bytes and accuracy of
`+experiment=lean` beside `gather`. `--edges` times a cover of so many boundary edges on one core.
"""

import argparse
import contextlib
import io
import logging
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch

from retexo.apps import partition_data, train
from retexo.apps.plan import Sizes
from retexo.apps.train import open_directory
from retexo.config.compose import compose
from retexo.config.settings import Settings
from retexo.estimate.traffic import architecture_of, forecast
from retexo.exchange.coding.elias_fano import write_ascending
from retexo.exchange.cover import minimum_cover

GRAPH = ("dataset_name=synthetic", "synthetic.features=128", "synthetic.classes=8", "synthetic.homophily=0.9", "seed=0")
ROUNDS, LEAN_ROUNDS = 30, 10


def settings_of(*overrides: str) -> Settings:
    return compose([*GRAPH, *overrides])


def growth(nodes: int, parts: int, method: str, folder: Path) -> None:
    """One line: bytes of one graph in so many parts."""
    common = (f"synthetic.nodes={nodes}", f"synthetic.edges={5 * nodes}", f"num_partitions={parts}",
              f"partition_method={method}", f"partition_dir={folder}")  # fmt: skip
    settings = settings_of(*common)
    with contextlib.redirect_stdout(io.StringIO()):
        meta = partition_data.run(settings.partition)
    directory = open_directory(settings)
    partitions = [directory.read(part) for part in range(parts)]
    start = time.perf_counter()
    exact = forecast(settings.train, directory, partitions)
    seconds = time.perf_counter() - start
    plain = forecast(settings_of(*common, "exchange=plain").train, directory, partitions)
    lean = forecast(settings_of(*common, "+experiment=lean").train, directory, partitions)
    rows = [each.total([0, 0], ["features", "embeddings"]) for each in (plain, exact, lean)]
    totals = [plain.total([ROUNDS] * 2), exact.total([ROUNDS] * 2), lean.total([LEAN_ROUNDS] * 2)]
    architecture = architecture_of(settings.train, directory, partitions)
    gather = Sizes.of(settings.train, partitions, architecture).gather
    halo = sum(part.halo for part in meta.parts)
    megabytes = " ".join(f"{value / 1e6:>9.2f}" for value in (*rows, exact.total([0, 0], ["setup"]), *totals, gather))
    print(
        f"{nodes:>8,} {parts:>5} {method:<7} {meta.cut_edges / meta.num_edges:>6.1%} {halo:>9,} {meta.cover_rows:>9,} "
        f"{megabytes} {seconds:>7.1f}",
        flush=True,
    )


def lean_against_gather(folder: Path) -> None:
    """A graph that falls into parts, with wide features: what leaves its part is little."""
    common = ("synthetic.nodes=100000", "synthetic.edges=500000", "synthetic.features=512", "synthetic.classes=16",
              "synthetic.homophily=0.97", "partition_method=metis", f"partition_dir={folder}")  # fmt: skip
    settings = settings_of(*common, "+experiment=lean")
    with contextlib.redirect_stdout(io.StringIO()):
        meta = partition_data.run(settings.partition)
        summary = train.run(settings, Path(tempfile.mkdtemp(dir=folder)))
        plain = train.run(settings_of(*common, "exchange=plain"), Path(tempfile.mkdtemp(dir=folder)))
    directory = open_directory(settings)
    partitions = [directory.read(part) for part in range(4)]
    architecture = architecture_of(settings.train, directory, partitions)
    gather = Sizes.of(settings.train, partitions, architecture).gather
    sent = summary["bytes"]["total"]
    print(f"100,000 nodes, 1,000,000 directed edges, 512 features, METIS: {meta.cut_edges / meta.num_edges:.1%} cut")
    print(f"lean   {sent / 1e6:>10.2f} MB, test accuracy {summary['test']['accuracy']:.4f}, rounds {summary['rounds']}")
    print(f"plain  {plain['bytes']['total'] / 1e6:>10.2f} MB, test accuracy {plain['test']['accuracy']:.4f}")
    print(f"gather {gather / 1e6:>10.2f} MB, {gather / sent:.1f} times lean", flush=True)


def planning(edges: int) -> None:
    """Code and cover of one random boundary, unit weights and weights of sparse rows."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    vertices = edges // 5
    left, right = rng.integers(vertices, size=(2, edges))
    start = time.perf_counter()
    code = write_ascending(np.sort(left * vertices + right), vertices * vertices)
    print(f"{edges:,} boundary edges, {vertices:,} rows and targets; one core")
    print(f"their code   {time.perf_counter() - start:6.1f} s, {len(code) / edges:.2f} bytes an edge")
    for name, heaviest in (("equal", 2), ("unequal", 400)):
        weights = rng.integers(1, heaviest, size=(2, vertices))
        start = time.perf_counter()
        cover = minimum_cover(left, right, *weights)
        seconds = time.perf_counter() - start
        gap = cover.weight / cover.lower_bound - 1
        print(f"cover, {name:<7} weights {seconds:6.1f} s, at most {gap:.2%} above the smallest", flush=True)
    peak = psutil.Process().memory_info().rss / 2**30
    print(f"memory {peak:.1f} GiB at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[10_000, 30_000, 100_000])
    parser.add_argument("--parts", type=int, nargs="*", default=[4, 8, 16, 64])
    parser.add_argument("--methods", nargs="*", default=["random", "metis"])
    parser.add_argument("--lean", action="store_true")
    parser.add_argument("--edges", type=int)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} cores")
    print(f"{'':<22} {'':>6} {'':>9} {'after':>9} {'MB: rows':>9} {'rows':>9} {'rows':>9} {'setup':>9} {'total':>9} "
          f"{'total':>9} {'total':>9} {'':>9} {'seconds':>7}")  # fmt: skip
    print(f"{'nodes':>8} {'parts':>5} {'method':<7} {'cut':>6} {'halo':>9} {'cover':>9} {'plain':>9} {'exact':>9} "
          f"{'lean':>9} {'exact':>9} {'plain':>9} {'exact':>9} {'lean':>9} {'gather':>9} {'to plan':>7}")  # fmt: skip
    for nodes in arguments.nodes:
        for parts in arguments.parts:
            for method in arguments.methods:
                with tempfile.TemporaryDirectory() as folder:
                    growth(nodes, parts, method, Path(folder))
    if arguments.lean:
        with tempfile.TemporaryDirectory() as folder:
            lean_against_gather(Path(folder))
    if arguments.edges:
        planning(arguments.edges)


if __name__ == "__main__":
    main()
