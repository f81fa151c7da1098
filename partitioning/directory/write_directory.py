"""Writes a partition directory: sorts the edges on disk, then writes partition after partition.

Memory holds the graph, one partition, and a few numbers per node. A plain graph is written as a
graph with one node type and one relation; its arrays lie in the partition's folder itself (see
npy_files.py). N nodes of one type, E edges of one relation, P partitions, I inner and H halo nodes
of one partition.
"""

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.directory import dgl_config, dgl_files
from partitioning.directory.meta import VERSION, HeteroMeta, Meta
from partitioning.directory.npy_files import (
    content_of,
    edge_folder,
    load_array,
    node_folder,
    write_links,
)
from partitioning.directory.partition import HALO_IDS, EdgeStatistics, PartCounts
from partitioning.directory.replace_directory import replaced_when_written
from partitioning.directory.sort_edges import Layout, SortedEdges, make_layout, sort_by_part
from partitioning.errors import InputError
from partitioning.file_io import file_checksum, with_checksum
from partitioning.graph_data import (
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    AnyGraph,
    EdgeType,
    GraphData,
    NodeTable,
)
from partitioning.node_names import FILES as NAME_FILES

log = logging.getLogger(__name__)


def write_parts(
    directory: Path,
    graph: AnyGraph,
    masks: Mapping[str, NDArray[np.bool_]],
    assignment: Mapping[str, NDArray[np.int64]],
    *,
    num_parts: int,
    provenance: dict[str, Any],
    overwrite: bool,
    with_dgl_files: bool = False,
    links: Mapping[str, NDArray[Any]] | None = None,
    before: Meta | None = None,
    self_loops: Sequence[int] | None = None,
) -> tuple[Meta, EdgeStatistics]:
    """Write the partition directory into a hidden folder beside it, which is then renamed.

    An interruption leaves nothing half-written. Call it within writing(directory) where another
    process may write the same directory.

    Args:
        masks: train_mask, val_mask and test_mask of the target's nodes, bool [N] each.
        assignment: int64 [N] in [0, num_parts) by node type.
        provenance: further fields of Meta: request, split, versions, notes, cover_rows, links ...
        overwrite: whether to replace an existing directory.
        with_dgl_files: whether to write DGL's files, too; for plain graphs only.
        links: LinkSplit.arrays, by positions of nodes.
        before: description of the directory that is replaced, if its files are known to be intact:
            a file with the same content becomes a hard link to the former one.
        self_loops: [P] edges from a node to itself that the graph lacks and that are counted.

    Raises:
        InputError: the directory exists and overwrite is false; or DGL, which its files need, is
            missing.
    """
    with replaced_when_written(directory, overwrite) as unfinished:
        layouts = {name: make_layout(assignment[name], num_parts) for name in graph.nodes}
        sorting = unfinished / "sorted"
        edges = {
            edge_type: sort_by_part(
                sorting / SEPARATOR.join(edge_type),
                relation,
                (assignment[edge_type[0]], assignment[edge_type[2]]),
                (layouts[edge_type[0]], layouts[edge_type[2]]),
            )
            for edge_type, relation in graph.relations.items()
        }
        num_cut = sum(part_edges.num_cut for part_edges in edges.values())
        log.info("sorted %s edges by part, %s of them cut", f"{graph.num_edges:,}", f"{num_cut:,}")
        writer = _PartWriter(
            unfinished,
            graph,
            masks,
            layouts,
            edges,
            with_dgl_files,
            links,
            None if before is None else directory,
            self_loops or [0] * num_parts,
        )
        parts = [writer.write(part) for part in range(num_parts)]
        shutil.rmtree(sorting)
        if with_dgl_files:
            config = dgl_config.make_config(
                directory.name,
                provenance["request"]["partition_method"],
                layouts[PLAIN_TYPE].node_bounds,
                edges[PLAIN_RELATION].edge_bounds,
            )
            _write_json(unfinished / f"{directory.name}.json", config, indent=4)
        checksums = checksums_of(unfinished, {} if before is None else before.checksums)
        described = {"name": directory.name, "cut_edges": num_cut, **provenance}
        meta = _make_meta(graph, parts, edges, checksums, described)
        write_meta(unfinished, meta)
    totals = [sum(getattr(part.statistics, name) for part in parts) for name in STATISTICS]
    return meta, EdgeStatistics(*totals)


