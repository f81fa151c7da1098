"""A random graph with communities: a degree-corrected stochastic block model.

Source: Karrer and Newman, "Stochastic blockmodels and community structure in networks", 2011, with
the number of edges inside and between the classes fixed instead of Poisson. The endpoint of an edge
is node i with a probability in proportion to its propensity, which follows a power law, so a few
nodes have very many neighbours.

N nodes, M undirected edges, F features, C classes. Everything is vectorised: 10 M edges on 1 M
nodes take seconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.graph.graph_data import Endpoints, GraphData, NodeTable, Relation, endpoint_dtype
from partitioning.partition_settings import DatasetSettings, SyntheticSettings

Ints = NDArray[np.int64]
POWER_LAW = 2.5
"""Exponent of the degree distribution; between 2 and 3 in most measured graphs."""
CLASS_SIGNAL = 2.0
"""Length of a class's mean feature vector, in standard deviations of the noise: a node alone is
easily mistaken for one of another class, the mean of its neighbourhood seldom.
"""
ROUNDS = 30
"""How often edges that came out twice are drawn anew, before the graph is called too dense."""
SMALL = 2048
"""Up to so many nodes all pairs can be listed, and any density can be reached."""
BLOCK = 1 << 16
CHUNK = 1 << 22
"""Pairs that are drawn at a time; their arrays take 32 MiB each."""


@dataclass(frozen=True, eq=False)
class _Model:
    """Probability of each node to be the end of an edge."""

    num_nodes: int
    order: Ints
    """[N] the nodes sorted by class."""
    start: Ints
    """[C + 1] where each class begins in `order`."""
    cumulative: NDArray[np.float64]
    """[N + 1] running sum of the propensities in that order, from 0."""

    def find(self, points: NDArray[np.float64]) -> Ints:
        """Return for each point [K] the position in `order` by the cumulative sum."""
        return np.clip(
            np.searchsorted(self.cumulative, points, side="right") - 1, 0, self.num_nodes - 1
        )

    def class_of(self, position: Ints) -> Ints:
        """Return the class of the node at each position in `order`."""
        return np.searchsorted(self.start, position, side="right") - 1


def load(settings: DatasetSettings) -> GraphData:
    """Draw the graph that `synthetic.*` describes; equal settings give equal graphs."""
    return generate(settings.synthetic)


def generate(settings: SyntheticSettings) -> GraphData:
    """Draw labels, edges and features from separate streams: edges do not depend on F.

    Every edge has its reverse; there are no self loops and no duplicates. round(homophily * M) of
    the undirected edges lie within a class. Raises InputError if the nodes have fewer pairs than
    that, or a large graph hardly more, and for fewer nodes than classes.
    """
    if settings.classes > settings.nodes:
        raise InputError(
            f"synthetic.classes={settings.classes}: there are only"
            f" synthetic.nodes={settings.nodes}; every class needs a node"
        )
    streams = [
        np.random.default_rng(seed) for seed in np.random.SeedSequence(settings.seed).spawn(3)
    ]
    labels = draw_classes(settings.nodes, settings.classes, streams[0])
    src, dst = _edges(settings, labels, streams[1])
    features = draw_features(labels, settings.classes, settings.features, CLASS_SIGNAL, streams[2])
    nodes = NodeTable(features, np.arange(settings.nodes))
    return GraphData.plain("synthetic", nodes, Relation(src, dst), labels, settings.classes)


def draw_classes(count: int, num_classes: int, rng: np.random.Generator) -> Ints:
    """Draw classes [count]: each at least once, the rest uniformly."""
    rest = rng.integers(num_classes, size=count - num_classes)
    return rng.permutation(np.concatenate([np.arange(num_classes), rest]))


def draw_features(
    classes: Ints, num_classes: int, width: int, signal: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw features [N, width]: unit Gaussian noise around a mean of norm `signal` by class."""
    means = rng.standard_normal((num_classes, width), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    features = rng.standard_normal((len(classes), width), dtype=np.float32)
    for begin in range(0, len(classes), BLOCK):  # in blocks, to avoid a second array of this size
        features[begin : begin + BLOCK] += means[classes[begin : begin + BLOCK]]
    return features


def _make_model(settings: SyntheticSettings, labels: Ints, rng: np.random.Generator) -> _Model:
    """Draw a power-law propensity for each node; return the model that edges are drawn from."""
    order = np.argsort(labels, kind="stable")
    tail = (1.0 - rng.random(settings.nodes)) ** (-1.0 / (POWER_LAW - 1.0))
    propensity = np.minimum(
        tail, np.sqrt(settings.nodes) + 1
    )  # larger propensities would draw the same two hubs again and again
    return _Model(
        num_nodes=settings.nodes,
        order=order,
        start=np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=settings.classes))]),
        cumulative=np.concatenate([[0.0], np.cumsum(propensity)]),
    )


