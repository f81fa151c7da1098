"""The partition directory: DGL's own files, and beside them what DGL does not keep.

    PARTITION_DIR/NAME-METHOD-OBJECTIVE-PARTS/
        meta.json                          ours: counts, task, split, request, versions, checksums (see Meta)
        NAME-METHOD-OBJECTIVE-PARTS.json   DGL's partition config: node_map, edge_map, files of each part
        part0/
            graph.dgl        in-edges of the part's inner nodes; inner nodes first, then halo nodes
                             ndata: _ID, inner_node, part_id, out_deg     edata: _ID, inner_edge
            node_feat.dgl    of inner nodes: _N/feat, _N/label, _N/{train,val,test}_mask, _N/orig_id, _N/in_deg,
                             _N/out_deg (degrees in the whole graph, self loops left out)
            edge_feat.dgl    empty
        part1/ ...

`dgl.distributed.load_partition` reads such a directory. A directory made by DGL's `partition_graph` (no meta.json), or
by the public Retexo code (a meta.json without a version), is read too; what it does not say (degrees of halo nodes,
the number of classes) the workers agree on when they start.

N nodes, E edges, F features, C classes, I inner nodes of a part, H its halo nodes.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.errors import InputError
from partitioning.graph_data import Ends, GraphData, ends_dtype

log = logging.getLogger(__name__)

VERSION = 1
CHUNK = 1 << 22
"""Edges that are renumbered at a time; their arrays take 32 MiB each."""
FEATURE_NAMES = ("feat", "features")  # what DGL's examples, GraphStorm and the public Retexo code call them
LABEL_NAMES = ("label", "labels")
MASK_NAMES = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class PartCounts:
    """What one part holds."""

    nodes: int
    edges: int
    halo: int
    """Nodes owned elsewhere that are the source of an edge into the part."""
    train: int
    val: int
    test: int
    content: str
    """sha256 (hex) of the ids, the edges (a source by its local id) and the tensors. DGL's files hold memory addresses,
    too: equal parts, other bytes."""


@dataclass(frozen=True)
class Meta:
    """meta.json: what `train` has to know of the data, and what shows that nothing changed since."""

    version: int
    name: str
    dataset: str
    task: str
    """multiclass or multilabel."""
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    cut_edges: int
    parts: list[PartCounts]
    request: dict[str, Any]
    """The settings that made this directory, by their names on the command line."""
    split: dict[str, Any]
    versions: dict[str, str]
    checksums: dict[str, str]
    """sha256 of every other file, by its path in the directory."""
    cover_rows: int | None = None
    """Rows that an exchange sends at least, where a partial sum may stand in for several of them; None: not counted."""

    def digest(self) -> str:
        """sha256 (hex) of what decides the partitions; equal on two machines exactly if their partitions are."""
        content = {name: value for name, value in asdict(self).items() if name not in ("checksums", "cover_rows")}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def first_damaged(self, directory: Path, below: str = "") -> Path | None:
        """The first file, of those whose path in the directory begins with `below`, that is missing or was changed."""
        for file, checksum in self.checksums.items():
            path = directory / file
            if file.startswith(below) and not (path.is_file() and file_checksum(path) == checksum):
                return path
        return None

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Read meta.json; None where there is none of ours (DGL's own or the public Retexo code's directory)."""
        path = directory / "meta.json"
        if not path.exists():
            return None
        fields = read_json(path)
        if fields and "version" not in fields and "checksums" not in fields:
            return None
        if fields.get("version") != VERSION:
            raise InputError(
                f"{path}: version {fields.get('version')}, this program reads version {VERSION}; "
                "partition again with overwrite=true"
            )
        try:
            parts = [PartCounts(**part) for part in fields.pop("parts")]
            meta = cls(parts=parts, **fields)
            check_types(meta)
            for counts in parts:
                check_types(counts)
            if not all(isinstance(checksum, str) for checksum in meta.checksums.values()):
                raise ValueError("a checksum is no string")
            return meta
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(
                f"{path}: damaged ({error}); copy it again, or partition again with overwrite=true"
            ) from error


