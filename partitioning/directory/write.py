"""Writing a partition directory.

N nodes, E edges, P parts, I inner nodes of a part, H its halo nodes.
"""

import contextlib
import glob
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.directory.meta import VERSION, Meta, content_digest
from partitioning.directory.types import OddEdges, PartCounts
from partitioning.errors import InputError
from partitioning.files import exclusive, file_checksum, rename_durably
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
    out_degree: NDArray[np.int64]
    """[N] by new id, self loops left out."""
    edge_bounds: NDArray[np.int64]
    """[P + 1] part p has edge ids edge_bounds[p] ... edge_bounds[p + 1] - 1."""
    cut: int
    """Edges between two parts."""

    def file(self, part: int) -> Path:
        """int64 keys dst * N + src in new ids, of the edges into the part."""
        return self.folder / f"{part}.edges"


def _sort_by_part(
    folder: Path, graph: GraphData, assignment: NDArray[np.int64], layout: Layout, num_parts: int
) -> SortedEdges:
    """Write the edges into the files of their destinations' parts, a chunk at a time."""
    # Few bytes per node: each end of each edge looks up its own, at random.
    part_of = assignment.astype(np.int16 if num_parts < 2**15 else np.int32)
    out_degree = np.zeros(graph.num_nodes, np.int64)
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
        out_degree += np.bincount(src[src != dst], minlength=graph.num_nodes)
        counts = np.bincount(receiver, minlength=num_parts)
        _append(edges, keys[np.argsort(receiver, kind="stable")], counts)
        sizes += counts
    return SortedEdges(folder, out_degree[layout.node_order], np.concatenate(([0], np.cumsum(sizes))), cut)


