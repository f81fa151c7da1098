"""Changing a graph: updating a partition directory beside partitioning it anew.

    python benchmarks/update.py [--edges 5000000] [--shares 0.0001 0.001 0.01 0.1] [--method random]
        [--coauthor /work/shared/datasets/coauthor_cs.npz]

Graphs: coauthor_cs, and a synthetic one with 25 undirected edges per two nodes, each in four
partitions. A share of the directed edges changes: half of them go, as many new ones come between
random nodes. Seconds, of the clock and of CPU time, are of the command's work in one process with
NumPy and pandas loaded: `anew` reads, splits, assigns and writes the graph, `update` reads it from
its directory, applies the tables and writes it. tests/unit/partitioning/test_directory_update.py
compares the arrays with those made from scratch.
"""

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from retexo import apps
from retexo.apps.partition_request import directory_of
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings

SPLIT = ("split=fraction", "split.train=0.1", "split.val=0.1", "split.test=0.8")


def run(*overrides: str) -> tuple[Settings, float, float]:
    """Run a command; return its settings, the seconds, and those of CPU time."""
    settings = compose(overrides)
    with contextlib.redirect_stdout(io.StringIO()):
        start, cpu = time.perf_counter(), time.process_time()
        apps.run(settings, Path(settings.partition_dir))
        return settings, time.perf_counter() - start, time.process_time() - cpu


def write_change(path: Path, share: float, folder: Path, rng: np.random.Generator) -> int:
    """Write tables that delete and add edges of a directory; return the number of their rows."""
    parts = sorted(path.glob("part*"))
    ids = [np.load(part / "orig_id.npy") for part in parts]
    bounds = np.cumsum([0, *map(len, ids)])
    every = np.concatenate(ids)
    pieces = []
    for place, part in enumerate(parts):
        src, dst = (np.load(part / f"{end}.npy", mmap_mode="r") for end in ("src", "dst"))
        rows = rng.choice(len(src), int(len(src) * share / 2), replace=False)
        known = np.concatenate(
            (np.arange(bounds[place], bounds[place + 1]), np.load(part / "halo.npy"))
        )
        pieces.append((every[known[src[rows]]], every[dst[rows] + bounds[place]]))
    gone = np.concatenate([np.stack(piece, axis=1) for piece in pieces])
    gone = np.unique(gone, axis=0)
    new = rng.choice(every, gone.shape)
    for name, ends in (("gone", gone), ("new", new)):
        pd.DataFrame(ends, columns=["src", "dst"]).to_csv(folder / f"{name}.csv", index=False)
    return len(gone) + len(new)


def measure(name: str, overrides: Sequence[str], shares: Sequence[float], folder: Path) -> None:
    settings, anew, cpu_anew = run(
        "app=partition_data", f"partition_dir={folder / 'parts'}", *overrides
    )
    path = directory_of(settings)
    rng = np.random.default_rng(0)
    tables = [f"update.deleted_edges={folder}/gone.csv", f"update.new_edges={folder}/new.csv"]
    for share in shares:
        copy = folder / "copy" / path.name
        shutil.copytree(path, copy)
        rows = write_change(copy, share, folder, rng)
        os.sync()  # an update waits until its files are on the disk, also those that stay
        _, seconds, cpu = run("app=update", f"partition_dir={copy}", *tables)
        figures = (seconds, anew, anew / seconds, cpu, cpu_anew, cpu_anew / cpu)
        print(f"|{name}|{share:.2%}|{rows:,}|", "|".join(f"{value:.2f}" for value in figures), "|")
        shutil.rmtree(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--edges", type=int, default=5_000_000, help="undirected edges")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0001, 0.001, 0.01, 0.1])
    parser.add_argument("--method", default="random", help="partition_method")
    parser.add_argument("--coauthor", type=Path, help="coauthor_cs.npz")
    options = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("|graph|changed edges|rows|update, s|anew, s|ratio|update, CPU s|anew, CPU s|ratio|")
    print("|---|---|---|---|---|---|---|---|---|")
    common = ["num_partitions=4", f"partition_method={options.method}", "partition.dgl_files=false"]
    synthetic = [
        "dataset_name=synthetic",
        f"synthetic.nodes={options.edges * 2 // 25}",
        f"synthetic.edges={options.edges}",
    ]
    with tempfile.TemporaryDirectory() as name:
        if options.coauthor is not None:
            of_file = ["dataset_name=file", f"dataset_file={options.coauthor}", *SPLIT, *common]
            folder = Path(name) / "coauthor"
            folder.mkdir()
            measure("coauthor_cs", of_file, options.shares, folder)
        folder = Path(name) / "synthetic"
        folder.mkdir()
        measure("synthetic", [*synthetic, *common], options.shares, folder)


if __name__ == "__main__":
    main()
