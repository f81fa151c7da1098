"""Reads a folder of tables as a heterogeneous graph, `dataset_file=FOLDER` (docs/data.md).

    nodes/TYPE.{parquet,csv}    columns id, label and masks; the others are features
    nodes/TYPE.npy              features [N_t, F_t]; the nodes are its rows
    nodes/TYPE.npz              a CSR matrix of scipy.sparse.save_npz, or arrays of form (a) of
                                file.py
    nodes/TYPE.features.{npz,npy,csv,parquet}    features, where the table of the nodes has none
    edges/SOURCE__RELATION__DESTINATION.{parquet,csv,npy,npz}    src, dst, weight, features;
                                                                 npy: [E, 2]

Edges name nodes by the ids of their types, or by position where a type has none. N_t nodes, F_t
features of a type.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.array_checks import (
    CSR,
    Array,
    check_edge_feat,
    check_integers,
    check_masks,
    check_node_ids,
    check_targets,
    features_among,
    refuse,
)
from partitioning.datasets.edge_tables import check_weight_column, read_edges
from partitioning.datasets.find_ids import Ends, find_id_columns
from partitioning.datasets.labels import Labels, read_labels, read_targets
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.raw import (
    MERGED_FEATURES,
    check_and_merge_edges,
    check_axes,
    check_table,
    check_times,
    is_csr,
    label_columns,
    read_arrays,
)
from partitioning.datasets.table_files import SUFFIXES, column_names, has_columns, kind_of, stem_of
from partitioning.datasets.tables import (
    Table,
    files_named,
    find_nodes,
    find_tables,
    in_node_order,
    is_table,
    read_table,
    schema_of,
)
from partitioning.errors import InputError, join_names
from partitioning.features.roles import check_requested
from partitioning.features.schema import Schema, Source
from partitioning.graph_data import (
    MASKS,
    SEPARATOR,
    EdgeType,
    HeteroGraphData,
    NodeTable,
    Relation,
)
from partitioning.node_names import Names, decode_names
from partitioning.partition_settings import ColumnSettings, DatasetSettings

log = logging.getLogger(__name__)

NODES = EDGES = (*SUFFIXES, "npy", "npz")
OF_NODES = ("feat", *CSR, "label", *MASKS, "node_id")


@dataclass(frozen=True, eq=False)
class RawNodes:
    """The nodes of one type, not yet checked."""

    num_nodes: int
    values: Mapping[str, Any]
    """feat, label and masks, in node order."""
    where: Mapping[str, str]
    """File and column of each, for messages."""
    node_id: Array | None = None
    """[N_t] integers."""
    node_names: Names | None = None
    schema: Schema | None = None
    """What the columns of feat hold; None: they are one matrix."""


@dataclass(frozen=True, eq=False)
class RawRelation:
    """The edges of one relation as node positions, not yet checked."""

    src: Array
    dst: Array
    edge_weight: Array | None
    where: str
    edge_feat: Array | None = None
    """[E, K] features, not yet encoded."""
    schema: Schema | None = None
    """What the columns of `edge_feat` hold."""
    edge_time: Array | None = None
    """[E]."""


def is_folder(path: Path) -> bool:
    """Whether a path is such a folder."""
    return (path / "nodes").is_dir() and (path / "edges").is_dir()


def load(path: Path, settings: DatasetSettings) -> HeteroGraphData:
    """Read a folder and check it; InputError names the file, what is wrong, and the remedy."""
    nodes, edges = path / "nodes", path / "edges"
    tables = {
        name: [*files_named(nodes, name, NODES), *files_named(nodes, f"{name}.features", NODES)]
        for name in _node_types(nodes)
    }
    files = {_edge_type(file): file for file in _list_tables(edges, EDGES)}
    for each in files:
        files_named(edges, SEPARATOR.join(each), EDGES)  # refuses two files of one relation
    return read_types(path, tables, files, settings)


def read_types(
    path: Path,
    tables: Mapping[str, Sequence[Source]],
    files: Mapping[EdgeType, Source],
    settings: DatasetSettings,
) -> HeteroGraphData:
    """Read tables of nodes by type, and of edges by relation; `path` is for messages."""
    if not files:
        raise InputError(
            f"{path}/edges: there is no table; expected SOURCE__RELATION__DESTINATION.parquet, csv"
            " or npy"
        )
    named = filter(has_columns, [*chain.from_iterable(tables.values()), *files.values()])
    check_requested(settings.columns, ((file, column_names(file)) for file in named))
    types = {
        name: _read_type(
            name,
            found,
            files,
            settings.columns,
            regression=settings.regression and settings.target in (None, name),
        )
        for name, found in tables.items()
    }
    check_weight_column(settings.columns, files.values())
    if settings.columns.time is not None and not settings.links:
        raise InputError(
            f"columns.time={settings.columns.time}: nodes of several types are not split by time;"
            " leave it out, or set it with task=link_prediction"
        )
    relations = {}
    for each, file in files.items():
        unknown = [name for name in (each[0], each[2]) if name not in types]
        if unknown:
            raise InputError(
                f"{file}: there is no type of nodes {unknown[0]!r}, only {join_names(types)}; "
                f"add {path}/nodes/{unknown[0]}.csv, or rename the file"
            )
        nodes = types[each[0]][0], types[each[2]][0]
        table = read_edges(
            file,
            settings.columns,
            nodes,
            drop_unknown=settings.drop_unknown,
            with_features=not settings.links,  # their means would reveal the edges to predict
        )
        relations[each] = RawRelation(
            table.src, table.dst, table.weight, f"{file}", table.feat, table.schema, table.time
        )
    return build(
        path.resolve().stem, {name: raw for name, (_, raw) in types.items()}, relations, settings
    )


def from_arrays(
    path: Path,
    types: Mapping[str, Mapping[str, Array]],
    relations: Mapping[EdgeType, Mapping[str, Array]],
    settings: DatasetSettings,
) -> HeteroGraphData:
    """Build the graph from arrays with the names of file.py, form (a); `path` is their file."""
    nodes = {
        name: _join_tables(name, [_of_arrays(path / name, arrays)])[1]
        for name, arrays in types.items()
    }
    edges = {
        each: _relation_of_arrays(
            arrays, f"{path}: {SEPARATOR.join(each)}", with_features=not settings.links
        )
        for each, arrays in relations.items()
    }
    return build(path.resolve().stem, nodes, edges, settings)


def _relation_of_arrays(
    arrays: Mapping[str, Array], where: str, *, with_features: bool
) -> RawRelation:
    feat = schema = None
    if with_features and "edge_feat" in arrays:
        feat = check_edge_feat(arrays["edge_feat"], len(arrays["src"]), f"{where}: `edge_feat`")
        schema = Schema.of_matrix(where, feat.shape[1])
    return RawRelation(arrays["src"], arrays["dst"], arrays.get("edge_weight"), where, feat, schema)


def _list_tables(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a folder with these suffixes; InputError for other files."""
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    odd = [file.name for file in files if kind_of(file) not in suffixes]
    if odd:
        log.warning("%s: %s: left out", folder, join_names(odd))
    found = [file for file in files if kind_of(file) in suffixes]
    for file in found:
        if not is_table(file):  # reading a FIFO would block
            raise InputError(f"{file}: not a regular file; expected a table")
    return found