def check_types(read: Any) -> None:
    """Raise ValueError for a field of a dataclass to which JSON gave another type, or a number out of all range."""
    for name, hint in get_type_hints(type(read)).items():
        value = getattr(read, name)
        choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        allowed = tuple(get_origin(choice) or choice for choice in choices)
        if not isinstance(value, (*allowed, int) if float in allowed else allowed) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
        if isinstance(value, int | float) and not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value}")


@dataclass(frozen=True, eq=False)
class AskedHalo:
    """What a site that read only its own folder knows of its halo nodes; which rows they are, their owners know."""

    ids: Tensor
    """int64 [H] in the order of the halo: by owner, then ascending, as owners order their rows."""
    file: Path
    """Where the ids come from."""
    sites: tuple[str, ...]
    """Names of the owners, by rank."""


@dataclass(frozen=True, eq=False)
class Partition:
    """One part as a worker sees it. Local ids: inner nodes 0 ... I-1, then halo nodes I ... I+H-1."""

    rank: int
    num_parts: int
    num_inner: int
    num_halo: int
    src: Tensor
    """int32 [E] local id of each edge's source; no self loops."""
    dst: Tensor
    """int32 [E] local id of each edge's destination, an inner node."""
    features: Tensor
    """float32 [I, F]."""
    labels: Tensor
    """int64 [I], -1 unlabelled; or float32 [I, C], NaN unlabelled."""
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    node_ids: Tensor
    """int64 [I] ids of the data set; of the partitioned graph where the directory does not keep them."""
    halo_owner: Tensor
    """int64 [H] the part that owns each halo node, ascending."""
    halo_index: Tensor
    """int64 [H] its local id there; ascending within an owner. -1 as long as there is `asked_halo`."""
    in_degree: Tensor
    """int64 [I] in the whole graph, self loops left out."""
    out_degree: Tensor | None
    """int64 [I + H] in the whole graph, self loops left out; None where the directory does not say."""
    self_loops: int
    """Edges from a node to itself that were left out of src and dst."""
    asked_halo: AskedHalo | None = None
    """What the owners have to be asked at the start; None where a partition directory knows it."""

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layout:
    """The renumbering that DGL asks for: the nodes of a part are contiguous."""

    node_order: NDArray[np.int64]
    """[N] node of the source at each new id."""
    new_id: Ends
    """[N] new id of each node of the source."""
    node_bounds: NDArray[np.int64]
    """[P + 1] part p owns new ids node_bounds[p] ... node_bounds[p + 1] - 1."""

    def part_of(self, new_ids: Ends) -> NDArray[np.int64]:
        return np.searchsorted(self.node_bounds, new_ids, side="right") - 1


