"""Makes the kinds of features of `features.kind` for each node type.

    given         features of the data; a type without features gets `neighbours`, or, where no type
                  with features reaches it, `degree` and `positional`
    degree        log(1 + d) of the in-degree in each relation into the type, without self loops
    random        as for plain graphs (features/kinds.py)
    positional    as for plain graphs, of the graph of all types
    neighbours    the means of the in-neighbours in each relation from a type with features,
                  concatenated; types further away get theirs hop by hop

A type whose kinds include `given` gets the weighted means of the features of its in-edges as well,
relation by relation: the convolutions over relations read no features of edges.

N_t nodes, F_t features of a type.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.errors import InputError
from partitioning.features.kinds import WIDTH, positional
from partitioning.features.random_rows import random_rows
from partitioning.graph.graph_data import (
    SEPARATOR,
    Endpoints,
    Features,
    GraphData,
    NodeTable,
    first_nodes,
)

log = logging.getLogger(__name__)
Kinds = tuple[str, ...]


def kinds_of(features: Any, types: Iterable[str]) -> dict[str, Kinds]:
    """Return the kinds of each type: the same for all, or those of a mapping.

    Types that a mapping lacks are `given`. InputError for an unknown type.
    """
    if not isinstance(features, Mapping):
        return dict.fromkeys(types, tuple(features))
    unknown = [str(name) for name in features if name not in types]
    if unknown:
        raise InputError(
            f"features: there is no type of nodes {unknown[0]!r}, only {', '.join(types)}"
        )
    by_type = {name: features.get(name, "given") for name in types}
    return {
        name: (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for name, kinds in by_type.items()
    }


def with_features(graph: GraphData, features: Any) -> GraphData:
    """Return the graph with features of these kinds, which take in those of the edges.

    The log warns where a type gets other kinds. InputError for an unknown type, and if some nodes
    of a type have no features.
    """
    kinds = kinds_of(features, list(graph.nodes))
    chosen = {
        name: _replace_missing(graph, name, kinds_of_type) for name, kinds_of_type in kinds.items()
    }
    means = (
        _neighbours(graph)
        if any("neighbours" in kinds_of_type for kinds_of_type in chosen.values())
        else {}
    )
    node_tables: dict[str, NodeTable] = {}
    for name, kinds_of_type in chosen.items():
        blocks = [_make_kind(graph, name, kind, means) for kind in kinds_of_type]
        if "given" in kinds[name]:
            blocks += _edge_means(graph, name)
        blocks = [block for block in blocks if block.shape[1]]
        if not blocks:
            blocks = [_degree(graph, name), _positional(graph, name)]
            log.warning(
                "%s: nothing to take features=%s from; its degrees and its position in the graph "
                "are its features (features=[degree,positional])",
                name,
                ",".join(kinds_of_type),
            )
        rows: Features = blocks[0] if len(blocks) == 1 else _concatenate(blocks)
        node_tables[name] = replace(graph.nodes[name], features=rows, featured=None)
    relations = {
        edge_type: replace(relation, edge_feat=None)
        for edge_type, relation in graph.relations.items()
    }
    return replace(graph, nodes=node_tables, relations=relations)


def _replace_missing(graph: GraphData, name: str, kinds: Kinds) -> Kinds:
    """Return a type's kinds of features: for `given` without features, `neighbours`; warns of it.

    Raises InputError if only some nodes have features.
    """
    table = graph.nodes[name]
    if kinds != ("given",):
        return kinds
    if not table.features.shape[1]:
        log.warning(
            "%s: has no features; the means of its neighbours' are taken (features={%s: ...} for"
            " others)",
            name,
            name,
        )
        return ("neighbours",)
    if table.featured is not None and not table.featured.all():
        raise InputError(
            f"{int((~table.featured).sum())} of {table.num_nodes} nodes of type {name} have no"
            f" features, node {table.shown_id(int(table.featured.argmin()))} for instance; set"
            f" features={{{name}:[given,neighbours]}}"
        )
    return kinds


def _concatenate(blocks: list[Features]) -> Features:
    """Concatenate blocks of features [N_t, F_i] by column; sparse if any block is."""
    if any(isinstance(block, sp.csr_array) for block in blocks):
        return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks]))
    return np.hstack(blocks)  # type: ignore[arg-type]


def _make_kind(graph: GraphData, name: str, kind: str, means: Mapping[str, Features]) -> Features:
    """Make one kind of features for the nodes of a type, [N_t, F].

    means: by type, the means of the neighbours' features.
    """
    table = graph.nodes[name]
    if kind == "given":
        return table.features
    if kind == "degree":
        return _degree(graph, name)
    if kind == "random":
        return random_rows(table.node_ids, WIDTH)
    return means[name] if kind == "neighbours" else _positional(graph, name)


def _degree(graph: GraphData, name: str) -> NDArray[np.float32]:
    """Return log(1 + in-degree), without self loops, for each relation into a type, [N_t, K].

    K relations; one column of zeros where there are none.
    """
    counts = []
    for edge_type, relation in graph.relations.items():
        if edge_type[2] == name:
            dst = (
                relation.dst[relation.src != relation.dst] if edge_type[0] == name else relation.dst
            )
            counts.append(np.bincount(dst, minlength=graph.nodes[name].num_nodes))
    counts = counts or [np.zeros(graph.nodes[name].num_nodes, np.int64)]
    return np.log1p(np.stack(counts, axis=1)).astype(np.float32)


def _positional(graph: GraphData, name: str) -> NDArray[np.float32]:
    """Return the positional features of a type's nodes in the graph of all types."""
    rows = positional(graph.to_homogeneous())
    first = first_nodes(graph)[name]
    return rows[first : first + graph.nodes[name].num_nodes]


