"""What training will take, on paper: bytes, operations, memory and seconds as functions of the sizes.

N nodes, E directed edges, d = E/N, F width of a row, D of a row after the weights, C classes, L layers, P parameters of
a stage, R rounds, W workers, I = N/W nodes of each, c share of edges that are cut, z share of zeros after a ReLU.

A random graph stands for the real one: node v has the relative degree x (mean 1; all 1, or a power law), and edges fall
on nodes in proportion. < > is the mean over nodes; cut edges are spread evenly over the pairs of parts, k = d c / (W-1)
of a node into each other part. That gives the most rows; a graph with communities needs fewer.

    need       layer l makes its output at the share S_l(x) of nodes; S_{L-1} = s is labelled and test nodes,
               S_{l-1} = 1 - (1-s) exp(-d x <x S_l>). The wave ROUNDS serves train + validation, EMBED the rest of S_l
    rows       of a pair of parts, for the targets w(x):  I <1 - exp(-k x <x w>)>,  sums  I <w (1 - exp(-k x))>
    cover      I min over t in [0, 1] of  <v (1 - exp(-k x Y g))> + <w (1 - exp(-b) (1 + b))>,  b = k x X t,
               g = <x w exp(-b)> / Y,  X = <x v>,  Y = <x w>:  the size of a minimum vertex cover of a random bipartite
               graph (Bordenave, Lelarge and Salez 2013); v is the share of rows that the receiver does not hold yet
    sent       W (W-1) times the least of  4F cover;  4D cover (EMBED);  rows (4F (1-z) + F/8 + 2) (not in layer 0)
    gradients  2 (W-1) 4 (P + 8) R
    setup      the needed cut edges in Elias-Fano code (about 2.6 bytes each), and a bit a row and a target in each wave

Seconds are those of one worker, all of them alike: work times a constant (scripts/cost_constants.py), over the cores
that a worker has; what NumPy and SciPy do runs on one. What leaves a node goes at the bandwidth; nothing overlaps.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from retexo.estimate.memory import BASE
from retexo.exchange.coding.elias_fano import code_size
from retexo.exchange.cover import EXACT_LIMIT, MATCHING_LIMIT
from retexo.exchange.layer_exchange import peers_at_once
from retexo.nn.registry import default_model
from retexo.nn.stage import Architecture, Stage, build_stages

Floats = NDArray[np.float64]
FLOAT = 4
"""Bytes of a float32."""
KINDS = ("features", "embeddings", "gradients", "setup")


@dataclass(frozen=True)
class Case:
    """The sizes, as on the command line."""

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
    per_node: int
    """Workers a node."""
    cores: float
    """Of a node."""
    bandwidth: float
    """Gbit/s that leave a node"""
    latency: float
    """Seconds a hop."""
    disk: float
    """GB/s that a node reads"""
    train: float
    val: float
    test: float
    """Shares of the nodes, as the two before."""
    rounds: tuple[int, ...]
    """Of each layer."""
    cut: float
    """c"""
    zeros: float
    """z"""
    power_law: float
    """Exponent of the degrees; 0: all alike."""

    @property
    def inner(self) -> float:
        return self.nodes / self.workers

    @property
    def pairs(self) -> int:
        return self.workers * (self.workers - 1)

    @property
    def labelled(self) -> float:
        """Share of the nodes on which rounds work."""
        return self.train + self.val

    def widths(self, layer: int) -> tuple[int, int]:
        """F, D."""
        return (self.hidden if layer else self.features, self.hidden if layer < self.layers - 1 else self.classes)

    @cached_property
    def stages(self) -> list[Stage]:
        """Without data, on torch's meta device."""
        model = default_model(self.model, self.layers, self.hidden)
        with torch.device("meta"):
            return build_stages(Architecture(model, self.features, self.classes), 0)

    @property
    def num_inputs(self) -> int:
        """Matrices that a layer multiplies: sums, and with SAGE a node's own row."""
        return len(self.stages[0].conv.first_weights)

    def parameters(self, layer: int) -> int:
        return sum(parameter.numel() for parameter in self.stages[layer].parameters())

    def degrees(self) -> tuple[Floats, Floats]:
        """Relative degrees x, and the share of nodes that has each."""
        if not self.power_law:
            return np.ones(1), np.ones(1)
        tail = np.geomspace(1, 1e-9, 400)  # the share of nodes with a higher degree
        share = -np.diff(tail)
        x = np.minimum(np.sqrt(tail[1:] * tail[:-1]) ** (-1 / (self.power_law - 1)), math.sqrt(self.nodes) + 1)
        share /= share.sum()
        return x / (share @ x), share