def make_layout(assignment: NDArray[np.int64], num_parts: int) -> Layout:
    node_order = np.argsort(assignment, kind="stable")
    new_id = np.empty(len(assignment), ends_dtype(len(assignment)))
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
    # Few bytes a node: each end of each edge looks up its own, at random.
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
    described: dict[str, Any],
) -> Meta:
    """Write the partition directory, beside its place first, so that an interruption leaves nothing half-written.

    In memory are the graph, one part, and a few numbers a node: the edges are sorted by part on disk.

    Args:
        masks: train_mask, val_mask and test_mask, bool [N] each.
        assignment: int64 [N] in [0, num_parts).
        described: the fields request, split and versions of Meta, and cover_rows where it was counted.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        unfinished.chmod(0o755)
        layout = make_layout(assignment, num_parts)
        edges = _sort_by_part(unfinished / "sorted", graph, assignment, layout, num_parts)
        log.info("sorted %s edges by part, %s of them cut", f"{graph.num_edges:,}", f"{edges.cut:,}")
        parts = [_write_part(unfinished, graph, masks, layout, edges, part) for part in range(num_parts)]
        edges.folder.rmdir()
        _write_dgl_config(unfinished, directory.name, layout, edges, described["request"]["partition_method"])
        meta = _make_meta(unfinished, directory.name, graph, parts, {"cut_edges": edges.cut, **described})
        (unfinished / "meta.json").write_text(json.dumps(asdict(meta), indent=2) + "\n")
        _put_in_place(unfinished, directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return meta


def _put_in_place(unfinished: Path, directory: Path) -> None:
    """Rename; a directory that is there already is moved away first and then removed."""
    if not directory.exists():
        unfinished.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    directory.rename(old / "old")
    unfinished.rename(directory)
    shutil.rmtree(old)


def _write_part(
    directory: Path,
    graph: GraphData,
    masks: dict[str, NDArray[np.bool_]],
    layout: Layout,
    edges: SortedEdges,
    part: int,
) -> PartCounts:
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
    feats["_N/in_deg"] = torch.bincount(dst[src != dst], minlength=end - first)
    feats["_N/out_deg"] = torch.from_numpy(edges.out_degree[first:end])
    dgl.data.utils.save_tensors(str(part_dir / "node_feat.dgl"), feats)
    dgl.data.utils.save_tensors(str(part_dir / "edge_feat.dgl"), {})
    train, val, test = (int(masks[name][inner].sum()) for name in MASK_NAMES)
    content = _digest_of([nodes, src, dst.add_(first), *feats.values()])
    log.info("wrote part %d: %s nodes, %s edges, %.1f s", part, *map("{:,}".format, (end - first, len(src))),
             time.perf_counter() - start)  # fmt: skip
    return PartCounts(end - first, len(src), len(nodes) - (end - first), train, val, test, content)


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


def _digest_of(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _node_tensors(graph: GraphData, masks: dict[str, NDArray[np.bool_]], nodes: NDArray[np.int64]) -> dict[str, Tensor]:
    rows = graph.features[nodes]
    tensors = {
        "feat": torch.from_numpy(rows.toarray() if isinstance(rows, sp.csr_array) else np.ascontiguousarray(rows)),
        "label": torch.from_numpy(graph.labels[nodes]),
        "orig_id": torch.from_numpy(graph.node_ids[nodes]),
    }
    # DGL's files know no booleans; its own partition_graph writes masks as uint8, too.
    tensors |= {name: torch.from_numpy(masks[name][nodes].astype(np.uint8)) for name in MASK_NAMES}
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
    directory: Path, name: str, graph: GraphData, parts: list[PartCounts], described: dict[str, Any]
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
        **described,
    )


def file_checksum(path: Path) -> str:
    """sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class MissingPartitions(InputError):
    """There is no partition directory where one was looked for."""


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionDirectory:
    """A partition directory that was found, with its two descriptions read."""

    path: Path
    config: dict[str, Any]
    """DGL's."""
    meta: Meta | None
    """Ours; None for a directory made by DGL itself or by the public Retexo code."""

    @property
    def num_parts(self) -> int:
        return int(self.config["num_parts"])

    def digest(self) -> str:
        """sha256 (hex): of meta.json, or of DGL's config where there is none."""
        if self.meta is not None:
            return self.meta.digest()
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        """sha256 (hex) that changes, too, with what these parts hold."""
        return self.digest()

    @property
    def stated_classes(self) -> int | None:
        """The number of classes, where the directory says it."""
        return None if self.meta is None else self.meta.num_classes

    @property
    def remedy(self) -> str:
        """What another digest on another node means, and what to do."""
        return "another partitioning (its digest differs); copy it the same partition directory"

    def verify(self, part: int) -> None:
        """Check all files of one part: by checksum, or, where nobody took one, by reading it."""
        if self.meta is None:
            if not _survives(lambda: self.read(part)):
                raise InputError(
                    f"{self.path}: part {part}: DGL's reader crashes on it, so it is damaged; copy it again"
                )
            self.read(part)
            return
        path = self.meta.first_damaged(self.path, below=f"part{part}/")
        if path is None:
            return
        if not path.is_file():
            raise InputError(f"{path}: missing; copy the whole part {part} or partition again")
        raise InputError(
            f"{path}: its checksum is not the one in meta.json, so it is damaged or of another partitioning; "
            "copy it again, or partition again with overwrite=true"
        )

    def read(self, part: int) -> Partition:
        """Read one part, checked; InputError names what is wrong with it."""
        return _read_part(self, part)


