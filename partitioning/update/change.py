"""A change of a stored graph: its tables, and what they hold by positions of nodes.

New node k of a type with N nodes has the number N + k. n nodes or edges of a table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import Array, Ints
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.table_files import kind_of, list_visible
from partitioning.datasets.tables import files_named, is_table
from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.file_io import check_path
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType, NodeTable
from partitioning.node_names import Names
from partitioning.partition_settings import UpdateSettings

Tables = dict[tuple[str, str | EdgeType], Path]
"""By setting (new_nodes ...), and node type or relation."""
SUFFIXES = ("csv", "csv.gz", "parquet")
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class NodeChange:
    """Changes of the nodes of one type."""

    known: Nodes
    """The nodes before, to look up ids."""
    grown: Nodes
    """The same and the new ones."""
    deleted: Ints = field(default_factory=lambda: NONE)
    changed: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    changed_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the names of the fields that they change: feat, labels and masks."""
    new_ids: Ints = field(default_factory=lambda: NONE)
    """[n] ids of the data set, or hashes of names."""
    new_names: Names | None = None
    new_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the names of the fields that they change: feat, labels and masks."""

    def show(self, table: NodeTable, node: int) -> str:
        """Return the id of a node, of the table or a new one, as the data set has it."""
        ids, names = table.node_ids, table.node_names
        if node >= table.num_nodes:
            ids, names, node = self.new_ids, self.new_names, node - table.num_nodes
        return str(ids[node]) if names is None else names.take(np.array([node])).tolist()[0]


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of a table."""

    src: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    dst: Ints = field(default_factory=lambda: NONE)
    data: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] edge_weight and edge_feat, where the edges of the directory have them."""
    where: str = ""
    """The table, for messages."""


@dataclass(frozen=True, eq=False)
class EdgeChange:
    """Changes of the edges of one relation."""

    deleted: Edges = field(default_factory=Edges)
    changed: Edges = field(default_factory=Edges)
    new: Edges = field(default_factory=Edges)


@dataclass(frozen=True, eq=False)
class Change:
    """All changes of an update."""

    nodes: dict[str, NodeChange]
    """By type, of all types."""
    edges: dict[EdgeType, EdgeChange]
    """By relation, of all relations."""
    notes: list[str]
    """What was decided about the data."""


def find_tables(settings: UpdateSettings, meta: Meta) -> Tables:
    """Return the tables that the settings name; InputError for a missing or an unknown one."""
    tables: Tables = {}
    for kind in ("new", "changed", "deleted"):
        for what, names in (("nodes", meta.node_counts), ("edges", meta.edge_types)):
            setting = f"{kind}_{what}"
            value = getattr(settings, setting)
            if value is not None:
                tables_by_name = _find_by_name(setting, str(value), list(names))
                tables |= {(setting, name): path for name, path in tables_by_name.items()}
    return tables


def _find_by_name(setting: str, value: str, names: Sequence[Any]) -> dict[Any, Path]:
    """Return the tables of a setting by type or relation.

    A heterogeneous graph's are in a folder.
    """
    path = check_path(f"update.{setting}", value)
    if not path.exists():
        raise InputError(f"update.{setting}={value}: there is no such file or folder; correct it")
    suffixes = (*SUFFIXES, "npy") if setting == "deleted_nodes" else SUFFIXES
    if names[0] in (PLAIN_TYPE, PLAIN_RELATION):
        if kind_of(path) in ("npy", "npz", "xlsx") and kind_of(path) not in suffixes:
            expected = ", ".join(f".{suffix}" for suffix in suffixes)
            raise InputError(f"update.{setting}={value}: expected a {expected} table; convert it")
        return {names[0]: path}
    stems = [name if isinstance(name, str) else SEPARATOR.join(name) for name in names]
    if is_table(path):
        raise InputError(
            f"update.{setting}={value}: a table; of a heterogeneous graph it is a folder with a"
            f" table for each type or relation: {', '.join(f'{stem}.csv' for stem in stems)}"
        )
    files = {
        name: file
        for name, stem in zip(names, stems, strict=True)
        for file in files_named(path, stem, suffixes)
    }
    others = [file.name for file in list_visible(path) if file not in files.values()]
    if others or not files:
        raise InputError(
            f"update.{setting}={value}: {others[0] if others else 'an empty folder'}: expected"
            f" tables of {', '.join(stems)}, .csv, .csv.gz or .parquet"
        )
    return files
