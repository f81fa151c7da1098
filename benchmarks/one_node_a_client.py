"""One node a client: every user keeps their node, its features, label and edges.

The method's first paper (arXiv 2302.13053, its first version): stage 0 is a network on a client's
own features; each of the K stages after it reads these, and the mean of what the neighbours sent
after the stage before: class scores (C wide) or embeddings (D wide). A stage is trained in R
rounds; in each of them a random group of G clients with training labels takes one step from the
same weights and averages. docs/one-node-a-client.md has the assumptions.

N clients, E directed edges without repeats and self loops, F features, P weights of a stage.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import common
import numpy as np
import torch
from torch import Tensor, nn

from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData
from partitioning.node_split import Split
from retexo.settings.compose import compose

FLOAT = 4
"""bytes"""


@dataclass(frozen=True)
class Clients:
    """All that the counts depend on."""

    out_degree: np.ndarray
    """[N] to how many others each client sends; of a formula [1], the mean."""
    nodes: int
    train: float
    """Clients with training labels."""
    features: int
    classes: int
    hidden: int
    stages: int
    """K"""
    rounds: int
    """R, of each stage."""
    group: int
    """G"""

    @property
    def edges(self) -> float:
        return float(self.out_degree.mean() * self.nodes)

    def rows(self, width: int) -> np.ndarray:
        """Bytes that each client sends its neighbours in all stages, as out_degree."""
        return self.out_degree * (self.stages * width * FLOAT)

    def weights(self, stage: int, width: int) -> int:
        """Bytes of a stage's weights: matrix and bias, LayerNorm, and the head."""
        num_in = self.features + width * (stage > 0)
        return FLOAT * (
            num_in * self.hidden + 3 * self.hidden + self.hidden * self.classes + self.classes
        )

    def agreed(self, width: int) -> tuple[float, float]:
        """Bytes of weights that all clients send and receive: in the rounds, and of the result."""
        model_size = sum(self.weights(stage, width) for stage in range(self.stages + 1))
        up = float(self.rounds * min(self.group, self.train) * model_size)
        return up, up + self.nodes * model_size

    def full_graph(self) -> tuple[float, float]:
        """Bytes of rows, and of weights both ways, of end-to-end training of K layers for R rounds.

        Features once; between layers rows forward and their gradients back in each round, rows once
        more at the end. All clients with training labels take part in each round, and all clients
        get what was trained.
        """
        passes = (self.stages - 1) * (2 * self.rounds + 1) * self.hidden
        widths = [self.features, *[self.hidden] * (self.stages - 1), self.classes]
        weights = sum((2 * before + 1) * after for before, after in pairwise(widths))
        sent = FLOAT * weights * (2 * self.rounds * self.train + self.nodes)
        return FLOAT * self.edges * (self.features + passes), sent