def _node_types(folder: Path) -> list[str]:
    """Return the names of the node types that have a file in nodes/."""
    stems = [stem_of(file).removesuffix(".features") for file in _list_tables(folder, NODES)]
    for name in stems:
        check_name(name, f"{folder}/{name}")
    if not stems:
        raise InputError(
            f"{folder}: there is no table; expected TYPE.parquet, csv, npy or npz for each type of"
            " nodes"
        )
    return list(dict.fromkeys(stems))


def _edge_type(file: Path) -> EdgeType:
    """Return (source, relation, destination) from a file name SOURCE__RELATION__DESTINATION."""
    names = stem_of(file).split(SEPARATOR)
    if len(names) != 3:
        raise InputError(
            f"{file}: expected SOURCE__RELATION__DESTINATION.{kind_of(file)}, three names with __"
            " between"
        )
    for name in names:
        check_name(name, str(file))
    return names[0], names[1], names[2]


def check_name(name: Any, where: str) -> None:
    """InputError if the name of a type or relation cannot be a folder name."""
    if (
        not isinstance(name, str)
        or not name
        or SEPARATOR in name
        or name.startswith(".")
        or set(name) & set("/\\\0\n")
        or len(name) > 100
    ):
        raise InputError(
            f"{where}: {name!r} cannot be the name of a type or relation: without __ and /, not"
            " beginning with a dot, at most 100 letters; rename it"
        )