STATISTICS = ("self_loops", "duplicates", "isolated_nodes")


def write_meta(directory: Path, meta: Meta) -> None:
    _write_json(directory / "meta.json", with_checksum(asdict(meta)), indent=2)


def _write_json(path: Path, content: Any, indent: int) -> None:
    path.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class _LocalEdges:
    """Edges of one relation into a partition, by destination, then source; with self loops."""

    src: NDArray[np.int64]
    """[E] new ids."""
    dst: NDArray[np.int32]
    """[E] local ids."""
    positions: NDArray[np.int64]
    """[E] positions in the graph; empty where edges have neither weights nor features."""


@dataclass(frozen=True, eq=False)
class _LocalNodes:
    """Nodes of one type in a partition."""

    num_inner: int
    new_ids: NDArray[np.int64]
    """[I + H] new ids of the inner nodes, then of the halo nodes."""
    local_id: NDArray[np.int32]
    """[N] local id of each new id; undefined for nodes outside the partition."""


@dataclass(frozen=True)
class _WrittenPart:
    """Counts of one written partition: in total, by node type and by relation."""

    counts: PartCounts
    statistics: EdgeStatistics
    num_inner: dict[str, int]
    num_halo: dict[str, int]
    num_edges: dict[EdgeType, int]
    """Without self loops."""