def neighbours(graph: GraphData) -> tuple[Tensor, Tensor]:
    """src and dst, int64 [E]."""
    pairs = graph.edges.src.astype(np.int64) * graph.num_nodes + graph.edges.dst
    pairs = np.unique(pairs[graph.edges.src != graph.edges.dst])
    return torch.from_numpy(pairs // graph.num_nodes), torch.from_numpy(pairs % graph.num_nodes)


class Stage(nn.Module):
    """[n, F or F + W] -> embeddings [n, D] and class scores [n, C]"""

    def __init__(self, num_in: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(num_in, hidden),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(rows)
        return hidden, self.head(hidden)


def received(rows: Tensor, src: Tensor, dst: Tensor, online: Tensor) -> Tensor:
    """The mean of what each client was sent, [N, W]; 0 for nothing.

    A message needs both ends, bool [N] online.
    """
    kept = online[src] & online[dst]
    total = torch.zeros_like(rows).index_add_(0, dst[kept], rows[src[kept]])
    return total / torch.bincount(dst[kept], minlength=len(rows)).clamp(min=1)[:, None]


def simulate(
    graph: GraphData,
    split: Split,
    sizes: Clients,
    *,
    scores: bool,
    offline: float,
    seed: int,
    rate: float,
    dropout: float,
) -> tuple[list[float], int]:
    """Test accuracy after each stage, and the bytes of rows that were sent.

    All clients of a group at once.

    offline: the share of clients that are not there, drawn anew for each round and each exchange.
    """
    torch.manual_seed(seed)
    own = torch.from_numpy(common.dense_features(graph))
    labels = torch.from_numpy(graph.labels)
    train, test = (torch.from_numpy(mask.nonzero()[0]) for mask in (split.train, split.test))
    src, dst = neighbours(graph)
    inputs, accuracies, sent = own, [], 0
    for number in range(sizes.stages + 1):
        stage = Stage(inputs.shape[1], sizes.hidden, sizes.classes, dropout)
        optimizer = torch.optim.Adam(stage.parameters(), rate, weight_decay=5e-4)
        for _ in range(sizes.rounds):
            there = train[torch.rand(len(train)) >= offline]
            group = there[torch.randperm(len(there))[: sizes.group]]
            if len(group):
                optimizer.zero_grad()
                nn.functional.cross_entropy(stage(inputs[group])[1], labels[group]).backward()
                optimizer.step()
        stage.eval()
        with torch.no_grad():
            hidden, answers = stage(inputs)
        rows = answers if scores else hidden
        accuracies.append(float((answers[test].argmax(1) == labels[test]).float().mean()))
        if number < sizes.stages:
            online = torch.rand(len(own)) >= offline
            sent += int((online[src] & online[dst]).sum()) * rows.shape[1] * FLOAT
            inputs = torch.cat((own, received(rows, src, dst, online)), dim=1)
    return accuracies, sent


def lines(sizes: Clients) -> Iterator[str]:
    """The counts, in the two forms of what crosses, beside full-graph training."""
    yield (
        f"{sizes.nodes:,} clients, {sizes.edges:,.0f} directed edges; {sizes.stages} stages of"
        f" {sizes.rounds} rounds, D = {sizes.hidden}, G = {sizes.group}"
    )
    yield (
        f"{'':<12} {'B a client: mean':>18} {'median':>12} {'99 %':>12} {'most':>14}"
        f" {'rows, MB':>12} {'weights, MB':>22}"
    )
    for name, width in (("scores", sizes.classes), ("embeddings", sizes.hidden)):
        client_bytes = sizes.rows(width)
        spread = [client_bytes.mean(), *np.percentile(client_bytes, (50, 99)), client_bytes.max()]
        cells = [
            f"{value:,.0f}" if len(client_bytes) > 1 or not place else ""
            for place, value in enumerate(spread)
        ]
        up, down = (f"{count / 1e6:,.1f}" for count in sizes.agreed(width))
        yield (
            f"{name:<12} {cells[0]:>18} {cells[1]:>12} {cells[2]:>12} {cells[3]:>14} "
            f"{client_bytes.mean() * sizes.nodes / 1e6:>12,.2f} {up + ' up, ' + down + ' down':>22}"
        )
    rows, weights = sizes.full_graph()
    yield (
        f"{'full graph':<12} {rows / sizes.nodes:>18,.0f} {'':>12} {'':>12} {'':>14}"
        f" {rows / 1e6:>12,.1f} {f'{weights / 1e6:,.1f} both ways':>22}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("one node a client")
    of_graph = (
        "count over the graph of dataset_name=...; without any setting by formula, from the sizes"
    )
    own.add_argument("--one-node-a-client", nargs="*", metavar="SETTING=VALUE", help=of_graph)
    own.add_argument(
        "--group",
        type=int,
        default=64,
        help="clients whose weights are averaged in a round (default 64)",
    )
    own.add_argument(
        "--offline",
        type=float,
        nargs="*",
        default=[],
        help="simulate with these shares of clients away",
    )
    own.add_argument("--seeds", type=int, default=3, help="of each simulation (default 3)")
    own.add_argument(
        "--rate", type=float, default=0.01, help="learning rate of a simulation (default 0.01)"
    )
    own.add_argument("--dropout", type=float, default=0.5, help="of a simulation (default 0.5)")


def run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Print counts, and the simulated accuracies."""
    hyperparameters: dict[str, Any] = {
        "hidden": options.hidden,
        "stages": options.layers,
        "rounds": options.rounds[0],
    }
    hyperparameters["group"] = options.group
    if not options.one_node_a_client:
        if None in (options.nodes, options.edges, options.features, options.classes):
            parser.error(
                "--one-node-a-client: needs dataset_name=..., or --nodes, --edges, --features and"
                " --classes"
            )
        degree = np.array([options.edges / options.nodes])
        of_graph = {
            "nodes": options.nodes,
            "features": options.features,
            "classes": options.classes,
        }
        print(
            *lines(
                Clients(degree, train=options.train * options.nodes, **of_graph, **hyperparameters)
            ),
            sep="\n",
        )
        return
    for seed in range(options.seeds):
        try:
            settings = compose([*options.one_node_a_client, f"seed={seed}"])
            graph, split = common.load_graph(settings)
        except InputError as error:
            parser.error(str(error))
        if graph.label_kind != "multiclass":
            parser.error(
                "--one-node-a-client: counts one class of each node, and this graph has several"
                " labels"
            )
        if not seed:
            degree = torch.bincount(neighbours(graph)[0], minlength=graph.num_nodes).numpy()
            of_graph = {
                "nodes": graph.num_nodes,
                "features": graph.num_features,
                "classes": graph.num_classes,
            }
            sizes = Clients(degree, train=int(split.train.sum()), **of_graph, **hyperparameters)
            print(*lines(sizes), sep="\n", flush=True)
        for offline in options.offline:
            for scores in (True, False):
                accuracies, sent = simulate(
                    graph,
                    split,
                    sizes,
                    scores=scores,
                    offline=offline,
                    seed=seed,
                    rate=options.rate,
                    dropout=options.dropout,
                )
                print(
                    f"seed {seed}: {offline:.0%} away, {'scores' if scores else 'embeddings'}, test"
                    f" after each stage {', '.join(f'{accuracy:.4f}' for accuracy in accuracies)};"
                    f" rows {sent:,} B",
                    flush=True,
                )