def _append(edges: SortedEdges, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    """Append keys, int64 [E], to the files; they are in the order of the parts, counts[p] for part p."""
    end = 0
    for part, count in enumerate(counts.tolist()):
        begin, end = end, end + count
        if count:
            with edges.file(part).open("ab") as file:
                keys[begin:end].tofile(file)


def write(
    directory: Path,
    graph: GraphData,
    masks: dict[str, NDArray[np.bool_]],
    assignment: NDArray[np.int64],
    *,
    num_parts: int,
    provenance: dict[str, Any],
    overwrite: bool,
) -> tuple[Meta, OddEdges]:
    """Write the partition directory, beside its place first, so that an interruption leaves nothing half-written.

    Where another process may write it too, call this within writing(directory). In memory are the graph, one part, and
    a few numbers per node: the edges are sorted by part on disk.

    Args:
        masks: train_mask, val_mask and test_mask, bool [N] each.
        assignment: int64 [N] in [0, num_parts).
        provenance: the fields request, split and versions of Meta, and cover_rows where it was counted.
        overwrite: whether to replace what is there when all is written.

    Raises:
        InputError: without overwrite, where something is there.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}{UNFINISHED}", dir=directory.parent))
    try:
        unfinished.chmod(0o755)
        layout = make_layout(assignment, num_parts)
        edges = _sort_by_part(unfinished / "sorted", graph, assignment, layout, num_parts)
        log.info("sorted %s edges by part, %s of them cut", f"{graph.num_edges:,}", f"{edges.cut:,}")
        written = [_write_part(unfinished, graph, masks, layout, edges, part) for part in range(num_parts)]
        parts = [counts for counts, _ in written]
        edges.folder.rmdir()
        _write_dgl_config(unfinished, directory.name, layout, edges, provenance["request"]["partition_method"])
        meta = _make_meta(unfinished, directory.name, graph, parts, {"cut_edges": edges.cut, **provenance})
        (unfinished / "meta.json").write_text(json.dumps(asdict(meta), indent=2) + "\n")
        _put_in_place(unfinished, directory, overwrite)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return meta, OddEdges(*(sum(numbers) for numbers in zip(*(astuple(odd) for _, odd in written), strict=True)))


def _put_in_place(unfinished: Path, directory: Path, overwrite: bool) -> None:
    """Rename; a directory that is there already is moved away first and then removed."""
    if not os.path.lexists(directory):
        rename_durably(unfinished, directory)
        return
    if not overwrite:
        raise InputError(f"{directory}: appeared while it was made anew; set overwrite=true to replace it")
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
) -> tuple[PartCounts, OddEdges]:
    from partitioning.dgl_import import dgl

    start = time.perf_counter()
    part_dir = directory / f"part{part}"
    part_dir.mkdir()
    first, end = layout.node_bounds[part : part + 2].tolist()
    inner = layout.node_order[first:end]
    nodes, src, dst = _local_edges(edges, part, first, end, graph.num_nodes)
    structure = dgl.graph((src, dst), num_nodes=len(nodes))
    structure.ndata[dgl.NID] = nodes
    structure.ndata["inner_node"] = (torch.arange(len(nodes)) < end - first).to(torch.uint8)
    structure.ndata["part_id"] = torch.from_numpy(layout.part_of(nodes.numpy()))
    structure.ndata["out_deg"] = torch.from_numpy(edges.out_degree[nodes.numpy()])
    structure.edata[dgl.EID] = torch.arange(*edges.edge_bounds[part : part + 2].tolist())
    structure.edata["inner_edge"] = torch.ones(len(src), dtype=torch.uint8)
    dgl.save_graphs(str(part_dir / "graph.dgl"), [structure])
    del structure
    feats = _node_tensors(graph, masks, inner)
    between = src != dst
    in_degree, out_degree = torch.bincount(dst[between], minlength=end - first), edges.out_degree[first:end]
    feats |= {"_N/in_deg": in_degree, "_N/out_deg": torch.from_numpy(out_degree)}
    same = (src[1:] == src[:-1]) & (dst[1:] == dst[:-1])  # sorted by both
    isolated = int(((in_degree.numpy() == 0) & (out_degree == 0)).sum())
    odd = OddEdges(len(src) - int(between.sum()), int(same.sum()), isolated)
    dgl.data.utils.save_tensors(str(part_dir / "node_feat.dgl"), feats)
    dgl.data.utils.save_tensors(str(part_dir / "edge_feat.dgl"), {})
    train, val, test = (int(masks[name][inner].sum()) for name in MASKS)
    content = content_digest(nodes, src, dst, {name.removeprefix("_N/"): tensor for name, tensor in feats.items()})
    log.info("wrote part %d: %s nodes, %s edges, %.1f s", part, *map("{:,}".format, (end - first, len(src))),
             time.perf_counter() - start)  # fmt: skip
    return PartCounts(end - first, len(src), len(nodes) - (end - first), train, val, test, content), odd


def _local_edges(edges: SortedEdges, part: int, first: int, end: int, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Read a part's edges and remove their file.

    Returns the new ids of the part's nodes, first ... end - 1 and then the halo's, int64 [I + H], and the local ids of
    the edges' ends, int64 [E] each, sorted by destination and then by source.
    """
    keys = np.fromfile(edges.file(part), np.int64)
    edges.file(part).unlink()
    keys.sort()
    dst = keys // max(num_nodes, 1)
    src = np.subtract(keys, dst * num_nodes, out=keys)
    is_source = np.zeros(num_nodes, np.bool_)
    is_source[src] = True
    is_source[first:end] = False
    nodes = np.concatenate((np.arange(first, end), np.flatnonzero(is_source)))
    local = np.empty(num_nodes, np.int64)
    local[nodes] = np.arange(len(nodes))
    np.subtract(dst, first, out=dst)
    return torch.from_numpy(nodes), torch.from_numpy(np.take(local, src, out=src)), torch.from_numpy(dst)


def _node_tensors(graph: GraphData, masks: dict[str, NDArray[np.bool_]], nodes: NDArray[np.int64]) -> dict[str, Tensor]:
    rows = graph.features[nodes]
    tensors = {
        "feat": torch.from_numpy(rows.toarray() if isinstance(rows, sp.csr_array) else np.ascontiguousarray(rows)),
        "label": torch.from_numpy(graph.labels[nodes]),
        "orig_id": torch.from_numpy(graph.node_ids[nodes]),
    }
    # DGL's files know no booleans; its own partition_graph writes masks as uint8, too.
    tensors |= {name: torch.from_numpy(masks[name][nodes].astype(np.uint8)) for name in MASKS}
    return {f"_N/{name}": tensor for name, tensor in tensors.items()}


def _write_dgl_config(directory: Path, name: str, layout: Layout, edges: SortedEdges, method: str) -> None:
    def ranges(bounds: NDArray[np.int64]) -> list[list[int]]:
        return [[int(first), int(end)] for first, end in pairwise(bounds)]

    num_parts = len(layout.node_bounds) - 1
    config: dict[str, Any] = {
        "graph_name": name,
        "num_nodes": len(layout.node_order),
        "num_edges": int(edges.edge_bounds[-1]),
        "part_method": method,
        "num_parts": num_parts,
        "halo_hops": 1,
        "node_map": {"_N": ranges(layout.node_bounds)},
        "edge_map": {"_N:_E:_N": ranges(edges.edge_bounds)},
        "ntypes": {"_N": 0},
        "etypes": {"_N:_E:_N": 0},
    }
    for part in range(num_parts):
        files = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
        config[f"part-{part}"] = {key: f"part{part}/{file}" for key, file in files.items()}
    (directory / f"{name}.json").write_text(json.dumps(config, indent=4) + "\n")


def _make_meta(
    directory: Path, name: str, graph: GraphData, parts: list[PartCounts], provenance: dict[str, Any]
) -> Meta:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    with ThreadPoolExecutor(2) as pool:  # hashing releases the interpreter's lock
        checksums = list(pool.map(file_checksum, files))
    return Meta(
        version=VERSION,
        name=name,
        dataset=graph.name,
        task="multilabel" if graph.multilabel else "multiclass",
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        num_features=graph.num_features,
        num_classes=graph.num_classes,
        parts=parts,
        checksums={path.relative_to(directory).as_posix(): sum_ for path, sum_ in zip(files, checksums, strict=True)},
        **provenance,
    )
