"""Reads a folder of tables as a graph: form (b) of file.py.

    nodes/TYPE.{parquet,csv}    columns id, label and masks; the others are features
    nodes/TYPE.npy              features [N, F]; the nodes are its rows
    nodes/TYPE.npz              a CSR matrix of scipy.sparse.save_npz, or arrays of form (a)
    nodes/TYPE.features.{npz,npy,csv,parquet}    features, where the table of the nodes has none
    edges/SOURCE__RELATION__DESTINATION.{parquet,csv,npy,npz}    src, dst, weight, features;
                                                                 npy: [E, 2]

A folder with one table of edges, and nodes, features and labels beside it, has one type of nodes
and one relation. Edges name nodes by the ids of their types, or by position where a type has none.

N nodes and F features of a type, E edges of a relation. Rows are counted from 0, without the
header.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.errors import InputError, join_names
from partitioning.features.roles import (
    check_requested,
    columns_of_relation,
    find_labels,
    without_index,
)
from partitioning.graph.array_checks import Array, make_mask
from partitioning.graph.graph_data import MASKS, PLAIN_RELATION, PLAIN_TYPE, SEPARATOR, EdgeType
from partitioning.graph.schema import Source
from partitioning.partition_settings import ColumnSettings, DatasetSettings, TableSettings
from partitioning.read.array_files import list_arrays
from partitioning.read.edge_tables import REMEDIES, check_weight_column, find_ends, read_edges
from partitioning.read.find_ids import Ends, find_id_columns
from partitioning.read.index_files import FILE_NAMES, FORMATS, read_index
from partitioning.read.labelled_edges import NODE, find_labelled, read_edge_nodes, with_edge_nodes
from partitioning.read.labels import OF_EDGES_TOO
from partitioning.read.node_tables import Table, find_nodes, find_tables, join_tables, read_table
from partitioning.read.nodes import Nodes
from partitioning.read.raw import RawGraph, RawNodes, RawRelation
from partitioning.read.table_files import (
    SUFFIXES,
    column_names,
    has_columns,
    kind_of,
    list_visible,
    stem_of,
    warn_unread,
)

log = logging.getLogger(__name__)

NODE_TABLES = {
    "nodes": SUFFIXES,
    "features": ("npy", "npz", *SUFFIXES),
    "labels": ("npy", *SUFFIXES),
}
"""Tables of nodes of a plain folder, and their formats."""
EDGES = (*SUFFIXES, "npy")
TYPED = (*SUFFIXES, "npy", "npz")
"""Formats of the tables of a typed folder."""


@dataclass(frozen=True)
class GraphTables:
    """Tables of a graph."""

    nodes: Mapping[str, Sequence[Source]]
    """By type."""
    edges: Mapping[EdgeType, Source]
    folder: Path
    """For messages."""
    has_splits: bool = False
    """Whether files of the folder may list the nodes of a split."""

    @property
    def all(self) -> list[Source]:
        """Return the tables of nodes, then those of edges."""
        return [*chain.from_iterable(self.nodes.values()), *self.edges.values()]


# --- files ----------


def find_graph_tables(path: Path, names: TableSettings) -> GraphTables:
    """Find the tables that settings name, those of nodes/ and edges/, or those of usual names.

    InputError where one is missing, there twice or of another form.
    """
    if named_tables(names):
        return _find_named(path, names)
    if is_typed_folder(path):
        return _find_typed(path)
    return _find_plain(path)


def named_tables(names: TableSettings) -> list[str]:
    """Return the names of all tables that settings give."""
    return [
        name
        for given in (names.nodes or (), names.edges or ())
        for name in (given.values() if isinstance(given, Mapping) else given)
    ]


def _find_named(folder: Path, names: TableSettings) -> GraphTables:
    """Find the tables that settings name; those of the other kind have their usual names.

    InputError for a name that is no table there, or in another form than the other setting's.
    """

    def find(role: str, name: str) -> Path:
        file = folder / str(name)
        if file.name != name or kind_of(file) not in TYPED or not is_table(file):
            there = join_names(sorted(each.name for each in list_visible(folder))) or "nothing"
            raise InputError(f"tables.{role}={name}: no such table in {folder}; found {there}")
        return file

    if not is_folder(folder):
        raise InputError(
            f"tables.nodes and tables.edges name tables of a folder: dataset_file={folder} is none"
        )
    nodes, edges = names.nodes, names.edges
    if isinstance(nodes, Mapping) or isinstance(edges, Mapping):
        for role, given in (("nodes", nodes), ("edges", edges)):
            if isinstance(given, tuple):
                raise InputError(
                    f"tables.{role}={join_names(given)}: expected the tables by type and relation,"
                    " {NAME: TABLE}, as those of the other kind are"
                )
        for name in nodes or ():
            check_name(name, "tables.nodes")
        types = {name: [find("nodes", file)] for name, file in (nodes or {}).items()}
        relations = {
            _edge_type(name, f"tables.edges: {name}"): find("edges", file)
            for name, file in (edges or {}).items()
        }
        usual = GraphTables(types, relations, folder)
        if nodes is None or edges is None:
            usual = _find_typed(folder)
        return replace(usual, nodes=types or usual.nodes, edges=relations or usual.edges)
    for role, given in (("nodes", nodes), ("edges", edges)):
        if given is not None and len(given) > 1:
            raise InputError(f"tables.{role}={join_names(given)}: expected one table")
    usual = _find_plain(folder if edges is None else find("edges", edges[0]))
    if nodes is None:
        return usual
    return replace(usual, nodes={PLAIN_TYPE: [find("nodes", nodes[0])]})


def _find_plain(path: Path) -> GraphTables:
    """Find the tables of a folder with one table of edges, or beside it; InputError without one."""
    is_edges = not is_folder(path)
    folder = path.parent if is_edges else path
    edges = [path] if is_edges else files_named(path, "edges", EDGES)
    if not edges:
        names = ", ".join(f"edges.{suffix}" for suffix in EDGES)
        there = join_names(sorted(file.name for file in path.iterdir()))
        raise InputError(
            f"dataset_file={path}: expected one of {names}; found {there or 'nothing'}: rename the"
            " table of edges, and that of nodes (nodes.csv ...), or set dataset_file=FILE of edges"
        )
    tables = [
        file
        for stem, suffixes in NODE_TABLES.items()
        for file in files_named(folder, stem, suffixes)
        if file not in edges
    ]
    return GraphTables({PLAIN_TYPE: tables}, {PLAIN_RELATION: edges[0]}, folder, has_splits=True)


def _find_typed(path: Path) -> GraphTables:
    """Find the tables of a folder with the folders nodes/ and edges/."""
    nodes, edges = path / "nodes", path / "edges"
    tables = {
        name: [*files_named(nodes, name, TYPED), *files_named(nodes, f"{name}.features", TYPED)]
        for name in _node_types(nodes)
    }
    files = {_edge_type(stem_of(file), str(file)): file for file in _list_tables(edges)}
    for edge_type in files:
        files_named(edges, SEPARATOR.join(edge_type), TYPED)  # refuses two files of one relation
    return GraphTables(tables, files, path)


def is_typed_folder(path: Path) -> bool:
    """Return whether a path is a folder of tables by type and relation."""
    return (path / "nodes").is_dir() and (path / "edges").is_dir()


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder of tables, not a table of part files."""
    return path.is_dir() and not has_columns(path)


