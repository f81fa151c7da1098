"""One run of alternatives.py (PyG, DGL or ours, same graph and stopping rule) in its own process.

    python benchmarks/alternative_runs.py JSON_OF_A_RUN RESULT_FILE

Heavy packages are imported where they are used, so that no method pays for another's imports.
"""

import copy
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

THREADS, WIDTH, DROPOUT, EPOCHS, PATIENCE = 2, 256, 0.5, 200, 30
BATCH, FAN_OUT = 1024, (15, 10)
FULL_RATE, SAMPLED_RATE, DECAY = 0.01, 0.003, 5e-4


@dataclass(frozen=True)
class Run:
    """Description of one run, passed to its process."""

    method: str
    seed: int
    settings: list[str]
    folder: str
    """Folder of the graph and its partitions."""
    budget: float
    """Seconds of training after which PyG and DGL stop."""
    device: str = "cpu"
    """Of PyG and DGL on the whole graph."""
    epochs: int | None = None
    """Epochs without early stopping; None for the stopping rule."""


def fit(
    model: Any,
    epoch: Callable[[], None],
    right: Callable[[str], float],
    start: float,
    run: Run,
) -> dict[str, Any]:
    """Run epochs until the stopping rule, the budget or the number of epochs ends them.

    Args:
        right: returns the accuracy on a part of the nodes, without gradients.
    """
    best, best_epoch, kept, curve = -1.0, 0, None, []
    for number in range(1, (run.epochs or EPOCHS) + 1):
        model.train()
        epoch()
        model.eval()
        accuracy = right("val")
        curve.append((time.perf_counter() - start, accuracy))
        if accuracy > best:
            best, best_epoch, kept = accuracy, number, copy.deepcopy(model.state_dict())
        elif number - best_epoch >= PATIENCE and run.epochs is None:
            break
        if curve[-1][0] > run.budget:
            break
    model.load_state_dict(kept)
    test = right("test")
    return {
        "curve": curve,
        "val": best,
        "test": test,
        "rounds": number,
        "train": time.perf_counter() - start,
    }


def baseline(run: Run) -> dict[str, Any]:
    """Train with PyG or DGL on the graph that the parent wrote."""
    import torch
    from torch import nn
    from torch.nn import functional

    library, kind, *sampled = run.method.split()
    torch.set_num_threads(THREADS)
    torch.manual_seed(run.seed)
    data = {
        name: torch.from_numpy(array).to(run.device)
        for name, array in np.load(Path(run.folder) / "graph.npz").items()
    }
    x, labels, classes = data["x"], data["labels"], int(data["labels"].max()) + 1
    nodes = {part: data[part].nonzero()[:, 0] for part in ("train", "val", "test")}
    convs, graph_per_layer, batches, call = (pyg if library == "PyG" else dgl_tools)(
        data, kind, (x.shape[1], WIDTH, classes)
    )
    model = nn.ModuleList(convs).to(run.device)
    # Before the clock starts: the first optimiser imports torch._dynamo, which takes a second.
    optimizer = torch.optim.Adam(
        model.parameters(), SAMPLED_RATE if sampled else FULL_RATE, weight_decay=DECAY
    )
    start = time.perf_counter()

    def forward(edges: Any, rows: Any) -> Any:
        """Run the network.

        Dropout before each convolution for GCN (as PyG's example), else between layers.
        """
        rows = functional.dropout(rows, DROPOUT, model.training and kind == "GCN")
        hidden = functional.dropout(
            functional.relu(call(model[0], edges[0], rows)), DROPOUT, model.training
        )
        return call(model[1], edges[1], hidden)

    def step(logits: Any, targets: Any) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(logits, targets).backward()
        optimizer.step()

    def epoch() -> None:
        if not sampled:
            step(forward(edges, x)[nodes["train"]], labels[nodes["train"]])
            return
        for blocks, rows, seeds in loaders["train"]():
            step(forward(blocks, rows)[: len(seeds)], labels[seeds])

    @torch.no_grad()
    def right(part: str) -> float:
        if sampled and part == "val":
            parts = [
                (forward(blocks, rows)[: len(seeds)], seeds)
                for blocks, rows, seeds in loaders["val"]()
            ]
        else:
            parts = [(forward(edges, x)[nodes[part]], nodes[part])]
        return sum(int((logits.argmax(1) == labels[seeds]).sum()) for logits, seeds in parts) / len(
            nodes[part]
        )

    edges = graph_per_layer()
    loaders = (
        {part: batches(nodes[part], part == "train") for part in ("train", "val")}
        if sampled
        else {}
    )
    return fit(model, epoch, right, start, run)


