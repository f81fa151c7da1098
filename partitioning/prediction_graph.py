"""Reads a graph to predict into memory, from a file or an object, and adds new nodes to it.

Columns are encoded by the pipeline that a model was trained with. A graph is a path (as
dataset_file), a Data or HeteroData of PyG, a DGLGraph, a networkx graph, or a pair of nodes and
edges: two data frames, or for several types two dictionaries, {TYPE: frame} and {(SOURCE,
RELATION, DESTINATION): frame}.

N nodes, E edges, n new nodes.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning import datasets
from partitioning.datasets import file, hetero_objects, hetero_tables, objects
from partitioning.datasets.edge_tables import EdgeTable, read_edges
from partitioning.datasets.frames import TextIds
from partitioning.datasets.hetero_objects import as_arrays
from partitioning.datasets.nodes import Nodes
from partitioning.datasets.symmetry import add_reverse_edges
from partitioning.datasets.tables import Table, read_table
from partitioning.errors import InputError
from partitioning.features.build import (
    STORED_ROLES,
    States,
    add_kinds,
    encode_tables,
    read_as_fitted,
    stored_columns,
)
from partitioning.features.encoder import EncodedFeatures, apply
from partitioning.features.roles import MissingColumn
from partitioning.features.schema import Schema
from partitioning.graph_data import (
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    AnyGraph,
    EdgeType,
    GraphData,
    HeteroGraphData,
    NodeTable,
    Relation,
)
from partitioning.links.link_split import (
    LinkSplit,
    find_relation,
    split_links,
    to_graph_of_relation,
)
from partitioning.node_names import Names
from partitioning.partition_settings import ColumnSettings, DatasetSettings
from partitioning.reverse_relations import REVERSE

FORMS = (
    "a path, a Data or HeteroData of PyG, a DGLGraph, a networkx graph, or a pair of nodes and"
    " edges (two data frames, or two dictionaries of them by type)"
)
ID_ROLES = ("id", "src", "dst", "weight")


@dataclass(frozen=True, eq=False)
class PredictionGraph:
    """A graph to predict."""

    graph: AnyGraph
    """With the features that the network reads."""
    encoded: AnyGraph
    """The same before the kinds of features.kind are added."""
    settings: DatasetSettings
    stored: States
    """The pipelines that encode its tables."""
    links: LinkSplit | None = None
    """For link prediction; all pairs are training pairs."""

    @property
    def keeps_features(self) -> bool:
        """Whether new nodes leave the features of the others as they are."""
        return tuple(self.settings.features.kind) == ("given",) and isinstance(
            self.encoded, GraphData
        )


def read(given: Any, settings: DatasetSettings, stored: States) -> PredictionGraph:
    """Read a graph to predict.

    Args:
        given: One of FORMS.
        settings: How the training graph was read, with split.kind=none.
        stored: The pipelines of the model.

    Raises:
        InputError: it is none, or a column or type is not what the model was trained with.
    """
    if stored:
        settings = replace(settings, columns=_named_columns(stored, settings.columns))
    try:
        graph = read_as_fitted(
            lambda columns: _read(given, replace(settings, columns=columns)),
            settings.columns,
            stored,
        )
    except MissingColumn as error:
        if stored and error.role in STORED_ROLES:
            raise InputError(
                f"graph: no column `{error.pattern}`, which the model was trained with;"
                f" {str(error).partition('column: ')[2]}"
            ) from error
        raise
    if stored:
        settings = replace(settings, columns=stored_columns(stored, settings.columns))
    encoded: Any
    encoded, _ = encode_tables(graph, settings.features, None, stored)
    if not settings.links:
        encoded = _dense(encoded)
        return PredictionGraph(add_kinds(encoded, settings.features), encoded, settings, stored)
    if isinstance(encoded, HeteroGraphData):
        encoded = to_graph_of_relation(encoded, find_relation(encoded, settings.relation))
    encoded = _dense(encoded)
    links = split_links(encoded, settings.split, settings.spectral, paths=settings.paths)
    made = add_kinds(links.graph, settings.features)
    return PredictionGraph(made, encoded, settings, stored, links)


def _named_columns(stored: States, columns: ColumnSettings) -> ColumnSettings:
    """The columns of ids, ends and weights as stored, unless settings name them."""
    known = {
        role: [name for state in stored.values() for name in state["roles"].get(role, [])]
        for role in ID_ROLES
    }
    names: Any = {
        role: found[0]
        for role, found in known.items()
        if len(set(found)) == 1 and getattr(columns, role) is None
    }
    return replace(columns, **names)


def _dense(graph: Any) -> Any:
    """Features as arrays instead of EncodedFeatures."""
    if isinstance(graph, HeteroGraphData):
        return graph
    made = {name: getattr(graph, name) for name in ("features", "edge_feat")}
    return replace(
        graph,
        **{
            name: each.toarray() for name, each in made.items() if isinstance(each, EncodedFeatures)
        },
    )


def _read(given: Any, settings: DatasetSettings) -> AnyGraph:
    name = type(given).__name__
    if isinstance(given, DatasetSettings):
        return datasets.read_graph(settings)
    if _has_types(given) and settings.target is None and not settings.links:
        raise InputError(
            "graph: a heterogeneous graph; the model is for a plain graph, without types"
        )
    if isinstance(given, str | Path):
        return datasets.read_graph(replace(settings, name="file", file=str(given)))
    if hasattr(given, "node_types") or (hasattr(given, "ntypes") and len(given.etypes) != 1):
        make = hetero_objects.of_pyg if hasattr(given, "node_types") else hetero_objects.of_dgl
        types, relations = make(given)
        # In the order of the files that `retexo.from_pyg` writes, which numbers relations.
        graph: AnyGraph = hetero_tables.from_arrays(
            Path(name),
            {each: types[each] for each in sorted(types, key="{}.npz".format)},
            {each: relations[each] for each in sorted(relations, key=SEPARATOR.join)},
            settings,
        )
        return datasets.add_reverse(graph, settings)
    if isinstance(given, tuple | list) and len(given) == 2:
        with _as_files(*given) as folder, _named_as_given(folder):
            return datasets.read_graph(replace(settings, name="file", file=str(folder)))
    for attribute, convert in (
        ("edge_index", objects.pyg_arrays),
        ("ntypes", objects.dgl_arrays),
        ("is_directed", objects.networkx_arrays),
    ):
        if hasattr(given, attribute):
            found = {key: value for key, value in convert(given).items() if "mask" not in key}
            found |= {"label": None}
            return datasets.add_reverse(
                file.from_arrays(name, as_arrays(found), settings), settings
            )
    raise InputError(f"graph: {name}: expected {FORMS}")


def _has_types(given: Any) -> bool:
    if isinstance(given, str | Path):
        return hetero_tables.is_folder(Path(given))
    is_pair_of_types = isinstance(given, tuple | list) and all(
        isinstance(each, Mapping) for each in given
    )
    return is_pair_of_types or hasattr(given, "node_types")


@contextlib.contextmanager
def _named_as_given(folder: Path) -> Iterator[None]:
    """Name `nodes` in messages, not the file nodes.parquet of a temporary folder."""
    try:
        yield
    except MissingColumn as error:
        raise MissingColumn(error.role, error.pattern, _without_files(str(error), folder)) from None
    except InputError as error:
        raise InputError(_without_files(str(error), folder)) from None


def _without_files(message: str, folder: Path) -> str:
    return (
        message.replace(f"dataset_file={folder}", "graph")
        .replace(f"{folder}/", "")
        .replace(".parquet", "")
    )


@contextlib.contextmanager
def _as_files(nodes: Any, edges: Any) -> Iterator[Path]:
    """The folder of tables of two data frames or of two dictionaries of them, while it is read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if hasattr(nodes, "columns") and hasattr(edges, "columns"):
            frames = {"nodes": nodes, "edges": edges}
        elif isinstance(nodes, Mapping) and isinstance(edges, Mapping):
            frames = {f"nodes/{each}": frame for each, frame in nodes.items()}
            for each, frame in edges.items():
                hetero_tables.check_name(SEPARATOR, "") if len(each) != 3 else None
                frames[f"edges/{SEPARATOR.join(each)}"] = frame
            for below in ("nodes", "edges"):
                (folder / below).mkdir()
        else:
            raise InputError(
                f"graph: a pair of {type(nodes).__name__} and {type(edges).__name__}: expected"
                f" {FORMS}"
            )
        for place, frame in frames.items():
            write_frame(frame, folder / f"{place}.parquet", place)
        yield folder


