"""Loads Reddit, Yelp, Flickr and the karate club as dgl.data does.

The zips are unpacked to DGL's own place, `dataset_dir`/NAME_HASH/; a folder `dataset_dir`/NAME/ is
used, too.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.datasets.given_split import masks_of
from partitioning.files.download import Archive, open_published
from partitioning.files.file_io import parse_json
from partitioning.graph.array_checks import (
    check_classes,
    check_dense,
    check_length,
    check_multilabel,
    expect,
)
from partitioning.graph.graph_data import MASKS, GraphData, NodeTable, Relation
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import read_named

URL = "https://data.dgl.ai/dataset/{name}.zip"
_SAINT = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
FILES = {"reddit": ("reddit_data.npz", "reddit_graph.npz"), "yelp": _SAINT, "flickr": _SAINT}


def archive(name: str, folder: str) -> Archive:
    """Describe the zip of a data set.

    DGL's folder name ends in 8 digits of the SHA-1 of the URL.
    """
    url = URL.format(name=name)
    digest = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()[:8]
    root = Path(folder)
    by_name = root / name
    place = by_name if by_name.is_dir() else root / f"{name}_{digest}"
    return Archive(url, root / f"{name}.zip", place, FILES[name])


def load_reddit(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load Reddit from DGL's files, without self loops; InputError for damaged ones.

    Nodes are renumbered as by DGL, so that neighbours are close (reverse Cuthill-McKee).
    """
    path = folder / "reddit_data.npz"
    arrays = read_named(path, ("feature", "label", "node_types"))
    labels = check_classes(arrays["label"], 41, f"{path}: array `label`")
    features = check_dense(arrays["feature"], len(labels), f"{path}: array `feature`")
    role = arrays["node_types"]
    check_length(role, len(labels), f"{path}: array `node_types`")
    adjacency = sp.csr_array(_read_adjacency(folder / "reddit_graph.npz", len(labels)))
    order = sp.csgraph.reverse_cuthill_mckee(adjacency)
    new_id = np.empty_like(order)
    new_id[order] = np.arange(len(order), dtype=order.dtype)
    src, dst = (new_id[ends] for ends in adjacency.tocoo().coords)
    between = src != dst
    masks: dict[str, Any] = {
        mask: role[order] == number for number, mask in enumerate(MASKS, start=1)
    }
    return GraphData.plain(
        settings.dataset_name,
        NodeTable(features[order], np.arange(len(labels))),
        Relation(src[between], dst[between]),
        labels[order],
        41,
        **masks,
    )


def load_saint(settings: DatasetSettings, folder: Path) -> GraphData:
    """Load Yelp or Flickr from GraphSAINT's files; InputError for damaged ones.

    Yelp's labels are lists of 0 and 1, and its features are standardised on its training nodes.
    Flickr's labels are classes, -1 where a node has none.
    """
    name = settings.dataset_name
    with open_published(folder / "feats.npy") as file:
        features = np.load(file, allow_pickle=False)
        num_nodes = len(features)
    features = check_dense(features, num_nodes, f"{folder}/feats.npy")
    src, dst = sp.coo_array(_read_adjacency(folder / "adj_full.npz", num_nodes)).coords
    with open_published(folder / "class_map.json") as file:
        classes = parse_json(file.read())
        numbers = np.array([classes.get(str(node), -1) for node in range(num_nodes)])
    with open_published(folder / "role.json") as file:
        role = parse_json(file.read())
        lists = {
            mask: (np.array(role[part]), f"{folder}/role.json: {part}")
            for mask, part in zip(MASKS, ("tr", "va", "te"), strict=True)
        }
    masks: dict[str, Any] = dict(masks_of(lists, num_nodes))
    where = str(folder / "class_map.json")
    labels: NDArray[Any]
    if name == "flickr":
        labels, num_classes = check_classes(numbers, 7, where), 7
    else:
        labels = check_multilabel(numbers, where)
        num_classes = labels.shape[1]
        features = standardised(features, masks["train_mask"])
    nodes = NodeTable(features, np.arange(num_nodes))
    return GraphData.plain(name, nodes, Relation(src, dst), labels, num_classes, **masks)


def _read_adjacency(path: Path, num_nodes: int) -> Any:
    """Read a sparse matrix [N, N] and check all indices; InputError if one is wrong.

    SciPy checks only some, and its C code trusts them.
    """
    with open_published(path) as file:
        matrix = sp.load_npz(file)
        if hasattr(matrix, "check_format"):  # CSR and the like
            matrix.check_format(full_check=True)
    expect(matrix.shape == (num_nodes, num_nodes), matrix, str(path), f"{num_nodes} rows, columns")
    return matrix


def standardised(features: NDArray[np.float32], train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return [N, F] with mean 0 and deviation 1 over the training rows.

    Constant columns are only centred.
    """
    known = features[train].astype(np.float64)
    deviation = known.std(axis=0)
    scaled: NDArray[np.float32] = (features - known.mean(axis=0)) / np.where(
        deviation > 0, deviation, 1.0
    )
    return scaled.astype(np.float32)


def load_karate(settings: DatasetSettings) -> GraphData:
    """Load Zachary's karate club: 34 members, 156 directed edges, 2 factions, one-hot features."""
    import networkx

    club = networkx.karate_club_graph()
    src, dst = np.array(list(club.to_directed().edges)).T
    labels = np.array([club.nodes[node]["club"] != "Mr. Hi" for node in club], np.int64)
    return GraphData.plain(
        settings.dataset_name,
        NodeTable(np.eye(len(labels), dtype=np.float32), np.arange(len(labels))),
        Relation(src, dst),
        labels,
        2,
    )
