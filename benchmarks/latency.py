"""Seconds of a prediction with a model in memory, beside PyG's forward (table of
docs/inference.md).

    python benchmarks/latency.py [--models gcn sage gat] [--repeats 20]

The graph has 20,000 nodes with 64 features and 100,000 edges, in both directions. Models have the
default settings (two layers, skip connections, label propagation); training is cut short, because
it does not change the time. PyG's are of the same width with two of its convolutions, without the
other parts. A new node has ten edges. `service` is a request over HTTP to app=serve.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE

import retexo
from retexo.predictor import Predictor

SIZE = ("synthetic.nodes=20000", "synthetic.edges=100000")
DATA = ("dataset_name=synthetic", *SIZE)
PYG = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT}
NUM_EDGES = 10
"""Of a new node."""


def milliseconds(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median and largest time of calls, after one that is not counted."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return 1e3 * float(np.median(found)), 1e3 * max(found)


def trained(model: str, folder: Path) -> Path:
    """The run directory of a model that was trained for two rounds a layer."""
    out = folder / f"run-{model}"
    short = ("num_rounds=[2]", "num_partitions=2", f"partition_dir={folder}/parts")
    with contextlib.redirect_stdout(io.StringIO()):
        retexo.train([*DATA, *short, f"hydra.run.dir={out}"], f"node_classification_{model}")
    return out


def as_data(predictor: Predictor) -> Data:
    """The graph as PyG's Data."""
    x, edge_index = predictor.network_inputs()[:2]
    return Data(x=x, edge_index=edge_index)


def new_node(number: int, width: int, num_nodes: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(number)
    name = num_nodes + number
    nodes = pd.DataFrame({"id": [name], "x": [rng.normal(size=width).astype(np.float32)]})
    others = rng.integers(0, num_nodes, NUM_EDGES)
    ends = {"src": [name] * NUM_EDGES + [*others], "dst": [*others] + [name] * NUM_EDGES}
    return nodes, pd.DataFrame(ends)


def measure(model: str, run: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of each kind of call, median and largest."""
    predictor = retexo.load(run, settings=DATA).attach()
    data = as_data(predictor)
    count, width = data.x.shape
    architecture: Any = predictor.checkpoint.architecture
    theirs = PYG[model](width, predictor.checkpoint.model.hidden_dim, 2, architecture.num_classes)
    theirs.eval()
    module = predictor.to_module(explainable=False)
    numbers = iter(range(10 * repeats))
    calls = {
        "one known node": lambda: predictor.predict(node_ids=[next(numbers)]),
        "1,000 known nodes": lambda: predictor.predict(node_ids=np.arange(1000)),
        "one new node": lambda: predictor.predict(new=new_node(next(numbers), width, count)),
        "all nodes, module": lambda: module(data.x, data.edge_index),
        "all nodes, PyG's forward": lambda: theirs(data.x, data.edge_index),
        "all nodes, from PyG's Data": lambda: predictor.predict(data),
    }
    with torch.no_grad():
        return {name: milliseconds(call, repeats) for name, call in calls.items()}


def main() -> None:
    arguments = common.parser(__doc__, models=["gcn", "sage", "gat"], repeats=20).parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = {
            model: measure(model, trained(model, Path(name)), arguments.repeats)
            for model in arguments.models
        }
    print(common.machine())
    print("| milliseconds, median (largest) | " + " | ".join(rows) + " |")
    print("|---|" + "---|" * len(rows))
    for call in next(iter(rows.values())):
        cells = [f"{each[call][0]:.1f} ({each[call][1]:.1f})" for each in rows.values()]
        print(f"| {call} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
