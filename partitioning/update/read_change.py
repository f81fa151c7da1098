"""Reads the tables of a change, and finds its nodes and edges in the partition directory."""

from collections.abc import Mapping

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
    notes: list[str] = []
    nodes = {name: read_nodes(held, each, settings, notes) for name, each in held.types.items()}
    left = held.types[held.target].bounds[-1] - len(nodes[held.target].deleted)
    if left + len(nodes[held.target].new_ids) == 0:
        raise InputError(
            f"update.deleted_nodes={settings.deleted_nodes}: no node would be left; remove the"
            " directory instead"
        )
    known = {name: each.nodes for name, each in held.types.items()}
    grown = {name: grow(known[name], nodes[name]) for name in known}
    edges = {}
    for name, relation in held.relations.items():
        tables = {
            kind: read_edge_table(held, relation, settings, kind, grown if kind == "new" else known)
            for kind in ("deleted", "changed", "new")
        }
        edges[name] = tables
    with_reverse = add_reverse(held, edges)
    made = {name: check_edges(held, name, each, nodes) for name, each in with_reverse.items()}
    _note_defaults(held, nodes, with_reverse, notes)
    return Change(nodes, made, notes)


def _note_defaults(
    held: HeldDirectory,
    nodes: Mapping[str, NodeChange],
    edges: Mapping[EdgeType, dict[str, Edges]],
    notes: list[str],
) -> None:
    """Say what was assumed where a table lacks a column."""
    new = nodes[held.target]
    if len(new.new_ids) and "train_mask" not in new.new_values:
        notes.append(
            f"the {len(new.new_ids)} new nodes are in no set of the split: a column split (train,"
            " val, test) puts them into one"
        )
    if len(new.new_ids) and "label" not in new.new_values:
        notes.append(f"the {len(new.new_ids)} new nodes have no label: there is no such column")
