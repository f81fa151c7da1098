"""Loads OGB's graphs for link prediction, ogbl-collab, -citation2, -ppa, -ddi, from raw files.

Held-out pairs and negative pairs are OGB's own. Tests compare the result with OGB's reader.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.array_pickles import NUMPY, as_array
from partitioning.datasets.ogb_source import RELEASE, archive_of
from partitioning.errors import first_line
from partitioning.files.download import Archive, open_published
from partitioning.graph.array_checks import check_endpoints, expect
from partitioning.graph.graph_data import GraphData, NodeTable, Relation
from partitioning.partition_settings import DatasetSettings
from partitioning.read.raw import narrow_ends
from partitioning.read.table_files import read_integers, read_matrix

URL = "https://snap.stanford.edu/ogb/data/linkproppred"
RAW = ("raw/edge.csv.gz", "raw/num-node-list.csv.gz")
PARTS = {"train": "train", "val": "valid", "test": "test"}


@dataclass(frozen=True)
class _Source:
    """Files and properties of one of OGB's graphs for link prediction."""

    zip: str
    split: str
    evaluator: str
    both_ways: bool
    """Whether each edge stands for its reverse, too."""
    weighted: bool = False
    featured: bool = True


SOURCES = {
    "ogbl-collab": _Source("collab", "time", "hits@50", both_ways=True, weighted=True),
    "ogbl-citation2": _Source("citation-v2", "time", "mrr", both_ways=False),
    "ogbl-ppa": _Source("ppassoc", "throughput", "hits@100", both_ways=True),
    "ogbl-ddi": _Source("ddi", "target", "hits@20", both_ways=True, featured=False),
}


def archive(name: str, folder: str) -> Archive:
    """Describe the zip of a data set."""
    source = SOURCES[name]
    split = (f"split/{source.split}/{part}.pt" for part in PARTS.values())
    of_edges = ("raw/edge_weight.csv.gz",) if source.weighted else ()
    of_nodes = ("raw/node-feat.csv.gz",) if source.featured else ()
    needed = (*RAW, *of_nodes, *of_edges, *split, RELEASE)
    return archive_of(name, folder, f"{URL}/{source.zip}.zip", needed)


def load(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load the training edges and the held-out pairs (GraphData.links); there are no labels.

    Edges of an undirected graph are there in both directions. InputError for damaged files.
    """
    name, source = settings.dataset_name, SOURCES[settings.dataset_name]
    raw = folder / "raw"
    num_nodes = int(read_integers(raw / "num-node-list.csv.gz")[0][0])
    src, dst = (
        check_endpoints(narrow_ends(ends), num_nodes, f"{raw}/edge.csv.gz")
        for ends in read_integers(raw / "edge.csv.gz", ("0", "1"))
    )
    features = np.zeros((num_nodes, 0), np.float32)
    if source.featured:
        features = read_matrix(raw / "node-feat.csv.gz")
    weight = (
        read_integers(raw / "edge_weight.csv.gz")[0].astype(np.float32) if source.weighted else None
    )
    if source.both_ways:
        src, dst = np.concatenate((src, dst)), np.concatenate((dst, src))
        weight = None if weight is None else np.concatenate((weight, weight))
    links: dict[str, Any] = {"evaluator": source.evaluator}
    for part in ("val", "test"):
        links |= _pairs(folder / "split" / source.split / f"{PARTS[part]}.pt", part, num_nodes)
    featured = None if source.featured else np.zeros(num_nodes, np.bool_)
    nodes = NodeTable(features, np.arange(num_nodes), featured=featured)
    no_labels = np.full(num_nodes, -1, np.int64)
    return GraphData.plain(name, nodes, Relation(src, dst, weight), no_labels, 0, links=links)


def _pairs(path: Path, part: str, num_nodes: int) -> dict[str, NDArray[np.int64]]:
    """Read a split file: `part`, pairs int64 [n, 2], and `part`_neg, negative pairs int64 [m, 2].

    m is n K where each source has its own K negative targets. InputError for ids not below
    num_nodes.
    """
    import torch  # takes a second to load; no other loader needs it

    stand_ins: list[Any] = [(kept, name) for name, kept in NUMPY.items()]
    with open_published(path) as file:
        try:
            with torch.serialization.safe_globals(stand_ins):
                loaded = torch.load(file, weights_only=True)
        except (pickle.UnpicklingError, AssertionError) as error:  # of damaged files
            raise ValueError(first_line(error)) from error

        def array(name: str) -> NDArray[Any]:
            value = loaded[name]
            return value.numpy() if isinstance(value, torch.Tensor) else as_array(value)

        if "edge" in loaded:
            pairs, fixed = array("edge"), array("edge_neg")
        else:
            source, others = array("source_node"), array("target_node_neg")
            pairs = np.stack((source, array("target_node")), axis=1)
            fixed = np.stack((np.repeat(source, others.shape[1]), others.reshape(-1)), axis=1)
    for rows in (pairs, fixed):
        expect(rows.ndim == 2 and rows.shape[1] == 2, rows, f"{path}: an array", "[pairs, 2]")
        check_endpoints(rows.reshape(-1), num_nodes, str(path))
    return {part: pairs.astype(np.int64), f"{part}_neg": fixed.astype(np.int64)}