def _read_type(
    name: str,
    tables: Sequence[Source],
    edges: Mapping[EdgeType, Source],
    columns: ColumnSettings,
    *,
    regression: bool,
) -> tuple[Nodes, RawNodes]:
    """Read and join the tables of one node type."""
    ends: Ends = []
    for each, table in edges.items():
        sides = ((each[0], "src"), (each[2], "dst"))
        roles = tuple(role for end, role in sides if end == name)
        ends += [(table, roles)] if roles else []
    ids = find_id_columns(list(filter(has_columns, tables)), ends, columns)
    found = [_read_file(table, columns, ids.get(table), regression=regression) for table in tables]
    return _join_tables(name, found)


def _join_tables(name: str, tables: list[Table]) -> tuple[Nodes, RawNodes]:
    """Join the tables of one node type by id."""
    values, nodes = find_tables(tables), find_nodes(tables)
    nodes.kind = f"`{name}`"
    raw = RawNodes(
        nodes.num_nodes,
        {value: in_node_order(table, value, nodes) for value, table in values.items()},
        {value: table.values[value][1] for value, table in values.items()},
        nodes.ids,
        nodes.all_names(),
        schema_of(tables, values.get("feat")),
    )
    return nodes, raw


def _read_file(
    file: Source, columns: ColumnSettings, id_name: str | None, *, regression: bool
) -> Table:
    """Read one file of nodes: a table, or an npz with arrays or a sparse matrix."""
    if isinstance(file, Path) and file.suffix == ".npz" and not is_csr(file):
        arrays = read_arrays(file, OF_NODES)
        if regression and "label" in arrays:  # so that a node without a row gets NaN, not -1
            arrays["label"] = check_targets(arrays["label"], f"{file}: array `label`")
        return _of_arrays(file, arrays)
    return read_table(file, columns, id_name=id_name, regression=regression)


def _of_arrays(file: Path, arrays: Mapping[str, Array]) -> Table:
    """Return the table of the arrays of one type, with the names of file.py, form (a)."""
    check_axes(arrays, OF_NODES, str(file))
    known = {
        name: (arrays[name], f"{file}: array `{name}`")
        for name in ("label", *MASKS)
        if name in arrays
    }
    feat = features_among(arrays, file) if {"feat", *CSR} & arrays.keys() else None
    found: dict[str, Any] = (
        known if feat is None else {**known, "feat": (feat, f"{file}: array `feat`")}
    )
    ids = arrays.get("node_id")
    if ids is not None:
        where = f"{file}: array `node_id`"
        ids = decode_names(ids, where) if ids.dtype.kind in "US" else check_integers(ids, where)
    if not found and ids is None:
        raise InputError(
            f"{file}: has {join_names(arrays) or 'nothing'}; expected feat, label or node_id, a row"
            " a node"
        )
    first = ids if ids is not None else next(iter(found.values()))[0]
    rows = len(first) if isinstance(first, np.ndarray) else len(first.indptr) - 1
    return Table(file, rows, ids, f"{file}: array `node_id`", found)