# --- what crosses the network ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wave:
    """One wave of one layer; of an ordered pair of parts, on average."""

    layer: int
    embed: bool
    nodes: float
    """Share of the nodes that it works for."""
    edges: float
    """Share of the edges that lead to them."""
    rows: float
    targets: float
    """With an edge in the wave."""
    open_edges: float
    """Cut edges of rows that are not held yet."""
    by_rows: float
    """Of these, served by rows; the others by sums."""
    vectors: float
    sums: float
    """Of these vectors."""
    tries_zeros: bool
    """Whether leaving out zeros may be the shortest, so that the sums' zeros are looked at."""
    leaves_zeros_out: bool
    num_bytes: float


def needed(case: Case, x: Floats, share: Floats) -> list[Floats]:
    """S_l(x) by layer."""
    everywhere = np.full(len(x), case.labelled + case.test)
    shares = [everywhere]
    for _ in range(case.layers - 1):
        shares.insert(0, 1 - (1 - everywhere) * np.exp(-case.edges / case.nodes * x * (share @ (x * shares[0]))))
    return shares


def waves(case: Case) -> list[Wave]:
    x, share = case.degrees()
    found = []
    for layer, required_layers in enumerate(needed(case, x, share)):
        held = np.zeros(len(x))
        for embed in (False, True):
            targets = required_layers - case.labelled if embed else np.full(len(x), case.labelled)
            wave, held = _wave(case, layer, embed, x, share, targets, 1 - held)
            found.append(wave)
    return found


def _wave(case: Case, layer: int, embed: bool, x: Floats, share: Floats, w: Floats, v: Floats) -> tuple[Wave, Floats]:
    """A wave for the targets w, and the rows that the receiver holds after it; v: those that it does not hold yet."""
    inner, k = case.inner, case.edges / case.nodes * case.cut / max(1, case.workers - 1)
    t = np.linspace(0, 1, 401)[:, None]
    open_rows, into = share @ (x * v), share @ (x * w)
    b = k * x * open_rows * t
    reach = k * x * ((w * x * np.exp(-b)) @ share)[:, None]
    left, right = (v * (1 - np.exp(-reach))) @ share, (w * (1 - np.exp(-b) * (1 + b))) @ share
    best = int(np.argmin(left + right))
    cover, taken = inner * (left[best] + right[best]), 1 - np.exp(-reach[best])
    num_in, num_out = case.widths(layer)
    all_rows = inner * (share @ (v * (1 - np.exp(-k * x * into))))
    sizes = [FLOAT * num_in * cover]
    projected = num_out if embed else num_in
    if embed:
        sizes.append(FLOAT * num_out * cover)
    header = math.ceil(num_in / 8) + (2 if num_in >= 128 else 1)
    if layer and case.zeros:
        sizes.append((FLOAT * num_in * (1 - case.zeros) + header) * all_rows)
    tries = len(sizes) > 1 + embed and FLOAT * num_in * (1 - case.zeros) + header < FLOAT * min(num_in, projected)
    sparse = tries and sizes[-1] < min(sizes[:-1])
    if sparse:
        taken = 1 - np.exp(-k * x * into)
    return Wave(
        layer,
        embed,
        nodes=float(share @ w),
        edges=float(into),
        rows=float(inner * (share @ (1 - np.exp(-k * x * into)))),
        targets=float(inner * (share @ (w * (1 - np.exp(-k * x))))),
        open_edges=float(inner * k * open_rows * into),
        by_rows=float(inner * k * into * (open_rows if sparse else share @ (x * v * taken))),
        vectors=float(all_rows if sparse else cover),
        sums=float(0 if sparse else inner * right[best]),
        tries_zeros=bool(tries),
        leaves_zeros_out=bool(sparse),
        num_bytes=float(min(sizes)) if case.pairs else 0.0,
    ), v * taken


def sent(case: Case) -> dict[str, float]:
    """Bytes by kind, of all workers."""
    x, share = case.degrees()
    required_layers, kinds = needed(case, x, share), dict.fromkeys(KINDS, 0.0)
    k = case.edges / case.nodes * case.cut / max(1, case.workers - 1)
    for wave in waves(case):
        kinds["embeddings" if wave.layer else "features"] += case.pairs * wave.num_bytes
        kinds["setup"] += case.pairs * (9 + (wave.rows + wave.targets) / 8)
    targets = round(case.inner * float(share @ (required_layers[0] * (1 - np.exp(-k * x)))))
    edges = round(case.inner * k * float(share @ (x * required_layers[0])))
    planes = (case.layers + 1).bit_length()
    kinds["setup"] += case.pairs * (code_size(edges, round(case.inner) * targets) + targets * planes / 8)
    if case.labelled + case.test < 1:  # owners are told which of their nodes are reached
        for later in required_layers[1:]:
            halo = round(case.inner * float(share @ (1 - np.exp(-k * x * (share @ (x * later))))))
            kinds["setup"] += case.pairs * (8 + code_size(halo, round(case.inner)))
    for layer, rounds in enumerate(case.rounds):
        kinds["gradients"] += 2 * max(0, case.workers - 1) * FLOAT * (case.parameters(layer) + 8) * rounds
    return kinds