@dataclass(frozen=True, eq=False)
class _PartWriter:
    """Writes the partitions of a graph, one after the other."""

    directory: Path
    graph: AnyGraph
    masks: Mapping[str, NDArray[np.bool_]]
    layouts: Mapping[str, Layout]
    edges: Mapping[EdgeType, SortedEdges]
    with_dgl_files: bool
    links: Mapping[str, NDArray[Any]] | None
    old: Path | None
    """The directory with files to link to; None: all files are written."""
    self_loops: Sequence[int]
    """[P] self loops that the graph lacks."""

    def write(self, part: int) -> _WrittenPart:
        """Write the folder of one partition; return its counts."""
        start = time.perf_counter()
        folder = self.directory / f"part{part}"
        folder.mkdir()
        edges = {edge_type: self._read_edges(edge_type, part) for edge_type in self.edges}
        nodes = {name: self._find_nodes(name, part, edges) for name in self.layouts}
        isolated = {
            name: np.ones(part_nodes.num_inner, np.bool_) for name, part_nodes in nodes.items()
        }
        num_edges, num_loops, num_duplicates = {}, 0, 0
        for edge_type, part_edges in edges.items():
            source, _, destination = edge_type
            src = nodes[source].local_id[part_edges.src]
            out_degree = self.edges[edge_type].out_degree[nodes[source].new_ids]
            kept = self._write_edges(folder, edge_type, src, part_edges)
            isolated[source] &= out_degree[: nodes[source].num_inner] == 0
            isolated[destination] &= np.bincount(kept, minlength=len(isolated[destination])) == 0
            num_edges[edge_type] = len(kept)
            num_loops += len(src) - len(kept)
            same = (src[1:] == src[:-1]) & (part_edges.dst[1:] == part_edges.dst[:-1])
            num_duplicates += int(same.sum())
            if edge_type == PLAIN_RELATION:
                self._save(folder / "out_deg.npy", out_degree)
                if self.with_dgl_files:
                    self._write_dgl_files(
                        folder, part, src, part_edges, nodes[PLAIN_TYPE], out_degree
                    )
        for name, held_nodes in nodes.items():
            self._write_nodes(folder, name, part, held_nodes)
        split = self._write_target(folder, part)
        counts = PartCounts(
            nodes=sum(part_nodes.num_inner for part_nodes in nodes.values()),
            edges=sum(num_edges.values()) + num_loops + self.self_loops[part],
            halo=sum(
                len(part_nodes.new_ids) - part_nodes.num_inner for part_nodes in nodes.values()
            ),
            **split,
            content="",
        )
        log.info(
            "wrote part %d: %s nodes, %s edges, %.1f s",
            part,
            f"{counts.nodes:,}",
            f"{counts.edges:,}",
            time.perf_counter() - start,
        )
        num_isolated = sum(int(mask.sum()) for mask in isolated.values())
        return _WrittenPart(
            counts,
            EdgeStatistics(num_loops, num_duplicates, num_isolated),
            {name: part_nodes.num_inner for name, part_nodes in nodes.items()},
            {
                name: len(part_nodes.new_ids) - part_nodes.num_inner
                for name, part_nodes in nodes.items()
            },
            num_edges,
        )

    def _read_edges(self, edge_type: EdgeType, part: int) -> _LocalEdges:
        """Read a partition's edges of one relation and remove their files.

        Sorted by destination, then source; sources by new ids, destinations by position here.
        """
        files = self.edges[edge_type]
        num_sources = max(len(self.layouts[edge_type[0]].new_id), 1)
        keys, positions = np.fromfile(files.key_file(part), np.int64), np.zeros(0, np.int64)
        files.key_file(part).unlink()
        if files.position_file(part).exists():
            order = np.argsort(keys, kind="stable")
            keys, positions = keys[order], np.fromfile(files.position_file(part), np.int64)[order]
            files.position_file(part).unlink()
        else:
            keys.sort()  # takes a tenth of the time that argsort takes
        dst = keys // num_sources
        src = np.subtract(keys, dst * num_sources, out=keys)
        first = self.layouts[edge_type[2]].node_bounds[part]
        return _LocalEdges(src, np.subtract(dst, first, out=dst).astype(np.int32), positions)

    def _find_nodes(
        self, name: str, part: int, edges: Mapping[EdgeType, _LocalEdges]
    ) -> _LocalNodes:
        """Number the inner nodes of one type, then its halo nodes (other sources of its edges).

        Ids are new ids (NodeLayout.new_id), ascending in both groups; the local ids of other nodes
        are undefined.

        Raises:
            InputError: there are 2^31 nodes or more.
        """
        layout = self.layouts[name]
        first, end = layout.node_bounds[part : part + 2].tolist()
        is_source = np.zeros(len(layout.new_id), np.bool_)
        for edge_type, part_edges in edges.items():
            if edge_type[0] == name:
                is_source[part_edges.src] = True
        is_source[first:end] = False
        new_ids = np.concatenate((np.arange(first, end), np.flatnonzero(is_source)))
        if len(new_ids) >= 2**31:
            raise InputError(
                f"part {part}: has {len(new_ids):,} nodes with its halo, at most {2**31 - 1:,} fit;"
                " make more"
            )
        local_id = np.empty(len(layout.new_id), np.int32)
        local_id[new_ids] = np.arange(len(new_ids), dtype=np.int32)
        return _LocalNodes(end - first, new_ids, local_id)

    def _write_edges(
        self, folder: Path, edge_type: EdgeType, src: NDArray[np.int32], part_edges: _LocalEdges
    ) -> NDArray[np.int32]:
        """Write the edges of one relation without self loops.

        Return the destinations of those written.
        """
        arrays: dict[str, Array] = {"src": src, "dst": part_edges.dst} | {
            name: data[part_edges.positions]
            for name, data in self.graph.relations[edge_type].edge_data.items()
        }
        if edge_type[0] == edge_type[2] and not (between := src != part_edges.dst).all():
            arrays = {name: array[between] for name, array in arrays.items()}
        place = edge_folder(folder, edge_type)
        place.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            self._save(place / f"{name}.npy", array)
        return arrays["dst"]

    def _write_nodes(self, folder: Path, name: str, part: int, part_nodes: _LocalNodes) -> None:
        """Write features, ids and names of the inner nodes, and the ids of the halo nodes."""
        table, place = self.graph.nodes[name], node_folder(folder, name)
        inner = self.layouts[name].inner_nodes(part)
        place.mkdir(parents=True, exist_ok=True)
        halo = part_nodes.new_ids[part_nodes.num_inner :]
        self._save(place / "feat.npy", _take_features(table, inner))
        self._save(place / "orig_id.npy", table.node_ids[inner])
        self._save(place / "halo.npy", halo)
        if table.node_names is not None:
            names = table.node_names.take(inner)
            self._save(place / NAME_FILES[0], names.text)
            self._save(place / NAME_FILES[1], names.ends)
        if not isinstance(self.graph, GraphData):
            for end, edge_type in self.graph.from_ends.items() if name == self.graph.target else ():
                rows = self.graph.relations[edge_type].src[inner]
                self._save(place / f"{end}.npy", self.graph.nodes[edge_type[0]].shown_ids(rows))
        elif self.graph.features_of_ids:
            self._save(place / HALO_IDS, table.node_ids[self.layouts[name].node_order[halo]])

    def _write_target(self, folder: Path, part: int) -> dict[str, int]:
        """Write labels, masks and pairs; return the size of each set of the split."""
        layout = self.layouts[self.graph.target]
        inner = layout.inner_nodes(part)
        self._save(folder / "label.npy", self.graph.labels[inner])
        for name in MASKS:
            self._save(folder / f"{name}.npy", self.masks[name][inner])
        if self.links is None:
            return {
                name.removesuffix("_mask"): int(self.masks[name][inner].sum()) for name in MASKS
            }
        pairs = _take_pairs(self.links, layout, part)
        write_links(folder, pairs)
        return {name: len(pairs[name]) for name in ("train", "val", "test")}

    def _save(self, path: Path, array: Array) -> None:
        """Write an array, or a hard link to the file of the old directory that has it."""
        old = self.old and self.old / path.relative_to(self.directory)
        if old and old.is_file() and _are_same(load_array(old), array):
            with contextlib.suppress(OSError):  # a file system without hard links
                os.link(old, path)
                return
        np.save(path, array)

    def _write_dgl_files(
        self,
        folder: Path,
        part: int,
        src: NDArray[np.int32],
        part_edges: _LocalEdges,
        nodes: _LocalNodes,
        out_degree: NDArray[Any],
    ) -> None:
        layout, table = self.layouts[PLAIN_TYPE], self.graph.nodes[PLAIN_TYPE]
        inner, edge_bounds = layout.inner_nodes(part), self.edges[PLAIN_RELATION].edge_bounds
        edge_data = self.graph.relations[PLAIN_RELATION].edge_data
        between = src != part_edges.dst
        dgl_files.write_part(
            folder,
            {"src": src, "dst": part_edges.dst}
            | {name: data[part_edges.positions] for name, data in edge_data.items()},
            range(*edge_bounds[part : part + 2]),
            {
                "_ID": nodes.new_ids,
                "part_id": layout.part_of(nodes.new_ids),
                "out_deg": out_degree,
            },
            {
                "feat": _take_features(table, inner),
                "label": self.graph.labels[inner],
                "orig_id": table.node_ids[inner],
                **{name: self.masks[name][inner] for name in MASKS},
                "in_deg": np.bincount(part_edges.dst[between], minlength=len(inner)),
                "out_deg": out_degree[: len(inner)],
            },
        )


