"""Loads OGB's node classification graphs from their raw files, in chunks.

OGB's reader needs three copies of edges and features in memory and a pickled one on disk, and asks
on the terminal. Tests compare the result with it.
"""

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.given_split import masks_of
from partitioning.files.download import Archive, open_published
from partitioning.graph.array_checks import (
    check_columns,
    check_edge_feat,
    check_endpoints,
    check_labels,
    check_length,
    expect,
    refuse,
)
from partitioning.graph.graph_data import Endpoints, GraphData, NodeTable, Relation
from partitioning.partition_settings import DatasetSettings
from partitioning.read.raw import narrow_ends
from partitioning.read.table_files import read_integers, read_matrix

URL = "https://snap.stanford.edu/ogb/data/nodeproppred"
_CSV = ("raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz")
_OF_EDGES = ("raw/edge.csv.gz", "raw/edge-feat.csv.gz", "raw/node-label.csv.gz")
_BINARY = ("raw/data.npz", "raw/node-label.npz")
RELEASE = "RELEASE_v1.txt"
CHUNK = 1 << 23
"""Numbers of a binary array that are read at a time."""


@dataclass(frozen=True)
class _Source:
    """Files and properties of one of OGB's graphs for node classification."""

    zip: str
    raw: tuple[str, ...]
    split: str
    num_classes: int
    both_ways: bool = False
    """Whether each edge stands for its reverse, too."""
    multilabel: bool = False


SOURCES = {
    "ogbn-arxiv": _Source("arxiv", _CSV, "time", 40),
    "ogbn-products": _Source("products", _CSV, "sales_ranking", 47, both_ways=True),
    "ogbn-papers100M": _Source("papers100M-bin", _BINARY, "time", 172),
    "ogbn-proteins": _Source(
        "proteins", _OF_EDGES, "species", 112, both_ways=True, multilabel=True
    ),
}
SPLIT = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


def archive_of(name: str, folder: str, url: str, needed: Iterable[str]) -> Archive:
    """Describe a zip of OGB; its folder is `dataset_dir`/ogbn_arxiv ..., with OGB's layout."""
    root = Path(folder)
    place, file = root / name.replace("-", "_"), root / url.rpartition("/")[2]
    return Archive(url, file, place, tuple(needed))


def archive(name: str, folder: str) -> Archive:
    """Describe the zip of a data set."""
    source = SOURCES[name]
    split = (f"split/{source.split}/{part}.csv.gz" for part in SPLIT.values())
    return archive_of(name, folder, f"{URL}/{source.zip}.zip", (*source.raw, *split, RELEASE))