# --- what a worker computes and holds --------------------------------------------------------------------------------


def operations(case: Case, layer: int) -> tuple[float, float]:
    """Floating-point operations of a worker in one round, and in the embedding, of one layer."""
    num_in, num_out = case.widths(layer)
    train, val = case.inner * case.train, case.inner * case.val
    head = num_out * case.classes * (layer < case.layers - 1)
    product = num_in * num_out * case.num_inputs
    nodes = sum(wave.nodes for wave in waves(case) if wave.layer == layer) * case.inner
    return 2 * product * (2 * train + val) + 2 * head * (3 * train + val), 2 * product * nodes


def _needed_cut(case: Case) -> float:
    """Cut edges of a worker that some wave serves."""
    x, share = case.degrees()
    return case.edges / case.workers * case.cut * float(share @ (x * needed(case, x, share)[0]))


def memory(case: Case) -> float:
    """Private bytes of a worker: what it holds all the time, and the most of one step besides."""
    inner, edges, peers = case.inner, case.edges / case.workers, max(1, case.workers - 1)
    found = waves(case)
    nodes, cut = inner + peers * max(wave.rows for wave in found), _needed_cut(case)
    # Both ends as int32, features, ids and owners and degrees, and both ends of the cut edges, in both directions.
    whole = 8 * edges + FLOAT * inner * case.features + 48 * nodes + 16 * cut
    steps = [24 * edges, 75 * cut / peers]  # as DGL reads them; on the way to the code of one boundary
    for wave in found:
        num_in, num_out = case.widths(wave.layer)
        group = min(peers, pieces(case, num_in)[1])
        labelled = FLOAT * inner * case.labelled * num_in * case.num_inputs
        rows = FLOAT * inner * num_in * (wave.layer > 0)
        messages = 3 * group * wave.num_bytes + 70 * wave.open_edges  # and a cover of one boundary
        if wave.embed:
            added = min(num_in, num_out)
            own = added * (added < num_in)
            steps.append(rows + labelled + FLOAT * inner * (wave.nodes * added + num_out + own) + messages)
        else:
            come = FLOAT * peers * wave.vectors * num_in
            training = FLOAT * inner * case.train * (6 * num_out + 1.25 * num_in * case.num_inputs)
            steps += [rows + come + messages, rows + labelled + training]
    return BASE + whole + max(steps)


def pieces(case: Case, num_in: int) -> tuple[int, int]:
    """In how many pieces rows come in a wave, and the peers of a piece."""
    group = peers_at_once(round(case.inner), FLOAT * num_in)
    return math.ceil((case.workers - 1) / group), group


# --- seconds ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    """What a worker has of its node."""

    many: float
    """Cores."""
    single: float
    """Of one core, for what runs on one."""
    out: float
    """Seconds of the network for a byte that each worker sends."""
    hop: float
    one: dict[str, float]
    """Seconds of a core for one of each kind of work."""

    @classmethod
    def of(cls, case: Case, one: dict[str, float]) -> Self:
        cores, away = case.cores / case.per_node, (case.workers - case.per_node) / max(1, case.workers - 1)
        out = case.per_node * away / (case.bandwidth * 1e9 / 8)
        hop = case.latency * (case.workers > 1)
        return cls(math.floor(cores) if cores >= 1 else cores, min(1.0, cores), out, hop, one)


def seconds(case: Case, one: dict[str, float]) -> dict[str, float]:
    """Of a worker, by phase."""
    speed, found = Speed.of(case, one), waves(case)
    rounds = [number * _round(case, layer, speed) for layer, number in enumerate(case.rounds)]
    nodes = case.inner * (case.labelled + case.test)
    return {
        "load": _load(case, speed),
        "plan": _plan(case, speed),
        "exchange": sum(_exchange(case, wave, speed) for wave in found),
        "aggregate": sum(_add_up(case, wave, speed) for wave in found if not wave.embed),
        "rounds": sum(rounds),
        "embed": sum(_add_up(case, wave, speed) + _embed(case, wave, speed) for wave in found if wave.embed),
        "evaluate": nodes * case.classes * one["count_value"] / speed.many,
    }