def _survives(read: Callable[[], object]) -> bool:
    """Whether a child process lives through it; DGL's reader ends its process at some damaged files."""
    child = os.fork()
    if child == 0:
        try:
            read()
        finally:
            os._exit(0)  # what it raised this process will see, too
    return os.waitpid(child, 0)[1] == 0


def find(candidates: list[Path], num_parts: int | None) -> PartitionDirectory:
    """Open the first of the candidates that is a partition directory; it has to have num_parts parts, unless None."""
    for path in candidates:
        config_file = _dgl_config_file(path)
        if config_file is None:
            continue
        directory = PartitionDirectory(path, _checked_config(config_file), Meta.read(path))
        _check_descriptions(directory, config_file, num_parts)
        return directory
    raise MissingPartitions(f"no partition directory at {candidates[0]}; make it with app=partition_data")


def _dgl_config_file(path: Path) -> Path | None:
    """DGL's partition config in a directory: the one named after it, else the only one there."""
    if not path.is_dir():
        return None
    named = path / f"{path.name}.json"
    if named.is_file():
        return named
    others = (file for file in sorted(path.glob("*.json")) if file.name != "meta.json")
    found = [file for file in others if "num_parts" in read_json(file)]
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise InputError(f"{path}: holds several partition configs ({names}); keep each in a directory of its own")
    return found[0] if found else None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; InputError if it holds none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a JSON {type(content).__name__}, needs an object")
    return content


def _checked_config(path: Path) -> dict[str, Any]:
    """DGL's partition config, of a homogeneous graph with contiguous ids."""
    config = read_json(path)
    for key in ("num_parts", "num_nodes", "node_map"):
        if key not in config:
            raise InputError(f"{path}: has no '{key}', so it is not a partition config of DGL's")
    for key in ("num_parts", "num_nodes"):
        if not isinstance(config[key], int) or isinstance(config[key], bool) or not 0 <= config[key] < 2**63:
            raise InputError(f"{path}: {key} is {config[key]!r}, needs an integer from 0 on")
    node_map = config["node_map"]
    if isinstance(node_map, dict) and len(node_map) != 1:
        raise InputError(f"{path}: has {len(node_map)} node types; only graphs with one are supported")
    ranges = next(iter(node_map.values())) if isinstance(node_map, dict) else node_map
    try:
        bounds = np.array(ranges, dtype=np.int64).reshape(config["num_parts"], 2)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path}: node_map has no range of ids for each part: {error}") from error
    ascending = (bounds[:, 0] <= bounds[:, 1]).all() and (bounds[1:, 0] == bounds[:-1, 1]).all()
    if not len(bounds) or not ascending or bounds[0, 0] != 0 or bounds[-1, 1] != config["num_nodes"]:
        raise InputError(f"{path}: node_map {bounds.tolist()} does not cover ids 0 ... {config['num_nodes'] - 1}")
    config["node_bounds"] = [0, *bounds[:, 1].tolist()]
    return config


def _check_descriptions(directory: PartitionDirectory, config_file: Path, num_parts: int | None) -> None:
    if num_parts is not None and directory.num_parts != num_parts:
        raise InputError(
            f"{directory.path}: has {directory.num_parts} parts, num_partitions={num_parts}; "
            "set num_partitions to it or partition again"
        )
    meta = directory.meta
    if meta is not None and meta.checksums.get(config_file.name) != file_checksum(config_file):
        raise InputError(f"{config_file}: its checksum is not in meta.json; partition again with overwrite=true")
    if meta is not None and (len(meta.parts), meta.num_nodes) != (directory.num_parts, directory.config["num_nodes"]):
        raise InputError(
            f"{directory.path}: meta.json and {config_file.name} disagree about parts or nodes; copy both again, "
            "or partition again with overwrite=true"
        )
    for part in range(directory.num_parts):
        if f"part-{part}" not in directory.config:
            raise InputError(f"{config_file}: does not name the files of part {part}")


