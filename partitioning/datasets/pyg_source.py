"""Loads Planetoid's graphs, Facebook page-page and LastFM Asia from torch_geometric's raw files.

The files have torch_geometric's places (see `remotes`), and tests compare the result with its
reader. Nothing is unpickled, so no code in a file is run.
"""

from itertools import chain
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from partitioning.datasets.array_pickles import read_pickle
from partitioning.files.download import FETCH_AGAIN, Remote, open_published
from partitioning.files.file_io import reading
from partitioning.graph.array_checks import Array, check_unique, expect, refuse
from partitioning.graph.graph_data import MASKS, GraphData
from partitioning.graph.symmetry import unique_edges
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import read_edges_and_nodes
from partitioning.read.raw import build_named

PLANETOID = {
    "citeseer_torch": "CiteSeer",
    "pubmed_torch": "PubMed",
    "planetoid-cora": "Cora",
    "planetoid-citeseer": "CiteSeer",
    "planetoid-pubmed": "PubMed",
}
PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
PLANETOID_PARTS = ("tx", "allx", "y", "ty", "ally", "graph", "test.index")
NUM_VAL = 500
"""Nodes after the training nodes that validate."""
MUSAE = {"facebook": "facebook.npz", "lastfm": "lastfm_asia.npz"}
MUSAE_URL = "https://graphmining.ai/datasets/ptg"


def remotes(name: str, folder: str) -> list[Remote]:
    """Return the raw files in the order of the loader's `paths`, below `folder`.

    For instance `folder`/CiteSeer/raw/ind.citeseer.tx.
    """
    if name in MUSAE:
        return [Remote(f"{MUSAE_URL}/{MUSAE[name]}", Path(folder) / name / "raw" / MUSAE[name])]
    title = PLANETOID[name]
    names = [f"ind.{title.lower()}.{part}" for part in PLANETOID_PARTS]
    return [
        Remote(f"{PLANETOID_URL}/{file}", Path(folder) / title / "raw" / file) for file in names
    ]


def load_musae(settings: DatasetSettings, path: Path) -> GraphData:
    """Load Facebook or LastFM Asia, with edges in both directions, from an npz file."""
    names = {"feat": "features", "label": "target"}
    return build_named(settings, *read_edges_and_nodes(path, names))


def load_planetoid(settings: DatasetSettings, *paths: Path) -> GraphData:
    """Load a data set of Planetoid's files: the nodes of allx and ally, then row i of tx and ty.

    Row i belongs to node test.index[i]. In CiteSeer, 15 nodes between the test nodes have no row;
    their features and their class are 0. Edges are there in both directions, once and without self
    loops. The masks are Planetoid's. InputError where the files do not fit together.
    """
    files = dict(zip(PLANETOID_PARTS, paths, strict=True))
    rows = {part: _read_matrix(files[part]) for part in ("allx", "tx", "ally", "ty", "y")}
    num_rest, num_train = len(rows["ally"]), len(rows["y"])
    test = _read_test_nodes(files["test.index"], num_rest, len(rows["ty"]))
    num_nodes = int(test.max(initial=num_rest - 1)) + 1
    joined = {}
    for rest, tested in (("allx", "tx"), ("ally", "ty")):
        shape = (num_nodes, rows[rest].shape[1])
        for part, needed in ((rest, num_rest), (tested, len(test))):
            needed_shape = needed, shape[1]
            is_right = rows[part].shape == needed_shape
            expect(is_right, rows[part], str(files[part]), str(needed_shape))
        joined[rest] = np.zeros(shape, np.float32)
        joined[rest][:num_rest], joined[rest][test] = rows[rest], rows[tested]
    src, dst = _read_edges(files["graph"], num_nodes)
    masks = {mask: np.zeros(num_nodes, np.bool_) for mask in MASKS}
    masks["train_mask"][:num_train] = True
    masks["val_mask"][num_train : num_train + NUM_VAL] = True
    masks["test_mask"][test] = True
    where = {"feat": str(files["allx"]), "label": str(files["ally"])}
    labels = joined["ally"].argmax(axis=1)
    arrays = {"src": src, "dst": dst, "feat": joined["allx"], "label": labels, **masks}
    return build_named(settings, arrays, where)


def _read_matrix(path: Path) -> Array:
    """Read an array or sparse matrix from a pickle, as a dense matrix [rows, columns].

    InputError for anything else.
    """
    loaded = read_pickle(path)
    matrix = np.asarray(loaded.toarray() if isinstance(loaded, sp.csr_array) else loaded)
    expect(matrix.ndim == 2, matrix, str(path), f"two dimensions; {FETCH_AGAIN}")
    return matrix


def _read_test_nodes(path: Path, first: int, count: int) -> Array:
    """Read the test nodes [count]: unique, from `first` on, with few gaps; InputError for others.

    They keep the order of the file.
    """
    with open_published(path) as file:
        nodes = np.loadtxt(file, np.int64, ndmin=1)
    expect(nodes.shape == (count,), nodes, str(path), f"{count} nodes, as rows in ty")
    end = first + 2 * count
    refuse(
        nodes, (nodes < first) | (nodes >= end), str(path), f"expected from {first} to {end - 1}"
    )
    check_unique(nodes, str(path))
    return nodes


def _read_edges(path: Path, num_nodes: int) -> tuple[Array, Array]:
    """Return sources and destinations of the unique edges, sorted by destination, without loops.

    InputError for a damaged file, or an end that is no node.
    """
    graph = read_pickle(path)
    with reading(path, "file of this data set", FETCH_AGAIN):
        counts = [len(others) for others in graph.values()]
        src = np.repeat(np.fromiter(graph, np.int64), counts)
        dst = np.fromiter(chain.from_iterable(graph.values()), np.int64, sum(counts))
    return unique_edges(src, dst, num_nodes, str(path))