def build(
    name: str,
    types: Mapping[str, RawNodes],
    relations: Mapping[EdgeType, RawRelation],
    settings: DatasetSettings,
) -> HeteroGraphData:
    """Check every array and put the graph together.

    InputError names type or relation, row, value and remedy.
    """
    if settings.links:
        target = next(iter(types))
    elif settings.is_unlabelled and settings.target is not None:
        target = settings.target
    else:
        target = _find_target(types, settings.target)
    if settings.links or settings.is_unlabelled:  # labels are not read
        labels = Labels(np.full(types[target].num_nodes, -1, np.int64), 0)
    else:
        labels = _read_labels(types[target], settings)
    masks: dict[str, Any] = {
        each: types[target].values[each]
        for each in MASKS
        if each in types[target].values and not settings.is_unlabelled
    }
    masks = dict(
        check_masks(
            masks,
            types[target].num_nodes,
            lambda each: types[target].where.get(each, each),
            settings.split.index,
        )
    )
    nodes = {each: _check_nodes(raw) for each, raw in types.items()}
    merge = settings.duplicates == "merge"
    edges = {
        each: _check_relation(raw, each, nodes, merge=merge) for each, raw in relations.items()
    }
    return HeteroGraphData(
        name,
        nodes,
        edges,
        target,
        labels.values,
        labels.num_classes,
        class_names=labels.names,
        **masks,
    )


def _read_labels(raw: RawNodes, settings: DatasetSettings) -> Labels:
    array, where = raw.values["label"], raw.where["label"]
    if settings.regression:
        return read_targets(array, where, label_columns(raw.schema), settings.labels)
    return read_labels(array, where, settings.labels)


def _find_target(types: Mapping[str, RawNodes], asked: str | None) -> str:
    """Return the type to learn: the only one with labels, or the one that is requested."""
    labelled = [name for name, raw in types.items() if "label" in raw.values]
    known = f"with labels: {join_names(labelled) or 'none'}"
    if asked is not None and asked not in types:
        raise InputError(
            f"target={asked}: there is no such type of nodes, only {join_names(types)}; {known}"
        )
    if asked not in (None, *labelled) or not labelled:
        who = (
            "no type of nodes has labels" if asked is None else f"target={asked}: it has no labels"
        )
        raise InputError(
            f"{who}; give the one to be learned a column `label` (or columns.label=NAME); {known}"
        )
    if asked is None and len(labelled) > 1:
        raise InputError(
            f"several types of nodes have labels: {join_names(labelled)}; set target={labelled[0]},"
            " or another: one type is learned"
        )
    target = asked or labelled[0]
    for other in labelled:
        if other != target:
            log.warning("%s: its labels are left out, target=%s is learned", other, target)
    return target


def _check_nodes(raw: RawNodes) -> NodeTable:
    """Check features and ids of the nodes of one type, and return them."""
    where = raw.where.get("feat", "feat")
    features, featured, schema = check_table(
        raw.values.get("feat"), raw.schema, raw.num_nodes, lambda name: f"{where} ({name})"
    )
    ids = np.arange(raw.num_nodes) if raw.node_id is None else raw.node_id
    ids = check_node_ids(ids, raw.num_nodes, raw.where.get("node_id", "ids"))
    return NodeTable(features, ids, raw.node_names, None if featured.all() else featured, schema)


def _check_relation(
    raw: RawRelation, each: EdgeType, nodes: Mapping[str, NodeTable], *, merge: bool
) -> Relation:
    """Check the edges of a relation, merge duplicates on request, and return them."""
    if len(raw.src) != len(raw.dst):
        raise InputError(
            f"{raw.where}: {len(raw.src)} sources, {len(raw.dst)} destinations; expected one of"
            " each"
        )
    for ends, name, column in ((raw.src, each[0], "src"), (raw.dst, each[2], "dst")):
        number = nodes[name].num_nodes
        outside: NDArray[np.bool_] = (ends < 0) | (ends >= number)
        refuse(
            ends,
            outside,
            f"{raw.where}: `{column}`",
            f"expected a position in [0, {number}) of `{name}`",
        )
    if merge and (raw.edge_feat is not None or raw.edge_time is not None):
        raise InputError(MERGED_FEATURES)
    src, dst, weight = check_and_merge_edges(
        raw.src,
        raw.dst,
        raw.edge_weight,
        nodes[each[2]].num_nodes,
        f"{raw.where}: weight",
        merge=merge,
    )
    time = raw.edge_time
    if time is not None:
        time = check_times(time, len(src), f"{raw.where}: time")
    if not len(src):
        log.warning("%s: relation %s has no edge", raw.where, SEPARATOR.join(each))
    return Relation(src, dst, weight, raw.edge_feat, raw.schema, time)
