"""Writes a partition directory, one partition after the other.

Memory holds the graph, one partition, two bytes per edge and a few numbers per node. A plain graph
is written as a graph with one node type and one relation; its arrays lie in the partition's folder
itself (see npy_files.py). N nodes of one type, E edges of one relation, P partitions, I inner and H
halo nodes of one partition.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from partitioning.directory.meta import VERSION, Meta
from partitioning.directory.npy_files import arrays_of, content_of, load_array, node_folder
from partitioning.directory.partition import (
    HALO_IDS,
    PartCounts,
    PartEdges,
    Partition,
    PartNodes,
)
from partitioning.directory.replace_directory import replaced_when_written
from partitioning.directory.sort_edges import (
    Layout,
    PlacedEdges,
    make_layout,
    place_edges,
)
from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum, with_checksum, write_durably
from partitioning.graph.array_checks import Array, Ints
from partitioning.graph.graph_data import (
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
    GraphData,
    NodeTable,
)
from partitioning.graph.node_names import FILES as NAME_FILES

log = logging.getLogger(__name__)


def write_parts(
    directory: Path,
    graph: GraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    assignment: Mapping[str, NDArray[np.int64]],
    *,
    num_parts: int,
    provenance: dict[str, Any],
    overwrite: bool,
    links: Mapping[str, NDArray[Any]] | None = None,
    before: Meta | None = None,
    self_loops: Sequence[int] | None = None,
    add_files: Callable[[Path, Meta], Meta] | None = None,
) -> tuple[Meta, list[int]]:
    """Write the partition directory into a hidden folder beside it, which is then renamed.

    An interruption leaves nothing half-written, and progress is logged. Call it within
    writing(directory) where another process may write the same directory.

    Args:
        masks: train_mask, val_mask and test_mask of the target's nodes, bool [N] each.
        assignment: int64 [N] in [0, num_parts) by node type.
        provenance: further fields of Meta: request, split, versions, notes, links ...
        overwrite: whether to replace an existing directory.
        links: LinkSplit.arrays, by positions of nodes.
        before: description of the directory that is replaced, if its files are known to be intact:
            a file with the same content becomes a hard link to the former one.
        self_loops: [P] edges from a node to itself that the graph lacks and that are counted.
        add_files: writes further files into the hidden folder, and returns the description with
            them.

    Returns:
        The description; and counts that often show a mistake in the data: of self loops, which
        partitions leave out, of duplicates of edges, which count, and of isolated nodes.

    Raises:
        InputError: the directory exists and overwrite is false, or a partition with its halo has
            2^31 nodes of a type.
        OSError: it cannot be written; the text has cause and remedy.
    """
    with replaced_when_written(directory, overwrite) as unfinished:
        layouts = {name: make_layout(assignment[name], num_parts) for name in graph.nodes}
        edges = {
            edge_type: place_edges(
                relation,
                (assignment[edge_type[0]], assignment[edge_type[2]]),
                (layouts[edge_type[0]], layouts[edge_type[2]]),
            )
            for edge_type, relation in graph.relations.items()
        }
        cut = {edge_type: part_edges.num_cut for edge_type, part_edges in edges.items()}
        log.info(
            "sorted %s edges by part, %s cut", f"{graph.num_edges:,}", f"{sum(cut.values()):,}"
        )
        writer = _PartWriter(
            unfinished,
            graph,
            masks,
            layouts,
            edges,
            links,
            None if before is None else directory,
            self_loops or [0] * num_parts,
        )
        parts, statistics = zip(*map(writer.write, range(num_parts)), strict=True)
        meta = make_meta(
            checksums_of(unfinished, {} if before is None else before.checksums),
            parts,
            {name: int(table.features.shape[1]) for name, table in graph.nodes.items()},
            cut,
            graph.target,
            {
                "name": directory.name,
                "dataset": graph.name,
                "task": graph.label_kind,
                "num_classes": graph.num_classes,
                "class_names": list(graph.class_names or ()),
            }
            | provenance,
        )
        if add_files is not None:
            meta = add_files(unfinished, meta)
        write_meta(unfinished, meta)
    totals: list[int] = np.sum(statistics, axis=0).tolist()
    return meta, totals


def write_meta(directory: Path, meta: Meta) -> None:
    """Write meta.json with a checksum of its own, beside its place and then renamed."""
    content = json.dumps(with_checksum(meta.content()), indent=2)
    write_durably(directory / "meta.json", f"{content}\n")


@dataclass(frozen=True)
class PartSizes:
    """Sizes of one partition: in total, by node type and by relation."""

    counts: PartCounts
    inner: dict[str, int]
    halo: dict[str, int]
    edges: dict[EdgeType, int]
    """Without self loops."""

    @classmethod
    def of(cls, part: Partition) -> Self:
        """Count a partition; with links, train, val and test are its pairs.

        The total of edges has its self loops. The checksum of its content is left empty.
        """
        seeds = [getattr(part, mask).nonzero() for mask in MASKS]
        if part.links is not None:
            seeds = [part.links[name] for name in ("train", "val", "test")]
        inner = {name: nodes.num_inner for name, nodes in part.nodes.items()}
        halo = {name: nodes.num_halo for name, nodes in part.nodes.items()}
        edges = {edge_type: len(edges.src) for edge_type, edges in part.relations.items()}
        num_edges = sum(edges.values()) + part.self_loops
        train, val, test = map(len, seeds)
        totals = (sum(inner.values()), num_edges, sum(halo.values()))
        return cls(PartCounts(*totals, train, val, test, ""), inner, halo, edges)


@dataclass(frozen=True, eq=False)
class _PartWriter:
    """Writes the partitions of a graph, one after the other."""

    directory: Path
    graph: GraphData
    masks: Mapping[str, NDArray[np.bool_]]
    layouts: Mapping[str, Layout]
    edges: Mapping[EdgeType, PlacedEdges]
    links: Mapping[str, NDArray[Any]] | None
    old: Path | None
    """The directory with files to link to; None: all files are written."""
    self_loops: Sequence[int]
    """[P] self loops that the graph lacks."""

    def write(self, part: int) -> tuple[PartSizes, tuple[int, int, int]]:
        """Write and log the folder of a partition; return its sizes, and the counts of `_make`."""
        start = time.perf_counter()
        folder = self.directory / f"part{part}"
        partition, statistics = self._make(part)
        bounds = {name: layout.node_bounds for name, layout in self.layouts.items()}
        arrays = arrays_of(partition, bounds, folder)
        self._add_ids(arrays, part, folder)
        for path, array in arrays.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._save(path, array)
        sizes = PartSizes.of(partition)
        log.info(
            "wrote part %d: %s nodes, %s edges, %.1f s",
            part,
            f"{sizes.counts.nodes:,}",
            f"{sizes.counts.edges:,}",
            time.perf_counter() - start,
        )
        return sizes, statistics

    def _make(self, part: int) -> tuple[Partition, tuple[int, int, int]]:
        """Make one partition.

        Returns:
            The partition; and the numbers of its self loops, which it leaves out, of its edges
            beyond the first with the same ends (self loops, too), and of its nodes without an edge
            to or from another node.
        """
        edges = {edge_type: placed.into(part) for edge_type, placed in self.edges.items()}
        nodes, local_ids, isolated = {}, {}, {}
        for name in self.layouts:
            sources = [src for edge_type, (src, _, _) in edges.items() if edge_type[0] == name]
            nodes[name], local_ids[name] = self._make_nodes(name, part, sources)
            isolated[name] = np.ones(nodes[name].num_inner, np.bool_)
        relations, num_loops, num_duplicates = {}, 0, 0
        for edge_type, (new_src, dst, positions) in edges.items():
            source, _, destination = edge_type
            src = local_ids[source][new_src]
            arrays = {"src": src, "dst": dst} | {
                name: data[positions]
                for name, data in self.graph.relations[edge_type].edge_data.items()
            }
            if source == destination and not (between := src != dst).all():
                arrays = {name: array[between] for name, array in arrays.items()}
            relations[edge_type] = PartEdges(
                **{name: torch.from_numpy(array) for name, array in arrays.items()}
            )
            num_loops += len(src) - len(arrays["src"])
            same = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])
            num_duplicates += int(same.sum())
            is_own = slice(*self.layouts[source].node_bounds[part : part + 2])
            in_degree = np.bincount(arrays["dst"], minlength=nodes[destination].num_inner)
            isolated[source] &= self.edges[edge_type].out_degree[is_own] == 0
            isolated[destination] &= in_degree == 0
        layout = self.layouts[self.graph.target]
        inner = layout.inner_nodes(part)
        masks: Any = {name: torch.from_numpy(self.masks[name][inner]) for name in MASKS}
        partition = Partition(
            rank=part,
            num_parts=len(layout.node_bounds) - 1,
            target=self.graph.target,
            nodes=nodes,
            relations=relations,
            labels=torch.from_numpy(self.graph.labels[inner]),
            self_loops=num_loops + self.self_loops[part],
            links=None if self.links is None else _take_pairs(self.links, layout, part),
            **masks,
        )
        num_isolated = sum(int(mask.sum()) for mask in isolated.values())
        return partition, (num_loops, num_duplicates, num_isolated)

    def _make_nodes(
        self, name: str, part: int, sources: Sequence[Ints]
    ) -> tuple[PartNodes, NDArray[np.int32]]:
        """Number the inner nodes of one type, then its halo nodes (other sources of its edges).

        Both ascend by new ids (Layout.new_id).

        Args:
            sources: new ids of the sources of each relation from the type.

        Returns:
            The nodes, and [N] the local id at each new id, undefined outside the partition.

        Raises:
            InputError: there are 2^31 nodes or more.
        """
        layout, table = self.layouts[name], self.graph.nodes[name]
        first, end = layout.node_bounds[part : part + 2].tolist()
        is_source = np.zeros(len(layout.new_id), np.bool_)
        for src in sources:
            is_source[src] = True
        is_source[first:end] = False
        halo = np.flatnonzero(is_source)
        new_ids = np.concatenate((np.arange(first, end), halo))
        if len(new_ids) >= 2**31:
            raise InputError(
                f"part {part}: has {len(new_ids):,} nodes with its halo, at most {2**31 - 1:,} fit;"
                " make more"
            )
        local_id = np.empty(len(layout.new_id), np.int32)
        local_id[new_ids] = np.arange(len(new_ids), dtype=np.int32)
        inner, owner = layout.inner_nodes(part), layout.part_of(halo)
        out_degree = None
        if name == PLAIN_TYPE:
            out_degree = torch.from_numpy(self.edges[PLAIN_RELATION].out_degree[new_ids])
        nodes = PartNodes(
            torch.from_numpy(_take_features(table, inner)),
            torch.from_numpy(table.node_ids[inner]),
            torch.from_numpy(owner),
            torch.from_numpy(halo - layout.node_bounds[owner]),
            out_degree=out_degree,
        )
        return nodes, local_id

    def _add_ids(self, arrays: dict[Path, Array], part: int, folder: Path) -> None:
        """Add the names of nodes, the ids of the ends of labelled edges, and HALO_IDS."""
        graph = self.graph
        for name, table in graph.nodes.items():
            place, layout = node_folder(folder, name), self.layouts[name]
            inner = layout.inner_nodes(part)
            if table.node_names is not None:
                names = table.node_names.take(inner)
                arrays |= {place / NAME_FILES[0]: names.text, place / NAME_FILES[1]: names.ends}
            if graph.features_of_ids:
                halo = layout.node_order[arrays[place / "halo.npy"]]
                arrays[place / HALO_IDS] = table.node_ids[halo]
        inner = self.layouts[graph.target].inner_nodes(part)
        for end, edge_type in graph.from_ends.items():
            rows = graph.relations[edge_type].src[inner]
            place = node_folder(folder, graph.target) / f"{end}.npy"
            arrays[place] = graph.nodes[edge_type[0]].shown_ids(rows)

    def _save(self, path: Path, array: Array) -> None:
        """Write an array, or a hard link to the file of the old directory that has it."""
        old = self.old and self.old / path.relative_to(self.directory)
        if old and old.is_file() and _are_same(load_array(old), array):
            with contextlib.suppress(OSError):  # a file system without hard links
                os.link(old, path)
                return
        np.save(path, array)


def _take_features(table: NodeTable, nodes: Ints) -> NDArray[np.float32]:
    """Return the features of some nodes, dense."""
    rows = table.features[nodes]
    return rows.toarray() if isinstance(rows, sp.csr_array) else np.ascontiguousarray(rows)


def _take_pairs(
    links: Mapping[str, NDArray[Any]], layout: Layout, part: int
) -> dict[str, torch.Tensor]:
    """Return a partition's arrays of LinkSplit in new ids: pairs whose source is an inner node.

    The pool has all its nodes, spectral embeddings the rows of inner nodes.
    """
    taken: dict[str, Array] = {}
    for name, pairs in links.items():
        if name.startswith("spectral"):
            taken[name] = pairs[layout.inner_nodes(part)]
            continue
        renumbered = pairs.copy()
        renumbered[:, 0] = layout.new_id[pairs[:, 0]]
        if name != "pool":
            renumbered[:, 1] = layout.new_id[pairs[:, 1]]
            renumbered = renumbered[layout.part_of(renumbered[:, 0]) == part]
        taken[name] = renumbered
    return {name: torch.from_numpy(pairs) for name, pairs in taken.items()}


def _are_same(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same bytes."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    as_integers = f"u{one.itemsize}"  # floats compare -0 and 0 as equal
    return np.array_equal(one.view(as_integers), np.ascontiguousarray(other).view(as_integers))


def checksums_of(directory: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Return the sha256 of every file, by its path in the directory.

    Args:
        known: checksums of the files that are hard links.
    """
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    names = [path.relative_to(directory).as_posix() for path in files]

    def checksum(path: Path, name: str) -> str:
        is_link = path.stat().st_nlink > 1
        return known[name] if is_link else file_checksum(path)

    with ThreadPoolExecutor(2) as pool:  # hashing releases Python's lock
        return dict(zip(names, pool.map(checksum, files, names), strict=True))