def _read_part(directory: PartitionDirectory, part: int) -> Partition:
    from partitioning.dgl_import import dgl

    files = directory.config[f"part-{part}"]
    graph_file, feat_file = (_inside(directory.path, files, key) for key in ("part_graph", "node_feats"))
    try:
        structure = dgl.load_graphs(str(graph_file))[0][0]
        tensors = dgl.data.utils.load_tensors(str(feat_file))
    except Exception as error:  # DGL raises its own, of many kinds
        raise InputError(f"{graph_file.parent}: DGL cannot read part {part}: {error}") from error
    for name in list(structure.edata):  # numbers that nobody asks for, as many as a third of the edges
        structure.edata.pop(name)
    where = f"{directory.path}: part {part}"
    ids = _required(structure.ndata, ("_ID",), where).to(torch.int64)
    out_degree = structure.ndata.get("out_deg") if directory.meta is not None else None
    if len(ids) >= 2**31:
        raise InputError(f"{where}: has {len(ids):,} nodes with its halo, at most {2**31 - 1:,} fit; make more parts")
    src, dst = structure.edges()
    read = _Read(src.to(torch.int32), dst.to(torch.int32), ids, out_degree)
    del structure, src, dst
    return _check_part(directory, part, read, {name.split("/")[-1]: value for name, value in tensors.items()})


@dataclass(frozen=True, eq=False)
class _Read:
    """What DGL's graph of a part says, unchecked."""

    src: Tensor
    """int32 [E], and so are the destinations."""
    dst: Tensor
    ids: Tensor
    """int64 [n] of the nodes in the partitioned graph."""
    out_degree: Tensor | None
    """[n]"""


def _inside(directory: Path, files: Any, key: str) -> Path:
    """The path of a part's file; it has to lie in the partition directory."""
    if not isinstance(files, dict) or not isinstance(files.get(key), str):
        raise InputError(f"{directory}: the partition config names no file for '{key}'")
    path = directory / str(files[key])
    if not path.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{directory}: the partition config names {files[key]}, outside of the directory")
    if not path.is_file():
        raise InputError(f"{path}: missing; copy the whole part or partition again")
    return path


def _check_part(directory: PartitionDirectory, part: int, read: _Read, tensors: dict[str, Tensor]) -> Partition:
    """Turn what DGL read into a Partition; edges are copied only where some have to go."""
    where = f"{directory.path}: part {part}"
    bounds = torch.tensor(directory.config["node_bounds"])
    num_inner = int(bounds[part + 1] - bounds[part])
    ids, inner = read.ids, torch.arange(num_inner) + bounds[part]
    if len(ids) < num_inner or not torch.equal(ids[:num_inner], inner):
        raise InputError(f"{where}: its inner nodes are not ids {bounds[part]} ... {bounds[part + 1] - 1} in order")
    if len(ids) and not bool(((ids >= 0) & (ids < bounds[-1])).all()):
        raise InputError(f"{where}: has node ids outside [0, {int(bounds[-1])})")
    if bool(((ids[num_inner:] >= bounds[part]) & (ids[num_inner:] < bounds[part + 1])).any()):
        raise InputError(f"{where}: a halo node is one of its own inner nodes")
    into_inner, loop = read.dst < num_inner, read.src == read.dst
    wanted = into_inner & ~loop
    src, dst = (read.src, read.dst) if bool(wanted.all()) else (read.src[wanted], read.dst[wanted])
    # Only halo nodes that send something are kept (DGL's halo can be wider), by owner, then by index at the owner.
    is_source = np.zeros(len(ids), np.bool_)
    is_source[src.numpy()] = True
    used = torch.from_numpy(np.flatnonzero(is_source[num_inner:])) + num_inner
    used = used[torch.argsort(ids[used])]
    kept = torch.cat((torch.arange(num_inner), used))
    if not torch.equal(kept, torch.arange(len(ids))):
        renumber = torch.zeros(len(ids), dtype=torch.int32)
        renumber[kept] = torch.arange(len(kept), dtype=torch.int32)
        src = renumber[src]
    owner = torch.searchsorted(bounds, ids[used], right=True) - 1
    checked = _checked_tensors(tensors, inner, where)
    if directory.meta is not None:
        _check_described(checked, directory.meta, where)
    return Partition(
        rank=part,
        num_parts=directory.num_parts,
        num_inner=num_inner,
        num_halo=len(used),
        src=src,
        dst=dst,
        halo_owner=owner,
        halo_index=ids[used] - bounds[owner],
        in_degree=torch.bincount(dst, minlength=num_inner),
        out_degree=None if read.out_degree is None else read.out_degree[kept],
        self_loops=int((into_inner & loop).sum()),
        asked_halo=None,
        **checked,
    )


