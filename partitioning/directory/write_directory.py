"""Writing a partition directory.

N nodes, E edges, P parts, I inner nodes of a part, H its halo nodes.
"""

import contextlib
import errno
import glob
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.array_checks import Array
from partitioning.directory import dgl_files
from partitioning.directory.meta import VERSION, Meta
from partitioning.directory.npy_files import content_of, write_arrays, write_links
from partitioning.directory.partition import HALO_IDS, OddEdges, PartCounts
from partitioning.errors import InputError
from partitioning.file_io import (
    exclusive,
    file_checksum,
    open_regular,
    rename_durably,
    why_unwritten,
)
from partitioning.graph_data import MASKS, Endpoints, GraphData, endpoint_dtype

log = logging.getLogger(__name__)

UNFINISHED, OLD = ".unfinished-", ".old-"
"""Names of the hidden folders beside a directory that is written: what is made, and what is replaced."""
CHUNK = 1 << 22
"""Edges that are renumbered at a time; their arrays take 32 MiB each."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The renumbering that DGL asks for: the nodes of a part are contiguous."""

    node_order: NDArray[np.int64]
    """[N] node of the source at each new id."""
    new_id: Endpoints
    """[N] new id of each node of the source."""
    node_bounds: NDArray[np.int64]
    """[P + 1] part p owns new ids node_bounds[p] ... node_bounds[p + 1] - 1."""

    def part_of(self, new_ids: Endpoints) -> NDArray[np.int64]:
        return np.searchsorted(self.node_bounds, new_ids, side="right") - 1


def make_layout(assignment: NDArray[np.int64], num_parts: int) -> Layout:
    node_order = np.argsort(assignment, kind="stable")
    new_id = np.empty(len(assignment), endpoint_dtype(len(assignment)))
    new_id[node_order] = np.arange(len(assignment), dtype=new_id.dtype)
    node_bounds = np.concatenate(([0], np.cumsum(np.bincount(assignment, minlength=num_parts))))
    return Layout(node_order, new_id, node_bounds)


@dataclass(frozen=True, eq=False)
class SortedEdges:
    """The edges on disk, a file for each part, and what was counted on the way."""

    folder: Path
    out_degree: NDArray[Any]
    """[N] by new id, self loops left out: int64, or float64 sums of weights."""
    edge_bounds: NDArray[np.int64]
    """[P + 1] part p has edge ids edge_bounds[p] ... edge_bounds[p + 1] - 1."""
    cut: int
    """Edges between two parts."""

    def file(self, part: int) -> Path:
        """int64 keys dst * N + src in new ids, of the edges into the part."""
        return self.folder / f"{part}.edges"

    def places(self, part: int) -> Path:
        """int64 places of these edges in the graph, where these have weights or features."""
        return self.folder / f"{part}.places"


def _sort_by_part(
    folder: Path, graph: GraphData, assignment: NDArray[np.int64], layout: Layout, num_parts: int
) -> SortedEdges:
    """Write the edges into the files of their destinations' parts, a chunk at a time."""
    # Few bytes per node: each end of each edge looks up its own, at random.
    part_of = assignment.astype(np.int16 if num_parts < 2**15 else np.int32)
    weight = graph.edge_weight
    out_degree = np.zeros(graph.num_nodes, np.int64 if weight is None else np.float64)
    sizes = np.zeros(num_parts, np.int64)
    cut = 0
    folder.mkdir()
    edges = SortedEdges(folder, out_degree, np.zeros(num_parts + 1, np.int64), 0)
    for part in range(num_parts):
        edges.file(part).touch()
    for begin in range(0, graph.num_edges, CHUNK):
        src, dst = graph.src[begin : begin + CHUNK], graph.dst[begin : begin + CHUNK]
        receiver = part_of[dst]
        cut += int((part_of[src] != receiver).sum())
        keys = layout.new_id[dst].astype(np.int64) * graph.num_nodes + layout.new_id[src]
        weights = None if weight is None else weight[begin : begin + CHUNK][src != dst]
        out_degree += np.bincount(src[src != dst], weights, minlength=graph.num_nodes)
        counts = np.bincount(receiver, minlength=num_parts)
        order = np.argsort(receiver, kind="stable")
        _append(edges.file, keys[order], counts)
        if graph.edge_data:
            _append(edges.places, begin + order, counts)
        sizes += counts
    return SortedEdges(
        folder, out_degree[layout.node_order], np.concatenate(([0], np.cumsum(sizes))), cut
    )


