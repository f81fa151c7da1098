"""Heterogeneous graphs: macro-F1 and bytes beside PyTorch Geometric and logistic regression.

And a run with 20 million edges.

    python benchmarks/relations.py accuracy --graph ../shared/datasets/imdb --seeds 10
    python benchmarks/relations.py bytes --graph ../shared/datasets/imdb --seeds 2
    python benchmarks/relations.py scale

A seed draws the split (100 labelled nodes per class train, 300 validate, the rest test), 4
random partitions and parameters; test nodes are looked at once. Ours: the defaults, 4 workers as
threads. PyG: whole graph, end to end; a linear layer and ReLU per type, then two layers of
RGCNConv, or HeteroConv of SAGEConv or GATConv (sum), 64 wide, dropout 0.5, Adam, learning rate
0.01, weight decay 5e-4, full batch, at most 200 epochs, patience 30, best validation epoch.
Logistic regression (scikit-learn): own features and the means of each relation's neighbours'
features; C of five by validation. Differences are points of macro-F1, paired, with their 95 %
interval.
"""

import copy
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import common
import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from partitioning.graph.graph_data import EdgeType, GraphData
from partitioning.node_split import Split
from retexo.results.groups import compare_pairs
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.tasks import metrics
from retexo.tasks.node_classification import NodeClassification

MODELS = ("rgcn", "hetero_sage", "rgat")
METHODS = ("logistic", *(f"PyG_{model}" for model in MODELS), *MODELS)
BYTES = {"plain": "+experiment=exact exchange=plain", "exact": "+experiment=exact", "lean": ""}
SCALE = [
    "dataset_name=synthetic_hetero",
    "synthetic.nodes=1000000",
    "synthetic.edges=10000000",
    "synthetic.classes=16",
]


def settings_of(graph: Path, seed: int, folder: str, model: str = "rgcn", *more: str) -> Settings:
    overrides = [
        "dataset_name=file",
        f"dataset_file={graph.resolve()}",
        "split=per_class",
        "split.train=100",
        "split.val=300",
        "split.test=2339",
        "num_partitions=4",
        f"partition_dir={folder}",
        f"seed={seed}",
    ]
    return compose([*overrides, "app=train", *more], f"node_classification_{model}")


def macro_f1(logits: Tensor, labels: Tensor, mask: np.ndarray, num_classes: int) -> float:
    task, chosen = NodeClassification(num_classes, multilabel=False), torch.from_numpy(mask)
    counts = task.count_by_class(task.predict(logits[chosen]), labels[chosen])
    return metrics.macro_f1(*counts[:3].double())


def means(graph: GraphData) -> dict[EdgeType, sp.csr_array]:
    """Return the mean aggregation matrix A_r of each relation."""
    matrices = {}
    for name, relation in graph.relations.items():
        shape = graph.nodes[name[2]].num_nodes, graph.nodes[name[0]].num_nodes
        matrix = sp.csr_array(
            (np.ones(relation.num_edges, np.float32), (relation.dst, relation.src)), shape=shape
        )
        matrices[name] = sp.csr_array(
            sp.diags_array(1 / np.maximum(matrix.sum(axis=1), 1)).astype(np.float32) @ matrix
        )
    return matrices


def logistic(graph: GraphData, split: Split) -> float:
    from sklearn.linear_model import LogisticRegression

    rows = {name: sp.csr_array(table.features) for name, table in graph.nodes.items()}
    brought = [
        matrix @ rows[name[0]] for name, matrix in means(graph).items() if name[2] == graph.target
    ]
    inputs = sp.csr_array(sp.hstack([rows[graph.target], *brought]))
    fits = [LogisticRegression(C=c, max_iter=2000) for c in (0.03, 0.1, 0.3, 1, 3)]
    fits = [model.fit(inputs[split.train], graph.labels[split.train]) for model in fits]
    best = max(fits, key=lambda model: model.score(inputs[split.val], graph.labels[split.val]))
    logits = torch.from_numpy(best.predict_log_proba(inputs))
    return macro_f1(logits, torch.from_numpy(graph.labels), split.test, graph.num_classes)


