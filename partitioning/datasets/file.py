"""Reads a user's graph, `dataset_name=file dataset_file=PATH`, in three forms (docs/data.md).

N nodes, E directed edges, F features, K features of an edge, C classes. Each direction of an
undirected edge is a row (or set `symmetrize=true`). Labels are classes, blank or -1 where unknown,
or 0/1 [N, C]; with task=node_regression numbers, blank where unknown. Nothing is unpickled.

(a) PATH.npz, written by numpy.savez or savez_compressed; nodes are 0 ... N-1:

    src, dst                            int64 [E]
    edge_weight                         float [E], optional
    feat                                float [N, F]; or a CSR matrix:
    feat_data, feat_indices, feat_indptr, feat_shape
    label                               [N] or 0/1 [N, C]; regression: numbers, [N] or [N, T]
    train_mask, val_mask, test_mask     bool [N], or [N, S]: S splits; val_mask is optional
    node_id                             int64 or names [N], optional
    edge_feat                           float [E, K], optional
    edge_time                           [E] numbers, optional: for split.by=time

(b) a folder, or the table of edges in it:

    edges       csv, txt, parquet: src, dst, weight (optional), features; npy: [E, 2]
    nodes       csv, parquet: id, label, masks or split (all optional), features
    features    likewise; or npy [N, F], or npz: a CSR matrix of scipy.sparse.save_npz
    labels      csv, parquet: id, label, or 0/1 columns; or npy [N] or [N, C]
    train, val (or valid), test         npy, csv, optional: node positions, or an npy mask

    Only edges and labels are required. Nodes are the rows of nodes, features or labels. If a table
    has ids, edges use these ids, and the other tables are joined by them; a node without a row has
    no label or features. partitioning/features/roles.py finds the role of each column.

    A folder with the folders nodes/ and edges/ is a heterogeneous graph: hetero_tables.py.

(c) PATH.bin or PATH.dgl, one graph saved by dgl.save_graphs, with ndata `label` and optionally
    `feat`, masks and `node_id`, and edata `edge_weight` (`weight`, `w`) and `edge_feat` (`feat`,
    `edge_attr`). DGL has no checksums: damage is found only where values are impossible.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from partitioning.array_checks import CSR, Array, features_among
from partitioning.datasets import hetero_tables
from partitioning.datasets.object_arrays import ArrayGraph, read_dgl
from partitioning.datasets.raw import RawGraph, build, check_axes, list_arrays, read_arrays
from partitioning.datasets.table_files import KINDS, has_columns, stem_of
from partitioning.datasets.tables import (
    EDGES,
    NODE_TABLES,
    files_named,
    is_folder,
    read_folder,
    read_tables,
)
from partitioning.dgl_import import import_dgl
from partitioning.dgl_probe import check_readable
from partitioning.errors import InputError, first_line, join_names
from partitioning.features.schema import Frame
from partitioning.file_io import check_path, open_regular, reading
from partitioning.graph_data import EDGE_DATA, MASKS, SEPARATOR, GraphData, HeteroGraphData
from partitioning.partition_settings import DatasetSettings
from partitioning.unpacked_size import check_table_sizes

log = logging.getLogger(__name__)

OF_NODES = ("feat", *CSR, "label", *MASKS, "node_id")
KNOWN = ("src", "dst", *OF_NODES, *EDGE_DATA, "edge_time")
TABLES = (*KINDS, "npy")
FORMS = (
    "an .npz, a folder with edges and labels, a table of edges in one (.csv, .txt, .parquet, .npy),"
    " or a DGL graph file (.bin, .dgl)"
)
OF_PYG = "retexo.from_pyg(data) writes such an .npz"
_OF_NETWORKX = "read it with networkx.read_{}, and write the graph with retexo.from_networkx"
_OF_SCIPY = "read it with {}, and write the matrix with retexo.from_scipy"
_OF_PANDAS = "read it with pandas.{}, and write the tables with retexo.from_pandas"
REMEDIES = {
    ".pt": f"a .pt is a pickle, which is not loaded: in PyG, {OF_PYG}",
    ".gml": _OF_NETWORKX.format("gml"),
    ".graphml": _OF_NETWORKX.format("graphml"),
    ".gexf": _OF_NETWORKX.format("gexf"),
    ".net": _OF_NETWORKX.format("pajek"),
    ".mtx": _OF_SCIPY.format("scipy.io.mmread"),
    ".mat": _OF_SCIPY.format("scipy.io.loadmat"),
    ".json": _OF_PANDAS.format("read_json"),
    ".xlsx": _OF_PANDAS.format("read_excel"),
}
"""What reads files of other programs, by suffix."""
DGL_MAGIC = bytes.fromhex("3fa1b446f04f2edd")
"""How every file of dgl.save_graphs begins."""


def load(settings: DatasetSettings) -> GraphData | HeteroGraphData:
    """Read and check the graph at `dataset_file`; it is named after the file's stem."""
    if settings.dataset_file is None:
        raise InputError(f"dataset_name=file needs dataset_file=PATH: {FORMS}")
    path = check_path("dataset_file", settings.dataset_file)
    if not path.exists():
        raise InputError(f"dataset_file={path}: there is no such file or folder; expected {FORMS}")
    check_table_sizes(_find_packed(path), settings.dataset_max_gib)
    if hetero_tables.is_folder(path):
        return hetero_tables.load(path, settings)
    if path.is_dir() or (has_columns(path) or path.suffix == ".npy"):
        raw = read_folder(
            path,
            settings.columns,
            unlabelled=settings.links or settings.is_unlabelled,
            drop_unknown=settings.drop_unknown,
            regression=settings.regression,
        )
    elif settings.drop_unknown:
        raise InputError(
            "edges.unknown=drop: only tables of edges have it; remove it, or take these edges out"
        )
    elif path.suffix == ".npz":
        raw = read_npz(path, unlabelled=settings.links or settings.is_unlabelled)
    elif path.suffix in (".bin", ".dgl"):
        return from_arrays(path, read_dgl(open_dgl(path), f"{path}: "), settings)
    else:
        remedy = f"; {found}" if (found := REMEDIES.get(path.suffix.lower())) else ""
        raise InputError(f"dataset_file={path}: a file of unknown form; expected {FORMS}{remedy}")
    return _build(replace(raw, name=stem_of(path.resolve())), settings)


