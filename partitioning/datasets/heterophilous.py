"""Loads the heterophilous graphs of Platonov et al. (ICLR 2023, arXiv 2302.11640) from their npz.

These are roman-empire, amazon-ratings, minesweeper, tolokers and questions, and chameleon and
squirrel without their duplicate nodes. Each has ten published splits, which split.index picks from.
"""

from pathlib import Path

from partitioning.files.download import Remote
from partitioning.graph.graph_data import MASKS, GraphData
from partitioning.graph.symmetry import unique_edges
from partitioning.partition_settings import DatasetSettings
from partitioning.read.array_files import read_edges_and_nodes
from partitioning.read.raw import build_named

URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
NAMES = (
    "roman-empire",
    "amazon-ratings",
    "minesweeper",
    "tolokers",
    "questions",
    "chameleon-filtered",
    "squirrel-filtered",
)
_ARRAYS = {
    "feat": "node_features",
    "label": "node_labels",
    "train_mask": "train_masks",
    "val_mask": "val_masks",
    "test_mask": "test_masks",
}
"""Our names of arrays -> theirs."""


def remotes(name: str, folder: str) -> list[Remote]:
    """Return the file, at torch_geometric's place: roman_empire/raw/roman_empire.npz."""
    stem = name.replace("-", "_")
    return [Remote(f"{URL}/{stem}.npz", Path(folder) / stem / "raw" / f"{stem}.npz")]


def load(settings: DatasetSettings, path: Path) -> GraphData:
    """Load a graph with each edge once, in the direction of the file, without self loops.

    InputError for a damaged file.
    """
    arrays, where = read_edges_and_nodes(path, _ARRAYS)
    src, dst = unique_edges(arrays["src"], arrays["dst"], len(arrays["label"]), where["src"])
    masks = {mask: arrays[mask].T for mask in MASKS}  # [nodes, splits]
    return build_named(settings, {**arrays, "src": src, "dst": dst, **masks}, where)
