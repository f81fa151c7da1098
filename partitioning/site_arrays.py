"""From the arrays of a site's part.npz (partitioning/site_folders.py) to its part.

I inner nodes, H halo nodes, E edges, F features, C classes, W sites.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from partitioning.array_checks import (
    CSR,
    MANY_CLASSES,
    Array,
    Ints,
    check_classes,
    check_edge_feat,
    check_edge_weight,
    check_features,
    check_integers,
    check_masks,
    check_multilabel,
    check_split,
    check_unique,
    features_among,
    refuse,
)
from partitioning.datasets.raw import read_arrays
from partitioning.directory.partition import Partition, UnresolvedHalo
from partitioning.errors import InputError
from partitioning.graph_data import EDGE_DATA, MASKS, is_labelled
from partitioning.site_description import ARRAYS, DESCRIPTION, Site

log = logging.getLogger(__name__)

EDGES = ("src", "dst", "src_owner")
NODE_ARRAYS = ("feat", "label", *MASKS)
"""Arrays with one row per node."""


def arrays_of(site: Site) -> dict[str, Array]:
    """What its part.npz holds, unchecked."""
    path = site.folder / ARRAYS
    if not path.exists():
        raise InputError(f"{path}: missing; write it with numpy.savez")
    return read_arrays(path)


def read_part(site: Site) -> Partition:
    """A site's part, checked; InputError names what is wrong with it."""
    path, arrays = site.folder / ARRAYS, arrays_of(site)
    check_names(arrays, ("node_id", *EDGES, *EDGE_DATA, *NODE_ARRAYS, *CSR), path)
    ids, edges = checked_ids(arrays, path), checked_edges(arrays, site, path)
    order = np.argsort(ids)
    nodes: dict[str, Any] = {
        name: torch.from_numpy(array[order])
        for name, array in _node_arrays(arrays, ids, site, path).items()
    }
    return Partition(
        rank=site.rank,
        num_parts=len(site.sites),
        num_inner=len(ids),
        node_ids=torch.from_numpy(ids[order]),
        out_degree=None,
        **_structure(ids[order], edges, site, path),
        **nodes,
    )


def _at(path: Path | str, name: str) -> str:
    return f"{path}: array `{name}`"


def _required(arrays: Mapping[str, Array], name: str, path: Path | str) -> Ints:
    if name not in arrays:
        raise InputError(
            f"{path}: there is no array `{name}`; found {', '.join(sorted(arrays)) or 'nothing'}"
        )
    return check_integers(arrays[name], _at(path, name))


def check_names(arrays: Mapping[str, Array], known: Sequence[str], path: Path | str) -> None:
    """InputError for an array of another name."""
    if unknown := sorted(arrays.keys() - set(known)):
        raise InputError(
            f"{path}: array `{unknown[0]}` has no meaning here; it may have {', '.join(known)}"
        )


def checked_ids(arrays: Mapping[str, Array], path: Path | str) -> Ints:
    """[I] in the order of the file."""
    ids = _required(arrays, "node_id", path)
    refuse(ids, ids < 0, _at(path, "node_id"), "expected ids from 0 on")
    check_unique(ids, _at(path, "node_id"))
    return ids


@dataclass(frozen=True, eq=False)
class Edges:
    """int64 [E] each; ids, and the rank of the source's owner."""

    src: Ints
    dst: Ints
    owner: Ints
    weight: NDArray[np.float32] | None
    """[E], and features [E, K], where there are any."""
    feat: NDArray[np.float32] | None


def checked_edges(arrays: Mapping[str, Array], site: Site, path: Path | str) -> Edges:
    """Each array by itself, and that their lengths fit."""
    src, dst, owner = (_required(arrays, name, path) for name in EDGES)
    for name, array in zip(EDGES[1:], (dst, owner), strict=True):
        if len(array) != len(src):
            raise InputError(
                f"{_at(path, name)} has {len(array)} rows, `src` has {len(src)}; expected one per edge"
            )
    refuse(
        owner,
        (owner < 0) | (owner >= len(site.sites)),
        _at(path, "src_owner"),
        f"expected a rank in [0, {len(site.sites)}), a place in `sites` of {DESCRIPTION}",
    )
    weight, feat = (
        check(arrays[name], len(src), _at(path, name)) if name in arrays else None
        for name, check in zip(EDGE_DATA, (check_edge_weight, check_edge_feat), strict=True)
    )
    return Edges(src, dst, owner, weight, feat)


def _structure(ids: Ints, edges: Edges, site: Site, path: Path) -> dict[str, Any]:
    """The fields of Partition that edges decide; ids are int64 [I] ascending, which is the order of the rows."""
    check_ends(ids, ids, edges, site, path)
    local, halo = numbered(ids, edges.src, edges.owner, site, path)
    loop = edges.src == edges.dst
    order = np.lexsort((edges.src, edges.owner, edges.dst))
    order = order[~loop[order]]
    dst = np.searchsorted(ids, edges.dst[order])
    weight, feat = (
        None if data is None else torch.from_numpy(data[order])
        for data in (edges.weight, edges.feat)
    )
    return {
        "num_halo": len(halo["halo_owner"]),
        "src": torch.from_numpy(local[order]),
        "dst": torch.from_numpy(dst.astype(np.int32)),
        **halo,
        "in_degree": torch.bincount(
            torch.from_numpy(dst), None if weight is None else weight.double(), len(ids)
        ),
        "edge_weight": weight,
        "edge_feat": feat,
        "self_loops": int(loop.sum()),
    }


