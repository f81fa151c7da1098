"""ogbn-mag, the Open Graph Benchmark's heterogeneous graph, read from the raw files in its zip.

Node types: papers, authors, institutions and fields of study. Labels: the venues of papers. Only
papers have features. Tests compare the result with OGB's reader.
"""

from pathlib import Path
from typing import Any

import numpy as np

from partitioning.datasets.ogb_source import (
    SPLIT,
    URL,
    archive_of,
    read_ogb_classes,
    read_split,
)
from partitioning.files.download import Archive
from partitioning.graph.array_checks import check_dense, check_endpoints, check_length
from partitioning.graph.graph_data import EdgeType, GraphData, NodeTable, Relation
from partitioning.partition_settings import DatasetSettings
from partitioning.read.raw import narrow_ends
from partitioning.read.table_files import read_columns, read_integers, read_matrix

NUM_CLASSES = 349
TARGET = "paper"
_NEEDED = (
    "raw/num-node-dict.csv.gz",
    "raw/triplet-type-list.csv.gz",
    "raw/node-label/paper/node-label.csv.gz",
    *(f"split/time/{TARGET}/{part}.csv.gz" for part in SPLIT.values()),
)


def archive(name: str, folder: str) -> Archive:
    """Describe the zip."""
    return archive_of(name, folder, f"{URL}/mag.zip", _NEEDED)


def load(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load with ogb's split, by year, as masks; InputError for damaged files.

    Relations are in alphabetical order.
    """
    raw = folder / "raw"
    counts = read_columns(raw / "num-node-dict.csv.gz", header=True)
    nodes = {
        name: _read_nodes(raw / "node-feat" / name, int(cells.numbers()[0]))
        for name, cells in counts.items()
    }
    triplets = read_columns(raw / "triplet-type-list.csv.gz", header=False)
    relations: dict[EdgeType, Relation] = {}
    for source, relation, destination in sorted(
        zip(*(cells.data.to_pylist() for cells in triplets.values()), strict=True)
    ):
        file = raw / "relations" / "___".join((source, relation, destination)) / "edge.csv.gz"
        relations[source, relation, destination] = _read_relation(
            file, nodes[source], nodes[destination]
        )
    file = raw / "node-label" / TARGET / "node-label.csv.gz"
    labels = read_ogb_classes(read_integers(file)[0], NUM_CLASSES, str(file))
    check_length(labels, nodes[TARGET].num_nodes, str(file))
    split = folder / "split" / "time" / TARGET
    masks: dict[str, Any] = dict(read_split(split, len(labels)))
    return GraphData("ogbn-mag", nodes, relations, TARGET, labels, NUM_CLASSES, **masks)


def _read_nodes(folder: Path, count: int) -> NodeTable:
    """Return the `count` nodes of a type, with features if the type has a file of them.

    InputError where that has another number of rows, or wrong ones.
    """
    features, file = np.zeros((count, 0), np.float32), folder / "node-feat.csv.gz"
    if file.is_file():
        features = check_dense(read_matrix(file), count, str(file))
    return NodeTable(features, np.arange(count))


def _read_relation(file: Path, source: NodeTable, destination: NodeTable) -> Relation:
    """Read the edges of one relation from a csv file."""
    src, dst = map(narrow_ends, read_integers(file, ("0", "1")))
    return Relation(
        check_endpoints(src, source.num_nodes, f"{file}: column 0"),
        check_endpoints(dst, destination.num_nodes, f"{file}: column 1"),
    )