class PyG(nn.Module):
    """PyG's network, trained end to end on the whole graph."""

    def __init__(self, graph: GraphData, kind: str) -> None:
        from torch_geometric.nn import GATConv, HeteroConv, RGCNConv, SAGEConv

        super().__init__()
        self.kind, self.target, width = kind, graph.target, 64
        self.rows = {name: sp.csr_array(table.features) for name, table in graph.nodes.items()}
        self.inputs = nn.ParameterDict(
            {
                name: nn.init.xavier_uniform_(torch.empty(rows.shape[1], width))
                for name, rows in self.rows.items()
            }
        )
        self.edges = {
            name: torch.from_numpy(np.stack((relation.src, relation.dst)).astype(np.int64))
            for name, relation in graph.relations.items()
        }
        self.first: dict[str, slice] = {}
        start = 0
        for name, table in graph.nodes.items():
            self.first[name] = slice(start, start + table.num_nodes)
            start += table.num_nodes

        def conv(out: int) -> nn.Module:
            if kind == "rgcn":
                return RGCNConv(width, out, len(self.edges))
            if kind == "hetero_sage":
                return HeteroConv({name: SAGEConv(width, out) for name in self.edges}, aggr="sum")
            heads = 8 if out == width else 1
            return HeteroConv(
                {
                    name: GATConv((width, width), out // heads, heads, add_self_loops=False)
                    for name in self.edges
                },
                aggr="sum",
            )

        self.convs = nn.ModuleList([conv(width), conv(graph.num_classes)])

    def forward(self) -> Tensor:
        rows = {
            name: self._dropped(torch.relu(product(features, self.inputs[name])))
            for name, features in self.rows.items()
        }
        if self.kind != "rgcn":
            rows = {
                name: self._dropped(torch.relu(output))
                for name, output in self.convs[0](rows, self.edges).items()
            }
            return self.convs[1](rows, self.edges)[self.target]
        both = [
            torch.stack(
                (edges[0] + self.first[name[0]].start, edges[1] + self.first[name[2]].start)
            )
            for name, edges in self.edges.items()
        ]
        types = torch.cat([torch.full((ends.shape[1],), place) for place, ends in enumerate(both)])
        edges = torch.cat(both, dim=1)
        hidden = self._dropped(
            torch.relu(self.convs[0](torch.cat(list(rows.values())), edges, types))
        )
        return self.convs[1](hidden, edges, types)[self.first[self.target]]

    def _dropped(self, rows: Tensor) -> Tensor:
        return nn.functional.dropout(rows, 0.5, self.training)


def product(matrix: sp.csr_array, weight: Tensor) -> Tensor:
    """[N, F] @ [F, D] as an embedding bag, which is much faster in torch, forward and backward."""
    columns, row_ptr = (
        torch.from_numpy(indices.astype(np.int64)) for indices in (matrix.indices, matrix.indptr)
    )
    values = torch.from_numpy(matrix.data)
    bag = nn.functional.embedding_bag
    return bag(
        columns, weight, row_ptr, mode="sum", per_sample_weights=values, include_last_offset=True
    )


def end_to_end(kind: str, graph: GraphData, split: Split, seed: int) -> float:
    torch.manual_seed(seed)
    labels, net, epoch = torch.from_numpy(graph.labels), PyG(graph, kind), 0
    best: tuple[float, int, dict[str, Any]] = (-1.0, 0, {})
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
    while epoch < 200 and epoch - best[1] < 30:
        epoch += 1
        net.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net()[split.train], labels[split.train]).backward()
        optimizer.step()
        net.eval()
        with torch.no_grad():
            accuracy = float((net()[split.val].argmax(dim=1) == labels[split.val]).float().mean())
        if accuracy > best[0]:
            best = accuracy, epoch, copy.deepcopy(net.state_dict())
    net.load_state_dict(best[2])
    with torch.no_grad():
        return macro_f1(net(), labels, split.test, graph.num_classes)