def write_frame(frame: Any, path: Path, what: str) -> None:
    """Write a data frame; InputError for cells of several types in a column."""
    try:
        frame.to_parquet(path, index=frame.index.name is not None)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{what}: not a table with one type of values in each column: {reason}"
        ) from None


# --- new nodes ----------


def known_nodes(table: NodeTable) -> Nodes:
    """The nodes of a type, to look up the ends of new edges."""
    if table.node_names is not None:
        return Nodes(
            table.num_nodes, np.array(table.node_names.tolist(), dtype=object), grows=False
        )
    return Nodes(table.num_nodes, table.node_ids, grows=False)


@dataclass(frozen=True, eq=False)
class Addition:
    """New nodes with their edges, whose ends are positions in the grown graph."""

    nodes: dict[str, NodeTable]
    """By type, with encoded features; of types with new nodes."""
    relations: dict[EdgeType, Relation]
    """The new edges, also in reverse where the graph has reverse edges."""


def read_addition(
    held: PredictionGraph, known: Mapping[str, Nodes], nodes: Any, edges: Any
) -> Addition:
    """Read new nodes and their edges.

    Args:
        held: The graph that they join.
        known: Its nodes by type.
        nodes: A data frame with ids and features; with several types {TYPE: frame}.
        edges: A data frame of src and dst; with several types {(SOURCE, RELATION, DESTINATION):
            frame}. Each edge has a new node at one end.

    Raises:
        InputError: an id is not new or not known, or a column is not as in training.
    """
    graph = held.encoded
    if isinstance(graph, GraphData):
        nodes, edges = {PLAIN_TYPE: nodes}, {PLAIN_RELATION: edges}
    made: dict[str, NodeTable] = {}
    grown = dict(known)
    for name, frame in nodes.items():
        if name not in graph.nodes:
            raise InputError(f"nodes: no type {name!r}; the graph has {', '.join(graph.nodes)}")
        made[name], ids = _new_nodes(held, name, frame, known[name])
        grown[name] = known[name].extended(ids)
    relations: dict[EdgeType, Relation] = {}
    for each, frame in edges.items():
        each = tuple(each)
        if each not in graph.relations:
            there = ", ".join(SEPARATOR.join(other) for other in graph.relations)
            raise InputError(
                f"edges: no relation {SEPARATOR.join(map(str, each))!r}; the graph has {there}"
            )
        relations[each] = _new_edges(held, each, frame, known, grown)
    return Addition(made, _add_reverse(held, relations, grown))