def _check_described(tensors: dict[str, Tensor], meta: Meta, where: str) -> None:
    """The widths that meta.json says; no checksum covers it."""
    labels = tensors["labels"]
    classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
    task = "multilabel" if labels.ndim == 2 else "multiclass"
    fits = classes == meta.num_classes if labels.ndim == 2 else classes <= meta.num_classes
    if not fits or task != meta.task or tensors["features"].shape[1] != meta.num_features:
        raise InputError(
            f"{where}: holds {tensors['features'].shape[1]} features and {classes} classes ({task}), meta.json says "
            f"{meta.num_features} and {meta.num_classes} ({meta.task}); copy it again, or partition again with "
            "overwrite=true"
        )


def _checked_tensors(tensors: dict[str, Tensor], inner: Tensor, where: str) -> dict[str, Tensor]:
    """Features, labels, masks and ids of the inner nodes; `inner` are their ids in the partitioned graph, [I]."""
    features = _required(tensors, FEATURE_NAMES, where)
    labels = _required(tensors, LABEL_NAMES, where)
    masks = {name: _required(tensors, (name,), where) for name in MASK_NAMES}
    for name, tensor in {"features": features, "labels": labels, **masks}.items():
        if tensor.shape[0] != len(inner):
            raise InputError(f"{where}: {name} have {tensor.shape[0]} rows, the part has {len(inner)} inner nodes")
    if features.ndim != 2 or not bool(torch.isfinite(features).all()):
        raise InputError(f"{where}: features need shape [nodes, width] and finite values; found {list(features.shape)}")
    labels = _checked_labels(labels, where)
    masks = {name: _checked_mask(mask, name, where) for name, mask in masks.items()}
    _check_split(masks, labels, where)
    node_ids = tensors.get("orig_id", inner)
    return {"features": features.float(), "labels": labels, **masks, "node_ids": node_ids}


def _required(tensors: Any, names: tuple[str, ...], where: str) -> Tensor:
    for name in names:
        if name in tensors:
            tensor: Tensor = tensors[name]
            return tensor
    raise InputError(f"{where}: has no '{names[0]}'; it has {', '.join(sorted(tensors)) or 'nothing'}")


def _checked_labels(labels: Tensor, where: str) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        labels = labels.float()
        if not bool(((labels == 0) | (labels == 1) | labels.isnan()).all()):
            raise InputError(f"{where}: multi-label labels need to be 0 or 1")
        return labels
    if labels.ndim != 1:
        raise InputError(f"{where}: labels have shape {list(labels.shape)}, need [nodes] or [nodes, classes]")
    if labels.is_floating_point():
        # OGB marks unlabelled nodes with NaN.
        labels = torch.where(labels.isnan(), -1.0, labels)
    if not torch.equal(labels.to(torch.int64).to(labels.dtype), labels) or bool((labels < -1).any()):
        raise InputError(f"{where}: labels need to be integers from 0 on, -1 for none")
    return labels.to(torch.int64)


def _checked_mask(mask: Tensor, name: str, where: str) -> Tensor:
    if mask.ndim != 1 or not bool(((mask == 0) | (mask == 1)).all()):
        raise InputError(f"{where}: {name} needs shape [nodes] and values 0 or 1")
    return mask.bool()


def _check_split(masks: dict[str, Tensor], labels: Tensor, where: str) -> None:
    labelled = ~labels.isnan().any(dim=1) if labels.ndim == 2 else labels >= 0
    times = torch.stack([mask.int() for mask in masks.values()]).sum(dim=0)
    if bool((times > 1).any()):
        row = int((times > 1).nonzero()[0])
        raise InputError(f"{where}: inner node {row} is in more than one of {', '.join(masks)}")
    if bool(((times > 0) & ~labelled).any()):
        row = int(((times > 0) & ~labelled).nonzero()[0])
        raise InputError(f"{where}: inner node {row} is in a mask and has no label")