def from_arrays(
    path: Path, graph: ArrayGraph, settings: DatasetSettings
) -> GraphData | HeteroGraphData:
    """Build the graph of an object; `path` is its file, or a name for messages."""
    arrays = graph.plain
    if arrays is None:  # in the order of the files of retexo.from_pyg, which numbers relations
        types = {name: graph.types[name] for name in sorted(graph.types, key="{}.npz".format)}
        relations = {
            each: graph.relations[each] for each in sorted(graph.relations, key=SEPARATOR.join)
        }
        return hetero_tables.from_arrays(path, types, relations, settings)
    where = {name: f"{path}: `{name}`" for name in KNOWN}
    unlabelled = settings.links or settings.is_unlabelled
    raw = _raw_graph(path, arrays, where, arrays, unlabelled=unlabelled)
    return _build(replace(raw, name=stem_of(path.resolve())), settings)


def from_frames(nodes: Frame, edges: Frame, settings: DatasetSettings) -> GraphData:
    """Build the graph of two data frames, without labels and masks."""
    raw = read_tables(
        "graph",
        [nodes],
        edges,
        settings.columns,
        None,
        unlabelled=True,
        drop_unknown=settings.drop_unknown,
        regression=settings.regression,
    )
    return _build(raw, settings)


def _build(raw: RawGraph, settings: DatasetSettings) -> GraphData:
    """Check a graph's arrays and build it, with the options that the settings give."""
    return build(
        raw,
        settings.labels,
        merge=settings.duplicates == "merge",
        split_index=settings.split.index,
        unlabelled=settings.is_unlabelled,
        regression=settings.regression,
    )


def _find_packed(path: Path) -> list[Path]:
    """The files and tables that the graph is read from and that may be packed."""
    if hetero_tables.is_folder(path):
        found = [*path.glob("nodes/*"), *path.glob("edges/*")]
    elif path.is_dir() or (has_columns(path) or path.suffix == ".npy"):
        folder, names = (path, {"edges": EDGES}) if is_folder(path) else (path.parent, {})
        found = [path] if not names else []
        for stem, suffixes in (NODE_TABLES | names).items():
            found += files_named(folder, stem, suffixes)
    else:
        found = [path]
    return [file for file in found if file.suffix in (".npz", ".parquet", ".gz")]


def read_npz(path: Path, *, unlabelled: bool = False) -> RawGraph:
    """Read form (a), maybe `unlabelled`.

    Raises InputError if it is damaged, holds Python objects or lacks an array.
    """
    arrays = read_arrays(path, KNOWN)
    where = {name: f"{path}: array `{name}`" for name in KNOWN}
    return _raw_graph(path, arrays, where, list_arrays(path), unlabelled=unlabelled)


def _raw_graph(
    path: Path,
    arrays: Mapping[str, Array],
    where: Mapping[str, str],
    held: Collection[str],
    *,
    unlabelled: bool = False,
) -> RawGraph:
    """Collect the named arrays of an npz file as a RawGraph; `held`: the names of all of them.

    Raises InputError if a required one is missing.
    """
    needed = ("src", "dst") if unlabelled else ("src", "dst", "label")
    missing = [name for name in needed if name not in arrays]
    if missing:
        found = join_names(sorted(held)) or "nothing"
        renamed = f"; with PyG's names, {OF_PYG}" if "edge_index" in held else ""
        raise InputError(
            f"{path}: there is no array `{missing[0]}`; expected {', '.join(needed)}; found"
            f" {found}{renamed}"
        )
    check_axes(arrays, KNOWN, str(path))
    return RawGraph(
        name=path.stem,
        src=arrays["src"],
        dst=arrays["dst"],
        features=features_among(arrays, path) if {"feat", *CSR} & arrays.keys() else None,
        label=arrays.get("label"),
        masks={name: arrays[name] for name in MASKS if name in arrays},
        node_id=arrays.get("node_id"),
        edge_weight=arrays.get("edge_weight"),
        edge_feat=arrays.get("edge_feat"),
        edge_time=arrays.get("edge_time"),
        where=where,
    )


def open_dgl(path: Path) -> Any:
    """The graph in a file of form (c).

    Raises InputError if it is no such file, or holds another number of graphs.
    """
    with reading(path, "DGL graph file"), open_regular(path) as file:
        magic = file.read(len(DGL_MAGIC))
    if magic != DGL_MAGIC:
        raise InputError(f"{path}: not a DGL graph file; expected one written by dgl.save_graphs")
    check_readable([path])
    dgl = import_dgl(f"dataset_file={path}")

    try:
        graphs = dgl.load_graphs(str(path))[0]
    except Exception as error:  # DGL raises its own class, but also what its parser stumbles over
        raise InputError(
            f"{path}: not a readable DGL graph file ({first_line(error)[:200]}); write it anew"
        ) from None
    if len(graphs) != 1:
        raise InputError(
            f"{path}: holds {len(graphs)} graphs; expected one: save each in a file of its own"
        )
    return graphs[0]
