"""Reads what an update needs of the directory it changes: types, relations, ids, table formats.

N nodes of a type, P partitions.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.nodes import Nodes
from partitioning.directory.meta import HeteroMeta, Meta
from partitioning.directory.npy_files import REMEDY, edge_folder, load_array, node_folder
from partitioning.directory.read_directory import find
from partitioning.errors import InputError
from partitioning.features.build import named_columns
from partitioning.features.encoder import State, count_columns
from partitioning.features.hetero_kinds import kinds_of
from partitioning.features.kinds import WIDTH
from partitioning.graph_data import PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.node_names import FILES as NAME_FILES
from partitioning.partition_settings import ColumnSettings

Ints = NDArray[np.int64]
UPDATED_KINDS = {"given", "random"}
"""Kinds of features that belong to a node alone: others depend on the edges of the whole graph."""
COMPUTED = (": has no features; the means", ": nothing to take features=")
"""How notes of meta.json go on where features of a type were computed from the graph."""


@dataclass(frozen=True, eq=False)
class HeldType:
    """The nodes of one type in a directory."""

    name: str
    bounds: Ints
    """[P + 1] partition p owns ids bounds[p] ... bounds[p + 1] - 1 of the partitioned graph."""
    ids: Ints
    """[N] ids of the data set, or hashes of names, in the order of the partitioned graph; of a
    directory with some of the partitions those of these."""
    named: bool
    """Whether ids are hashes of names."""
    width: int
    """Number of features."""
    kinds: tuple[str, ...]
    """Kinds of features (features.kind)."""
    first: int = 0
    """Id in the partitioned graph of the first of `ids`."""
    first_part: int = 0
    """And its partition."""

    @property
    def given_width(self) -> int:
        """Number of features that come from the tables."""
        return self.width - WIDTH * self.kinds.count("random")

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes of the type, to look up their positions by id."""
        return Nodes.of_keys(self.ids, named=self.named)


@dataclass(frozen=True, eq=False)
class HeldRelation:
    """What the edges of one relation have."""

    name: EdgeType
    is_weighted: bool
    num_features: int


@dataclass(frozen=True, eq=False)
class HeldDirectory:
    """A partition directory that is to be changed."""

    path: Path
    meta: Meta
    types: dict[str, HeldType]
    relations: dict[EdgeType, HeldRelation]
    target: str
    columns: ColumnSettings
    """How its tables were read."""
    first_part: int = 0
    """Number of the partition that counts as the first one: that of a machine with some of the
    partitions, whose nodes are numbered as if there were no others."""

    @property
    def num_parts(self) -> int:
        return len(self.meta.parts)

    def folder(self, part: int) -> Path:
        return self.path / f"part{self.first_part + part}"

    def state(self, name: str | EdgeType) -> State | None:
        """The fitted pipeline of a type's or a relation's table; None where there is none."""
        if isinstance(name, str):
            return self.meta.features.get(f"nodes/{name}" if name else "nodes")
        return self.meta.features.get(f"edges/{SEPARATOR.join(name)}" if name[1] else "edges")