def is_table(path: Path) -> bool:
    """Return whether a path is a file, or a folder of part files of a csv or parquet table."""
    return path.is_file() or (path.is_dir() and not is_folder(path))


def files_named(folder: Path, stem: str, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the file of a name in the folder, or none; InputError for two."""
    files = [
        folder / f"{stem}.{suffix}" for suffix in suffixes if is_table(folder / f"{stem}.{suffix}")
    ]
    if len(files) > 1:
        raise InputError(
            f"dataset_file={folder}: found {', '.join(file.name for file in files)}; expected one"
            " of them"
        )
    return files


def _list_tables(folder: Path) -> list[Path]:
    """Return the tables of nodes/ or edges/, sorted by name; warn about other files.

    Hidden files are left out. Raises InputError for a table that is no regular file.
    """
    files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    tables = [file for file in files if kind_of(file) in TYPED]
    warn_unread(folder, (file for file in list_visible(folder) if file not in tables))
    for file in tables:
        if not is_table(file):  # reading a FIFO would block
            raise InputError(f"{file}: not a regular file; expected a table")
    return tables


def _node_types(folder: Path) -> list[str]:
    """Return the names of the node types that have a file in nodes/; InputError for none."""
    stems = [stem_of(file).removesuffix(".features") for file in _list_tables(folder)]
    for name in stems:
        check_name(name, f"{folder}/{name}")
    if not stems:
        raise InputError(
            f"{folder}: there is no table; expected TYPE.parquet, csv, npy or npz for each type of"
            " nodes"
        )
    return list(dict.fromkeys(stems))


def _edge_type(name: str, where: str) -> EdgeType:
    """Return the parts of a name SOURCE__RELATION__DESTINATION; InputError for another name."""
    names = name.split(SEPARATOR)
    if len(names) != 3:
        raise InputError(
            f"{where}: expected SOURCE__RELATION__DESTINATION, three names with __ between"
        )
    for each in names:
        check_name(each, where)
    return names[0], names[1], names[2]


def check_name(name: Any, where: str) -> None:
    """Raise InputError if the name of a type or relation cannot be a folder name."""
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


# --- reading ----------


def read_tables(name: str, paths: GraphTables, settings: DatasetSettings) -> RawGraph:
    """Read the tables of the graph `name`; InputError names table, column, row and value.

    The log warns of nodes that edges.unknown=add adds.
    """
    if not paths.edges:
        raise InputError(
            f"{paths.folder}/edges: there is no table; expected"
            " SOURCE__RELATION__DESTINATION.parquet, csv or npy"
        )
    columns = settings.columns
    is_plain = PLAIN_TYPE in paths.nodes and columns.relation is None
    named = list(filter(has_columns, paths.all))
    check_requested(columns, ((table, column_names(table)) for table in named))
    ends = _find_all_ends(paths, columns)
    tables = {name: _read_nodes(name, paths, ends, settings) for name in paths.nodes}
    check_weight_column(columns, paths.edges.values())
    if columns.time is not None and not (is_plain or settings.task.links or settings.task.of_edges):
        raise InputError(
            f"columns.time={columns.time}: nodes of several types are not split by time;"
            " leave it out, or set it with task=link_prediction"
        )
    grows = settings.edges.unknown == "add"
    if grows:
        types = chain.from_iterable((edge_type[0], edge_type[2]) for edge_type in paths.edges)
        tables |= {name: [] for name in types if name not in tables}
    nodes = {each: find_nodes(table, each, grows=grows) for each, table in tables.items()}
    counts = {name: held.num_nodes for name, held in nodes.items()}
    labelled = _find_labelled(paths, settings) if settings.task.of_edges else None
    relations = {
        key: _read_relation(key, table, nodes, paths, settings, skips=key == labelled)
        for key, table in paths.edges.items()
    }
    for each, held in nodes.items() if grows else ():
        if held.num_nodes > counts[each]:
            log.warning(
                "%s: %d nodes%s that only edges name are added, without features and labels"
                " (edges.unknown=add)",
                paths.folder,
                held.num_nodes - counts[each],
                each and f" of {each}",
            )
    joined = {each: join_tables(table, nodes[each]) for each, table in tables.items()}
    has_splits = paths.has_splits and not (settings.task.links or settings.is_unlabelled)
    if labelled is None:
        if has_splits:
            joined[PLAIN_TYPE] = _with_splits(joined[PLAIN_TYPE], paths.folder, nodes[PLAIN_TYPE])
        if columns.relation is not None:
            relations = _split_relations(relations)
            joined = {name or NODE: raw for name, raw in joined.items()}
        return RawGraph(name, joined, relations)
    edges, rows = read_edge_nodes(paths.edges[labelled], relations[labelled], settings)
    if has_splits:
        edges = _with_splits(edges, paths.folder, rows)
    return with_edge_nodes(RawGraph(name, joined, relations), labelled, edges, settings)


def _find_labelled(paths: GraphTables, settings: DatasetSettings) -> EdgeType:
    """Find the relation whose edges have labels; InputError for none, or several."""
    has_labels = {
        edge_type: bool(find_labels(column_names(table), settings.columns, table))
        if has_columns(table)
        else table.suffix == ".npz" and "edge_label" in list_arrays(Path(str(table)))
        for edge_type, table in paths.edges.items()
    }
    return find_labelled(has_labels, settings)


def _split_relations(relations: Mapping[EdgeType, RawRelation]) -> dict[EdgeType, RawRelation]:
    """Split relations by the names that a column of their table has, in alphabetical order.

    Edges keep their order. Characters that a name cannot have are replaced, and logged.
    InputError if two relations have the same name then.
    """
    by_name: dict[EdgeType, RawRelation] = {}
    for edge_type, raw in relations.items():
        if raw.kind is None:
            by_name[edge_type] = raw
            continue
        pieces = np.split(
            np.argsort(raw.kind, kind="stable"),
            np.cumsum(np.bincount(raw.kind, minlength=len(raw.kinds)))[:-1],
        )
        for written, rows in sorted(zip(raw.kinds, pieces, strict=True), key=lambda pair: pair[0]):
            name = re.sub(r"[/\\\0\n]+|__+", "_", written.strip()).strip("._")
            check_name(name, raw.at("relation"))
            if name != written.strip():
                log.warning("%s: relation `%s` is called `%s`", raw.at("relation"), written, name)
            relation = edge_type[0] or NODE, name, edge_type[2] or NODE
            if relation in by_name:
                raise InputError(
                    f"{raw.at('relation')}: `{written}` and another relation are both called"
                    f" {SEPARATOR.join(relation)}; rename one"
                )
            # A schema of its own, because tables with the same one are encoded once.
            schema = None if raw.schema is None else replace(raw.schema)
            by_name[relation] = replace(raw.take(rows), kind=None, schema=schema)
    return by_name


AllEnds = Mapping[EdgeType, tuple[str, ...]]
"""Columns of sources and destinations, by relation; none of arrays."""


def _find_all_ends(paths: GraphTables, columns: ColumnSettings) -> AllEnds:
    """Find the ends of all tables of edges, () for arrays: else ids of nodes could be features.

    Raises:
        InputError: a table has none; the message says what may do for all of them.
    """
    middles = [edge_type[1] for edge_type in paths.edges]
    names = {
        edge_type: edge_type[1] if middles.count(edge_type[1]) == 1 else SEPARATOR.join(edge_type)
        for edge_type in paths.edges
    }
    for role in ("src", "dst"):
        asked = getattr(columns, role)
        for name in asked if isinstance(asked, Mapping) else ():
            if name not in {*middles, *map(SEPARATOR.join, paths.edges)} - {""}:
                raise InputError(
                    f"columns.{role}: there is no relation {name!r}, only"
                    f" {join_names(filter(None, names.values())) or 'one table of edges'}"
                )
    ends: dict[EdgeType, tuple[str, ...]] = {}
    error, can_help = None, PLAIN_TYPE not in paths.nodes
    for edge_type, table in paths.edges.items():
        ends[edge_type] = ()
        try:
            if has_columns(table):
                ends[edge_type] = (*find_ends(table, columns_of_relation(columns, edge_type)),)
        except InputError as found_error:
            error = error or found_error
            ends[edge_type] = (*without_index(column_names(table))[0][:2],)
            can_help &= len(ends[edge_type]) == 2
    if error is None:
        return ends
    if not can_help:
        raise error
    src, dst = (
        ", ".join(f"{names[edge_type]}: {held[at]}" for edge_type, held in ends.items() if held)
        for at in range(2)
    )
    raise InputError(f"{error}; of all tables, such as columns.src={{{src}}} columns.dst={{{dst}}}")


def _read_nodes(
    name: str, paths: GraphTables, ends: AllEnds, settings: DatasetSettings
) -> list[Table]:
    """Read the tables of one node type; edge tables help to find the columns of ids.

    InputError if the nodes of a plain graph need labels and have none.
    """
    is_plain, columns, sources = name == PLAIN_TYPE, settings.columns, paths.nodes[name]
    referring: Ends = []
    for key, table in paths.edges.items():
        sides = zip(("src", "dst"), (key[0], key[2]), ends[key] or (None, None), strict=True)
        roles = {role: column for role, end, column in sides if end == name}
        referring += [(table, roles)] if roles else []
    ids = find_id_columns(list(filter(has_columns, sources)), referring, columns)
    tables = [
        read_table(
            table,
            columns,
            id_name=ids.get(table),
            are_labels=is_plain and stem_of(table) == "labels",
            regression=settings.task.regression and settings.target in (None, name),
        )
        for table in sources
    ]
    is_blank = settings.task.links or settings.is_unlabelled or settings.task.of_edges
    if is_plain and not is_blank and "label" not in find_tables(tables):
        names = chain.from_iterable(map(column_names, filter(has_columns, sources)))
        raise InputError(
            f"{paths.folder}: no labels: expected a column `label` in nodes or features"
            " (columns.label=NAME for another), or a table labels.csv, .parquet or .npy; found"
            f" {join_names(table.name for table in sources) or 'none'}, columns"
            f" {join_names(names) or 'none'}; split=none partitions a graph without labels for"
            f" app=predict{OF_EDGES_TOO}"
        )
    return tables


def _read_relation(
    edge_type: EdgeType,
    table: Source,
    nodes: Mapping[str, Nodes],
    paths: GraphTables,
    settings: DatasetSettings,
    *,
    skips: bool,
) -> RawRelation:
    """Read the table of edges of one relation; InputError if an end is of an unknown type.

    The log warns of Undirected edges of Gephi. `skips`: times and features are read elsewhere. With
    links, only plain graphs' edges have these.
    """
    columns = columns_of_relation(settings.columns, edge_type)
    for end in (edge_type[0], edge_type[2]):
        if end not in nodes:
            raise InputError(
                f"{table}: there is no type of nodes {end!r}, only {join_names(nodes)}; "
                f"add {paths.folder}/nodes/{end}.csv, rename it, or set edges.unknown=add"
            )
    raw = read_edges(
        table,
        replace(columns, time=None) if skips else columns,
        (nodes[edge_type[0]], nodes[edge_type[2]]),
        drop_unknown=settings.edges.unknown == "drop",
        remedy=REMEDIES[settings.is_unlabelled],
        # Means of the features of edges by type would reveal the edges to predict.
        with_features=None
        if skips
        else not settings.task.links
        or (edge_type == PLAIN_RELATION and settings.columns.relation is None),
    )
    kind = raw.schema and raw.schema.find("Type")  # of Gephi
    if kind and "Undirected" in kind.categories and settings.symmetrize is None:
        said = "%s: column `Type` has Undirected edges; symmetrize=true adds the reverse of all"
        log.warning(said, table)
    return raw


def _with_splits(raw: RawNodes, folder: Path, nodes: Nodes) -> RawNodes:
    """Return the nodes with the masks of the index files of the folder, if any, such as train.csv.

    InputError if a table has masks or a split, too, or there are two files for one mask.
    """
    masks: dict[str, Array] = {}
    for part, stems in FILE_NAMES.items():
        names = [f"{stem}.{suffix}" for stem in stems for suffix in FORMATS]
        files = [name for name in names if (folder / name).is_file()]
        if len(files) > 1:
            raise InputError(
                f"dataset_file={folder}: expected one of {', '.join(files)}; found all of them"
            )
        if files:
            by_id = nodes if nodes.ids is not None else None
            path = folder / files[0]
            if in_table := [name for name in MASKS if name in raw.values]:
                raise InputError(f"{path}: {raw.at(in_table[0])} is the split, too; take one out")
            index = read_index(path, nodes.num_nodes, "dataset_file", by_id)
            masks[f"{part}_mask"] = make_mask(index, nodes.num_nodes)
    where = {f"{part}_mask": f"{folder}: {part}.npy or {part}.csv" for part in FILE_NAMES}
    return replace(raw, values={**raw.values, **masks}, where=where | {**raw.where})