def pyg(data: dict[str, Any], kind: str, sizes: tuple[int, int, int]) -> tuple:
    """Return PyG's convolutions, graph per layer, batches, and convolution call.

    CSR as its manual advises.
    """
    import torch
    from torch import nn
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    make = {
        "GCN": lambda first, last, is_last: GCNConv(first, last, cached=True),
        "SAGE": lambda first, last, is_last: SAGEConv(first, last),
        "GAT": lambda first, last, is_last: GATConv(
            first, last if is_last else last // 8, 1 if is_last else 8
        ),
        "GIN": lambda first, last, is_last: GINConv(
            nn.Sequential(nn.Linear(first, WIDTH), nn.ReLU(), nn.Linear(WIDTH, last))
        ),
    }[kind]
    convs = [make(sizes[layer], sizes[layer + 1], layer == 1) for layer in (0, 1)]
    nodes = len(data["x"])
    edge_index = torch.stack([data["src"], data["dst"]])

    def batches(seeds: Any, shuffle: bool) -> Callable[[], Any]:
        graph = Data(x=data["x"], edge_index=edge_index)
        loader = NeighborLoader(graph, list(FAN_OUT), seeds, batch_size=BATCH, shuffle=shuffle)
        return lambda: (
            ((batch.edge_index,) * 2, batch.x, batch.n_id[: batch.batch_size]) for batch in loader
        )

    def graph_per_layer() -> Any:
        return (to_torch_csr_tensor(edge_index.flip(0), size=(nodes, nodes)),) * 2

    return convs, graph_per_layer, batches, lambda conv, edges, rows: conv(rows, edges)


def dgl_tools(data: dict[str, Any], kind: str, sizes: tuple[int, int, int]) -> tuple:
    """Return the same for DGL."""
    from partitioning.dgl_import import import_dgl

    dgl = import_dgl("DGL beside ours")
    graph = dgl.graph((data["src"], data["dst"]), num_nodes=len(data["x"]))
    if kind == "GCN":
        convs = [dgl.nn.GraphConv(sizes[layer], sizes[layer + 1]) for layer in (0, 1)]
    else:
        convs = [dgl.nn.SAGEConv(sizes[layer], sizes[layer + 1], "mean") for layer in (0, 1)]

    def batches(seeds: Any, shuffle: bool) -> Callable[[], Any]:
        sampler = dgl.dataloading.NeighborSampler(list(FAN_OUT))
        loader = dgl.dataloading.DataLoader(
            graph, seeds, sampler, batch_size=BATCH, shuffle=shuffle, num_workers=0
        )
        return lambda: ((blocks, data["x"][inputs], outputs) for inputs, outputs, blocks in loader)

    def graph_per_layer() -> Any:
        return (dgl.add_self_loop(dgl.remove_self_loop(graph)) if kind == "GCN" else graph,) * 2

    return convs, graph_per_layer, batches, lambda conv, edges, rows: conv(edges, rows)


def ours(run: Run) -> dict[str, Any]:
    """Train on the partitions that the parent made."""
    from retexo.apps import train
    from retexo.settings.compose import compose

    _, model, workers, _ = run.method.replace(",", "").split()
    overrides = [
        *run.settings,
        f"num_partitions={workers}",
        f"dropout={DROPOUT}",
        f"hidden_dim={WIDTH}",
        "app=train",
        f"num_rounds=[{EPOCHS}]",
        f"stopping.patience={PATIENCE}",
    ]
    run_dir = Path(tempfile.mkdtemp(dir=run.folder))
    summary = train.run(compose(overrides, f"node_classification_{model.lower()}"), run_dir)
    lines = [
        json.loads(line)
        for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    curve = [(line["seconds"], line["val_metric"]) for line in lines if line["round"] > 0]
    best, test = max(accuracy for _, accuracy in curve), summary["test"]["accuracy"]
    rounds, seconds = sum(summary["rounds"]), summary["seconds"]["train"]
    return {"curve": curve, "val": best, "test": test, "rounds": rounds, "train": seconds}


if __name__ == "__main__":
    run = Run(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(
        json.dumps((ours if run.method.startswith("ours") else baseline)(run)), encoding="utf-8"
    )
