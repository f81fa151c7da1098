"""Seconds of a prediction in memory, beside PyG's forward (table of docs/inference.md).

    python benchmarks/latency.py [--models gcn sage gat] [--repeats 20]

The graph has 20,000 nodes with 64 features and 100,000 edges, in both directions. Models have the
default settings (two layers, skip connections, label propagation); training is cut short, because
it does not change the time. PyG's are of the same width with two of its convolutions, without the
other parts. A new node has ten edges, in both directions. Requests go to app=serve in a process of
its own.
"""

import contextlib
import http.client
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import common
import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE

import retexo
from retexo.predict.predictor import Predictor

SIZE_NODES = 20_000
SIZE = (f"synthetic.nodes={SIZE_NODES}", "synthetic.edges=100000")
DATA = ("dataset_name=synthetic", *SIZE)
PYG = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT}
NUM_EDGES = 10
"""Of a new node."""


def milliseconds(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Medians of calls, after one that is not counted: of the wall clock, and of CPU time.

    CPU time depends less on what else runs.
    """
    call()
    times = []
    for _ in range(repeats):
        start, used = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - start, time.process_time() - used))
    wall, cpu = 1e3 * np.median(times, axis=0)
    return float(wall), float(cpu)


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
    """Milliseconds of each kind of call."""
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


def serve(run: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of requests to app=serve in a process of its own: median and 99th percentile."""
    command = [sys.executable, "-m", "retexo", "app=serve", f"checkpoint_dir={run}", *DATA]
    command += ["serve.port=0", f"hydra.run.dir={run.parent}/serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=common.ROOT)
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("http://"))
        host, port = line.split()[0].removeprefix("http://").split(":")
        x = np.zeros(64).tolist()
        ends = [(SIZE_NODES, node) for node in range(NUM_EDGES)]
        ends += [(other, one) for one, other in ends]
        new = {
            "nodes": [{"id": SIZE_NODES, "x": x}],
            "edges": [{"src": src, "dst": dst} for src, dst in ends],
        }
        known = {"ids": [7]}

        def ask(body: Any, count: int) -> list[float]:
            connection, seconds = http.client.HTTPConnection(host, int(port)), []
            for _ in range(count):
                start = time.perf_counter()
                connection.request(
                    "POST", "/predict", json.dumps(body), {"content-type": "application/json"}
                )
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                answer.read()
                seconds.append(time.perf_counter() - start)
            return seconds

        def quantiles(seconds: list[float]) -> tuple[float, float]:
            median, high = 1e3 * np.quantile(seconds, [0.5, 0.99])
            return float(median), float(high)

        ask(known, 5), ask(new, 5)
        times = {
            "one known node": quantiles(ask(known, 20 * repeats)),
            "one new node": quantiles(ask(new, 5 * repeats)),
        }
        with ThreadPoolExecutor(50) as clients:
            samples = list(clients.map(lambda _: ask(known, repeats), range(50)))
        times["one known node, 50 clients at once"] = quantiles([*chain.from_iterable(samples)])
        return times
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    arguments = common.parser(__doc__, models=["gcn", "sage", "gat"], repeats=20).parse_args()
    with tempfile.TemporaryDirectory() as name:
        runs = {model: trained(model, Path(name)) for model in arguments.models}
        rows = {model: measure(model, run, arguments.repeats) for model, run in runs.items()}
        served = serve(next(iter(runs.values())), arguments.repeats)
    print(common.machine(), f"{torch.get_num_threads()} threads")
    print("| milliseconds, median (CPU time) | " + " | ".join(rows) + " |")
    print("|---|" + "---|" * len(rows))
    for call in next(iter(rows.values())):
        cells = [f"{times[call][0]:.1f} ({times[call][1]:.1f})" for times in rows.values()]
        print(f"| {call} | " + " | ".join(cells) + " |")
    print(f"\n| request to the service, {next(iter(runs))} | p50 | p99 |\n|---|---|---|")
    for call, (middle, late) in served.items():
        print(f"| {call} | {middle:.1f} | {late:.1f} |")


if __name__ == "__main__":
    main()