def accuracy(graph_file: Path, seeds: range, methods: list[str]) -> None:
    """Print macro-F1 of test nodes by method: a line per seed, means, spread and differences."""
    scores: dict[str, dict[str, float | None]] = defaultdict(dict)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            settings = settings_of(graph_file, seed, folder)
            graph, split = common.load_graph(settings)
            common.partition(settings)
            for name in methods:
                if name in MODELS:
                    summary = common.train_in_threads(settings_of(graph_file, seed, folder, name))
                    scores[name][str(seed)] = summary["test"]["macro_f1"]
                elif name == "logistic":
                    scores[name][str(seed)] = logistic(graph, split)
                else:
                    scores[name][str(seed)] = end_to_end(
                        name.removeprefix("PyG_"), graph, split, seed
                    )
        print(
            json.dumps(
                {"seed": seed, **{name: values[str(seed)] for name, values in scores.items()}}
            ),
            flush=True,
        )
    report(scores)


def report(scores: dict[str, dict[str, float | None]]) -> None:
    """Print one line per method."""
    for name, values in scores.items():
        print(f"{name:<16} {common.with_spread(np.array(list(values.values())))}", end="")
        for other in ("logistic", f"PyG_{name}"):
            difference = (
                compare_pairs(scores[other], values) if other in scores and name in MODELS else None
            )
            if difference:
                mean, low, high = (100 * difference[name] for name in ("mean", "low", "high"))
                print(f"   {mean:+.2f} [{low:+.2f}, {high:+.2f}] to {other}", end="")
        print()


def sent(graph_file: Path, seeds: range, model: str) -> None:
    """Print bytes by kind, and rounds, for each compression."""
    for name, more in BYTES.items():
        runs = []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                settings = settings_of(graph_file, seed, folder, model, *more.split())
                common.partition(settings)
                runs.append(common.train_in_threads(settings))
        rounds = np.mean([run["rounds"] for run in runs], axis=0)
        kinds = {
            kind: round(common.megabytes(runs, kind), 3) for kind in runs[0]["bytes"]["by_kind"]
        }
        f1 = np.mean([run["test"]["macro_f1"] for run in runs])
        print(
            f"{name:<6} {common.megabytes(runs):8.2f} MB  rounds {rounds}  macro-F1 {f1:.4f} "
            f" {kinds}",
            flush=True,
        )


def scale(model: str) -> None:
    """Partition and train a graph of 20 million edges, 5 types and 12 relations with 4 workers."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*SCALE, "num_partitions=4", f"partition_dir={folder}"]
        settings = compose([*overrides, "app=train"], f"node_classification_{model}")
        start = time.perf_counter()
        common.partition(settings)
        print(f"partitioned in {time.perf_counter() - start:.0f} s", flush=True)
        summary = common.train(settings, folder)
    seconds, memory = summary["seconds"], sum(summary["peak_memory_bytes"]) / 2**30
    print(
        f"{model}: trained in {seconds['train']:.0f} s, {memory:.1f} GiB, rounds"
        f" {summary['rounds']}, accuracy {summary['test']['accuracy']:.4f},"
        f" {summary['bytes']['total'] / 1e6:.0f} MB, "
        + ", ".join(f"{name} {spent:.1f} s" for name, spent in seconds["phase"].items())
    )


def main() -> None:
    arguments = common.parser(__doc__, seeds=10)
    arguments.add_argument("--first-seed", type=int, default=0)
    arguments.add_argument("what", choices=["accuracy", "bytes", "scale"])
    arguments.add_argument("--graph", type=Path, default=Path("../shared/datasets/imdb"))
    arguments.add_argument("--methods", nargs="+", default=list(METHODS))
    options: Any = arguments.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.what == "accuracy":
        accuracy(options.graph, seeds, options.methods)
    elif options.what == "bytes":
        sent(options.graph, seeds, options.methods[-1])
    else:
        scale(options.methods[-1])


if __name__ == "__main__":
    main()