def _take_features(table: NodeTable, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the features of some nodes, dense."""
    rows = table.features[nodes]
    return rows.toarray() if isinstance(rows, sp.csr_array) else np.ascontiguousarray(rows)


def _take_pairs(links: Mapping[str, NDArray[Any]], layout: Layout, part: int) -> dict[str, Array]:
    """Return a partition's arrays of LinkSplit in new ids: pairs whose source is an inner node."""
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
    return taken


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


def _make_meta(
    graph: AnyGraph,
    parts: list[_WrittenPart],
    edges: Mapping[EdgeType, SortedEdges],
    checksums: dict[str, str],
    provenance: dict[str, Any],
) -> Meta:
    """Make the description of the directory from the written partitions."""
    kind: Callable[..., Meta] = Meta
    types: dict[str, Any] = {}
    if not isinstance(graph, GraphData):
        kind = HeteroMeta
        types["target"] = graph.target
        types["types"] = {
            name: {
                "features": int(table.features.shape[1]),
                "nodes": [part.num_inner[name] for part in parts],
                "halo": [part.num_halo[name] for part in parts],
            }
            for name, table in graph.nodes.items()
        }
        types["relations"] = {
            SEPARATOR.join(edge_type): {
                "edges": [part.num_edges[edge_type] for part in parts],
                "cut": edges[edge_type].num_cut,
            }
            for edge_type in graph.relations
        }
    return kind(
        version=VERSION,
        dataset=graph.name,
        task=graph.label_kind,
        num_nodes=graph.num_nodes,
        num_edges=sum(part.counts.edges for part in parts),
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        class_names=list(graph.class_names or ()),
        parts=[
            replace(part.counts, content=content_of(checksums, number))
            for number, part in enumerate(parts)
        ],
        checksums=checksums,
        **types,
        **provenance,
    )
