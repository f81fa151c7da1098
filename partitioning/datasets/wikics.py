"""Loads WikiCS (Mernyei and Cangea 2020, arXiv 2007.02901), articles on computing, from JSON.

It has 20 published splits, which split.index picks from. Validation nodes are those of the split's
validation and early-stopping masks together; all splits test the same nodes.
"""

from itertools import chain
from pathlib import Path

import numpy as np

from partitioning.files.download import Remote, open_published
from partitioning.files.file_io import parse_json
from partitioning.graph.graph_data import GraphData
from partitioning.graph.symmetry import unique_edges
from partitioning.partition_settings import DatasetSettings
from partitioning.read.raw import build_named

URL = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset/data.json"


def remotes(_name: str, folder: str) -> list[Remote]:
    """Return the file, WikiCS/raw/data.json."""
    return [Remote(URL, Path(folder) / "WikiCS" / "raw" / "data.json")]


def load(settings: DatasetSettings, path: Path) -> GraphData:
    """Load the graph with each link once, in its direction."""
    with open_published(path) as file:
        content = parse_json(file.read())
        links, labels = content["links"], np.array(content["labels"])
        features = np.array(content["features"], np.float32)
        src = np.repeat(np.arange(len(links)), [len(neighbours) for neighbours in links])
        dst = np.fromiter(chain.from_iterable(links), np.int64, len(src))
        masks = {
            "train_mask": np.array(content["train_masks"]).T,
            "val_mask": (np.array(content["val_masks"]) | np.array(content["stopping_masks"])).T,
            "test_mask": np.array(content["test_mask"]),
        }
    src, dst = unique_edges(src, dst, len(labels), f"{path}: links")
    arrays = {"src": src, "dst": dst, "feat": features, "label": labels, **masks}
    where = {name: f"{path}: {name}" for name in arrays} | {"feat": f"{path}: features"}
    return build_named(settings, arrays, where)
