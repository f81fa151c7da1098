"""Reads the tables of a change, and finds its nodes and edges in the partition directory."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.nodes import Nodes
from partitioning.errors import InputError
from partitioning.graph_data import EdgeType
from partitioning.update.change import Change, Edges, NodeChange
from partitioning.update.held_graph import HeldDirectory
from partitioning.update.read_edges import add_reverse, check_edges, read_edge_table
from partitioning.update.read_nodes import grow, read_nodes
from partitioning.update_settings import UpdateSettings


def read_change(held: HeldDirectory, settings: UpdateSettings) -> Change:
    """Read the tables that the settings name.

    Raises:
        InputError: names setting, file, row and value of what does not fit the directory.
    """
    return _read_tables(held, settings, None)


def read_own_change(
    held: HeldDirectory, settings: UpdateSettings
) -> tuple[Change, dict[str, NDArray[np.int64]]]:
    """Read the tables of a machine with some of the partitions: edges end at its nodes.

    No reverse edges are added: each machine lists the edges into its nodes.

    Returns:
        The change; and by type the ids of sources that are on other machines: source j of them has
        the number N + n + j, of N nodes and n new ones here.
    """
    elsewhere: dict[str, NDArray[np.int64]] = {}
    return _read_tables(held, settings, elsewhere), elsewhere


def _read_tables(
    held: HeldDirectory,
    settings: UpdateSettings,
    elsewhere: dict[str, NDArray[np.int64]] | None,
) -> Change:
    """Read the tables of nodes, then of edges.

    elsewhere: gets the ids of sources on other machines; None: they are refused.
    """
    notes: list[str] = []
    nodes = {name: read_nodes(held, each, settings, notes) for name, each in held.types.items()}
    if elsewhere is None:
        check_some_stay(
            held.types[held.target].bounds[-1]
            - len(nodes[held.target].deleted)
            + len(nodes[held.target].new_ids)
        )
    known = {name: each.nodes for name, each in held.types.items()}
    grown = {name: grow(known[name], nodes[name]) for name in known}
    growing = {}
    if elsewhere is not None:
        for of_type, here in grown.items():
            assert here.ids is not None
            growing[of_type] = Nodes.of_keys(here.ids, named=here.named, grows=True)
    edges: dict[EdgeType, dict[str, Edges | None]] = {}
    for each, relation in held.relations.items():
        edges[each] = {}
        for kind in ("deleted", "changed", "new"):
            ends = grown if kind == "new" else known
            edges[each][kind] = read_edge_table(
                held, relation, settings, kind, growing or ends, ends
            )
    if elsewhere is None:
        edges = add_reverse(held, edges)
    else:
        for of_type, grew in growing.items():
            assert grew.ids is not None
            elsewhere[of_type] = grew.ids[grown[of_type].num_nodes :]
    made = {each: check_edges(held, each, tables, nodes) for each, tables in edges.items()}
    _note_defaults(held, nodes, notes)
    return Change(nodes, made, notes)


def check_some_stay(count: int) -> None:
    """InputError where no node of the target would be left."""
    if count == 0:
        raise InputError(
            "update.deleted_nodes: no node would be left; remove the directory instead"
        )


def _note_defaults(
    held: HeldDirectory,
    nodes: Mapping[str, NodeChange],
    notes: list[str],
) -> None:
    """Note that new nodes of the target have no split or no label, where their table lacks it."""
    new = nodes[held.target]
    if len(new.new_ids) and "train_mask" not in new.new_values:
        notes.append(
            f"the {len(new.new_ids)} new nodes are in no set of the split: a column split (train,"
            " val, test) puts them into one"
        )
    if len(new.new_ids) and "label" not in new.new_values:
        notes.append(f"the {len(new.new_ids)} new nodes have no label: there is no such column")
