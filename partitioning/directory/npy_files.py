"""A part of a partition directory as npy files, one an array, read by memory mapping.

src, dst    int32 [E] local ids of each edge's ends, sorted by destination and then by source; no self loops
halo        int64 [H] ids of the halo nodes in the partitioned graph, ascending
out_deg     int64 [I + H] degrees in the whole graph, self loops left out; float64 with weights
edge_weight, edge_feat    float32 [E] and [E, K], where there are any
links_train ...    with task=link_prediction: Partition.links
feat, label, orig_id, train_mask, val_mask, test_mask    [I, ...] of the inner nodes, as Partition has them
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import Array, check_dense, check_endpoints, check_integers
from partitioning.errors import InputError
from partitioning.file_io import load_npy, reading
from partitioning.graph_data import EDGE_DATA, MASKS

EDGE_ARRAYS = ("src", "dst")
"""What there is once an edge, all in the same order."""
LINKS = (
    "train",
    "val",
    "test",
    "val_neg",
    "test_neg",
    "candidates",
    "pool",
    "spectral",
    "neighbours",
)
ARRAYS = (*EDGE_ARRAYS, "halo", "out_deg", "feat", "label", "orig_id", *MASKS)
AGAIN = "copy the whole part, or partition again with overwrite=true"
"""What to do about a damaged part."""
_PARSING = threading.Lock()
"""Of a header: Python 3.11 cannot parse in several threads at a time (CPython issue 106905)."""


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    for name in (*ARRAYS, *(name for name in EDGE_DATA if name in arrays)):
        np.save(folder / f"{name}.npy", arrays[name])


def load_array(path: Path) -> Array:
    """The array of a file, mapped (a page that is written to becomes this process's own)."""
    with _PARSING, reading(path, "npy array", AGAIN):
        return np.asarray(load_npy(path, mmap_mode="c"))


def read_arrays(folder: Path, num_inner: int) -> dict[str, Array]:
    """The arrays by name, as load_array has them; InputError for a wrong one.

    Those that name nodes are checked: an index can be trusted.
    """
    arrays: dict[str, Array] = {}
    for name in (*ARRAYS, *(name for name in EDGE_DATA if (folder / f"{name}.npy").exists())):
        arrays[name] = load_array(folder / f"{name}.npy")
    num_nodes = num_inner + len(check_integers(arrays["halo"], f"{folder}/halo.npy"))
    for name, size in (("src", num_nodes), ("dst", num_inner)):
        arrays[name] = check_endpoints(arrays[name], size, f"{folder}/{name}.npy").astype(
            np.int32, copy=False
        )
    lengths = {name: len(arrays["src"]) for name in EDGE_ARRAYS} | {"out_deg": num_nodes}
    for name, length in lengths.items():
        if len(arrays[name]) != length:
            raise InputError(
                f"{folder}/{name}.npy: has {len(arrays[name])} entries, needs {length}; copy it again"
            )
    return arrays


def write_links(folder: Path, links: Mapping[str, Array]) -> None:
    for name in LINKS:
        np.save(folder / f"links_{name}.npy", links[name])


def read_links(folder: Path, inner: range, num_nodes: int, width: int) -> dict[str, Array]:
    """The pairs of a part by set; InputError where one is not [n, 2], or has a source that is not the part's.

    width: K of `spectral`.
    """
    links: dict[str, Array] = {}
    for name in LINKS:
        path = folder / f"links_{name}.npy"
        found = links[name] = load_array(path)
        columns = {"spectral": width, "neighbours": 3}.get(name, 2)
        expected = [len(inner) if name == "spectral" else len(found) if found.ndim else 0, columns]
        if list(found.shape) != expected:
            raise InputError(
                f"{path}: has the shape {list(found.shape)}, needs {expected}; copy it again"
            )
        if name == "spectral":
            links[name] = check_dense(found, len(inner), str(path))
            continue
        check_endpoints(found[:, : 1 if name == "pool" else 2].reshape(-1), num_nodes, str(path))
        if name != "pool" and not ((found[:, 0] >= inner.start) & (found[:, 0] < inner.stop)).all():
            raise InputError(f"{path}: a source is no node of the part; copy it again")
        links[name] = found.astype(np.int64)
    return links


def check_relations(folder: Path, edge_feat: Any, num_edges: int, count: int) -> Array:
    """int64 [E] the relation of each edge; InputError where edge_feat is no column of numbers below `count`."""
    feat = np.zeros((0, 1)) if edge_feat is None else np.asarray(edge_feat)
    if feat.shape != (num_edges, 1) or not np.isin(feat, np.arange(count)).all():
        raise InputError(
            f"{folder}/edge_feat.npy: expected a column of numbers of {count} relations; copy it again"
        )
    return feat[:, 0].astype(np.int64)


def check_no_leak(folder: Path, src: Array, dst: Array, links: Mapping[str, Array]) -> None:
    """InputError where an edge, [E] ends by their ids in the partitioned graph, joins a pair that is held out."""
    held = np.concatenate((links["val"], links["test"]))
    width = 1 + max(int(each.max(initial=0)) for each in (src, dst, held))
    pairs = np.concatenate((held[:, 0] * width + held[:, 1], held[:, 1] * width + held[:, 0]))
    if np.isin(src * width + dst, pairs).any():
        raise InputError(
            f"{folder}: a pair that is held out has an edge; partition again with overwrite=true"
        )


def content_of(checksums: Mapping[str, str], part: int) -> str:
    """sha256 (hex) that stands for all arrays of a part, from their files' checksums."""
    begin = f"part{part}/"
    held = sorted(
        item for item in checksums.items() if item[0].startswith(begin) and item[0].endswith(".npy")
    )
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()
