"""Files of public data sets, damaged, or with pickles that would run code, in the folder where they
are looked for.
"""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import mutations as mutate
import numpy as np
import scipy.sparse as sp
import torch
from inputs import Input

NODES = 12
RING = np.arange(NODES), (np.arange(NODES) + 1) % NODES


class Code:
    """Prints what is counted as wrong, where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("Traceback (most recent call last): a file has run code",)


def write_flickr(folder: Path) -> None:
    folder.mkdir(parents=True)
    adjacency = sp.csr_matrix((np.ones(NODES), RING), shape=(NODES, NODES))
    sp.save_npz(folder / "adj_full.npz", adjacency)
    np.save(folder / "feats.npy", np.arange(3.0 * NODES).reshape(NODES, 3))
    classes = {str(node): node % 7 for node in range(NODES)}
    (folder / "class_map.json").write_text(json.dumps(classes))
    role = {"tr": [*range(6)], "va": [6, 7], "te": [8, 9, 10, 11]}
    (folder / "role.json").write_text(json.dumps(role))


def write_collab(folder: Path) -> None:
    raw, split = folder / "raw", folder / "split" / "time"
    for place in (raw, split):
        place.mkdir(parents=True)
    tables = {
        "edge": np.stack(RING, axis=1),
        "edge_weight": np.ones((NODES, 1), int),
        "node-feat": np.arange(2 * NODES).reshape(NODES, 2),
        "num-node-list": [[NODES]],
    }
    for name, rows in tables.items():
        with gzip.open(raw / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, rows, fmt="%d", delimiter=",")
    held = {name: np.array([[0, 5], [3, 8]]) for name in ("edge", "edge_neg")}
    for part in ("train", "valid", "test"):
        torch.save(held, split / f"{part}.pt")
    (folder / "RELEASE_v1.txt").touch()


SETS: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "flickr": (write_flickr, "flickr", ()),
    "ogbl-collab": (write_collab, "ogbl_collab", ("task=link_prediction",)),
}


def downloads(rng: Random, base: Path) -> Input:
    name = rng.choice([*SETS])
    write, folder, more = SETS[name]
    place = Path("data", folder).resolve()
    write(place)
    arguments = (
        "app=partition_data",
        f"dataset_name={name}",
        "dataset_dir=data",
        "num_partitions=2",
        "partition_dir=made",
        "hydra.run.dir=out",
        *more,
    )
    if rng.random() < 0.5:
        return Input(", ".join(mutate.damage(place, rng)), arguments, names=(folder, name))
    files = [
        path for path in mutate.files(place) if path.name not in ("train.pt", "RELEASE_v1.txt")
    ]
    path = rng.choice(files)
    if path.suffix == ".pt" and rng.random() < 0.5:
        torch.save({"edge": Code()}, path)
    elif path.suffix == ".npz" and rng.random() < 0.5:
        np.savez(path, **{**np.load(path), "indices": np.array([Code()])})
    else:
        path.write_bytes(pickle.dumps(Code()))
    return Input(f"code in {path.name}", arguments, names=(path.name,), refused=True)
