"""Writes graphs of other libraries as files for dataset_name=file (file.py), and returns the path.

N nodes, E directed edges. A file or folder appears when it is complete.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partitioning.errors import InputError
from partitioning.files.file_io import UNREADABLE, check_path, open_regular, written_beside
from partitioning.graph.array_checks import check_endpoints
from partitioning.graph.graph_data import SEPARATOR, EdgeType
from partitioning.graph.schema import Frame
from partitioning.read.object_arrays import (
    ArrayGraph,
    read_dgl,
    read_networkx,
    read_pyg,
    read_scipy,
)
from partitioning.read.tables import check_name

if TYPE_CHECKING:
    import pyarrow as pa


def from_pyg(data: Any, path: str | Path = "graph.npz", *, overwrite: bool = False) -> str:
    """Write a torch_geometric.data.Data as an npz, and return its path.

    It takes edge_index, x, y, the masks ([N], or [N, K] for `split.index`), train_idx, val_idx and
    test_idx, node_id, edge_weight and edge_attr, which become edge features; edge_label, edge_time
    and edge_train_mask ... of labelled edges. A HeteroData is written as a folder, by type and
    relation. InputError for another object, one without labels, and a `path` that exists without
    `overwrite`.
    """
    return _write(read_pyg(data), path, overwrite)


def from_dgl(g: Any, path: str | Path = "graph.npz", *, overwrite: bool = False) -> str:
    """Write a DGLGraph as an npz, and return its path.

    It takes ndata feat (or feature), label, node_id and the masks, and edata weight and feat (edge
    features). A heterograph is written as a folder, by type and relation. InputError for another
    object, one without labels, and a `path` that exists without `overwrite`.
    """
    return _write(read_dgl(g), path, overwrite)


def from_networkx(
    G: Any,
    path: str | Path = "graph.npz",
    *,
    label: str = "label",
    feat: str = "feat",
    overwrite: bool = False,
) -> str:
    """Write a networkx graph as an npz, and return its path.

    It takes the node attributes `label` (a number or a text; a list of 0 and 1 for several labels),
    `feat` (a number or a list) and the masks, and the edge attribute weight. Undirected edges are
    written in both directions. Nodes that are no integers are named by their text. InputError for
    another object, one without labels, and a `path` that exists without `overwrite`.
    """
    return _write(read_networkx(G, label, feat), path, overwrite)


def from_scipy(
    A: Any, x: Any, y: Any, path: str | Path = "graph.npz", *, overwrite: bool = False
) -> str:
    """Write an adjacency matrix as an npz, and return its path.

    A: sparse [N, N], the weight of u -> v at A[u, v]. x: [N, F] dense, sparse or None. y: [N] or
    [N, C]. InputError for other shapes, and a `path` that exists without `overwrite`.
    """
    return _write(read_scipy(A, x, y), path, overwrite)


def from_pandas(
    nodes: Any, edges: Any, path: str | Path = "graph", *, overwrite: bool = False
) -> str:
    """Write two data frames as a folder of tables, and return its path.

    nodes: a row per node, with a column or a named index of ids, labels, features and masks.
    edges: a row per edge, with src and dst and further columns. Columns are not checked further.
    InputError for other objects, and a `path` that exists without `overwrite`.
    """
    import pyarrow.parquet as pq

    tables = {"edges": to_table(edges, "edges"), "nodes": to_table(nodes, "nodes")}
    writers = {f"{name}.parquet": partial(pq.write_table, table) for name, table in tables.items()}
    return _write_entries(path, writers, overwrite)


def to_frame(given: Any, what: str) -> Frame:
    """Convert a data frame to a table in memory, known as `what`, with a named index as columns.

    Names lose blanks around them. InputError as of `to_table`.
    """
    table = to_table(given, what)
    names = [name.strip() for name in table.column_names]
    return Frame(what, dict(zip(names, table.columns, strict=True)))


def to_table(frame: Any, what: str) -> "pa.Table":
    """Convert a data frame of pandas to a table; an index with a name becomes a column.

    An index without a name is left out.

    Args:
        frame: what the user gave.
        what: its name in messages.

    Raises:
        InputError: not a data frame of pandas; columns of several levels or of one name; or a
            column with sets or dictionaries, or with values of several types.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import types

    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"{what}: {type(frame).__name__}; expected a data frame of pandas")
    if isinstance(frame.columns, pd.MultiIndex):
        raise InputError(f"{what}: columns of several levels; give each column one name")
    names = frame.columns.astype(str).str.strip()
    twice = names[names.duplicated()]
    if len(twice):
        raise InputError(f"{what}: two columns are called {twice[0]!r}; rename one")
    for name, column in frame.items():
        if column.dtype == object and any(isinstance(cell, set | frozenset) for cell in column):
            raise InputError(
                f"{what}: column {name!r} has sets, whose values have no order; write lists, such"
                " as by .map(sorted)"
            )
    is_named = any(name is not None for name in frame.index.names)
    try:
        table = pa.Table.from_pandas(frame, preserve_index=is_named)
    except UNREADABLE as error:
        has_texts = all(isinstance(argument, str) for argument in error.args)
        reason = ": ".join(reversed(error.args)) if has_texts else str(error)
        raise InputError(
            f"{what}: not a table with one type of values in each column: {reason}; write numbers,"
            " dates or texts, such as by .astype(str) or .sparse.to_dense()"
        ) from None
    for field in table.schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if types.is_struct(storage):
            raise InputError(
                f"{what}: column {field.name!r} has dictionaries or intervals; expected numbers or"
                " texts, such as by .astype(str)"
            )
    return table


