"""Reddit, Yelp, Flickr and the karate club, read by dgl.data.

The zips are unpacked where DGL looks for them, `dataset_dir`/NAME_HASH/; a folder `dataset_dir`/NAME/ does, too.
DGL's cache of the finished graph is not used: it would be read without a checksum, and a run that was killed while
writing it would leave half of it behind.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.download import Archive, library
from partitioning.dgl_import import import_dgl
from partitioning.graph_data import GraphData
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
        graph, num_classes = _dgl_graph(settings.name, files.folder)
        return _graph_data(settings.name, graph, num_classes)


def _dgl_graph(name: str, folder: Path) -> tuple[Any, int]:
    """The DGL graph and its number of classes; DGL's class is told where its files are, and to keep no cache."""
    dgl = import_dgl(f"dataset_name={name}")
    options = {"reddit": {"self_loop": False}}.get(name, {})
    base = {"reddit": dgl.data.RedditDataset, "yelp": dgl.data.YelpDataset, "flickr": dgl.data.FlickrDataset}[name]
    told = {
        "raw_path": property(lambda self: str(folder)),
        "has_cache": lambda self: False,
        "save": lambda self: None,
    }
    dataset = type(base.__name__, (base,), told)(raw_dir=str(folder.parent), verbose=False, **options)
    return dataset[0], int(dataset.num_classes)


def _graph_data(name: str, graph: Any, num_classes: int) -> GraphData:
    src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
    if name == "reddit":
        between = src != dst
        src, dst = src[between], dst[between]
    data = {key: tensor.numpy() for key, tensor in graph.ndata.items()}
    masks = {key: data[key].astype(np.bool_) for key in ("train_mask", "val_mask", "test_mask")}
    features, labels = data["feat"].astype(np.float32, copy=False), data["label"]
    if name == "yelp":
        features = standardised(features, masks["train_mask"])
        labels, num_classes = labels.astype(np.float32), labels.shape[1]
    ids = np.arange(len(labels), dtype=np.int64)
    return GraphData(name, src, dst, features, labels, num_classes, ids, **masks)


def standardised(features: NDArray[np.float32], train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """[N, F] with mean 0 and deviation 1 over the training rows; a column that is constant there is only centred."""
    known = features[train].astype(np.float64)
    deviation = known.std(axis=0)
    scaled: NDArray[np.float32] = (features - known.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    return scaled.astype(np.float32)


def _karate(name: str) -> GraphData:
    """Zachary's karate club: 34 members, 156 directed edges, two factions; a feature for each member."""
    dgl = import_dgl(f"dataset_name={name}")
    graph = dgl.data.KarateClubDataset()[0]
    src, dst = (ends.numpy() for ends in graph.edges(order="eid"))
    labels = graph.ndata["label"].numpy()
    ids = np.arange(len(labels), dtype=np.int64)
    return GraphData(name, src, dst, np.eye(len(labels), dtype=np.float32), labels, 2, ids)
