"""The Open Graph Benchmark's node classification graphs, read by ogb's own NodePropPredDataset (NumPy, no DGL).

Three habits of ogb 1.3.6 are kept from a batch job, each inside ogb's own modules and only while it loads: it looks for
a newer version on the network when it is imported, it asks on the terminal when a folder has no RELEASE file (and
before a download, which never happens here, see download.py), and it reads its own cache with a `torch.load` that torch
>= 2.6 refuses (snap-stanford/ogb issue 497).
"""

import contextlib
import os
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partitioning.datasets.download import Archive, library
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from partitioning.ogb_import import import_ogb
from partitioning.settings import DatasetSettings

URL = "http://snap.stanford.edu/ogb/data/nodeproppred"
_CSV = ("raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/node-label.csv.gz", "raw/num-node-list.csv.gz")
RELEASE = "RELEASE_v1.txt"
CACHE = Path("processed") / "data_processed"


@dataclass(frozen=True)
class _Source:
    zip: str
    raw: tuple[str, ...]
    split: str


SOURCES = {
    "ogbn-arxiv": _Source("arxiv", (*_CSV, "raw/num-edge-list.csv.gz", "raw/node_year.csv.gz"), "time"),
    "ogbn-products": _Source("products", (*_CSV, "raw/num-edge-list.csv.gz"), "sales_ranking"),
    "ogbn-papers100M": _Source("papers100M-bin", ("raw/data.npz", "raw/node-label.npz"), "time"),
}


def archive(name: str, folder: str) -> Archive:
    """The zip of a data set; its folder is `dataset_dir`/ogbn_arxiv and so on, with ogb's own layout inside."""
    source, root = SOURCES[name], Path(folder)
    place = root / name.replace("-", "_")
    # ogb reads the cache alone if there is one
    raw = (str(CACHE),) if (place / CACHE).is_file() else source.raw
    return Archive(name, f"{URL}/{source.zip}.zip", root / f"{source.zip}.zip", place, (*raw, RELEASE))


def load(settings: DatasetSettings) -> GraphData:
    """Load by name with ogb's split as masks; papers100M's many nodes without a label get -1."""
    name = settings.name
    files = archive(name, settings.dir)
    files.ensure()
    with library(name, files.folder):
        module = import_ogb().dataset
        with _contained(module, files.folder):
            dataset = module.NodePropPredDataset(name=name, root=settings.dir)
            parts = dataset.get_idx_split()
        graph, labels = dataset[0]
        return _graph_data(name, graph, labels, parts, int(dataset.num_classes))


@contextlib.contextmanager
def _contained(module: Any, folder: Path) -> Iterator[None]:
    """Give ogb's module, and no other, a `torch` that loads and saves its two kinds of file, and no terminal."""
    import torch

    def load(path: str) -> Any:
        if Path(path) == folder / CACHE:
            return torch.load(path, weights_only=False)  # ogb wrote it here itself; NumPy, so torch's safe mode cannot
        with torch.serialization.safe_globals(_numpy_globals()):
            return torch.load(path, weights_only=True)  # split_dict.pt may come from the network

    def save(value: Any, path: str, **options: Any) -> None:
        place = Path(path)
        place.parent.mkdir(exist_ok=True)
        part = place.with_name(place.name + ".part")
        torch.save(value, part, **options)
        os.replace(part, place)  # noqa: PTH105  whole or not there, also when the run is killed

    def no_terminal(prompt: str = "") -> str:
        raise InputError(f"{folder}: ogb asks {prompt!r}, which a batch job cannot answer; see the files there")

    kept = module.torch
    module.torch = types.SimpleNamespace(load=load, save=save)
    module.input = no_terminal
    try:
        yield
    finally:
        module.torch = kept
        del module.input


def _numpy_globals() -> list[Any]:
    """What a pickled NumPy array of numbers is made of, and nothing that runs code."""
    rebuild = np.empty(0).__reduce__()[0]
    return [rebuild, np.ndarray, np.dtype, *{type(np.dtype(code)) for code in "?bhilBHILfd"}]


def _graph_data(
    name: str, graph: dict[str, Any], labels: NDArray[Any], parts: dict[str, Any], num_classes: int
) -> GraphData:
    src, dst = graph["edge_index"].astype(np.int64, copy=False)
    num_nodes = int(graph["num_nodes"])
    masks = {}
    for part, mask in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        masks[mask] = np.zeros(num_nodes, dtype=np.bool_)
        masks[mask][np.asarray(parts[part])] = True
    return GraphData(
        name=name,
        src=src,
        dst=dst,
        features=graph["node_feat"].astype(np.float32, copy=False),
        labels=whole_labels(labels),
        num_classes=num_classes,
        node_ids=np.arange(num_nodes, dtype=np.int64),
        **masks,
    )


def whole_labels(labels: NDArray[Any]) -> NDArray[np.int64]:
    """[N] int64 of ogb's [N, 1]; NaN, as most of papers100M is, becomes -1."""
    column = labels.reshape(-1)
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), -1, column)
    return column.astype(np.int64)
