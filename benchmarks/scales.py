"""Test accuracy where columns differ in scale: a third column has nothing to do with the class.

    python benchmarks/scales.py --seeds 3

2,000 nodes of two classes, which two columns of about unit size tell. The third column is a share
(0..1), an age (18..90), a year (1950..2020) or a timestamp in milliseconds. Ours: GraphSAGE with
its defaults (rows in 4 bits), exact, and with the columns as they are; PyG: GraphSAGE on
standardised columns, trained as in accounts.py.
"""

import tempfile
from pathlib import Path

import accounts
import common
import numpy as np
import pandas as pd

from retexo.settings.compose import compose

NODES, EDGES = 2_000, 16_000
THIRD = {"share": (0, 1), "age": (18, 90), "year": (1950, 2020), "timestamp": (1.5e12, 1.7e12)}
METHODS = {
    "default, 1 part": ["num_partitions=1"],
    "default, 4": ["num_partitions=4"],
    "exact, 1 part": ["+experiment=exact", "num_partitions=1"],
    "exact, 4": ["+experiment=exact", "num_partitions=4"],
    "as given, 4": ["features.scale=none", "num_partitions=4"],
    "as given, exact": ["features.scale=none", "+experiment=exact", "num_partitions=4"],
}
OURS = ["dataset_name=file", "symmetrize=true"]


def draw(column: str, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw the nodes and the edges, 80 % of which are within a class."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, NODES)
    low, high = THIRD[column]
    nodes = pd.DataFrame({"id": np.arange(NODES), "label": label})
    for name in ("a", "b"):
        nodes[name] = np.where(label, 1, -1) + rng.normal(0, 1, NODES)
    nodes[column] = rng.uniform(low, high, NODES)
    if high > 1:
        nodes[column] = nodes[column].astype(np.int64)
    nodes["split"] = rng.choice(["train", "val", "test"], NODES, p=[0.5, 0.25, 0.25])
    by_class = [np.flatnonzero(label == value) for value in (0, 1)]
    src = rng.integers(0, NODES, EDGES)
    same = np.array([rng.choice(by_class[label[node]]) for node in src])
    dst = np.where(rng.random(EDGES) < 0.6, same, rng.integers(0, NODES, EDGES))
    return nodes, pd.DataFrame({"src": src, "dst": dst})[src != dst]


def train_pyg(nodes: pd.DataFrame, edges: pd.DataFrame, column: str, seed: int) -> float:
    """The test accuracy of PyG's GraphSAGE on standardised columns."""
    rows = nodes[["a", "b", column]].to_numpy(np.float64)
    train = (nodes["split"] == "train").to_numpy()
    rows = (rows - rows[train].mean(axis=0)) / rows[train].std(axis=0)
    ends, label = (edges["src"].to_numpy(), edges["dst"].to_numpy()), nodes["label"].to_numpy()
    scores = accounts.train_pyg(rows, ends, label, nodes["split"].to_numpy(), seed)
    test = (nodes["split"] == "test").to_numpy()
    return float(((scores > 0) == label)[test].mean())


def main() -> None:
    options = common.parser(__doc__, seeds=3).parse_args()
    print(f"{common.machine()}, PyG {accounts.PYG or 'missing'}; least over seeds")
    names = [*METHODS, *(["PyG"] if accounts.PYG else [])]
    print(f"{'':<12}", *(f"{name:>16}" for name in names))
    for column in THIRD:
        accuracies: dict[str, list[float]] = {name: [] for name in names}
        for seed in range(options.seeds):
            nodes, edges = draw(column, seed)
            with tempfile.TemporaryDirectory() as folder:
                accounts.write(Path(folder), nodes, edges)
                for number, (name, settings) in enumerate(METHODS.items()):
                    composed = compose(
                        [
                            *OURS,
                            f"dataset_file={folder}",
                            f"partition_dir={folder}/{number}",
                            f"seed={seed}",
                            *settings,
                        ],
                        "node_classification_sage",
                    )
                    common.partition(composed)
                    scores = common.train_in_threads(composed)
                    accuracies[name].append(scores["test"]["accuracy"])
            if accounts.PYG:
                accuracies["PyG"].append(train_pyg(nodes, edges, column, seed))
        print(f"{column:<12}", *(f"{min(accuracies[name]):>16.3f}" for name in names), flush=True)


if __name__ == "__main__":
    main()