# ---- files


def _write(graph: ArrayGraph, path: str | Path, overwrite: bool) -> str:
    """Write an npz, or for several types the folder PATH without .npz; return its path.

    InputError if there are no labels, a name cannot be a file's, edges lead to a type without
    nodes, or the path is no npz, cannot be written, or is there and not to be overwritten.
    """
    plain = graph.plain
    all_arrays = [*graph.types.values(), *graph.relations.values()]
    if not any({"label", "edge_label"} & arrays.keys() for arrays in all_arrays):
        whose = "each node" if plain is not None else "each node of a type"
        raise InputError(
            f"the graph has no labels, which are what is learned: give {whose} a class, or -1"
        )
    target = _check_target(path)
    if plain is not None:
        if target.suffix != ".npz":
            raise InputError(f"path={path}: expected the name of an .npz")
        return _write_entries(target, {"": partial(_save_npz, plain)}, overwrite)
    names = {*graph.types, *(name for edge_type in graph.relations for name in edge_type)}
    for name in sorted(names, key=str):
        check_name(name, "the graph")
    unknown = [
        edge_type
        for edge_type in graph.relations
        if not {edge_type[0], edge_type[2]} <= graph.types.keys()
    ]
    if unknown or not graph.relations:
        named = f"relation {unknown[0]}" if unknown else "the graph"
        raise InputError(f"{named}: expected edges between types that have nodes (num_nodes)")
    relations = {
        SEPARATOR.join(edge_type): _name_ends(graph, edge_type) for edge_type in graph.relations
    }
    writers = {
        "edges": partial(_save_folder, relations),
        "nodes": partial(_save_folder, graph.types),
    }
    folder = target.with_suffix("") if target.suffix == ".npz" else target
    return _write_entries(folder, writers, overwrite)


def _name_ends(graph: ArrayGraph, edge_type: EdgeType) -> dict[str, Any]:
    """Return the arrays of a relation with the ids of its ends, as folders of tables have them.

    InputError for an end that is no node.
    """
    arrays = dict(graph.relations[edge_type])
    for name, of_type in (("src", edge_type[0]), ("dst", edge_type[2])):
        ids, where = graph.types[of_type]["node_id"], f"{SEPARATOR.join(edge_type)}: {name}"
        arrays[name] = ids[check_endpoints(arrays[name], len(ids), where, of_type)]
    return arrays


def _check_target(path: Any) -> Path:
    """Return the path to write; InputError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path={path!r}: expected a path")
    return check_path("path", os.fspath(path))


def _save_npz(arrays: Mapping[str, Any], path: Path) -> None:
    with open_regular(path, "xb") as file:
        np.savez(file, **arrays)


def _save_folder(tables: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir()
    for name, arrays in tables.items():
        _save_npz(arrays, folder / f"{name}.npz")


def _write_entries(path: Any, writers: Mapping[str, Callable[[Path], Any]], overwrite: bool) -> str:
    """Write the entries of a folder, or one file, named "", beside their places; return the path.

    A failure leaves what was there. Folders above are made. Of an existing folder, which has to
    have these entries, only they are replaced, when all are written. InputError if the path exists
    and is not to be overwritten, or cannot be written.
    """
    target, is_file = _check_target(path), "" in writers
    is_own = all((target / name).exists() for name in writers) and target.is_dir() != is_file
    if target.exists() and not (overwrite and is_own):
        how = "" if is_file else " of a folder written before"
        raise InputError(f"path={path}: exists; choose another, or overwrite=True{how}")
    try:
        with ExitStack() as stack:
            if target.is_dir():
                parts = {
                    name: stack.enter_context(written_beside(target / name)) for name in writers
                }
            else:
                part = stack.enter_context(written_beside(target))
                parts = {name: part / name for name in writers}
                if not is_file:
                    part.mkdir()
            for name, write in writers.items():
                write(parts[name])
            for name in writers:
                if (target / name).is_dir():
                    shutil.rmtree(target / name)
    except OSError as error:
        cause = error.strerror or error
        raise InputError(f"path={path}: cannot be written ({cause}); choose another") from error
    return str(path)
