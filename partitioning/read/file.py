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

    A folder with the folders nodes/ and edges/ is a heterogeneous graph: tables.py.

(c) PATH.bin or PATH.dgl, one graph saved by dgl.save_graphs, with ndata `label` and optionally
    `feat`, masks and `node_id`, and edata `edge_weight` (`weight`, `w`) and `edge_feat` (`feat`,
    `edge_attr`). DGL has no checksums: damage is found only where values are impossible.
"""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from partitioning.dgl_import import import_dgl
from partitioning.errors import InputError, first_line, join_names
from partitioning.files.file_io import check_path, open_regular, reading
from partitioning.files.unpacked_size import check_table_sizes
from partitioning.graph.graph_data import (
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    SPLITS,
    EdgeType,
    GraphData,
)
from partitioning.graph.schema import Frame, Source
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import list_arrays, read_arrays
from partitioning.read.dgl_probe import check_readable
from partitioning.read.index_files import FILE_NAMES, FORMATS
from partitioning.read.labelled_edges import (
    AS_NODES,
    OF_LABELLED,
    find_labelled,
    take_edge_arrays,
    with_edge_nodes,
)
from partitioning.read.labels import OF_EDGES_TOO
from partitioning.read.object_arrays import ArrayGraph, read_dgl
from partitioning.read.raw import (
    OF_EDGES,
    OF_NODES,
    RawGraph,
    RawNodes,
    RawRelation,
    build_graph,
)
from partitioning.read.table_files import (
    KINDS,
    has_columns,
    kind_of,
    list_visible,
    stem_of,
    warn_unread,
)
from partitioning.read.tables import NODE_TABLES, GraphTables, find_graph_tables, read_tables

log = logging.getLogger(__name__)

TABLES = (*KINDS, "npy")
READABLE = (*TABLES, "npz")
"""Suffixes of tables and arrays, without .gz."""
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
    ".edgelist": _OF_NETWORKX.format("edgelist"),
    ".net": _OF_NETWORKX.format("pajek"),
    ".mtx": _OF_SCIPY.format("scipy.io.mmread"),
    ".mat": _OF_SCIPY.format("scipy.io.loadmat"),
    ".json": _OF_PANDAS.format("read_json"),
    ".xlsx": _OF_PANDAS.format("read_excel"),
    ".h5": _OF_PANDAS.format("read_hdf"),
    ".zip": "unpack it, and give the file or folder",
}
"""What reads files of other programs, by suffix."""
DGL_MAGIC = bytes.fromhex("3fa1b446f04f2edd")
"""How every file of dgl.save_graphs begins."""


def load(settings: DatasetSettings) -> GraphData:
    """Read and check the graph at `dataset_file`; it is named after the file's stem.

    InputError names file, row and value.
    """
    if settings.dataset_file is None:
        raise InputError(f"dataset_name=file needs dataset_file=PATH: {FORMS}")
    path = check_path("dataset_file", settings.dataset_file)
    if not path.exists():
        raise InputError(f"dataset_file={path}: there is no such file or folder; expected {FORMS}")
    if path.is_dir() or has_columns(path) or path.suffix == ".npy":
        tables = find_graph_tables(path, settings.tables)
        _warn_unread(path, tables, settings)
        _check_sizes(tables.all, settings)
        return build_graph(read_tables(stem_of(path.resolve()), tables, settings), settings)
    if settings.edges.unknown != "refuse":
        raise InputError(
            f"edges.unknown={settings.edges.unknown}: only tables of edges have it; remove it, or"
            " take these edges out"
        )
    _check_sizes([path], settings)
    if path.suffix == ".npz":
        return from_arrays(path, read_npz(path), settings)
    if path.suffix in (".bin", ".dgl"):
        return from_arrays(path, read_dgl(open_dgl(path), f"{path}: "), settings)
    remedy = REMEDIES.get(path.suffix.lower(), "")
    raise InputError(
        f"dataset_file={path}: a file of unknown form; expected {FORMS}{remedy and '; '}{remedy}"
    )


def _warn_unread(path: Path, tables: GraphTables, settings: DatasetSettings) -> None:
    """Log what looks like a table beside those that are read: by its name, or its suffix.

    Where `path` is a table of edges, by its name alone.
    """
    folder, is_plain = tables.folder, PLAIN_TYPE in tables.nodes
    splits = [*chain.from_iterable(FILE_NAMES.values())]
    files = [folder / f"{stem}.{suffix}" for stem in splits if is_plain for suffix in FORMATS]
    asked = [getattr(settings.split, part) for part in SPLITS]
    asked.append(getattr(settings, "partition_file", None))
    files += [Path(name) for name in asked if isinstance(name, str)]
    # Path.resolve raises for a link to itself, which is refused when it is read.
    read = {os.path.realpath(file) for file in (*tables.all, *files) if isinstance(file, Path)}
    names = ["edges", *NODE_TABLES, *splits]
    left = [
        file
        for file in list_visible(folder)
        if os.path.realpath(file) not in read
        and (is_plain or file.is_file())
        and (stem_of(file).lower() in names or (path.is_dir() and kind_of(file) in READABLE))
    ]
    expected = f"; tables are called {', '.join(names)}, with suffixes as in docs/data.md"
    warn_unread(folder, left, expected * is_plain)


def _check_sizes(files: Sequence[Source], settings: DatasetSettings) -> None:
    """Raise InputError for a packed file that is too large."""
    packed = [
        file
        for file in files
        if isinstance(file, Path) and file.suffix in (".npz", ".parquet", ".gz")
    ]
    check_table_sizes(packed, settings.dataset_max_gib)


def from_arrays(path: Path, graph: ArrayGraph, settings: DatasetSettings) -> GraphData:
    """Build the graph of an object or npz; `path` is its file, or a name for messages.

    The log names arrays of labelled edges that are left out. InputError names the array and row
    that are wrong.
    """
    arrays = graph.plain
    if arrays is not None:
        _check_names(path, arrays, list_arrays(path) if path.suffix == ".npz" else arrays, settings)
    nodes: dict[str, RawNodes] = {}
    relations: dict[EdgeType, RawRelation] = {}
    has_labels = {
        edge_type: "edge_label" in relation for edge_type, relation in graph.relations.items()
    }
    labelled = find_labelled(has_labels, settings) if settings.task.of_edges else None
    # In the order of the files of retexo.from_pyg, which numbers relations.
    for edge_type in sorted(graph.relations, key=SEPARATOR.join):
        is_plain = edge_type == PLAIN_RELATION
        where = path if is_plain else f"{path}: {SEPARATOR.join(edge_type)}"
        held = graph.relations[edge_type]
        if edge_type == labelled:  # features and times are those of its nodes
            held = {name: held[name] for name in held if name not in AS_NODES}
        relations[edge_type] = RawRelation.of_arrays(
            where, held, with_features=is_plain or not settings.task.links
        )
    for name in sorted(graph.types, key="{}.npz".format):
        num_nodes = None
        if name == PLAIN_TYPE:  # edges show how many nodes there are at least
            edges = relations[PLAIN_RELATION]
            ends = [end for end in (edges.src, edges.dst) if end.dtype.kind in "iu" and len(end)]
            num_nodes = max([int(end.max()) + 1 for end in ends], default=0)
        nodes[name] = RawNodes.of_arrays(path / name, graph.types[name], num_nodes)
    raw = RawGraph(stem_of(path.resolve()), nodes, relations)
    if labelled is not None:
        edge_nodes = take_edge_arrays(path, graph.relations[labelled])
        raw = with_edge_nodes(raw, labelled, edge_nodes, settings)
    elif left := {*OF_LABELLED} & {*chain.from_iterable(graph.relations.values())}:
        log.warning("%s: arrays of labelled edges are left out: %s", path, join_names(sorted(left)))
    return build_graph(raw, settings)


def from_frames(
    nodes: Mapping[str, Frame], edges: Mapping[EdgeType, Frame], settings: DatasetSettings
) -> GraphData:
    """Build the graph of data frames, of nodes by type and of edges by relation.

    InputError names frame, column, row and value.
    """
    # In the order of files, which numbers relations.
    tables = {name: [nodes[name]] for name in sorted(nodes, key="{}.parquet".format)}
    relations = {edge_type: edges[edge_type] for edge_type in sorted(edges, key=SEPARATOR.join)}
    return build_graph(
        read_tables("graph", GraphTables(tables, relations, Path("graph")), settings), settings
    )


def read_npz(path: Path) -> ArrayGraph:
    """Read form (a); InputError if it is damaged or holds Python objects."""
    of_edges = (*OF_EDGES, *OF_LABELLED)
    arrays = read_arrays(path, (*OF_NODES, *of_edges))
    edges = {name: arrays.pop(name) for name in of_edges if name in arrays}
    return ArrayGraph({PLAIN_TYPE: arrays}, {PLAIN_RELATION: edges})


def _check_names(
    path: Path, arrays: Collection[str], held: Collection[str], settings: DatasetSettings
) -> None:
    """Raise InputError if an array of a plain graph is missing.

    `held`: the names that its file has.
    """
    is_blank = settings.task.links or settings.is_unlabelled or settings.task.of_edges
    needed = ("src", "dst") if is_blank else ("src", "dst", "label")
    missing = [name for name in needed if name not in arrays]
    if missing:
        renamed = f"; with PyG's names, {OF_PYG}" if "edge_index" in held else ""
        raise InputError(
            f"{path}: there is no array `{missing[0]}`; expected {', '.join(needed)}; found"
            f" {join_names(sorted(held)) or 'nothing'}{renamed}{OF_EDGES_TOO}"
        )


def open_dgl(path: Path) -> Any:
    """Return the graph in a file of form (c).

    Raises InputError if DGL is missing, or it is no such file or holds another number of graphs.
    """
    with reading(path, "DGL graph file", "write it by dgl.save_graphs"), open_regular(path) as file:
        if file.read(len(DGL_MAGIC)) != DGL_MAGIC:
            raise ValueError("it does not begin as one")
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