def _neighbours(graph: GraphData) -> dict[str, Features]:
    """Return the means of each type's in-neighbours, concatenated over relations.

    A type without features passes on its own means, hop by hop. A type that no features reach gets
    [N_t, 0].
    """
    known: dict[str, Features] = {
        name: table.features for name, table in graph.nodes.items() if table.features.shape[1]
    }
    means: dict[str, Features] = {}
    while True:
        new = {}
        for name in graph.nodes:
            into = {
                edge_type: relation
                for edge_type, relation in graph.relations.items()
                if edge_type[2] == name and edge_type[0] in known and relation.num_edges
            }
            if name not in means and into:
                blocks = [
                    _average(
                        relation.dst,
                        relation.src,
                        np.ones(relation.num_edges, np.float32),
                        known[edge_type[0]],
                        graph.nodes[name].num_nodes,
                    )
                    for edge_type, relation in into.items()
                ]
                new[name] = _concatenate(blocks)
        if not new:
            none = {
                name: np.zeros((table.num_nodes, 0), np.float32)
                for name, table in graph.nodes.items()
            }
            return none | means
        means |= new
        known = new | known


def _edge_means(graph: GraphData, name: str) -> list[Features]:
    """Return the weighted means [N_t, K] of the features of the in-edges, by relation.

    Relations without features have none. Self loops are left out, as partitions leave them out. The
    log names the relations.
    """
    means = []
    for edge_type, relation in graph.relations.items():
        if edge_type[2] != name or relation.edge_feat is None:
            continue
        weight = relation.edge_weight
        weight = np.ones(relation.num_edges, np.float32) if weight is None else weight
        if edge_type[0] == name:
            weight = np.where(relation.src == relation.dst, np.float32(0), weight)
        edges, rows = np.arange(relation.num_edges), relation.edge_feat
        means.append(_average(relation.dst, edges, weight, rows, graph.nodes[name].num_nodes))
        log.info(
            "%s: the means of %d features of the edges %s are features",
            name,
            rows.shape[1],
            SEPARATOR.join(edge_type),
        )
    return means


def _average(
    dst: Endpoints, src: Endpoints, weight: NDArray[np.float32], rows: Features, num_nodes: int
) -> Features:
    """Return the weighted means [num_nodes, F] of each destination's rows; zeros for none."""
    edges = sp.csr_array((weight, (dst, src)), shape=(num_nodes, rows.shape[0]))
    total: NDArray[np.float32] = np.asarray(edges.sum(axis=1)).reshape(-1)
    mean = sp.diags_array((1 / np.where(total > 0, total, 1)).astype(np.float32)) @ edges @ rows
    return mean if isinstance(mean, np.ndarray) else sp.csr_array(mean)
