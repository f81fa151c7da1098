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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partitioning.directory.meta import Meta
from partitioning.directory.partition import PartEdges, Partition, PartNodes
from partitioning.files.file_io import load_npy, reading
from partitioning.graph.array_checks import Array, Ints
from partitioning.graph.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
)

OF_TARGET = {"labels": "label", **dict(zip(MASKS, MASKS, strict=True))}
"""Files of the target's inner nodes, by their fields in Partition."""
OF_EDGES = ("src", "dst", *EDGE_DATA)
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
ALWAYS = ("feat", "orig_id", "halo", "src", "dst")
"""Arrays that every partition has; of others meta.json states whether there is one."""
_PARSING = threading.Lock()
"""Guards the parsing of npy headers, which Python 3.11 cannot do in threads (CPython 106905)."""


def node_folder(folder: Path, name: str) -> Path:
    """Return the folder of a node type in a partition's folder."""
    return folder if name == PLAIN_TYPE else folder / "nodes" / name


def edge_folder(folder: Path, edge_type: EdgeType) -> Path:
    """Return the folder of a relation in a partition's folder."""
    return folder if edge_type == PLAIN_RELATION else folder / "edges" / SEPARATOR.join(edge_type)


def load_array(path: Path) -> Array:
    """Map the array of a file; a page that is written to becomes private to this process.

    InputError if it is missing or damaged.
    """
    with _PARSING, reading(path, "npy array", REMEDY):
        return np.asarray(load_npy(path, mmap_mode="c"))


def new_ids(nodes: PartNodes, bounds: Ints, part: int) -> Ints:
    """Return the ids in the partitioned graph of a partition's inner and halo nodes, [I + H].

    Args:
        bounds: as of Meta.bounds.
    """
    halo = bounds[nodes.halo_owner.numpy()] + nodes.halo_index.numpy()
    return np.concatenate((np.arange(*bounds[part : part + 2]), halo))


def arrays_of(part: Partition, bounds: Mapping[str, Ints], folder: Path) -> dict[Path, Array]:
    """Return the arrays of a partition by the files in its folder, which `read_arrays` reads.

    Args:
        bounds: as of Meta.bounds.
    """
    tensors = {folder / file: getattr(part, field) for field, file in OF_TARGET.items()}
    tensors |= {folder / f"links_{name}": pairs for name, pairs in (part.links or {}).items()}
    for name, nodes in part.nodes.items():
        place = node_folder(folder, name)
        halo = torch.from_numpy(new_ids(nodes, bounds[name], part.rank)[nodes.num_inner :])
        tensors |= {place / "feat": nodes.features, place / "orig_id": nodes.node_ids}
        tensors |= {place / "halo": halo, place / "out_deg": nodes.out_degree}
    for edge_type, edges in part.relations.items():
        place = edge_folder(folder, edge_type)
        tensors |= {place / name: getattr(edges, name) for name in OF_EDGES}
    return {
        path.with_name(f"{path.name}.npy"): tensor.numpy()
        for path, tensor in tensors.items()
        if tensor is not None
    }


def read_arrays(directory: Path, meta: Meta, part: int) -> Partition:
    """Map the arrays of a partition that have a checksum in the description.

    The checksums are not compared. InputError for a file that is missing or no npy array.
    """
    folder = directory / f"part{part}"
    stated = {directory / name for name in meta.checksums}

    def read(place: Path, name: str) -> Any:
        file = place / f"{name}.npy"
        is_there = file in stated or name in ALWAYS
        return torch.from_numpy(load_array(file)) if is_there else None

    nodes, relations = {}, {}
    for name, bounds in meta.bounds.items():
        place = node_folder(folder, name)
        halo = read(place, "halo").numpy()
        owner = np.searchsorted(bounds, halo, side="right") - 1
        nodes[name] = PartNodes(
            read(place, "feat"),
            read(place, "orig_id"),
            torch.from_numpy(owner),
            torch.from_numpy(halo - bounds[owner]),
            out_degree=read(place, "out_deg"),
        )
    for edge_type in meta.edge_types:
        place = edge_folder(folder, edge_type)
        relations[edge_type] = PartEdges(*(read(place, name) for name in OF_EDGES))
    counts = meta.parts[part]
    return Partition(
        rank=part,
        num_parts=len(meta.parts),
        target=meta.target,
        nodes=nodes,
        relations=relations,
        self_loops=counts.edges - sum(len(edges.src) for edges in relations.values()),
        links={name: read(folder, f"links_{name}") for name in LINKS} if meta.links else None,
        first_id=sum(counts.nodes for counts in meta.parts[:part]) if meta.links else 0,
        **{field: read(folder, file) for field, file in OF_TARGET.items()},
    )


def content_of(checksums: Mapping[str, str], part: int) -> str:
    """Return the sha256 (hex) of the checksums of all npy files of a partition."""
    prefix = f"part{part}/"
    entries = sorted(
        (file, checksum)
        for file, checksum in checksums.items()
        if file.startswith(prefix) and file.endswith(".npy")
    )
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
