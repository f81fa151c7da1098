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
from numpy.typing import NDArray
from torch import Tensor

from partitioning.array_checks import (
    Array,
    check_dense,
    check_edge_feat,
    check_edge_weight,
    check_endpoints,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
)
from partitioning.directory.meta import Meta
from partitioning.directory.partition import Partition, PartNodes, label_kind
from partitioning.errors import InputError
from partitioning.file_io import load_npy, reading
from partitioning.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
    is_labelled,
)

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


def read_nodes(folder: Path, bounds: NDArray[np.int64], part: int, num_features: int) -> PartNodes:
    """Read the inner and halo nodes of one type.

    Args:
        folder: node_folder of the type.
        bounds: int64 [P + 1], partition p owns ids bounds[p] ... bounds[p + 1] - 1 of the type.

    Raises:
        InputError: an array is damaged, or does not fit num_features or the bounds.
    """
    first, end = bounds[part : part + 2].tolist()
    feat, ids, halo = (load_array(folder / f"{name}.npy") for name in ("feat", "orig_id", "halo"))
    if feat.shape != (end - first, num_features):
        raise InputError(
            f"{folder}: feat has shape {feat.shape}, meta.json says {(end - first, num_features)};"
            f" {REMEDY}"
        )
    if num_features:
        feat = check_dense(feat, end - first, f"{folder}: feat")
    ids = check_node_ids(ids, end - first, f"{folder}: orig_id")
    halo = check_endpoints(halo, int(bounds[-1]), f"{folder}: halo").astype(np.int64, copy=False)
    if (np.diff(halo) <= 0).any() or ((halo >= first) & (halo < end)).any():
        raise InputError(f"{folder}: halo is not ascending, or has inner nodes; {REMEDY}")
    owner = np.searchsorted(bounds, halo, side="right") - 1
    return PartNodes(
        features=torch.from_numpy(feat),
        node_ids=torch.from_numpy(ids),
        halo_owner=torch.from_numpy(owner),
        halo_index=torch.from_numpy(halo - bounds[owner]),
    )


def read_edges(folder: Path, source: PartNodes, destination: PartNodes) -> dict[str, Tensor]:
    """Read src and dst of one relation and, where edges have them, edge_weight and edge_feat.

    Raises:
        InputError: an array is damaged, has a wrong length, or names a node outside the partition.
    """
    edges: dict[str, Tensor] = {}
    num_sources = source.num_inner + source.num_halo
    for name, num_nodes in (("src", num_sources), ("dst", destination.num_inner)):
        path = folder / f"{name}.npy"
        ends = check_endpoints(load_array(path), num_nodes, str(path))
        edges[name] = torch.from_numpy(ends.astype(np.int32, copy=False))
    num_edges = len(edges["src"])
    if len(edges["dst"]) != num_edges:
        raise InputError(
            f"{folder}: src has {num_edges} entries, dst {len(edges['dst'])}; {REMEDY}"
        )
    path = folder / "edge_weight.npy"
    if path.exists():
        weight = check_edge_weight(load_array(path), num_edges, str(path))
        edges["edge_weight"] = torch.ones(num_edges) if weight is None else torch.from_numpy(weight)
    path = folder / "edge_feat.npy"
    if path.exists():
        feat = check_edge_feat(load_array(path), num_edges, str(path))
        edges["edge_feat"] = torch.from_numpy(feat)
    return edges


def read_target(folder: Path, num_inner: int, meta: Meta) -> dict[str, Any]:
    """Read labels and masks of the target's inner nodes from a partition's folder."""
    arrays = {name: load_array(folder / f"{name}.npy") for name in ("label", *MASKS)}
    target = check_target(arrays, num_inner, meta.num_nodes, str(folder), meta.task)
    check_classes_match(target["labels"], meta, str(folder))
    return target


def check_target(
    arrays: Mapping[str, Array], num_inner: int, num_nodes: int, where: str, task: str = ""
) -> dict[str, Any]:
    """Check `label` and the three masks of the target's inner nodes.

    Args:
        num_nodes: nodes of the whole graph, which limits the number of classes.
        where: what messages begin with.
        task: of meta.json, where there is one.

    Returns:
        labels and the masks, by the names of their fields in Partition.
    """
    labels = check_labels(arrays["label"], num_nodes, f"{where}: label", task)
    check_length(labels, num_inner, f"{where}: label")
    masks = {name: check_mask(arrays[name], num_inner, f"{where}: {name}") for name in MASKS}
    check_split(masks, is_labelled(labels), where)
    return {name: torch.from_numpy(array) for name, array in ({"labels": labels} | masks).items()}