def _append(
    file_of: Callable[[int], Path], numbers: NDArray[np.int64], counts: NDArray[np.int64]
) -> None:
    """Append numbers, int64 [E], to the files; they are in the order of the parts, counts[p] for part p."""
    end = 0
    for part, count in enumerate(counts.tolist()):
        begin, end = end, end + count
        if count:
            with open_regular(file_of(part), "ab") as file:
                numbers[begin:end].tofile(file)


def write(
    directory: Path,
    graph: GraphData,
    masks: dict[str, NDArray[np.bool_]],
    assignment: NDArray[np.int64],
    *,
    num_parts: int,
    provenance: dict[str, Any],
    overwrite: bool,
    with_dgl_files: bool = False,
    links: Mapping[str, NDArray[Any]] | None = None,
) -> tuple[Meta, OddEdges]:
    """Write the partition directory, beside its place first, so that an interruption leaves nothing half-written.

    Where another process may write it too, call this within writing(directory). In memory are the graph, one part, and
    a few numbers per node: the edges are sorted by part on disk.

    Args:
        masks: train_mask, val_mask and test_mask, bool [N] each.
        assignment: int64 [N] in [0, num_parts).
        provenance: the fields request, split and versions of Meta, and cover_rows where it was counted.
        overwrite: whether to replace what is there when all is written.
        with_dgl_files: whether to write what DGL reads, too.
        links: LinkSplit.arrays, by positions.

    Raises:
        InputError: without overwrite, where something is there; without DGL, where its files are wanted.
    """
    with made_beside(directory, overwrite) as unfinished:
        layout = make_layout(assignment, num_parts)
        edges = _sort_by_part(unfinished / "sorted", graph, assignment, layout, num_parts)
        log.info(
            "sorted %s edges by part, %s of them cut", f"{graph.num_edges:,}", f"{edges.cut:,}"
        )
        written = [
            _write_part(unfinished, graph, masks, layout, edges, part, with_dgl_files)
            for part in range(num_parts)
        ]
        parts = [counts for counts, _ in written]
        if links is not None:
            parts = [
                _write_links(unfinished, links, layout, part, counts)
                for part, counts in enumerate(parts)
            ]
        edges.folder.rmdir()
        if with_dgl_files:
            method = provenance["request"]["partition_method"]
            config = dgl_files.make_config(
                directory.name, method, layout.node_bounds, edges.edge_bounds
            )
            (unfinished / f"{directory.name}.json").write_text(
                json.dumps(config, indent=4) + "\n", encoding="utf-8"
            )
        meta = _make_meta(
            unfinished, directory.name, graph, parts, {"cut_edges": edges.cut, **provenance}
        )
        (unfinished / "meta.json").write_text(
            json.dumps(asdict(meta), indent=2) + "\n", encoding="utf-8"
        )
    return meta, OddEdges(
        *(sum(numbers) for numbers in zip(*(astuple(odd) for _, odd in written), strict=True))
    )


