"""CiteSeer, PubMed, Facebook page-page and LastFM Asia, read by torch_geometric (the extra `pyg`).

The raw files lie where torch_geometric looks for them (see `remotes`). What it makes of them goes to a temporary
folder: the graphs are small, and a cache from another version of the library cannot be read by mistake.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.datasets.download import Remote, ensure_files, library
from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from partitioning.settings import DatasetSettings

PLANETOID = {"citeseer_torch": "CiteSeer", "pubmed_torch": "PubMed"}
PLANETOID_URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
MUSAE = {"facebook": "facebook.npz", "lastfm": "lastfm_asia.npz"}
MUSAE_URL = "https://graphmining.ai/datasets/ptg"


def remotes(name: str, folder: str) -> list[Remote]:
    """The raw files: `dataset_dir`/CiteSeer/raw/ind.citeseer.x and so on, `dataset_dir`/facebook/raw/facebook.npz."""
    if name in MUSAE:
        return [Remote(f"{MUSAE_URL}/{MUSAE[name]}", Path(folder) / name / "raw" / MUSAE[name])]
    title = PLANETOID[name]
    names = [f"ind.{title.lower()}.{part}" for part in PLANETOID_PARTS]
    return [
        Remote(f"{PLANETOID_URL}/{file}", Path(folder) / title / "raw" / file) for file in names
    ]


def load(settings: DatasetSettings) -> GraphData:
    """Load by name; edges in both directions and features as the library gives them. Planetoid's masks are kept."""
    name = settings.name
    try:
        import torch_geometric.datasets as library_datasets
    except ImportError:
        raise InputError(
            f"dataset_name={name} needs torch_geometric: pip install -e '.[pyg]' -c constraints.txt"
        ) from None
    files = remotes(name, settings.dir)
    ensure_files(name, files)
    with tempfile.TemporaryDirectory() as processed, library(name, files[0].path.parent):
        if name in PLANETOID:
            base, args = library_datasets.Planetoid, [settings.dir, PLANETOID[name]]
        else:
            by_name = {
                "facebook": library_datasets.FacebookPagePage,
                "lastfm": library_datasets.LastFMAsia,
            }
            base, args = by_name[name], [str(Path(settings.dir) / name)]
        uncached = type(base.__name__, (base,), {"processed_dir": property(lambda self: processed)})
        dataset = uncached(*args)
        return _graph_data(name, dataset[0], int(dataset.num_classes))


def _graph_data(name: str, data: Any, num_classes: int) -> GraphData:
    src, dst = data.edge_index.numpy().astype(np.int64)
    labels = data.y.numpy().astype(np.int64)
    masks = {
        key: data[key].numpy() for key in ("train_mask", "val_mask", "test_mask") if key in data
    }
    features = np.ascontiguousarray(data.x.numpy(), dtype=np.float32)
    return GraphData(
        name,
        src,
        dst,
        features,
        labels,
        num_classes,
        np.arange(len(labels), dtype=np.int64),
        **masks,
    )
