#!/usr/bin/env python3
"""Bytes and memory of training on a graph of which only the sizes are known.

    python benchmarks/estimate.py --nodes N --edges E --features F --classes C [--workers W] [...]
    python benchmarks/estimate.py --one-node-a-client dataset_name=cora [--offline 0 0.3]

It knows the published algorithm, +experiment=retexo, without compression. "network, at least" is
the time in which a node's link carries the node's own bytes, at --bandwidth; nothing else is
counted. --one-node-a-client: docs/one-node-a-client.md.

A random graph stands for the one that is not known:

N nodes, E directed edges, d = E/N, F width of a row, D of a row after the weights, C classes, L
layers, P parameters of a stage, R rounds, W workers, I = N/W nodes of each, c share of edges that
are cut, z share of zeros after a ReLU.

Node v has the relative degree x (mean 1; all 1, or a power law), and edges fall on nodes in
proportion. < > is the mean over nodes; cut edges are spread evenly over the pairs of parts, k = d c
/ (W-1) of a node into each other part. That gives the most rows; a graph with communities needs
fewer.

    needed     layer l makes its output at the share S_l(x) of nodes; S_{L-1} = s is labelled and
               test nodes, S_{l-1} = 1 - (1-s) exp(-d x <x S_l>). TRAIN_PHASE serves train +
               validation, INFER_PHASE the rest of S_l
    rows       of a pair of parts, for the targets w(x):  I <1 - exp(-k x <x w>)>,
               sums  I <w (1 - exp(-k x))>
    cover      I min over t in [0, 1] of  <v (1 - exp(-k x Y g))> + <w (1 - exp(-b) (1 + b))>,
               b = k x X t,  g = <x w exp(-b)> / Y,  X = <x v>,  Y = <x w>:  the size of a minimum
               vertex cover of a random bipartite graph (Bordenave, Lelarge and Salez 2013); v is
               the share of rows that the receiver does not hold yet. All sums instead where they
               are no more than `tolerated` (retexo.exchange.cover)
    sent       W (W-1) times the least of  4F cover;  4D cover (INFER_PHASE);
               rows (4F (1-z) + F/8 + 2) (not in layer 0)
    gradients  2 (W-1) (4 P + 40) R
    setup      which layers need each node at the other end of a cut edge (2 or 3 bits), and one bit
               per row and target in each phase: edges have both directions, so owners know them
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import one_node_a_client
import torch
from numpy.typing import NDArray

from retexo.exchange.coding.elias_fano import encoded_size
from retexo.exchange.cover import acceptable_ratio
from retexo.models.network import Architecture, Schema, build_network, default_model_settings
from retexo.models.stage import Stage
from retexo.plan.memory import FLOAT, WorkerSizes, peak_memory

Floats = NDArray[np.float64]
KINDS = ("features", "embeddings", "gradients", "setup")


@dataclass(frozen=True)
class Case:
    """Sizes given on the command line."""

    nodes: int
    """N"""
    edges: int
    """E, each direction counted."""
    features: int
    classes: int
    hidden: int
    layers: int
    model: str
    workers: int
    train: float
    val: float
    test: float
    """`train`, `val` and `test` are shares of the nodes."""
    rounds: tuple[int, ...]
    """Rounds of each layer."""
    cut: float
    """c"""
    zeros: float
    """z"""
    power_law: float
    """Exponent of the power law of degrees; 0: equal degrees."""

    @property
    def inner(self) -> float:
        """Nodes of a part, I."""
        return self.nodes / self.workers

    @property
    def pairs(self) -> int:
        """The number of ordered pairs of workers, W (W - 1)."""
        return self.workers * (self.workers - 1)

    @property
    def labelled(self) -> float:
        """Share of training and validation nodes."""
        return self.train + self.val

    def widths(self, layer: int) -> tuple[int, int]:
        """The widths F and D of a layer's rows, before and after its weights."""
        return (
            self.hidden if layer else self.features,
            self.hidden if layer < self.layers - 1 else self.classes,
        )

    @property
    def cut_degree(self) -> float:
        """Mean number of cut edges from a node into each other part, k."""
        return self.edges / self.nodes * self.cut / max(1, self.workers - 1)

    @cached_property
    def stages(self) -> list[Stage]:
        """Build the stages on PyTorch's meta device."""
        model = default_model_settings(self.model, self.layers, self.hidden)
        with torch.device("meta"):
            return build_network(
                Architecture(model, Schema.of_plain_graph(self.features), self.classes), 0
            )

    def parameters(self, layer: int) -> int:
        """Number of parameters of a layer's stage, P."""
        return sum(parameter.numel() for parameter in self.stages[layer].parameters())

    def degrees(self) -> tuple[Floats, Floats]:
        """Return relative degrees x and the share of nodes with each."""
        if not self.power_law:
            return np.ones(1), np.ones(1)
        tail = np.geomspace(1, 1e-9, 400)  # the share of nodes with a higher degree
        share = -np.diff(tail)
        x = np.minimum(
            np.sqrt(tail[1:] * tail[:-1]) ** (-1 / (self.power_law - 1)), math.sqrt(self.nodes) + 1
        )
        share /= share.sum()
        return x / (share @ x), share


