"""Reads a graph to predict into memory, from a file or an object; graph_addition.py adds nodes.

Columns are encoded by the pipeline that a model was trained with. A graph is a path (as
dataset_file), a Data or HeteroData of PyG, a DGLGraph, a networkx graph, or a pair of nodes and
edges: two data frames, or for several types two dictionaries, {TYPE: frame} and {(SOURCE,
RELATION, DESTINATION): frame}.

N nodes, E edges.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features.build import (
    States,
    add_kinds,
    encode_now,
    encode_tables,
    read_as_fitted,
    stored_columns,
)
from partitioning.graph.graph_data import PLAIN_RELATION, PLAIN_TYPE, GraphData, table_name
from partitioning.links.link_split import (
    LinkSplit,
    find_relation,
    split_links,
    to_graph_of_relation,
)
from partitioning.partition_settings import DatasetSettings
from partitioning.read import file, object_arrays
from partitioning.read.objects import to_frame
from partitioning.read.tables import check_name, is_typed_folder

FORMS = (
    "a path, a Data or HeteroData of PyG, a DGLGraph, a networkx graph, or a pair of nodes and"
    " edges (two data frames, or two dictionaries of them by type)"
)


@dataclass(frozen=True, eq=False)
class PredictionGraph:
    """A graph to predict."""

    graph: GraphData
    """With the features that the network reads."""
    encoded: GraphData
    """The same before the kinds of features.kind are added."""
    settings: DatasetSettings
    stored: States
    """The pipelines that encode its tables, and later nodes and edges."""
    links: LinkSplit | None = None
    """For link prediction; all pairs are training pairs."""

    @property
    def types_of_pairs(self) -> list[str]:
        """Types of the source and the destination of the relation whose links are scored, or []."""
        return [] if self.links is None else list(self.links.description["types"])

    @property
    def keeps_features(self) -> bool:
        """Whether new nodes leave the features of the others as they are."""
        return tuple(self.settings.features.kind) == ("given",) and self.encoded.is_plain


def read_prediction_graph(
    source: Any,
    settings: DatasetSettings,
    stored: States,
    spectral_filter: Mapping[str, float] | None = None,
) -> PredictionGraph:
    """Read a graph to predict into memory.

    To predict links, its edges are split like those in training.

    Args:
        source: One of FORMS.
        settings: How the training graph was read, with split.kind=none.
        stored: The pipelines of the model.
        spectral_filter: Of a model for links.

    Raises:
        InputError: it is none, or a column or type is not what the model was trained with.
    """
    graph = read_as_fitted(
        lambda columns: _read_source(source, replace(settings, columns=columns)),
        settings.columns,
        stored,
    )
    if stored:
        settings = replace(settings, columns=stored_columns(stored, settings.columns))
    encoded: Any
    encoded, states = encode_tables(graph, settings.features, None, stored)
    stored = states | stored
    if not settings.task.links:
        encoded = encode_now(encoded)
        return PredictionGraph(add_kinds(encoded, settings.features), encoded, settings, stored)
    if not encoded.is_plain:
        encoded = to_graph_of_relation(encoded, find_relation(encoded, settings.task.relation))
    encoded = encode_now(encoded)
    links = split_links(
        encoded,
        settings.split,
        settings.task.spectral,
        spectral_filter=spectral_filter,
    )
    features = add_kinds(links.graph, settings.features)
    return PredictionGraph(features, encoded, settings, stored, links)


def _read_source(source: Any, settings: DatasetSettings) -> GraphData:
    """Read a graph from a path, data frames, settings, or an object of PyG, DGL or networkx.

    Reverse edges are added as the settings say. InputError for another source, and for types that
    the model's graph has not.
    """
    name = type(source).__name__
    if isinstance(source, DatasetSettings):
        return datasets.read_graph(settings)
    if _has_types(source) and settings.target is None and not settings.task.links:
        raise InputError(
            "graph: a heterogeneous graph; the model is for a plain graph, without types"
        )
    if isinstance(source, str | Path):
        return datasets.read_graph(replace(settings, dataset_name="file", dataset_file=str(source)))
    if isinstance(source, tuple | list) and len(source) == 2:
        return datasets.add_reverse(_read_frames(source[0], source[1], settings), settings)
    for attribute, convert in (
        ("edge_index", object_arrays.read_pyg),
        ("node_types", object_arrays.read_pyg),
        ("ntypes", object_arrays.read_dgl),
        ("is_directed", object_arrays.read_networkx),
    ):
        if hasattr(source, attribute):
            graph = file.from_arrays(Path(name), convert(source, with_labels=False), settings)
            return datasets.add_reverse(graph, settings)
    raise InputError(f"graph: {name}: expected {FORMS}")


def _has_types(tables: Any) -> bool:
    """Return whether a given object is a graph with several node types."""
    if isinstance(tables, str | Path):
        return is_typed_folder(Path(tables))
    is_pair_of_types = isinstance(tables, tuple | list) and all(
        isinstance(table, Mapping) for table in tables
    )
    return is_pair_of_types or hasattr(tables, "node_types")


def _read_frames(nodes: Any, edges: Any, settings: DatasetSettings) -> GraphData:
    """Read two data frames, or two dictionaries of them by type and by relation.

    InputError for other forms or names.
    """
    if hasattr(nodes, "columns") and hasattr(edges, "columns"):
        tables = {PLAIN_TYPE: to_frame(nodes, "nodes")}
        return file.from_frames(tables, {PLAIN_RELATION: to_frame(edges, "edges")}, settings)
    if not (isinstance(nodes, Mapping) and isinstance(edges, Mapping)):
        pair = f"{type(nodes).__name__} and {type(edges).__name__}"
        raise InputError(f"graph: a pair of {pair}: expected {FORMS}")
    for edge_type in edges:
        if not isinstance(edge_type, tuple) or len(edge_type) != 3:
            raise InputError(f"edges: {edge_type!r}: expected (SOURCE, RELATION, DESTINATION)")
    for name in (*nodes, *chain.from_iterable(edges)):
        check_name(name, "graph")
    relations = {
        edge_type: to_frame(frame, table_name(edge_type)) for edge_type, frame in edges.items()
    }
    types = {name: to_frame(frame, table_name(name)) for name, frame in nodes.items()}
    return file.from_frames(types, relations, settings)
