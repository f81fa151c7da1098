"""Reads an update's tables of new, changed and deleted edges, and checks them together.

n edges of a table.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array, Ints
from partitioning.datasets.edge_tables import read_edges
from partitioning.datasets.symmetry import reverse_too
from partitioning.datasets.table_files import column_names
from partitioning.directory.meta import HeteroMeta
from partitioning.directory.stored_graph import StoredGraph
from partitioning.errors import InputError
from partitioning.features.build import read_as_fitted
from partitioning.features.roles import columns_of_relation
from partitioning.graph_addition import read_edge_data
from partitioning.graph_data import EdgeType, Relation
from partitioning.reverse_relations import REVERSE
from partitioning.update.change import EdgeChange, Edges, NodeChange, Tables
from partitioning.update.stored_columns import columns_of, state_of

EdgeTables = dict[EdgeType, dict[str, Edges]]
"""By relation and kind (new, changed, deleted)."""


def read_edge_changes(
    stored: StoredGraph, tables: Tables, nodes: Mapping[str, NodeChange]
) -> dict[EdgeType, EdgeChange]:
    """Read the tables of edges of all relations, and add reverse edges where the graph has them."""
    changes: EdgeTables = {name: {} for name in stored.graph.relations}
    for name in stored.graph.relations:
        for kind in ("deleted", "changed", "new"):
            if path := tables.get((f"{kind}_edges", name)):
                changes[name][kind] = _read_table(stored, name, kind, path, nodes)
    _add_reverse(stored, changes, nodes)
    return {name: _check_edges(stored, name, kinds, nodes) for name, kinds in changes.items()}


def _read_table(
    stored: StoredGraph, name: EdgeType, kind: str, path: Path, nodes: Mapping[str, NodeChange]
) -> Edges:
    """Read a table of edges of one relation."""
    state, columns_given = state_of(stored.meta, name), columns_of(stored.meta)
    columns_given = columns_of_relation(columns_given, name)
    if columns_given.weight not in column_names(path):  # a change may come without
        columns_given = replace(columns_given, weight=None)
        if state is not None:
            state = state | {"roles": {**state["roles"], "weight": []}}
    source, destination = (
        nodes[of_type].grown if kind == "new" else nodes[of_type].known
        for of_type in (name[0], name[2])
    )
    with_features = stored.graph.relations[name].edge_feat is not None and kind != "deleted"
    remedy = "; new nodes go into update.new_nodes" if kind == "new" else ""
    table = read_as_fitted(
        lambda columns: read_edges(
            path, columns, (source, destination), with_features=with_features, remedy=remedy
        ),
        columns_given,
        {} if state is None else {"edges": state},
    )
    data: dict[str, Array] = {}
    if kind != "deleted":
        relation, of_relation = stored.graph.relations[name], state_of(stored.meta, name)
        columns = columns_of(stored.meta)
        data |= read_edge_data(
            table, relation, of_relation, columns, str(path), is_new=kind == "new"
        )
    if kind == "changed" and not data and len(table.src):
        raise InputError(
            f"{path}: has neither weights nor features that change; edges come and go by"
            " update.new_edges and update.deleted_edges"
        )
    return Edges(table.src.astype(np.int64), table.dst.astype(np.int64), data, str(path))


def _add_reverse(stored: StoredGraph, tables: EdgeTables, nodes: Mapping[str, NodeChange]) -> None:
    """Add the reverse of each edge to `tables` where the directory was made with reverse edges.

    Not to a relation that has a table of its own.
    """
    request = stored.meta.request
    for name, kinds in list(tables.items()):
        if not isinstance(stored.meta, HeteroMeta):
            if request.get("symmetrize"):
                tables[name] = {
                    kind: _with_reverse(edges, nodes[name[0]].grown.num_nodes)
                    for kind, edges in kinds.items()
                }
        elif request.get("relations.reverse", True):
            back = name[2], f"{REVERSE}{name[1]}", name[0]
            for kind, edges in kinds.items() if back in tables else ():
                swapped = replace(edges, src=edges.dst, dst=edges.src)
                tables[back].setdefault(kind, swapped)


def _with_reverse(edges: Edges, num_nodes: int) -> Edges:
    """Return the edges and the reverse of each that has none."""
    data: dict[str, Any] = dict(edges.data)
    both = reverse_too(Relation(edges.src, edges.dst, **data), num_nodes)
    return replace(edges, src=both.src, dst=both.dst, data=both.edge_data)


def _check_edges(
    stored: StoredGraph,
    name: EdgeType,
    tables: Mapping[str, Edges],
    nodes: Mapping[str, NodeChange],
) -> EdgeChange:
    """Check the tables of a relation against each other and against the deleted nodes."""
    pairs: dict[str, Ints] = {}
    for kind, edges in tables.items():
        for end, of_type in (("src", name[0]), ("dst", name[2])):
            ends = getattr(edges, end)
            is_deleted = np.zeros(nodes[of_type].grown.num_nodes, np.bool_)
            is_deleted[nodes[of_type].deleted] = True
            gone = is_deleted[ends]
            if gone.any():
                node_text = nodes[of_type].show(stored.graph.nodes[of_type], int(ends[gone][0]))
                raise InputError(
                    f"{edges.where}: {int(gone.sum())} edges end at a node that"
                    f" update.deleted_nodes deletes, {node_text} for"
                    " instance; its edges go with it: leave them out"
                )
        pairs[kind] = edges.src * nodes[name[2]].grown.num_nodes + edges.dst
        if kind != "new" or stored.meta.request.get("duplicates") == "merge":
            again = np.ones(len(edges.src), np.bool_)
            again[np.unique(pairs[kind], return_index=True)[1]] = False
            refuse_edges(stored, name, nodes, edges, again, "is there twice; leave one out")
        if kind != "new" and name[0] == name[2]:
            is_loop = edges.src == edges.dst
            why = "is a self loop, which partitions leave out; leave it out"
            refuse_edges(stored, name, nodes, edges, is_loop, why)
    if "changed" in tables and "deleted" in tables:
        both, why = np.isin(pairs["changed"], pairs["deleted"]), "is in update.deleted_edges, too"
        refuse_edges(stored, name, nodes, tables["changed"], both, f"{why}; leave one out")
    return EdgeChange(**tables)


def refuse_edges(
    stored: StoredGraph,
    name: EdgeType,
    nodes: Mapping[str, NodeChange],
    edges: Edges,
    wrong: NDArray[np.bool_],
    why: str,
) -> None:
    """Raise InputError for the first edge of a table that is wrong, bool [n]; `why` ends it."""
    if not wrong.any():
        return
    src, dst = (
        nodes[of_type].show(stored.graph.nodes[of_type], int(ends[wrong][0]))
        for of_type, ends in ((name[0], edges.src), (name[2], edges.dst))
    )
    edge = f"edge {src} -> {dst}"
    if stored.meta.request.get("symmetrize"):  # the table may have the other direction
        edge = f"edge between {src} and {dst}"
    raise InputError(f"{edges.where}: {edge} {why}")