def load(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load a data set with OGB's split as masks. Unlabelled nodes, most of papers100M, get -1.

    ogbn-proteins has features of edges, none of nodes, and several labels per node. InputError for
    damaged files.
    """
    name, source = settings.dataset_name, SOURCES[settings.dataset_name]
    raw = folder / "raw"
    edge_feat = None
    if source.raw == _BINARY:
        src, dst, features, labels = _read_binary(raw, source.num_classes)
    else:
        src, dst = _read_edges(raw / "edge.csv.gz")
        labels = _read_labels(raw / "node-label.csv.gz", source)
        features = np.zeros((len(labels), 0), np.float32)
        if "raw/node-feat.csv.gz" in source.raw:
            features = read_matrix(raw / "node-feat.csv.gz")
        if "raw/edge-feat.csv.gz" in source.raw:
            file = raw / "edge-feat.csv.gz"
            edge_feat = check_edge_feat(read_matrix(file), len(src), str(file))
    check_length(features, len(labels), f"{folder}: features")
    if source.both_ways:
        src, dst = np.concatenate((src, dst)), np.concatenate((dst, src))
        edge_feat = None if edge_feat is None else np.concatenate((edge_feat, edge_feat))
    split = folder / "split" / source.split
    masks: dict[str, Any] = dict(read_split(split, len(labels)))
    featured = None if features.shape[1] else np.zeros(len(labels), np.bool_)
    nodes = NodeTable(features, np.arange(len(labels)), featured=featured)
    src, dst = (
        check_endpoints(ends, len(labels), f"{folder}: edges, column {column}")
        for column, ends in enumerate((src, dst))
    )
    edges = Relation(src, dst, edge_feat=edge_feat)
    return GraphData.plain(name, nodes, edges, labels, source.num_classes, **masks)


_Arrays = tuple[Endpoints, Endpoints, NDArray[np.float32], NDArray[np.int64]]


def _read_edges(path: Path) -> tuple[Endpoints, Endpoints]:
    """Read the sources and destinations of all edges from a csv file."""
    src, dst = map(narrow_ends, read_integers(path, ("0", "1")))
    return src, dst


def _read_labels(path: Path, source: _Source) -> NDArray[Any]:
    if not source.multilabel:
        return read_ogb_classes(read_integers(path)[0], source.num_classes, str(path))
    return check_columns(read_matrix(path), source.num_classes, str(path), regression=False)


def read_split(folder: Path, num_nodes: int) -> dict[str, NDArray[np.bool_]]:
    """Return the masks of train.csv.gz, valid.csv.gz and test.csv.gz, which list nodes.

    InputError for a node that is listed twice or unknown.
    """
    files = {mask: folder / f"{part}.csv.gz" for mask, part in SPLIT.items()}
    return masks_of(
        {mask: (read_integers(file)[0], str(file)) for mask, file in files.items()}, num_nodes
    )


def _read_binary(raw: Path, num_classes: int) -> _Arrays:
    """Return edge ends, features and labels of a large graph's npz; InputError if damaged."""
    num_nodes, num_edges = (
        int(read_member(raw / "data.npz", f"num_{what}_list").sum()) for what in ("nodes", "edges")
    )
    edges = read_member(raw / "data.npz", "edge_index", np.int32 if num_nodes < 2**31 else np.int64)
    where = f"{raw}/data.npz: edge_index"
    expect(edges.shape == (2, num_edges), edges, where, f"[2, {num_edges}]")
    features = read_member(raw / "data.npz", "node_feat", np.float32)
    src, dst = map(np.ascontiguousarray, edges)
    file = raw / "node-label.npz"
    labels = read_ogb_classes(read_member(file, "node_label"), num_classes, str(file))
    return src, dst, features, labels


def read_member(path: Path, name: str, dtype: Any = None) -> NDArray[Any]:
    """Read one array of an npz as `dtype` (None: as stored), in chunks.

    InputError if it is missing or damaged, or a number does not fit int32.
    """
    with (
        open_published(path) as packed,
        zipfile.ZipFile(packed) as archive,
        archive.open(f"{name}.npy") as file,
    ):
        version = np.lib.format.read_magic(file)
        header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, stored = header(file)
        if stored.hasobject:
            raise ValueError(f"array `{name}` holds Python objects, which are never loaded")
        array = np.empty(shape[::-1] if fortran else shape, dtype or stored)
        flat, limits = array.reshape(-1), np.iinfo(array.dtype) if dtype == np.int32 else None
        for begin in range(0, array.size, CHUNK):
            count = min(CHUNK, array.size - begin)
            chunk = np.frombuffer(file.read(count * stored.itemsize), stored)
            if len(chunk) < count:
                raise ValueError(f"array `{name}` ends after {begin + len(chunk)} numbers")
            if limits is not None and (chunk.min() < limits.min or chunk.max() > limits.max):
                raise ValueError(f"array `{name}` has numbers beyond {array.dtype}")
            flat[begin : begin + count] = chunk
    return array.T if fortran else array


def read_ogb_classes(labels: NDArray[Any], num_classes: int, where: str) -> NDArray[np.int64]:
    """Return classes [N] of OGB's [N, 1]; NaN (most of papers100M) becomes -1.

    InputError for one that is not below `num_classes`.
    """
    classes: NDArray[np.int64] = check_labels(labels.reshape(-1, 1), len(labels), where)
    refuse(classes, classes >= num_classes, where, f"expected a class below {num_classes}")
    return classes