def open_directory(path: Path, parts: range | None = None) -> HeldDirectory:
    """Open a directory for an update.

    Args:
        path: The directory.
        parts: The partitions that are on this machine, where it has not all; the directory is
            opened as if there were no others. Its files were checked before (`verify`).

    Raises:
        InputError: it is of another program, damaged, or holds what an update cannot keep right.
    """
    meta = read_meta(path)
    if parts is None:  # what is made from a damaged file would get a new checksum
        find([path], None).verify(range(len(meta.parts)))
    if meta.links:
        raise InputError(
            f"{path}: made with task=link_prediction, whose pairs and spectral embedding depend on"
            " the whole graph; partition the changed tables again (app=partition_data"
            " overwrite=true)"
        )
    columns = _columns_of(meta)
    kinds = meta.request.get("features", ["given"])
    if isinstance(meta, HeteroMeta):
        counts = meta.types
        by_type = kinds_of(kinds, list(counts))
        target = meta.target
    else:
        counts = {PLAIN_TYPE: {"features": meta.num_features}}
        counts[PLAIN_TYPE]["nodes"] = [part.nodes for part in meta.parts]
        by_type = {PLAIN_TYPE: tuple(kinds)}
        target = PLAIN_TYPE
    chosen = slice(None) if parts is None else slice(parts.start, parts.stop)
    held = HeldDirectory(
        path,
        replace(meta, parts=meta.parts[chosen]),
        {},
        {},
        target,
        columns,
        0 if parts is None else parts.start,
    )
    for name, each in counts.items():
        bounds = np.cumsum([0, *each["nodes"][chosen]])
        folders = [node_folder(held.folder(part), name) for part in range(held.num_parts)]
        ids = np.concatenate([load_array(folder / "orig_id.npy") for folder in folders])
        if len(ids) != bounds[-1]:
            raise InputError(
                f"{path}: {len(ids)} ids of nodes, meta.json says {bounds[-1]}; {REMEDY}"
            )
        named = (folders[0] / NAME_FILES[0]).is_file()
        held.types[name] = HeldType(
            name,
            bounds,
            ids,
            named,
            each["features"],
            by_type[name],
            first_part=held.first_part,
        )
    for relation in relations_of(meta):
        place = edge_folder(held.folder(0), relation)
        feat = place / "edge_feat.npy"
        width = load_array(feat).shape[1] if feat.is_file() else 0
        is_weighted = (place / "edge_weight.npy").is_file()
        held.relations[relation] = HeldRelation(relation, is_weighted, width)
    _check_features(held)
    return held


def read_meta(path: Path) -> Meta:
    """Read the description of a directory; InputError for a directory of another program."""
    meta = Meta.read(path)
    if meta is None:
        raise InputError(
            f"{path}: has no meta.json of this program, so app=update cannot change it; make a"
            " directory by app=partition_data"
        )
    return meta


def relations_of(meta: Meta) -> list[EdgeType]:
    """Return the relations of a directory."""
    if not isinstance(meta, HeteroMeta):
        return [PLAIN_RELATION]
    parts = (name.split(SEPARATOR) for name in meta.relations)
    return [(source, name, destination) for source, name, destination in parts]


def all_bounds(meta: Meta) -> dict[str, Ints]:
    """Return the bounds of all partitions by type, [P + 1] each."""
    if isinstance(meta, HeteroMeta):
        return {name: np.cumsum([0, *each["nodes"]]) for name, each in meta.types.items()}
    return {PLAIN_TYPE: np.cumsum([0, *(part.nodes for part in meta.parts)])}


def _columns_of(meta: Meta) -> ColumnSettings:
    """The settings columns.* with which a directory was made."""
    found: dict[str, Any] = {}
    for each in fields(ColumnSettings):
        value = meta.request.get(f"columns.{each.name}")
        is_list = each.name in ("label", "numeric", "categorical", "embedding", "date", "ignore")
        if is_list and value is not None:
            value = (value,) if isinstance(value, str) else tuple(value)
        found[each.name] = value
    return named_columns(meta.features, ColumnSettings(**found))


def _check_features(held: HeldDirectory) -> None:
    """InputError where features depend on the edges, which an update changes."""
    again = (
        "app=update would have to compute those of the whole graph; partition the changed tables"
        " again (app=partition_data overwrite=true)"
    )
    for name, each in held.types.items():
        of_type = f" of {name}" if name else ""
        other = sorted(set(each.kinds) - UPDATED_KINDS)
        if other:
            raise InputError(
                f"{held.path}: the features{of_type} are features.kind={other[0]}, made from the"
                f" edges: {again}"
            )
        state = held.state(name)
        made = any(
            note.startswith(name + begin) for note in held.meta.notes for begin in COMPUTED
        ) or (name and state is not None and count_columns(state) != each.given_width)
        if made:
            raise InputError(
                f"{held.path}: the features{of_type} were made from those of neighbours or of"
                f" edges: {again}"
            )