@contextlib.contextmanager
def made_beside(directory: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which then takes the place of the directory; without a trace where that fails."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(
        tempfile.mkdtemp(prefix=f".{directory.name}{UNFINISHED}", dir=directory.parent)
    )
    try:
        unfinished.chmod(0o755)
        yield unfinished
        _put_in_place(unfinished, directory, overwrite)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, why_unwritten(error), str(directory)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _put_in_place(unfinished: Path, directory: Path, overwrite: bool) -> None:
    """Rename; a directory that is there already is moved away first and then removed."""
    if not os.path.lexists(directory):
        rename_durably(unfinished, directory)
        return
    if not overwrite:
        raise InputError(
            f"{directory}: appeared while it was made anew; set overwrite=true to replace it"
        )
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}{OLD}", dir=directory.parent))
    directory.rename(old / "old")
    rename_durably(unfinished, directory)
    shutil.rmtree(old)


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Lock a partition directory, and clear away what a killed run left beside it.

    Raises:
        InputError: another process is writing it; it is named.
    """
    with exclusive(directory.with_name(f".{directory.name}.lock"), str(directory)):
        name = glob.escape(f".{directory.name}")
        for old in directory.parent.glob(f"{name}{OLD}*"):
            if (old / "old").exists() and not directory.exists():
                (old / "old").rename(directory)  # killed between two renames
            shutil.rmtree(old, ignore_errors=True)
        for unfinished in directory.parent.glob(f"{name}{UNFINISHED}*"):
            log.info("removing %s, left from a run that was killed", unfinished)
            shutil.rmtree(unfinished, ignore_errors=True)
        yield


def _write_part(
    directory: Path,
    graph: GraphData,
    masks: dict[str, NDArray[np.bool_]],
    layout: Layout,
    edges: SortedEdges,
    part: int,
    with_dgl_files: bool,
) -> tuple[PartCounts, OddEdges]:
    start = time.perf_counter()
    part_dir = directory / f"part{part}"
    part_dir.mkdir()
    first, end = layout.node_bounds[part : part + 2].tolist()
    nodes, src, dst, places = _local_edges(edges, part, first, end, graph.num_nodes)
    of_inner = _node_arrays(graph, masks, layout.node_order[first:end])
    out_degree = edges.out_degree[nodes]
    between = src != dst
    whole = bool(between.all())
    of_edges = {
        "src": src,
        "dst": dst,
        **{name: data[places] for name, data in graph.edge_data.items()},
    }
    kept = {name: array if whole else array[between] for name, array in of_edges.items()}
    write_arrays(
        part_dir, {**kept, "halo": nodes[end - first :], "out_deg": out_degree, **of_inner}
    )
    in_degree = np.bincount(kept["dst"], minlength=end - first)
    odd = OddEdges(
        self_loops=len(src) - len(kept["src"]),
        duplicates=int(((src[1:] == src[:-1]) & (dst[1:] == dst[:-1])).sum()),  # sorted by both
        isolated=int(((in_degree == 0) & (out_degree[: end - first] == 0)).sum()),
    )
    if with_dgl_files:
        of_inner |= {"in_deg": in_degree, "out_deg": out_degree[: end - first]}
        of_nodes = {"_ID": nodes, "part_id": layout.part_of(nodes), "out_deg": out_degree}
        dgl_files.write_part(
            part_dir, of_edges, range(*edges.edge_bounds[part : part + 2]), of_nodes, of_inner
        )
    train, val, test = (int(of_inner[name].sum()) for name in MASKS)
    _write_ids(part_dir, graph, layout.node_order[nodes], end - first)
    log.info(
        "wrote part %d: %s nodes, %s edges, %.1f s",
        part,
        *map("{:,}".format, (end - first, len(src))),
        time.perf_counter() - start,
    )
    return PartCounts(
        end - first, len(src), len(nodes) - (end - first), train, val, test, content=""
    ), odd


def _write_links(
    directory: Path,
    links: Mapping[str, NDArray[Any]],
    layout: Layout,
    part: int,
    counts: PartCounts,
) -> PartCounts:
    """Write the pairs whose sources are the part's, in new ids; the counts with those of its pairs."""
    owned: dict[str, NDArray[Any]] = {}
    first, end = layout.node_bounds[part : part + 2]
    for name, pairs in links.items():
        if name == "spectral":
            owned[name] = pairs[layout.node_order[first:end]]
            continue
        new = pairs.copy()
        new[:, 0] = layout.new_id[pairs[:, 0]]
        if name != "pool":
            new[:, 1] = layout.new_id[pairs[:, 1]]
            new = new[layout.part_of(new[:, 0]) == part]
        owned[name] = new
    write_links(directory / f"part{part}", owned)
    return replace(
        counts, train=len(owned["train"]), val=len(owned["val"]), test=len(owned["test"])
    )


