"""What app=describe writes: summaries of the feature tables of a data set or of a site."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partitioning import datasets, node_split
from partitioning.errors import InputError
from partitioning.features.summary import Summary, summarise
from partitioning.graph_data import SEPARATOR, GraphData, HeteroGraphData, NodeTable
from partitioning.partition_settings import DatasetSettings
from partitioning.site_arrays import describe_site
from partitioning.site_folders import read_sites


def describe_tables(dataset: DatasetSettings) -> dict[str, Summary]:
    """Summarise the tables with feature columns: nodes and edges; nodes/TYPE of several types.

    Raises:
        InputError: there is no such table, or it cannot be read.
    """
    if dataset.name == "parts":
        sites = read_sites(Path(dataset.file or ""))
        if len(sites) > 1:
            raise InputError(
                f"dataset_file={dataset.file}: holds several sites; describe one, such as"
                f" {sites[0].folder}"
            )
        return describe_site(sites[0], dataset.columns, dataset.features.fit)
    graph = datasets.read_graph(dataset)
    labelled = graph.target_graph() if isinstance(graph, HeteroGraphData) else graph
    train = node_split.draw(labelled, dataset.split, datasets.recipe(dataset.name).split).train
    rows = train if dataset.features.fit == "train" and train.any() else None
    found = {}
    if isinstance(graph, HeteroGraphData):
        for name, table in graph.nodes.items():
            found[f"nodes/{name}"] = _describe(table, rows if name == graph.target else None)
        described: set[int] = set()  # matrices, which an added reverse relation shares
        for each, relation in graph.relations.items():
            feat, schema = relation.edge_feat, relation.schema
            if feat is not None and schema is not None and id(feat) not in described:
                described.add(id(feat))
                found[f"edges/{SEPARATOR.join(each)}"] = summarise(feat, schema)
    else:
        found["nodes"] = _describe(graph, rows)
        if graph.edge_schema is not None and graph.edge_feat is not None:
            found["edges"] = summarise(graph.edge_feat, graph.edge_schema)
    summaries = {name: summary for name, summary in found.items() if summary is not None}
    if not summaries:
        raise InputError(f"{graph.name}: has no table with feature columns to describe")
    return summaries


def _describe(table: GraphData | NodeTable, rows: NDArray[np.bool_] | None) -> Summary | None:
    """Summarise dense features; sparse ones stay as they are."""
    if not isinstance(table.features, np.ndarray) or table.schema is None:
        return None
    if not table.schema.columns:
        return None
    used = rows if table.featured is None else table.featured & (True if rows is None else rows)
    return summarise(table.features, table.schema, used)
