"""A change of a partition directory, by numbers of nodes, and where its tables are.

Nodes have their ids in the partitioned graph; new node k of a type with N nodes has the number
N + k. n nodes or edges of a table.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.datasets.frames import stem_of
from partitioning.datasets.tables import files_named, is_table
from partitioning.directory.npy_files import node_folder
from partitioning.errors import InputError
from partitioning.file_io import check_path
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.node_names import Names
from partitioning.update.held_graph import HeldDirectory
from partitioning.update_settings import UpdateSettings

Ints = NDArray[np.int64]
SUFFIXES = ("csv", "csv.gz", "parquet")
NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class NodeChange:
    """The changes of the nodes of one type."""

    deleted: Ints = field(default_factory=lambda: NONE)
    """Ascending."""
    changed: Ints = field(default_factory=lambda: NONE)
    """[n]"""
    changed_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the name of the file that they go into."""
    new_ids: Ints = field(default_factory=lambda: NONE)
    """[n] ids of the data set, or hashes of names."""
    new_names: Names | None = None
    new_values: Mapping[str, Array] = field(default_factory=dict)
    """[n, ...] by the name of the file that they go into."""
    first_new: int = 0
    """Number among all new nodes of the first of these."""


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

    def take(self, rows: NDArray[Any]) -> "Edges":
        """Return some of the edges, by index or mask."""
        data = {name: array[rows] for name, array in self.data.items()}
        return replace(self, src=self.src[rows], dst=self.dst[rows], data=data)


@dataclass(frozen=True, eq=False)
class EdgeChange:
    """The changes of the edges of one relation."""

    deleted: Edges = field(default_factory=Edges)
    changed: Edges = field(default_factory=Edges)
    new: Edges = field(default_factory=Edges)
    """Without self loops."""
    self_loops: Ints = field(default_factory=lambda: NONE)
    """Nodes of new self loops, which are counted and left out."""


@dataclass(frozen=True, eq=False)
class Change:
    """All changes of an update."""

    nodes: dict[str, NodeChange]
    """By type, of all types."""
    edges: dict[EdgeType, EdgeChange]
    """By relation, of all relations."""
    notes: list[str]
    """What was decided about the data."""


def table_files(
    types: Collection[str], relations: Collection[EdgeType], settings: UpdateSettings
) -> dict[str, list[Path]]:
    """Return the files of each given setting; InputError for a missing or an odd one."""
    found = {}
    for kind in ("new", "changed", "deleted"):
        for what, names in (("nodes", types), ("edges", relations)):
            setting = f"{kind}_{what}"
            if getattr(settings, setting) is not None:
                found[f"update.{setting}"] = _list_tables(settings, setting, names)
    return found


def _list_tables(settings: UpdateSettings, setting: str, names: Any) -> list[Path]:
    value = str(getattr(settings, setting))
    path = check_path(f"update.{setting}", value)
    if not path.exists():
        raise InputError(f"update.{setting}={value}: there is no such file or folder; correct it")
    if PLAIN_TYPE in names or PLAIN_RELATION in names:
        return [path]
    stems = [name if isinstance(name, str) else SEPARATOR.join(name) for name in names]
    if is_table(path):
        raise InputError(
            f"update.{setting}={value}: a table; of a heterogeneous graph it is a folder with a"
            f" table for each type or relation: {', '.join(f'{stem}.csv' for stem in stems)}"
        )
    suffixes = (*SUFFIXES, "npy") if setting == "deleted_nodes" else SUFFIXES
    found = [file for stem in stems for file in files_named(path, stem, suffixes)]
    others = sorted(file.name for file in path.iterdir() if file not in found)
    if others or not found:
        raise InputError(
            f"update.{setting}={value}: {others[0] if others else 'an empty folder'}: expected"
            f" tables of {', '.join(stems)}, .csv, .csv.gz or .parquet"
        )
    return found


def find_table(
    held: HeldDirectory, settings: UpdateSettings, setting: str, name: str | EdgeType
) -> Path | None:
    """Return the table of a setting for a type or relation; None where there is none."""
    if getattr(settings, setting) is None:
        return None
    names = held.types if isinstance(name, str) else held.relations
    found = _list_tables(settings, setting, names)
    if name in (PLAIN_TYPE, PLAIN_RELATION):
        return found[0]
    stem = name if isinstance(name, str) else SEPARATOR.join(name)
    return next((file for file in found if stem_of(file) == stem), None)


def show_edge(held: HeldDirectory, name: EdgeType, src: int, dst: int) -> str:
    """An edge between nodes of the directory, for messages."""
    ends = [show_node(held, *end) for end in ((name[0], src), (name[2], dst))]
    if held.meta.request.get("symmetrize"):  # the table may have the other direction
        return f"edge between {ends[0]} and {ends[1]}"
    return f"edge {ends[0]} -> {ends[1]}"


def show_node(held: HeldDirectory, of_type: str, node: int) -> str:
    """The id of a node as the data set has it."""
    each = held.types[of_type]
    place = node - each.first
    if not 0 <= place < len(each.ids):
        return "a node of another machine"
    if not each.named:
        return str(each.ids[place])
    part = int(np.searchsorted(each.bounds, place, side="right") - 1)
    folder = held.path / f"part{each.first_part + part}"
    names = Names.read(node_folder(folder, of_type))
    assert names is not None
    return names.take(np.array([place - each.bounds[part]])).tolist()[0]