def make_meta(
    checksums: dict[str, str],
    parts: Sequence[PartSizes],
    widths: Mapping[str, int],
    cut: Mapping[EdgeType, int],
    target: str,
    fields: Mapping[str, Any],
) -> Meta:
    """Make the description of a directory.

    Args:
        parts: their sizes.
        widths: number of features by node type.
        cut: number of edges between two partitions by relation.
        target: the type with labels.
        fields: further fields of Meta.
    """
    types: dict[str, Any] = {}
    if target != PLAIN_TYPE:
        types["target"] = target
        types["types"] = {
            name: {
                "features": width,
                "nodes": [part.inner[name] for part in parts],
                "halo": [part.halo[name] for part in parts],
            }
            for name, width in widths.items()
        }
        types["relations"] = {
            SEPARATOR.join(edge_type): {
                "edges": [part.edges[edge_type] for part in parts],
                "cut": num_cut,
            }
            for edge_type, num_cut in cut.items()
        }
    return Meta(
        version=VERSION,
        num_nodes=sum(part.counts.nodes for part in parts),
        num_edges=sum(part.counts.edges for part in parts),
        num_features=widths[target],
        cut_edges=sum(cut.values()),
        parts=[
            replace(part.counts, content=content_of(checksums, number))
            for number, part in enumerate(parts)
        ],
        checksums=checksums,
        **types,
        **fields,
    )