def _write_ids(part_dir: Path, graph: GraphData, nodes: NDArray[np.int64], num_inner: int) -> None:
    """Names of the inner nodes; ids of the halo nodes, where their rows are made from these. nodes: int64 [I + H]."""
    if graph.node_names is not None:
        graph.node_names.take(nodes[:num_inner]).save(part_dir)
    if graph.features_of_ids:
        np.save(part_dir / HALO_IDS, graph.node_ids[nodes[num_inner:]])


def _local_edges(
    edges: SortedEdges, part: int, first: int, end: int, num_nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Read a part's edges and remove their files.

    Returns the new ids of the part's nodes, first ... end - 1 and then the halo's, int64 [I + H], and the local ids of
    the edges' ends, int32 [E] each, sorted by destination and then by source; and their places, int64 [E], if written.
    """
    keys, places = np.fromfile(edges.file(part), np.int64), np.zeros(0, np.int64)
    edges.file(part).unlink()
    if edges.places(part).exists():
        order = np.argsort(keys, kind="stable")
        keys, places = keys[order], np.fromfile(edges.places(part), np.int64)[order]
        edges.places(part).unlink()
    keys.sort()
    dst = keys // max(num_nodes, 1)
    src = np.subtract(keys, dst * num_nodes, out=keys)
    is_source = np.zeros(num_nodes, np.bool_)
    is_source[src] = True
    is_source[first:end] = False
    nodes = np.concatenate((np.arange(first, end), np.flatnonzero(is_source)))
    if len(nodes) >= 2**31:
        raise InputError(
            f"part {part}: has {len(nodes):,} nodes with its halo, at most {2**31 - 1:,} fit; make more"
        )
    local = np.empty(num_nodes, np.int32)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    return nodes, local[src], np.subtract(dst, first, out=dst).astype(np.int32), places


def _node_arrays(
    graph: GraphData, masks: dict[str, NDArray[np.bool_]], nodes: NDArray[np.int64]
) -> dict[str, Array]:
    rows = graph.features[nodes]
    return {
        "feat": rows.toarray() if isinstance(rows, sp.csr_array) else np.ascontiguousarray(rows),
        "label": graph.labels[nodes],
        "orig_id": graph.node_ids[nodes],
        **{name: masks[name][nodes] for name in MASKS},
    }


def checksums_of(directory: Path) -> dict[str, str]:
    """sha256 of every file by its path in the directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    with ThreadPoolExecutor(2) as pool:  # hashing releases the interpreter's lock
        sums = pool.map(file_checksum, files)
        return {
            path.relative_to(directory).as_posix(): each
            for path, each in zip(files, sums, strict=True)
        }


def _make_meta(
    directory: Path,
    name: str,
    graph: GraphData,
    parts: list[PartCounts],
    provenance: dict[str, Any],
) -> Meta:
    checksums = checksums_of(directory)
    return Meta(
        version=VERSION,
        name=name,
        dataset=graph.name,
        task="multilabel" if graph.multilabel else "multiclass",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        class_names=list(graph.class_names or ()),
        parts=[
            replace(counts, content=content_of(checksums, part))
            for part, counts in enumerate(parts)
        ],
        checksums=checksums,
        **provenance,
    )