# --- what crosses the network ----------


@dataclass(frozen=True)
class Phase:
    """One phase of one layer, for the mean of ordered pairs of partitions."""

    layer: int
    rows: float
    targets: float
    """Nodes with an edge in the phase."""
    num_bytes: float


def share_of_computed_nodes(case: Case, x: Floats, share: Floats) -> list[Floats]:
    """Return by layer the share of nodes of each relative degree x that computes its output."""
    everywhere = np.full(len(x), case.labelled + case.test)
    shares = [everywhere]
    for _ in range(case.layers - 1):
        shares.insert(
            0,
            1 - (1 - everywhere) * np.exp(-case.edges / case.nodes * x * (share @ (x * shares[0]))),
        )
    return shares


def list_phases(case: Case) -> list[Phase]:
    """List the phases of all layers with the mean rows and targets of a pair of partitions."""
    x, share = case.degrees()
    phases = []
    for layer, shares in enumerate(share_of_computed_nodes(case, x, share)):
        known = np.zeros(len(x))
        for embed in (False, True):
            targets = shares - case.labelled if embed else np.full(len(x), case.labelled)
            phase, known = _make_phase(case, layer, embed, x, share, targets, 1 - known)
            phases.append(phase)
    return phases


def _make_phase(
    case: Case, layer: int, embed: bool, x: Floats, share: Floats, w: Floats, v: Floats
) -> tuple[Phase, Floats]:
    """Return the phase for targets w, and the rows held after it. v: rows not held yet."""
    inner, k = case.inner, case.cut_degree
    t = np.linspace(0, 1, 401)[:, None]
    open_rows, reached = share @ (x * v), share @ (x * w)
    b = k * x * open_rows * t
    reach = k * x * ((w * x * np.exp(-b)) @ share)[:, None]
    left, right = (v * (1 - np.exp(-reach))) @ share, (w * (1 - np.exp(-b) * (1 + b))) @ share
    best = int(np.argmin(left + right))
    cover, taken = inner * (left[best] + right[best]), 1 - np.exp(-reach[best])
    every_sum = inner * (share @ (w * (1 - np.exp(-k * x * open_rows))))
    if every_sum <= acceptable_ratio(int(inner * k * open_rows * reached)) * cover:
        cover, taken = every_sum, np.zeros(len(x))
    num_in, num_out = case.widths(layer)
    num_bytes = FLOAT * cover * (min(num_in, num_out) if embed else num_in)
    if layer and case.zeros:
        header = math.ceil(num_in / 8) + (2 if num_in >= 128 else 1)
        all_rows = inner * (share @ (v * (1 - np.exp(-k * x * reached))))
        without_zeros = (FLOAT * num_in * (1 - case.zeros) + header) * all_rows
        if without_zeros < num_bytes:
            num_bytes, taken = without_zeros, 1 - np.exp(-k * x * reached)
    rows = inner * (share @ (1 - np.exp(-k * x * reached)))
    targets = inner * (share @ (w * (1 - np.exp(-k * x))))
    return Phase(layer, float(rows), float(targets), float(num_bytes)), v * taken


def count_sent_bytes(case: Case) -> dict[str, float]:
    """Return bytes by kind, over all workers."""
    x, share = case.degrees()
    shares, kinds = share_of_computed_nodes(case, x, share), dict.fromkeys(KINDS, 0.0)
    k = case.cut_degree
    for phase in list_phases(case):
        kinds["embeddings" if phase.layer else "features"] += case.pairs * phase.num_bytes
        kinds["setup"] += case.pairs * (9 + (phase.rows + phase.targets) / 8)
    targets = case.inner * float(share @ (1 - np.exp(-k * x)))
    kinds["setup"] += case.pairs * (24 + targets * (case.layers + 1).bit_length() / 8)
    kinds["setup"] += case.pairs * (64 + 8 * (case.layers + 1))  # sizes, digests of parameters
    if case.labelled + case.test < 1:  # owners are told which of their nodes are reached
        for later in shares[1:]:
            halo = round(case.inner * float(share @ (1 - np.exp(-k * x * (share @ (x * later))))))
            kinds["setup"] += case.pairs * (8 + encoded_size(halo, round(case.inner)))
    for layer, rounds in enumerate(case.rounds):
        kinds["gradients"] += (
            2 * max(0, case.workers - 1) * (FLOAT * case.parameters(layer) + 40) * rounds
        )
    return kinds


# --- what a worker has in memory ----------