def _new_nodes(
    held: PredictionGraph, name: str, frame: Any, known: Nodes
) -> tuple[NodeTable, NDArray[Any]]:
    what = f"new nodes{name and f' of {name}'}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nodes.parquet"
        write_frame(frame, path, what)
        table = _read_new(path, held.settings.columns, known, what)
    if table.ids is None:
        raise InputError(f"{what}: no column of ids; give it as `id`")
    rows = known.find_rows(table.ids, what, keep_unknown=True)
    if (rows >= 0).any():
        raise InputError(
            f"{what}: {table.ids[int((rows >= 0).argmax())]} is in the graph already; ask for it by"
            " node_ids"
        )
    keys = known.extended(table.ids)
    if not keys.index.is_unique:
        raise InputError(f"{what}: an id occurs twice; give each node one row")
    assert keys.ids is not None
    names = Names.of(map(str, table.ids)) if known.named else None
    features = _encode_new(held, name, table, what)
    return NodeTable(features, keys.ids[known.num_nodes :], names), table.ids


def _read_new(path: Path, columns: ColumnSettings, known: Nodes, what: str) -> Table:
    try:
        return read_table(path, columns, text=known.named)
    except TextIds:
        raise InputError(f"{what}: ids are names; those of the graph are integers") from None
    except MissingColumn as error:
        raise InputError(f"{what}: {error}; the model was trained with this column") from error
    except InputError as error:
        raise InputError(str(error).replace(str(path), what)) from None


