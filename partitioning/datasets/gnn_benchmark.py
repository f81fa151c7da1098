"""Loads Amazon Computers and Photo, Coauthor CS and Physics from the npz files of Shchur et al.

"Pitfalls of Graph Neural Network Evaluation", 2018 (arXiv 1811.05868). The files hold adjacency and
word counts as CSR matrices and no split: 20 training and about 30 validation nodes per class are
drawn, as many as in the paper.
"""

from pathlib import Path

from partitioning.files.download import Remote
from partitioning.graph.array_checks import CsrParts, check_csr
from partitioning.graph.graph_data import GraphData
from partitioning.graph.symmetry import unique_edges
from partitioning.partition_settings import DatasetSettings, SplitSettings
from partitioning.read.array_files import read_named
from partitioning.read.raw import build_named

URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
FILES = {
    "amazon-computers": ("Computers", "amazon_electronics_computers.npz"),
    "amazon-photo": ("Photo", "amazon_electronics_photo.npz"),
    "coauthor-cs": ("CS", "ms_academic_cs.npz"),
    "coauthor-physics": ("Physics", "ms_academic_phy.npz"),
}
"""Name -> torch_geometric's folder, and the file."""
SPLITS = {
    "amazon-computers": SplitSettings("per_class", train=20, val=300, test=13252),
    "amazon-photo": SplitSettings("per_class", train=20, val=240, test=7250),
    "coauthor-cs": SplitSettings("per_class", train=20, val=450, test=17583),
    "coauthor-physics": SplitSettings("per_class", train=20, val=150, test=34243),
}
_CSR = ("data", "indices", "indptr", "shape")


def remotes(name: str, folder: str) -> list[Remote]:
    """Return the file, at torch_geometric's place: Photo/raw/amazon_electronics_photo.npz."""
    place, file = FILES[name]
    return [Remote(f"{URL}/{file}", Path(folder) / place / "raw" / file)]


def load(settings: DatasetSettings, path: Path) -> GraphData:
    """Load a graph with each edge once, in the direction of the file, without self loops.

    InputError for a damaged file.
    """
    names = [f"{matrix}_{part}" for matrix in ("adj", "attr") for part in _CSR]
    arrays = read_named(path, (*names, "labels"))
    adjacency = CsrParts(*(arrays[f"adj_{part}"] for part in _CSR))
    num_nodes = len(arrays["labels"])
    edges = check_csr(adjacency, num_nodes, lambda name: _where(path, name.replace("feat", "adj")))
    ends = edges.tocoo().coords
    src, dst = unique_edges(ends[0], ends[1], num_nodes, _where(path, "adj_indices"))
    where = {f"feat_{part}": _where(path, f"attr_{part}") for part in _CSR}
    where["label"] = _where(path, "labels")
    words = {f"feat_{part}": arrays[f"attr_{part}"] for part in _CSR}
    return build_named(
        settings, {"src": src, "dst": dst, "label": arrays["labels"], **words}, where
    )


def _where(path: Path, array: str) -> str:
    return f"{path}: array `{array}`"
