"""Graph of a partition directory: read from its partitions, and written in their place after a
change.

Nodes are in the order of the partitions, edges sorted by destination, then source. N nodes of a
type, E edges of a relation, P partitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from partitioning.directory.meta import Meta
from partitioning.directory.npy_files import new_ids, node_folder, read_arrays
from partitioning.directory.partition import HALO_IDS, Partition
from partitioning.directory.read_directory import find_partition_directory
from partitioning.directory.write_directory import write_parts
from partitioning.errors import InputError
from partitioning.graph.array_checks import Array, Ints
from partitioning.graph.graph_data import (
    EDGE_DATA,
    MASKS,
    EdgeType,
    GraphData,
    NodeTable,
    Relation,
    endpoint_dtype,
)
from partitioning.graph.node_names import Names


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """Graph of a partition directory; a plain graph has one type and one relation."""

    meta: Meta
    graph: GraphData
    """As partitioning takes it, without self loops."""
    assignment: dict[str, Ints]
    """[N] partition of each node, by type."""
    self_loops: list[int]
    """[P] edges from a node to itself, which are counted and not stored."""

    @property
    def target_rows(self) -> dict[str, Array]:
        """[N, ...] labels and the masks of the target's nodes."""
        return {name: getattr(self.graph, name) for name in ("labels", *MASKS)}

    def write(
        self,
        path: Path,
        change: dict[str, Any],
        add_files: Callable[[Path, Meta], Meta] | None = None,
    ) -> Meta:
        """Write the graph in the place of its directory; return the new description.

        The settings, the split, the fitted pipelines and the notes stay. A file whose content
        stays is a hard link to the former one.

        Args:
            path: The directory. The files of its partitions are intact (`read_graph`).
            change: For the history.
            add_files: as of `write_parts`.
        """
        kept = ("name", "request", "split", "versions", "notes", "features")
        provenance = {name: getattr(self.meta, name) for name in kept}
        return write_parts(
            path,
            self.graph,
            {name: getattr(self.graph, name) for name in MASKS},
            self.assignment,
            num_parts=len(self.meta.parts),
            provenance=provenance | {"history": [*self.meta.history, change]},
            overwrite=True,
            before=self.meta,
            self_loops=self.self_loops,
            add_files=add_files,
        )[0]


def read_meta(path: Path) -> Meta:
    """Read the description of a directory that is to be changed.

    Raises:
        InputError: it is missing, damaged, of another program, or for link prediction or labels of
            edges.
    """
    meta = Meta.read(path)
    if meta is None or meta.is_imported:
        below = sorted(str(file.parent) for file in path.glob("*/meta.json"))
        there = f", such as {' or '.join(below[:10])}" * bool(below)
        raise InputError(
            f"{path}: was not partitioned by this program, so it cannot be changed; set"
            f" partition_dir to a directory of app=partition_data itself{there}"
        )
    task = "task=link_prediction" if meta.links else "labels of edges"
    if meta.links or meta.request.get("labels.of") == "edges":
        raise InputError(
            f"{path}: made with {task}, whose split and messages depend on the whole graph;"
            " partition the changed tables again (app=partition_data overwrite=true)"
        )
    return meta


def read_graph(path: Path, meta: Meta) -> StoredGraph:
    """Read all partitions of a directory.

    Raises:
        InputError: a partition is on another machine only, or damaged.
    """
    num_parts = len(meta.parts)
    missing = [part for part in range(num_parts) if not (path / f"part{part}").is_dir()]
    if missing:
        raise InputError(
            f"{path}: part{missing[0]} is not on this machine, and a change needs all partitions:"
            " make it (app=update, partition.from=DIR) in a complete copy of the directory, or"
            " partition the changed graph again, and copy to each machine what it needs"
        )
    # What is made from a damaged file would get a new checksum.
    find_partition_directory([path], None).verify(range(num_parts))
    parts = [read_arrays(path, meta, part) for part in range(num_parts)]
    bounds = meta.bounds
    target_rows: Any = {
        name: _join([getattr(part, name) for part in parts]) for name in ("labels", *MASKS)
    }
    graph = GraphData(
        meta.dataset,
        {name: _join_nodes(path, name, parts) for name in bounds},
        {name: _join_edges(name, parts, bounds) for name in meta.edge_types},
        meta.target,
        num_classes=meta.num_classes,
        class_names=tuple(meta.class_names) or None,
        features_of_ids=(path / "part0" / HALO_IDS).is_file(),
        **target_rows,
    )
    return StoredGraph(
        meta,
        graph,
        {name: np.repeat(np.arange(num_parts), np.diff(starts)) for name, starts in bounds.items()},
        [part.self_loops for part in parts],
    )


def _join(tensors: Sequence[Tensor]) -> Array:
    return np.concatenate([tensor.numpy() for tensor in tensors])


def _join_nodes(path: Path, name: str, parts: Sequence[Partition]) -> NodeTable:
    """Return the inner nodes of a type of all partitions."""
    folders = [node_folder(path / f"part{part.rank}", name) for part in parts]
    names = [piece for folder in folders if (piece := Names.read(folder)) is not None]
    nodes = [part.nodes[name] for part in parts]
    features, ids = (
        _join([getattr(part_nodes, field) for part_nodes in nodes])
        for field in ("features", "node_ids")
    )
    return NodeTable(features, ids, Names.join(names) if names else None)


def _join_edges(name: EdgeType, parts: Sequence[Partition], bounds: dict[str, Ints]) -> Relation:
    """Return the edges of a relation of all partitions, with the positions of their ends."""
    source, _, destination = name
    edges = [part.relations[name] for part in parts]
    src, dst = [], []
    for part, part_edges in zip(parts, edges, strict=True):
        sources = new_ids(part.nodes[source], bounds[source], part.rank)
        src.append(sources.astype(endpoint_dtype(bounds[source][-1]))[part_edges.src.numpy()])
        destinations = np.arange(*bounds[destination][part.rank : part.rank + 2])
        dst.append(
            destinations.astype(endpoint_dtype(bounds[destination][-1]))[part_edges.dst.numpy()]
        )
    data: dict[str, Any] = {
        data_name: _join([getattr(part_edges, data_name) for part_edges in edges])
        for data_name in EDGE_DATA
        if getattr(edges[0], data_name) is not None
    }
    return Relation(np.concatenate(src), np.concatenate(dst), **data)
