"""Reads an update's tables of new, changed and deleted edges, and checks them together.

n edges of a table.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array, check_edge_weight
from partitioning.datasets import frames
from partitioning.datasets.edge_tables import EdgeTable, read_edges
from partitioning.datasets.frames import TextIds
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.symmetry import reverse_too
from partitioning.errors import InputError
from partitioning.features.build import read_as_fitted
from partitioning.graph_addition import encode_edge_rows
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, EdgeType, Relation
from partitioning.reverse_relations import REVERSE
from partitioning.update.change import (
    NONE,
    EdgeChange,
    Edges,
    NodeChange,
    find_table,
    show_edge,
    show_node,
)
from partitioning.update.held_graph import HeldDirectory, HeldRelation
from partitioning.update_settings import UpdateSettings

Ints = NDArray[np.int64]


def read_edge_table(
    held: HeldDirectory,
    relation: HeldRelation,
    settings: UpdateSettings,
    kind: str,
    sources: Mapping[str, Nodes],
    destinations: Mapping[str, Nodes],
) -> Edges | None:
    """Read a table of edges of one relation; None where there is none."""
    path = find_table(held, settings, f"{kind}_edges", relation.name)
    if path is None:
        return None
    source, _, destination = relation.name
    state, columns_given = held.state(relation.name), held.columns
    if columns_given.weight not in frames.column_names(path):  # a change may come without
        columns_given = replace(columns_given, weight=None)
        if state is not None:
            state = state | {"roles": {**state["roles"], "weight": []}}
    try:
        table = read_as_fitted(
            lambda columns: read_edges(
                path,
                columns,
                (sources[source], destinations[destination]),
                with_features=relation.num_features > 0 and kind != "deleted",
                remedy="; new nodes go into update.new_nodes" if kind == "new" else "",
            ),
            columns_given,
            {} if state is None else {"edges": state},
        )
    except TextIds:
        raise InputError(
            f"{path}: its ids are names; those of {held.path} are integers; use the same ids"
        ) from None
    data = {} if kind == "deleted" else _edge_data(held, relation, table, path, kind)
    if kind == "changed" and not data and len(table.src):
        raise InputError(
            f"{path}: has neither weights nor features that change; edges come and go by"
            " update.new_edges and update.deleted_edges"
        )
    src, dst = (ends.astype(np.int64) for ends in (table.src, table.dst))
    return Edges(src, dst, data, str(path))


def _edge_data(
    held: HeldDirectory, relation: HeldRelation, table: EdgeTable, path: Path, kind: str
) -> dict[str, Array]:
    """Return weights and encoded features of a table of edges, by file name."""
    data: dict[str, Array] = {}
    if table.weight is not None and not relation.is_weighted:
        raise InputError(
            f"{path}: has weights, the edges of {held.path} have none; take the column out"
            f" (columns.ignore), or partition again"
        )
    if relation.is_weighted and (table.weight is not None or kind == "new"):
        ones = np.ones(len(table.src), np.float32)
        weight = table.weight
        if weight is not None:
            weight = check_edge_weight(weight, len(ones), f"{path}: weights")
        data["edge_weight"] = ones if weight is None else weight
    if relation.num_features and (table.feat is not None or kind == "new"):
        state = held.state(relation.name)
        data["edge_feat"] = encode_edge_rows(table, relation.num_features, state, str(path))
    return data


def add_reverse(
    held: HeldDirectory, tables: dict[EdgeType, dict[str, Edges | None]]
) -> dict[EdgeType, dict[str, Edges | None]]:
    """Add the reverse of each edge where the directory was made with reverse edges."""
    made = {name: dict(kinds) for name, kinds in tables.items()}
    if PLAIN_RELATION in made:
        if held.meta.request.get("symmetrize"):
            count = held.types[PLAIN_TYPE].bounds[-1] + 1
            for kind, edges in tables[PLAIN_RELATION].items():
                if edges is not None:
                    made[PLAIN_RELATION][kind] = _add_missing_reverses(edges, count)
    elif held.meta.request.get("relations.reverse", True):
        for name, kinds in tables.items():
            back = name[2], f"{REVERSE}{name[1]}", name[0]
            for kind, edges in kinds.items():
                if back in tables and edges is not None and tables[back][kind] is None:
                    made[back][kind] = replace(edges, src=edges.dst, dst=edges.src)
    return made


def _add_missing_reverses(edges: Edges, count: int) -> Edges:
    """Return the edges and the reverse of each that has none; nodes are below `count`."""
    count = max(count, 1 + int(max(edges.src.max(initial=0), edges.dst.max(initial=0))))
    data: dict[str, Any] = dict(edges.data)
    relation = Relation(edges.src, edges.dst, **data)
    both = reverse_too(relation, count)
    return replace(edges, src=both.src, dst=both.dst, data=both.edge_data)


def check_edges(
    held: HeldDirectory,
    name: EdgeType,
    given: Mapping[str, Edges | None],
    nodes: Mapping[str, NodeChange],
) -> EdgeChange:
    """Check the tables of a relation against each other and against the deleted nodes."""
    tables = {kind: Edges() if edges is None else edges for kind, edges in given.items()}
    for kind, edges in tables.items():
        for end, of_type in (("src", name[0]), ("dst", name[2])):
            ends = getattr(edges, end)
            gone = np.isin(ends, nodes[of_type].deleted)
            if gone.any():
                shown = show_node(held, of_type, int(ends[gone][0]))
                raise InputError(
                    f"{edges.where}: {int(gone.sum())} edges end at a node that"
                    f" update.deleted_nodes deletes, {shown} for"
                    " instance; its edges go with it: leave them out"
                )
        if kind != "new" or held.meta.request.get("duplicates") == "merge":
            _check_once(held, name, edges)
    changed = tables["changed"]
    numbers = _number_edges(changed, tables["deleted"])
    both = np.isin(numbers[0], numbers[1])
    if both.any():
        raise InputError(
            f"{changed.where}: {_show_edge(held, name, changed, int(both.argmax()))} is in"
            " update.deleted_edges, too; leave one out"
        )
    new, loops = tables["new"], NONE
    if name[0] == name[2]:
        for kind in ("changed", "deleted"):
            is_loop = tables[kind].src == tables[kind].dst
            if is_loop.any():
                shown = _show_edge(held, name, tables[kind], int(is_loop.argmax()))
                raise InputError(
                    f"{tables[kind].where}: {shown} is a self loop, which partitions leave out;"
                    " leave it out"
                )
        is_loop = new.src == new.dst
        loops, new = new.src[is_loop], new.take(~is_loop)
    return EdgeChange(tables["deleted"], changed, new, loops)


def _number_edges(*tables: Edges) -> list[Ints]:
    """Return a number for the ends of each edge of each table; ends may be new nodes."""
    base = 1 + max(int(edges.dst.max(initial=0)) for edges in tables)
    return [edges.src * base + edges.dst for edges in tables]


def _check_once(held: HeldDirectory, name: EdgeType, edges: Edges) -> None:
    """InputError for an edge that a table lists twice."""
    (pairs,) = _number_edges(edges)
    order = np.argsort(pairs, kind="stable")
    again = order[1:][pairs[order[1:]] == pairs[order[:-1]]]
    if len(again):
        raise InputError(
            f"{edges.where}: {_show_edge(held, name, edges, int(again[0]))} is there twice; leave"
            " one out"
        )


def _show_edge(held: HeldDirectory, name: EdgeType, edges: Edges, row: int) -> str:
    return show_edge(held, name, int(edges.src[row]), int(edges.dst[row]))
