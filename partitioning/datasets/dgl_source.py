"""Reddit, Yelp, Flickr and the karate club, as dgl.data gives them.

The zips are unpacked where DGL looks for them, `dataset_dir`/NAME_HASH/; a folder `dataset_dir`/NAME/ does, too.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.datasets.download import Archive, library
from partitioning.graph_data import MASKS, GraphData
from partitioning.settings import DatasetSettings

URL = "https://data.dgl.ai/dataset/{name}.zip"
_SAINT = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")
FILES = {"reddit": ("reddit_data.npz", "reddit_graph.npz"), "yelp": _SAINT, "flickr": _SAINT}


def archive(name: str, folder: str) -> Archive:
    """The zip of a data set; DGL adds to the folder's name the first 8 digits of the address's SHA-1."""
    url = URL.format(name=name)
    digest = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()[:8]
    root = Path(folder)
    by_name = root / name
    place = by_name if by_name.is_dir() else root / f"{name}_{digest}"
    return Archive(name, url, root / f"{name}.zip", place, FILES[name])


def load(settings: DatasetSettings) -> GraphData:
    """Load by name; edges as DGL gives them, but for the self loops of Reddit, which are removed.

    Reddit's nodes are in the order that DGL gives them (reverse Cuthill-McKee), Yelp's features are standardised on
    its training nodes.
    """
    if settings.name == "karateclub":
        return _karate(settings.name)
    files = archive(settings.name, settings.dir)
    files.ensure()
    with library(settings.name, files.folder):
        return (_reddit if settings.name == "reddit" else _saint)(settings.name, files.folder)


def _reddit(name: str, folder: Path) -> GraphData:
    adjacency = sp.csr_array(sp.load_npz(folder / "reddit_graph.npz"))
    with np.load(folder / "reddit_data.npz") as data:
        features, labels, role = (data[key] for key in ("feature", "label", "node_types"))
    order = sp.csgraph.reverse_cuthill_mckee(adjacency)
    new_id = np.empty_like(order)
    new_id[order] = np.arange(len(order), dtype=order.dtype)
    src, dst = (new_id[ends] for ends in adjacency.tocoo().coords)
    between = src != dst
    masks: dict[str, Any] = {
        mask: role[order] == number for number, mask in enumerate(MASKS, start=1)
    }
    features, labels = features[order].astype(np.float32), labels[order].astype(np.int64)
    return GraphData(
        name, src[between], dst[between], features, labels, 41, np.arange(len(labels)), **masks
    )


def _saint(name: str, folder: Path) -> GraphData:
    """GraphSAINT's files; Yelp's labels are lists of 0 and 1, Flickr's are classes."""
    src, dst = sp.coo_array(sp.load_npz(folder / "adj_full.npz")).coords
    features = np.load(folder / "feats.npy").astype(np.float32)
    classes, role = (
        json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        for file in ("class_map", "role")
    )
    numbers = np.array([classes.get(str(node), -1) for node in range(len(features))])
    masks: dict[str, Any] = {mask: np.zeros(len(features), np.bool_) for mask in MASKS}
    for mask, part in zip(MASKS, ("tr", "va", "te"), strict=True):
        masks[mask][role[part]] = True
    ids = np.arange(len(features))
    if name == "flickr":
        return GraphData(name, src, dst, features, numbers.astype(np.int64), 7, ids, **masks)
    features, labels = standardised(features, masks["train_mask"]), numbers.astype(np.float32)
    return GraphData(name, src, dst, features, labels, labels.shape[1], ids, **masks)


def standardised(features: NDArray[np.float32], train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[N, F] with mean 0 and deviation 1 over the training rows; a column that is constant there is only centred."""
    known = features[train].astype(np.float64)
    deviation = known.std(axis=0)
    scaled: NDArray[np.float32] = (features - known.mean(axis=0)) / np.where(
        deviation > 0, deviation, 1.0
    )
    return scaled.astype(np.float32)


def _karate(name: str) -> GraphData:
    """Zachary's karate club: 34 members, 156 directed edges, two factions; a feature for each member."""
    import networkx

    club = networkx.karate_club_graph()
    src, dst = np.array(list(club.to_directed().edges)).T
    labels = np.array([club.nodes[node]["club"] != "Mr. Hi" for node in club], np.int64)
    return GraphData(
        name, src, dst, np.eye(len(labels), dtype=np.float32), labels, 2, np.arange(len(labels))
    )