def check_ends(src_ids: Ints, dst_ids: Ints, edges: Edges, site: Site, path: Path | str) -> None:
    """InputError for a destination of another site, and a source that is here while its owner is not, or reversed."""
    refuse(
        edges.dst,
        ~np.isin(edges.dst, dst_ids),
        _at(path, "dst"),
        "expected a node of this site, one of `node_id`; an edge belongs to the site of its dst",
    )
    own, held = edges.owner == site.rank, np.isin(edges.src, src_ids)
    refuse(
        edges.src,
        own & ~held,
        _at(path, "src"),
        f"`src_owner` says that {site.name} holds it, and it is not in `node_id`",
    )
    refuse(
        edges.src,
        ~own & held,
        _at(path, "src"),
        "it is in `node_id`, and `src_owner` names another site; an id has one owner",
    )


def numbered(
    ids: Ints, src: Ints, owner: Ints, site: Site, path: Path | str, kind: str = ""
) -> tuple[NDArray[np.int32], dict[str, Any]]:
    """The local id of each edge's source, int32 [E], and the fields of the halo; ids: int64 [I] ascending."""
    own = owner == site.rank
    halo, first, place = np.unique(src[~own], return_index=True, return_inverse=True)
    halo_owner = owner[~own][first]
    wrong = ~own
    wrong[wrong] = halo_owner[place] != owner[wrong]
    refuse(src, wrong, _at(path, "src"), "`src_owner` names two sites for it; an id has one owner")
    by_owner = np.lexsort((halo, halo_owner))
    local = np.empty(len(src), np.int32)
    local[own] = np.searchsorted(ids, src[own])
    local[~own] = len(ids) + np.argsort(by_owner)[place]
    unresolved = UnresolvedHalo(
        torch.from_numpy(halo[by_owner]), site.folder / ARRAYS, site.sites, kind, site.folder
    )
    return local, {
        "halo_owner": torch.from_numpy(halo_owner[by_owner]),
        "halo_index": torch.full((len(halo),), -1),
        "unresolved_halo": unresolved,
    }


def _node_arrays(
    arrays: Mapping[str, Array], ids: Ints, site: Site, path: Path
) -> dict[str, NDArray[Any]]:
    """Features, labels and masks by the names of Partition's fields, in the order of the file."""
    target = target_arrays(arrays, ids, site, path)
    return {"features": read_features(arrays, len(ids), path), **target}


def target_arrays(
    arrays: Mapping[str, Array], ids: Ints, site: Site, path: Path | str
) -> dict[str, NDArray[Any]]:
    """Labels and masks of the nodes that have them."""
    for name in NODE_ARRAYS:
        if name in arrays and (arrays[name].ndim == 0 or len(arrays[name]) != len(ids)):
            raise InputError(
                f"{_at(path, name)} has shape {arrays[name].shape}; `node_id` has {len(ids)} rows"
            )
    labels = _labels(arrays, len(ids), site, path)
    masks = _masks(arrays, len(ids), path)
    check_split(masks, is_labelled(labels), str(path), ids)
    return {"labels": labels, **masks}


def read_features(
    arrays: Mapping[str, Array], num_nodes: int, path: Path | str
) -> NDArray[np.float32]:
    """[I, F]"""
    if num_nodes == 0:
        return np.zeros((0, 0), np.float32)  # the others know the width
    features = check_features(features_among(arrays, path), num_nodes, partial(_at, path))
    return np.asarray(features.toarray()) if isinstance(features, sp.csr_array) else features


def _labels(
    arrays: Mapping[str, Array], num_nodes: int, site: Site, path: Path | str
) -> Ints | NDArray[np.float32]:
    multilabel = site.task == "multilabel"
    if "label" not in arrays or num_nodes == 0:
        if num_nodes:
            log.warning(
                "%s: there is no array `label`; this site's nodes have no part in training or scores",
                path,
            )
        return (
            np.full((num_nodes, site.num_classes or 0), np.nan, np.float32)
            if multilabel
            else np.full(num_nodes, -1)
        )
    label, where = arrays["label"], _at(path, "label")
    if (label.ndim == 2) != multilabel:
        raise InputError(f"{where} has shape {label.shape}; task of {DESCRIPTION} is {site.task}")
    if not multilabel:
        return check_classes(label, site.num_classes or max(num_nodes, MANY_CLASSES), where)
    if label.shape[1] != site.num_classes:
        raise InputError(
            f"{where} has {label.shape[1]} columns; num_classes of {DESCRIPTION} is {site.num_classes}"
        )
    return check_multilabel(label, where)


def _masks(
    arrays: Mapping[str, Array], num_nodes: int, path: Path | str
) -> dict[str, NDArray[np.bool_]]:
    masks = check_masks(
        {name: arrays[name] for name in MASKS if name in arrays}, num_nodes, partial(_at, path)
    )
    if not masks and "label" in arrays and num_nodes:
        raise InputError(
            f"{path}: has `label` and no {', '.join(MASKS)}; say which nodes train, validate and test"
        )
    return masks or {name: np.zeros(num_nodes, np.bool_) for name in MASKS}