def _encode_new(held: PredictionGraph, name: str, table: Table, what: str) -> NDArray[np.float32]:
    """[n, F_t] encoded features of new nodes."""
    width = held.encoded.nodes[name].features.shape[1]
    state = held.stored.get(f"nodes/{name}" if name else "nodes")
    if not width:
        return np.zeros((table.rows, 0), np.float32)
    raw: Any = table.values["feat"][0] if "feat" in table.values else np.zeros((table.rows, 0))
    schema = table.schema or Schema(what, ())
    schema = replace(schema, path=what)
    is_matrix = state is None or [each["role"] for each in state["columns"]] == ["matrix"]
    if is_matrix:
        if raw.shape[1] != width:
            raise InputError(
                f"{what}: {raw.shape[1]} numbers in a row; the model was trained with {width}: give"
                " them as one column of lists, or as columns of numbers"
            )
        schema = Schema.of_matrix(what, width)
    if np.isnan(raw).any() and is_matrix:
        raise InputError(f"{what}: a blank feature; the model was trained without blanks")
    if state is None:
        return np.asarray(raw, np.float32)
    made = apply(state, raw, schema)
    return np.asarray(made.toarray(), np.float32)


def _new_edges(
    held: PredictionGraph,
    each: EdgeType,
    frame: Any,
    known: Mapping[str, Nodes],
    grown: Mapping[str, Nodes],
) -> Relation:
    relation, what = (
        held.encoded.relations[each],
        f"new edges{each[1] and f' {SEPARATOR.join(each)}'}",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edges.parquet"
        write_frame(frame, path, what)
        table = _read_new_edges(path, held, (grown[each[0]], grown[each[2]]), what)
    first = known[each[0]].num_nodes, known[each[2]].num_nodes
    between = (table.src < first[0]) & (table.dst < first[1])
    if between.any():
        raise InputError(
            f"{what}: row {int(between.argmax())} joins two nodes that are in the graph already;"
            " attach the changed graph instead"
        )
    weight = table.weight
    if weight is not None and relation.edge_weight is None:
        raise InputError(f"{what}: have weights, those of the graph have none; leave them out")
    if relation.edge_weight is not None and weight is None:
        weight = np.ones(len(table.src), np.float32)
    return Relation(table.src, table.dst, weight, _encode_edges(held, each, relation, table, what))


def _encode_edges(
    held: PredictionGraph, each: EdgeType, relation: Relation, table: EdgeTable, what: str
) -> NDArray[np.float32] | None:
    """[E, K] encoded features of new edges; None where the graph's edges have none."""
    if relation.edge_feat is None or held.links is not None:
        return None
    state = held.stored.get(f"edges/{SEPARATOR.join(each)}" if each[1] else "edges")
    width = relation.edge_feat.shape[1]
    raw = np.zeros((len(table.src), 0), np.float32) if table.feat is None else table.feat
    if state is not None and table.schema is not None:
        return np.asarray(apply(state, raw, replace(table.schema, path=what)).toarray(), np.float32)
    if raw.shape[1] != width:
        raise InputError(f"{what}: {raw.shape[1]} features; the model was trained with {width}")
    return np.asarray(raw, np.float32)


def _read_new_edges(
    path: Path, held: PredictionGraph, nodes: tuple[Nodes, Nodes], what: str
) -> EdgeTable:
    try:
        return read_edges(path, held.settings.columns, nodes, with_features=True)
    except TextIds:
        raise InputError(f"{what}: ids are names; those of the graph are integers") from None
    except InputError as error:
        raise InputError(str(error).replace(str(path), what)) from None


def _add_reverse(
    held: PredictionGraph, relations: dict[EdgeType, Relation], grown: Mapping[str, Nodes]
) -> dict[EdgeType, Relation]:
    """The new edges, and their reverse where the whole graph has reverse edges."""
    if isinstance(held.encoded, GraphData):
        if not held.settings.symmetrize or PLAIN_RELATION not in relations:
            return relations
        added = relations[PLAIN_RELATION]
        count = grown[PLAIN_TYPE].num_nodes
        alone = replace(
            held.encoded,
            src=added.src,
            dst=added.dst,
            labels=np.zeros(count, np.int64),
            edge_weight=added.edge_weight,
            edge_feat=added.edge_feat,
            edge_time=None,
        )
        both = add_reverse_edges(alone)
        return {PLAIN_RELATION: Relation(both.src, both.dst, both.edge_weight, both.edge_feat)}
    made = dict(relations)
    for each, added in relations.items():
        back = each[2], f"{REVERSE}{each[1]}", each[0]
        if back in held.encoded.relations and back not in relations:
            made[back] = replace(added, src=added.dst, dst=added.src)
    return made


def grow(held: PredictionGraph, added: Addition) -> PredictionGraph:
    """The graph with new nodes and edges, each after those of its type; kinds of features are made
    anew."""
    encoded = held.encoded
    relations = {
        each: _join_edges(relation, added.relations.get(each))
        for each, relation in encoded.relations.items()
    }
    if isinstance(encoded, HeteroGraphData):
        nodes = {
            name: _join_nodes(table, added.nodes.get(name)) for name, table in encoded.nodes.items()
        }
        count = nodes[encoded.target].num_nodes
        encoded = replace(
            encoded, nodes=nodes, relations=relations, labels=np.full(count, -1, np.int64)
        )
    else:
        table, edges = (
            _join_nodes(encoded.nodes[PLAIN_TYPE], added.nodes.get(PLAIN_TYPE)),
            relations[PLAIN_RELATION],
        )
        encoded = replace(
            encoded,
            src=edges.src,
            dst=edges.dst,
            edge_weight=edges.edge_weight,
            edge_feat=edges.edge_feat,
            features=table.features,
            node_ids=table.node_ids,
            featured=table.featured,
            labels=np.full(table.num_nodes, -1, np.int64),
        )
    made = encoded if held.keeps_features else add_kinds(encoded, held.settings.features)
    return replace(held, graph=made, encoded=encoded)


def _join_nodes(table: NodeTable, more: NodeTable | None) -> NodeTable:
    if more is None:
        return table
    features: Any
    if isinstance(table.features, sp.csr_array):
        features = sp.csr_array(sp.vstack([table.features, sp.csr_array(more.features)]))
    else:
        features = np.concatenate((table.features, np.asarray(more.features)))
    featured = table.featured
    if featured is not None:
        featured = np.concatenate((featured, np.ones(more.num_nodes, np.bool_)))
    ids = np.concatenate((table.node_ids, more.node_ids))
    return replace(table, features=features, node_ids=ids, featured=featured, node_names=None)


def _join_edges(relation: Relation, more: Relation | None) -> Relation:
    if more is None:
        return relation
    joined: Any = {
        name: np.concatenate((getattr(relation, name), getattr(more, name)))
        for name in ("src", "dst", "edge_weight", "edge_feat")
        if getattr(relation, name) is not None
    }
    return replace(relation, **joined)