def check_classes_match(labels: Tensor, meta: Meta, where: str) -> None:
    """Raise InputError where labels do not fit the task or the number of classes in meta.json.

    Imported directories pass: their workers agree on the number of classes.
    """
    task = label_kind(labels)
    if meta.is_imported:  # the workers agree on the number of classes
        return
    if labels.ndim == 2:
        num_classes = labels.shape[1]
        fits = num_classes == meta.num_classes
    else:
        num_classes = int(labels.max()) + 1 if len(labels) else 0
        fits = num_classes <= meta.num_classes
    if task != meta.task or not fits:
        raise InputError(
            f"{where}: label has {num_classes} classes ({task}), meta.json says {meta.num_classes} "
            f"({meta.task}); {REMEDY}"
        )


def write_links(folder: Path, links: Mapping[str, Array]) -> None:
    """Write the arrays of link prediction, one npy file each."""
    for name in LINKS:
        np.save(folder / f"links_{name}.npy", links[name])


def save_part(folder: Path, part: Partition, bounds: Mapping[str, NDArray[np.int64]]) -> None:
    """Write the arrays of a partition, without out-degrees.

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


def read_links(folder: Path, inner: range, num_nodes: int, width: int) -> dict[str, Array]:
    """Read a partition's pairs by set.

    Args:
        inner: ids of the partition's nodes.
        num_nodes: nodes of the whole graph.
        width: columns of `spectral`.

    Raises:
        InputError: an array is not [n, 2], or a pair's source is not one of the partition's nodes.
    """
    links: dict[str, Array] = {}
    for name in LINKS:
        path = folder / f"links_{name}.npy"
        pairs = links[name] = load_array(path)
        columns = {"spectral": width, "neighbours": 3}.get(name, 2)
        num_rows = len(inner) if name == "spectral" else len(pairs) if pairs.ndim else 0
        if pairs.shape != (num_rows, columns):
            raise InputError(
                f"{path}: has the shape {list(pairs.shape)}, needs {[num_rows, columns]}; copy it"
                " again"
            )
        if name == "spectral":
            links[name] = check_dense(pairs, len(inner), str(path)) if width else pairs
            continue
        check_endpoints(pairs[:, : 1 if name == "pool" else 2].reshape(-1), num_nodes, str(path))
        if name != "pool" and not ((pairs[:, 0] >= inner.start) & (pairs[:, 0] < inner.stop)).all():
            raise InputError(f"{path}: a source is no node of the part; copy it again")
        links[name] = pairs.astype(np.int64)
    return links


def check_relations(folder: Path, edge_feat: Any, num_edges: int, num_relations: int) -> Array:
    """Return the relation of each edge, int64 [E].

    Raises InputError where edge_feat is not a column of them.
    """
    feat = np.zeros((0, 1)) if edge_feat is None else np.asarray(edge_feat)
    if feat.shape != (num_edges, 1) or not np.isin(feat, np.arange(num_relations)).all():
        raise InputError(
            f"{folder}/edge_feat.npy: expected a column of numbers of {num_relations} relations;"
            " copy it again"
        )
    return feat[:, 0].astype(np.int64)


def check_no_leak(folder: Path, src: Array, dst: Array, links: Mapping[str, Array]) -> None:
    """Raise InputError if an edge, [E] by ids in the partitioned graph, joins a held-out pair."""
    held_out = np.concatenate((links["val"], links["test"]))
    width = 1 + max(int(ids.max(initial=0)) for ids in (src, dst, held_out))
    forward = held_out[:, 0] * width + held_out[:, 1]
    backward = held_out[:, 1] * width + held_out[:, 0]
    if np.isin(src * width + dst, np.concatenate((forward, backward))).any():
        raise InputError(
            f"{folder}: a held-out pair has an edge; partition again with overwrite=true"
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