def worker_sizes(case: Case) -> WorkerSizes:
    """Return the sizes of the first layer, which has the most vectors, with partial sums."""
    x, share = case.degrees()
    peers = case.workers - 1
    k = case.cut_degree

    def received(w: Floats) -> int:
        """Rows or sums for a share w(x) of inner nodes, the fewer of them from each peer."""
        rows = share @ (1 - np.exp(-k * x * float(share @ (x * w))))
        sums = share @ (w * (1 - np.exp(-k * x)))
        return round(peers * case.inner * float(min(rows, sums)))

    labelled = np.full(len(x), case.labelled)
    return WorkerSizes(
        inner=round(case.inner),
        halo=round(peers * case.inner * float(share @ (1 - np.exp(-k * x)))),
        edges=round(case.edges / case.workers),
        labelled=round(case.inner * case.labelled),
        step=round(case.inner * case.labelled),
        early=received(labelled),
        late=received(share_of_computed_nodes(case, x, share)[0] - labelled),
    )


# --- the command line ----------


def number(kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """A type for argparse: a number from low to high."""

    def read(text: str) -> Any:
        try:
            value = kind(float(text)) if kind is int and float(text).is_integer() else kind(text)
        except (ValueError, OverflowError):
            value = None
        if value is None or not low <= value <= high:
            limits = f"from {low:g} on" if high == math.inf else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(
                f"{text!r}: needs {'an integer' if kind is int else 'a number'} {limits}"
            )
        return value

    return read


SIZES: dict[str, tuple[Callable[[str], Any], Any, str]] = {
    "nodes": (number(int, 1), None, "number of nodes"),
    "edges": (number(int, 0), None, "number of edges, each direction counted"),
    "features": (number(int, 1), None, "features of a node"),
    "classes": (number(int, 2), None, "number of classes"),
    "hidden": (number(int, 1), 256, "width of an embedding"),
    "layers": (number(int, 1), 2, "number of layers"),
    "workers": (number(int, 1), 4, "number of workers, one a partition"),
    "train": (number(float, 0, 1), 0.08, "share of the nodes for training"),
    "val": (number(float, 0, 1), 0.02, "share of the nodes for validation"),
    "test": (number(float, 0, 1), 0.9, "share of the nodes for the test"),
    "cut": (number(float, 0, 1), None, "share of the edges between partitions; random: 1 - 1/W"),
    "zeros": (number(float, 0, 1), 0.5, "share of zeros in an embedding"),
    "power-law": (number(float, 0), 0.0, "exponent of the degrees, above 2; 0: all alike"),
}


def read_case(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Case:
    sizes = {
        name: getattr(options, name) for name in (option.replace("-", "_") for option in SIZES)
    }
    for name in ("nodes", "edges", "features", "classes"):
        if sizes[name] is None:
            parser.error(f"--{name}: is needed")
    if sizes["workers"] % options.per_node:
        parser.error(
            f"--per-node {options.per_node}: --workers {sizes['workers']} is no multiple of it"
        )
    if sizes["train"] + sizes["val"] + sizes["test"] > 1 + 1e-9:
        parser.error("--train, --val, --test: more than all nodes together")
    if 0 < sizes["power_law"] <= 2:
        parser.error(f"--power-law {sizes['power_law']:g}: needs more than 2, or 0")
    if sizes["cut"] is None:
        sizes["cut"] = 1 - 1 / sizes["workers"]
    rounds = options.rounds if len(options.rounds) > 1 else options.rounds * sizes["layers"]
    if len(rounds) != sizes["layers"]:
        parser.error(f"--rounds: {len(rounds)} of them for --layers {sizes['layers']}")
    return Case(**sizes, model=options.model, rounds=tuple(rounds))


def network_seconds(case: Case, per_node: int, bandwidth: float) -> float:
    """The least time to send one node's bytes to the other nodes; bandwidth in Gbit/s."""
    if case.workers == per_node:
        return 0.0
    share_leaving = (case.workers - per_node) / (case.workers - 1)
    node_bytes = sum(count_sent_bytes(case).values()) * per_node / case.workers * share_leaving
    return 8 * node_bytes / (bandwidth * 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (kind, default, meaning) in SIZES.items():
        parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--model", choices=("gcn", "sage"), default="gcn")
    parser.add_argument(
        "--rounds", type=number(int, 0), nargs="+", default=[100], help="one, or one a layer"
    )
    parser.add_argument(
        "--per-node", type=number(int, 1), default=1, help="workers of a node (default 1)"
    )
    parser.add_argument(
        "--bandwidth",
        type=number(float, 1e-9),
        default=1.0,
        help="Gbit/s of a node's link (default 1)",
    )
    one_node_a_client.add_arguments(parser)
    options = parser.parse_args()
    if options.one_node_a_client is not None:
        one_node_a_client.run(parser, options)
        return
    case = read_case(parser, options)
    kinds = count_sent_bytes(case)
    sizes = {f"bytes, {kind}": count for kind, count in kinds.items()}
    sizes["bytes, in all"] = sum(kinds.values())
    sizes["memory per worker, bytes"] = peak_memory(worker_sizes(case), case.stages)
    for name, value in sizes.items():
        print(f"{name:<26} {value:>28,.0f}")
    seconds = network_seconds(case, options.per_node, options.bandwidth)
    print(f"{'network, at least, seconds':<26} {seconds:>28,.1f}")


if __name__ == "__main__":
    main()