def _edges(
    settings: SyntheticSettings, labels: Ints, rng: np.random.Generator
) -> tuple[Endpoints, Endpoints]:
    """Draw the ends [2 M] of the directed edges; the second half are the reverse edges.

    InputError for more edges than pairs, within classes or between them.
    """
    model = _make_model(settings, labels, rng)
    sizes = np.diff(model.start)
    inside = round(settings.homophily * settings.edges)
    room_inside = int((sizes * (sizes - 1) // 2).sum())
    room_between = settings.nodes * (settings.nodes - 1) // 2 - room_inside
    for count_wanted, room, which in (
        (inside, room_inside, "within"),
        (settings.edges - inside, room_between, "between"),
    ):
        if count_wanted > room:
            raise InputError(
                f"synthetic.edges={settings.edges}, synthetic.homophily={settings.homophily}:"
                f" {count_wanted} edges {which} classes do not fit, {settings.nodes} nodes in"
                f" {settings.classes} classes have {room} such pairs; lower synthetic.edges or"
                " change synthetic.homophily"
            )
    src, dst = (np.empty(2 * settings.edges, endpoint_dtype(settings.nodes)) for _ in range(2))
    for first, count, within in ((0, inside, True), (inside, settings.edges - inside, False)):
        keys = _pairs(model, count, within, rng)
        for begin in range(0, count, CHUNK):
            low, high = np.divmod(keys[begin : begin + CHUNK], settings.nodes)
            there = slice(first + begin, first + begin + len(low))
            back = slice(there.start + settings.edges, there.stop + settings.edges)
            src[there], dst[there], src[back], dst[back] = low, high, high, low
    return src, dst


def _pairs(model: _Model, count: int, inside: bool, rng: np.random.Generator) -> Ints:
    """Draw distinct pairs [count], all within a class or all between two, as low * N + high.

    InputError if a large graph has hardly more.
    """
    keys = np.empty(0, dtype=np.int64)
    for _ in range(ROUNDS):
        missing = count - len(keys)
        if missing <= 0:
            break
        keys = _distinct(
            np.concatenate([keys, _draw_pairs(model, missing + missing // 8 + 16, inside, rng)])
        )
    if len(keys) < count:
        keys = _fill(model, keys, count, inside, rng)
    if len(keys) == count:
        return keys
    drop = rng.choice(len(keys), size=len(keys) - count, replace=False, shuffle=False)
    return np.delete(keys, drop)


def _distinct(keys: Ints) -> Ints:
    """Return the unique keys in ascending order; sorts in place.

    `np.unique` of NumPy 2.4 hashes, and takes ten times as long for 10 M of them.
    """
    keys.sort()
    return keys[np.diff(keys, prepend=-1) > 0]


def _draw_pairs(model: _Model, count: int, inside: bool, rng: np.random.Generator) -> Ints:
    """Draw at most `count` pairs, possibly repeated, without self loops, as low * N + high."""
    # a search for sorted points is ten times as fast, and the order of pairs does not matter
    points = rng.random(count)
    points.sort()
    keys, drawn = np.empty(count, dtype=np.int64), 0
    for begin in range(0, count, CHUNK):
        chunk = _chunk_of_pairs(model, points[begin : begin + CHUNK], inside, rng)
        keys[drawn : drawn + len(chunk)] = chunk
        drawn += len(chunk)
    return keys[:drawn]


def _chunk_of_pairs(
    model: _Model, points: NDArray[np.float64], inside: bool, rng: np.random.Generator
) -> Ints:
    """Draw at most K pairs, as low * N + high; points [K] in [0, 1) choose their first nodes.

    Self loops are left out; duplicates are not.
    """
    total = model.cumulative[-1]
    first = model.find(points * total)
    block = model.class_of(first)
    low, high = model.cumulative[model.start[block]], model.cumulative[model.start[block + 1]]
    if inside:
        second = model.find(low + rng.random(len(points)) * (high - low))
    else:  # the mass outside the class, starting after it and wrapping around
        second = model.find(np.mod(high + rng.random(len(points)) * (total - (high - low)), total))
    keep = (first != second) & ((block == model.class_of(second)) == inside)
    return _number_pairs(model, first[keep], second[keep])


def _number_pairs(model: _Model, first: Ints, second: Ints) -> Ints:
    """Return the number low * N + high of each pair of nodes, given by positions in `order`."""
    a, b = model.order[first], model.order[second]
    keys: Ints = np.minimum(a, b) * model.num_nodes + np.maximum(a, b)
    return keys


def _fill(model: _Model, keys: Ints, count: int, inside: bool, rng: np.random.Generator) -> Ints:
    """Add pairs to `keys`, drawn uniformly from those not yet taken, until there are `count`.

    Only for a small graph, whose pairs can be listed; InputError for a larger one.

    Args:
        keys: distinct pairs as low * N + high, fewer than count.
        inside: pairs within a class; else between two.
    """
    if model.num_nodes > SMALL:
        raise InputError(
            f"synthetic.edges: only {len(keys)} of {count} edges"
            f" {'within' if inside else 'between'} classes were found without duplicates; lower"
            " synthetic.edges or raise synthetic.nodes"
        )
    first, second = np.triu_indices(model.num_nodes, k=1)
    fits = (model.class_of(first) == model.class_of(second)) == inside
    rest = np.setdiff1d(_number_pairs(model, first[fits], second[fits]), keys)
    return np.concatenate([keys, rng.choice(rest, size=count - len(keys), replace=False)])