def _load(case: Case, speed: Speed) -> float:
    """Three int64 an edge, and the features."""
    part = 24 * case.edges / case.workers + FLOAT * case.inner * case.features
    return case.per_node * part / (case.disk * 1e9) + 4 * part * speed.one["copy_byte"] / speed.many


def _plan(case: Case, speed: Speed) -> float:
    """Look at all edges for each peer; sort, number, write and read those that are cut; send them."""
    one, edges = speed.one, case.edges / case.workers
    coded = one["sort_edge"] + one["write_edge"] + one["read_edge"] + 3 * one["renumber_end"]
    work = _needed_cut(case) * coded + (case.workers - 1 + case.layers) * edges * one["scan_edge"]
    copies = 32 * edges * one["copy_byte"]
    return work / speed.single + copies / speed.many + speed.out * sent(case)["setup"] / case.workers + 3 * speed.hop


def _exchange(case: Case, wave: Wave, speed: Speed) -> float:
    """Number the edges of the wave, cover them, add up sums, write, send and read."""
    one, peers, num_in = speed.one, case.workers - 1, case.widths(wave.layer)[0]
    cover = one["cover_large" if wave.open_edges > MATCHING_LIMIT else "cover_small"]
    in_wave = case.edges / case.workers * case.cut * wave.edges
    work = 2 * _needed_cut(case) * one["scan_edge"] + 6 * in_wave * one["renumber_end"]
    work += peers * wave.open_edges * cover
    partial = one["partial_edge"] + (min(case.widths(wave.layer)) if wave.embed else num_in) * one["partial_value"]
    if wave.tries_zeros:
        weighted = one["cover_flow" if wave.open_edges <= EXACT_LIMIT else "cover_large"]
        work += peers * (wave.open_edges * (partial + weighted) + wave.targets * num_in * one["size_value"])
    work += peers * (wave.open_edges - wave.by_rows) * partial
    work += case.inner * num_in * one["size_value"] * (not wave.embed)  # once a layer
    message = peers * wave.num_bytes
    copies = message * (one["code_byte"] * (not wave.leaves_zeros_out) + one["copy_byte"] + one["socket_byte"])
    copies += peers * wave.vectors * num_in * one["sparse_value"] * wave.leaves_zeros_out
    return work / speed.single + copies / speed.many + speed.out * message + 2 * pieces(case, num_in)[0] * speed.hop


def _add_up(case: Case, wave: Wave, speed: Speed) -> float:
    """Rows along the edges, looked up in one table after the other: own rows, those held, those that come; and sums."""
    one, peers, (num_in, num_out) = speed.one, case.workers - 1, case.widths(wave.layer)
    added = min(num_in, num_out) if wave.embed else num_in
    edges = case.edges / case.workers * wave.edges
    tables = 2 + pieces(case, num_in)[0] * wave.embed
    by_rows = edges * (1 - case.cut) + peers * wave.by_rows
    work = by_rows * (one["bag_edge"] + added * one["bag_value"]) + tables * edges * one["index_edge"]
    return (work + peers * wave.sums * added * one["sum_value"]) / speed.many


def _round(case: Case, layer: int, speed: Speed) -> float:
    """Products, dropout, norm, loss; the message and the optimiser; and what a round of no nodes takes."""
    one, (num_in, num_out), size = speed.one, case.widths(layer), FLOAT * case.parameters(layer)
    train, val, hidden = case.inner * case.train, case.inner * case.val, num_out * (layer < case.layers - 1)
    values = train * (num_in * case.num_inputs * one["dropout_value"] + hidden * one["norm_value"])
    values += val * hidden * one["norm_forward_value"]
    values += case.classes * (train * one["loss_value"] + val * one["count_value"])
    message = 2 * (case.workers - 1) / case.workers * size
    work = operations(case, layer)[0] * one["flop"] + values + message * one["socket_byte"]
    work += (4 * message + 12 * size) * one["copy_byte"]  # cut, added up and put together; the optimiser
    return one["round"] / speed.single + work / speed.many + speed.out * message + 2 * speed.hop


def _embed(case: Case, wave: Wave, speed: Speed) -> float:
    """The product and the norm of all nodes that the layer works for."""
    hidden = case.hidden * (wave.layer < case.layers - 1)
    values = case.inner * (wave.nodes + case.labelled) * hidden * speed.one["norm_forward_value"]
    return (operations(case, wave.layer)[1] * speed.one["flop"] + values) / speed.many
