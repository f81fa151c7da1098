"""Npy files of a partition, one array each, read by memory mapping.

A plain graph has all arrays in the partition's folder. A heterogeneous graph has those of its nodes
in nodes/TYPE, those of its edges in edges/SOURCE__RELATION__DESTINATION, and labels and masks as a
plain one.

    label, train_mask, val_mask, test_mask    [I, ...] of the target's inner nodes
    feat, orig_id    float32 [I, F], int64 [I] of the inner nodes
    halo             int64 [H] ids of the halo nodes in the partitioned graph, ascending
    src, dst         int32 [E] local ids of each edge's ends, sorted by destination, then source;
                     no self loops
    edge_weight      float32 [E], where edges have weights
    edge_feat        float32 [E, K], where edges have features; plain graphs only
    out_deg          int64 [I + H] out-degrees in the whole graph without self loops, float64 with
                     weights; plain graphs only, and not of an imported directory
    links_train ...  with task=link_prediction: see Partition.links

In the partitioned graph the nodes of a type are numbered partition after partition.
I inner nodes of a type, H its halo nodes, E edges of a relation, P partitions.
"""

import hashlib
import json
import threading
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partitioning.array_checks import Array
from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.file_io import load_npy, reading
from partitioning.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
)

LINKS = (
    "train",
    "val",
    "test",
    "val_neg",
    "test_neg",
    "candidates",
    "pool",
    "spectral_val",
    "spectral",
    "neighbours",
)
REMEDY = "copy the whole part, or partition again with overwrite=true"
"""For a damaged partition."""
_PARSING = threading.Lock()
"""Guards the parsing of npy headers, which Python 3.11 cannot do in threads (CPython 106905)."""


def node_folder(folder: Path, name: str) -> Path:
    """Return the folder of a node type in a partition's folder."""
    return folder if name == PLAIN_TYPE else folder / "nodes" / name


def edge_folder(folder: Path, edge_type: EdgeType) -> Path:
    """Return the folder of a relation in a partition's folder."""
    return folder if edge_type == PLAIN_RELATION else folder / "edges" / SEPARATOR.join(edge_type)


def load_array(path: Path) -> Array:
    """Map the array of a file; a page that is written to becomes private to this process."""
    with _PARSING, reading(path, "npy array", REMEDY):
        return np.asarray(load_npy(path, mmap_mode="c"))


def read_nodes(folder: Path, bounds: NDArray[np.int64], part: int) -> PartNodes:
    """Read the inner and halo nodes of one type.

    Args:
        folder: node_folder of the type.
        bounds: int64 [P + 1], partition p owns ids bounds[p] ... bounds[p + 1] - 1 of the type.
    """
    feat, ids, halo = (load_array(folder / f"{name}.npy") for name in ("feat", "orig_id", "halo"))
    owner = np.searchsorted(bounds, halo, side="right") - 1
    return PartNodes(
        features=torch.from_numpy(feat),
        node_ids=torch.from_numpy(ids),
        halo_owner=torch.from_numpy(owner),
        halo_index=torch.from_numpy(halo - bounds[owner]),
    )


def read_edges(folder: Path, stated: Container[Path]) -> PartEdges:
    """Read the edges of one relation.

    Args:
        folder: edge_folder of the relation.
        stated: Files of the directory that have a checksum.
    """
    files = {name: folder / f"{name}.npy" for name in ("src", "dst", *EDGE_DATA)}
    return PartEdges(
        **{
            name: torch.from_numpy(load_array(file))
            for name, file in files.items()
            if file in stated
        }
    )


def read_target(folder: Path) -> dict[str, Any]:
    """Read the labels and masks of the target's inner nodes, by their fields in Partition."""
    files = {"labels": "label", **dict(zip(MASKS, MASKS, strict=True))}
    return {
        field: torch.from_numpy(load_array(folder / f"{name}.npy")) for field, name in files.items()
    }


def write_links(folder: Path, links: Mapping[str, Array]) -> None:
    """Write the arrays of link prediction, one npy file each."""
    for name in LINKS:
        np.save(folder / f"links_{name}.npy", links[name])


def save_part(folder: Path, part: Partition, bounds: Mapping[str, NDArray[np.int64]]) -> None:
    """Write the arrays of a partition, without out-degrees; edges by destination, then source.

    Args:
        folder: A new folder.
        bounds: By type, as in `read_nodes`.
    """
    ids = {}
    arrays: dict[Path, Array] = {folder / "label": part.labels.numpy()}
    arrays |= {folder / name: getattr(part, name).numpy() for name in MASKS}
    for name, nodes in part.nodes.items():
        place = node_folder(folder, name)
        halo = bounds[name][nodes.halo_owner.numpy()] + nodes.halo_index.numpy()
        ids[name] = np.concatenate((np.arange(*bounds[name][part.rank : part.rank + 2]), halo))
        arrays[place / "feat"] = nodes.features.numpy()
        arrays |= {place / "orig_id": nodes.node_ids.numpy(), place / "halo": halo}
    for edge_type, edges in part.relations.items():
        order = np.lexsort((ids[edge_type[0]][edges.src.numpy()], edges.dst.numpy()))
        place = edge_folder(folder, edge_type)
        for name in ("src", "dst", *EDGE_DATA):
            if (data := getattr(edges, name)) is not None:
                arrays[place / name] = data.numpy()[order]
    for path, array in arrays.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path.with_name(f"{path.name}.npy"), array)


def read_links(folder: Path) -> dict[str, Tensor]:
    """Read a partition's arrays of Partition.links."""
    return {name: torch.from_numpy(load_array(folder / f"links_{name}.npy")) for name in LINKS}


def content_of(checksums: Mapping[str, str], part: int) -> str:
    """Return the sha256 (hex) of the checksums of all npy files of a partition."""
    prefix = f"part{part}/"
    entries = sorted(
        (file, checksum)
        for file, checksum in checksums.items()
        if file.startswith(prefix) and file.endswith(".npy")
    )
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
