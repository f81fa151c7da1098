"""A random heterogeneous graph whose relations join nodes of one class more often than others.

Every node has a class; those of the target type are the labels. Relation k < T - 1 leads from type
k + 1 to type k // 2 (0 is the target, so that types are one hop away from it, two, three ...), the
next one from the target to itself, others between any two types. Features lie around a vector of
type and class. Everything is vectorised and linear in the edges: 10 million take seconds.

N nodes, M edges, F features, C classes: synthetic.*; T types and R relations. Relations are drawn
in one direction; relations.reverse adds their reverse ones, so that M edges become 2 M and R
relations 2 R.
"""

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.synthetic import CLASS_SIGNAL, draw_classes, draw_features
from partitioning.errors import InputError
from partitioning.graph.graph_data import EdgeType, GraphData, NodeTable, Relation, endpoint_dtype
from partitioning.partition_settings import DatasetSettings, SyntheticSettings

Ints = NDArray[np.int64]
NUM_TYPES, NUM_RELATIONS = 5, 6
"""The fewest with types one and two hops away from the target, and two relations within it."""
TARGET_SIGNAL = 0.5 * CLASS_SIGNAL
"""The target's own features say less of its class than those of other types."""
SKEW = 2.0
"""An edge's source is at place u ** SKEW of its class and type, u uniform: few have many edges."""


def load(settings: DatasetSettings) -> GraphData:
    """Draw the graph that `synthetic.*` describes; equal settings give equal graphs."""
    return generate(settings.synthetic)


def generate(settings: SyntheticSettings) -> GraphData:
    """Draw a graph: classes, edges and features, from separate random streams of one seed.

    Duplicates and self loops may occur, and few sources have many of the edges. Of a relation's M
    edges round(homophily * M) are drawn within a class, the others without regard to classes.
    InputError for too few nodes.
    """
    least = NUM_TYPES * settings.classes
    if settings.nodes < least:
        raise InputError(
            f"synthetic.nodes={settings.nodes}: every class of every type needs a node, {least}"
            " together"
        )
    streams = [
        np.random.default_rng(seed) for seed in np.random.SeedSequence(settings.seed).spawn(3)
    ]
    names = ["target", *(f"type{number}" for number in range(1, NUM_TYPES))]
    sizes = [len(nodes) for nodes in np.array_split(np.arange(settings.nodes), NUM_TYPES)]
    classes = [draw_classes(size, settings.classes, streams[0]) for size in sizes]
    shares = np.array_split(np.arange(settings.edges), NUM_RELATIONS)
    relations: dict[EdgeType, Relation] = {}
    for number, share in enumerate(shares):
        source, destination = _choose_types(number)
        edge_type = names[source], f"relation{number}", names[destination]
        relations[edge_type] = _draw_relation(
            len(share), classes[source], classes[destination], settings, streams[1]
        )
    nodes: dict[str, NodeTable] = {}
    for number, name in enumerate(names):
        width = max(1, settings.features // (1 + number % 3))
        signal = TARGET_SIGNAL if number == 0 else CLASS_SIGNAL
        features = draw_features(classes[number], settings.classes, width, signal, streams[2])
        nodes[name] = NodeTable(features, np.arange(sizes[number]))
    return GraphData("synthetic_hetero", nodes, relations, "target", classes[0], settings.classes)


def _choose_types(number: int) -> tuple[int, int]:
    """Return the source and destination type of a relation."""
    if number < NUM_TYPES - 1:
        return number + 1, number // 2
    number -= NUM_TYPES - 1
    return number // NUM_TYPES % NUM_TYPES, number % NUM_TYPES


def _draw_relation(
    count: int,
    of_source: Ints,
    of_destination: Ints,
    settings: SyntheticSettings,
    rng: np.random.Generator,
) -> Relation:
    """Draw `count` edges of a relation; a share `homophily` of them join nodes of one class."""
    order = np.argsort(of_source, kind="stable").astype(endpoint_dtype(len(of_source)))
    start = np.searchsorted(of_source[order], np.arange(settings.classes + 1))
    dst = rng.integers(len(of_destination), size=count, dtype=endpoint_dtype(len(of_destination)))
    within = round(settings.homophily * count)
    dst_class = of_destination[dst[:within]]
    place = rng.random(count) ** SKEW
    first, size = np.zeros(count, np.int64), np.full(count, len(of_source))
    first[:within], size[:within] = start[dst_class], np.diff(start)[dst_class]
    # Beyond the classes any node, as the skewed place among all would prefer the first class.
    shuffled = rng.permutation(order)
    at = first + (place * size).astype(np.int64)
    return Relation(np.concatenate([order[at[:within]], shuffled[at[within:]]]), dst)
