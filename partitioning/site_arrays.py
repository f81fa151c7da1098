"""Reads and checks a site's part.npz (format: site_folders.py) and makes a partition of it.

The owners of halo nodes tell their rows when the workers start, so the halo is unresolved here.
I inner nodes, H halo nodes, E edges, F features, C classes, W sites.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    check_targets,
    check_unique,
    features_among,
    refuse,
)
from partitioning.datasets.array_files import list_arrays, read_arrays
from partitioning.directory.partition import (
    PartEdges,
    Partition,
    PartNodes,
    UnresolvedHalo,
)
from partitioning.directory.read_directory import drop_unit_weights
from partitioning.errors import InputError, join_names
from partitioning.graph_data import (
    EDGE_DATA,
    MASKS,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    EdgeType,
    is_labelled,
)
from partitioning.site_description import ARRAYS, DESCRIPTION, Site
from partitioning.site_tables import SITE_TABLES, SitePipeline, find_site_table

log = logging.getLogger(__name__)

EDGE_ENDS = ("src", "dst", "src_owner")
TARGET_ARRAYS = ("label", *MASKS)
FEATURE_ARRAYS = ("feat", *CSR)


def read_part(site: Site, pipeline: SitePipeline | None = None) -> Partition:
    """Read a site's partition; that of a plain graph has one type and one relation.

    InputError names what is wrong with it.
    """
    types, path = site.types, site.folder / ARRAYS
    widths = {PLAIN_TYPE: 0} if types is None else types.types
    edge_types = [PLAIN_RELATION] if types is None else types.edge_types
    target = PLAIN_TYPE if types is None else types.target
    if types is not None and (table := find_site_table(site)) is not None:
        raise InputError(
            f"{table}: sites of a heterogeneous graph hold their features in {ARRAYS}; encode them"
            " before, and take the table out"
        )
    arrays = _group_by_owner(site)

    def where(name: str, what: str = "") -> str:
        """Return what messages about a type or relation begin with."""
        return str(path) if types is None else f"{path}: {what}{name}"

    ids, order = {}, {}
    for name in widths:
        has_nodes = types is None or bool(arrays[name])
        own_ids = _read_ids(arrays[name], where(name)) if has_nodes else np.empty(0, np.int64)
        ids[name], order[name] = own_ids, np.argsort(own_ids)
    ascending = {name: own_ids[order[name]] for name, own_ids in ids.items()}
    edges = {
        edge_type: _read_relation(
            edge_type, arrays[_key(edge_type)], ascending, site, where(_key(edge_type))
        )
        for edge_type in edge_types
    }
    held_target = _read_target(arrays[target], ids[target], site, where(target))
    nodes: dict[str, PartNodes] = {}
    relations: dict[EdgeType, PartEdges] = {}
    num_loops = 0
    for name, width in widths.items():
        leaving = [edge_type for edge_type in edge_types if edge_type[0] == name]
        src, owner = (
            np.concatenate(
                [np.empty(0, np.int64), *(getattr(edges[edge_type], end) for edge_type in leaving)]
            )
            for end in ("src", "owner")
        )
        begin = where(name, "edges from ")
        local_src, halo = _number_sources(ascending[name], src, owner, site, begin, name)
        if types is None:
            rows = _read_plain_features(arrays[name], ids[name], site, pipeline)
        else:
            rows = _read_features(arrays[name], len(ids[name]), where(name), width)
        nodes[name] = PartNodes(
            torch.from_numpy(rows[order[name]]), torch.from_numpy(ascending[name]), **halo
        )
        bounds = np.cumsum([len(edges[edge_type].src) for edge_type in leaving])[:-1]
        for edge_type, local in zip(leaving, np.split(local_src, bounds), strict=False):
            relations[edge_type] = _sort_edges(
                edges[edge_type],
                local,
                ascending[edge_type[2]],
                same_type=edge_type[0] == edge_type[2],
            )
            num_loops += len(edges[edge_type].src) - len(relations[edge_type].src)
            if types is None:
                relations[edge_type] = drop_unit_weights(relations[edge_type])
    labels_and_masks: dict[str, Any] = {
        name: torch.from_numpy(array[order[target]]) for name, array in held_target.items()
    }
    return Partition(
        rank=site.rank,
        num_parts=len(site.sites),
        target=target,
        nodes=nodes,
        relations={edge_type: relations[edge_type] for edge_type in edge_types},
        self_loops=num_loops,
        **labels_and_masks,
    )


def _key(edge_type: EdgeType) -> str:
    """Return what the arrays of a relation are grouped by; no type has such a name."""
    return SEPARATOR.join(edge_type)


def read_ids_and_masks(site: Site) -> tuple[Ints, dict[str, NDArray[np.bool_]]]:
    """Return the ids and masks [I] of a site's nodes, in the order of the file."""
    path = site.folder / ARRAYS
    arrays = read_arrays(path, ("node_id", *MASKS), warn=False)
    ids = _read_ids(arrays, path)
    return ids, _read_masks(arrays, len(ids), path)


def _group_by_owner(site: Site) -> dict[str, dict[str, Array]]:
    """Return the arrays of each node type and relation, by their names without it.

    Those of a plain graph have no owner in their names. InputError for an array of another name.
    """
    types, path = site.types, site.folder / ARRAYS
    known: dict[str, tuple[str, ...]]
    if types is None:
        known = {PLAIN_TYPE: ("node_id", *EDGE_ENDS, *EDGE_DATA, "feat", *TARGET_ARRAYS, *CSR)}
    else:
        known = dict.fromkeys(types.types, ("node_id", *FEATURE_ARRAYS))
        known[types.target] += TARGET_ARRAYS
        known |= dict.fromkeys(types.relations, EDGE_ENDS)
        known |= dict.fromkeys(types.weighted, (*EDGE_ENDS, "edge_weight"))
    keys = {
        f"{owner}/{name}".removeprefix("/"): (owner, name)
        for owner, names in known.items()
        for name in names
    }
    for key in list_arrays(path):
        if key not in keys:
            owner = key.rpartition("/")[0]
            beside = [other for other in keys if other.rpartition("/")[0] == owner]
            expected = f"it may have {', '.join(beside or keys)}"
            if types is not None and not beside:
                expected = (
                    "expected TYPE/ARRAY or SOURCE__RELATION__DESTINATION/ARRAY, of"
                    f" {DESCRIPTION}: {join_names(known)}"
                )
            raise InputError(f"{path}: array `{key}` has no meaning here; {expected}")
    grouped: dict[str, dict[str, Array]] = {owner: {} for owner in known}
    for key, array in read_arrays(path, keys).items():
        owner, name = keys[key]
        grouped[owner][name] = array
    if types is None:
        grouped[_key(PLAIN_RELATION)] = grouped[PLAIN_TYPE]
    return grouped


def _describe_array(path: Path | str, name: str) -> str:
    return f"{path}: array `{name}`"


def _require_integers(arrays: Mapping[str, Array], name: str, path: Path | str) -> Ints:
    """Return an array as integers; InputError if it is missing or has other values."""
    if name not in arrays:
        raise InputError(
            f"{path}: there is no array `{name}`; found {join_names(sorted(arrays)) or 'nothing'}"
        )
    return check_integers(arrays[name], _describe_array(path, name))


def _read_ids(arrays: Mapping[str, Array], path: Path | str) -> Ints:
    """Return the ids of the site's nodes, int64 [I], in the order of the file."""
    ids = _require_integers(arrays, "node_id", path)
    where = _describe_array(path, "node_id")
    refuse(ids, ids < 0, where, "expected ids from 0 on")
    check_unique(ids, where)
    return ids


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges by the ids of their ends, in the order of the file."""

    src: Ints
    dst: Ints
    owner: Ints
    """[E] rank of the site that holds the source."""
    weight: NDArray[np.float32] | None
    feat: NDArray[np.float32] | None
    """[E, K]"""


def _read_edges(arrays: Mapping[str, Array], site: Site, path: Path | str) -> _Edges:
    """Read the arrays of edges and check each by itself, and that their lengths agree."""
    src, dst, owner = (_require_integers(arrays, name, path) for name in EDGE_ENDS)
    for name, array in (("dst", dst), ("src_owner", owner)):
        if len(array) != len(src):
            raise InputError(
                f"{_describe_array(path, name)} has {len(array)} rows, `src` has {len(src)};"
                " expected one per edge"
            )
    refuse(
        owner,
        (owner < 0) | (owner >= len(site.sites)),
        _describe_array(path, "src_owner"),
        f"expected a rank in [0, {len(site.sites)}), a place in `sites` of {DESCRIPTION}",
    )
    weight, feat = (
        check(arrays[name], len(src), _describe_array(path, name)) if name in arrays else None
        for name, check in (("edge_weight", check_edge_weight), ("edge_feat", check_edge_feat))
    )
    return _Edges(src, dst, owner, weight, feat)


def _read_relation(
    edge_type: EdgeType,
    arrays: Mapping[str, Array],
    ids: Mapping[str, Ints],
    site: Site,
    where: str,
) -> _Edges:
    """Read the edges of one relation; with a description, no arrays are no edges.

    If the description says that the relation is weighted, edges without weights have weight 1.

    Raises:
        InputError: a relation with edges lacks `edge_weight`, though it is weighted.
    """
    is_weighted = site.types is not None and _key(edge_type) in site.types.weighted
    if arrays and is_weighted and "edge_weight" not in arrays:
        raise InputError(
            f"{where}: there is no array `edge_weight`; {DESCRIPTION} says that the relation is"
            " weighted"
        )
    if site.types is not None and not arrays:
        arrays = dict.fromkeys(EDGE_ENDS, np.empty(0, np.int64))
    edges = _read_edges(arrays, site, where)
    _check_ends(ids[edge_type[0]], ids[edge_type[2]], edges, site, where)
    if is_weighted and edges.weight is None:
        return replace(edges, weight=np.ones(len(edges.src), np.float32))
    return edges


def _check_ends(src_ids: Ints, dst_ids: Ints, edges: _Edges, site: Site, path: Path | str) -> None:
    """Raise InputError for a destination at another site or an owner that contradicts `node_id`."""
    refuse(
        edges.dst,
        ~np.isin(edges.dst, dst_ids),
        _describe_array(path, "dst"),
        "expected a node of this site, one of `node_id`; an edge belongs to the site of its dst",
    )
    is_own, is_held = edges.owner == site.rank, np.isin(edges.src, src_ids)
    refuse(
        edges.src,
        is_own & ~is_held,
        _describe_array(path, "src"),
        f"`src_owner` says that {site.name} holds it, and it is not in `node_id`",
    )
    refuse(
        edges.src,
        ~is_own & is_held,
        _describe_array(path, "src"),
        "it is in `node_id`, and `src_owner` names another site; an id has one owner",
    )


def _number_sources(
    ids: Ints, src: Ints, owner: Ints, site: Site, path: Path | str, node_type: str
) -> tuple[NDArray[np.int32], dict[str, Any]]:
    """Number the sources of edges locally: inner nodes by id, then halo nodes by owner and id.

    Args:
        ids: int64 [I] ascending, of the inner nodes of the sources' type.
        src, owner: int64 [E] id and owner of each edge's source.

    Returns:
        Local ids of the sources, int32 [E], and the halo fields of Partition and PartNodes.
    """
    is_halo = owner != site.rank
    halo_ids, first, inverse = np.unique(src[is_halo], return_index=True, return_inverse=True)
    halo_owner = owner[is_halo][first]
    wrong = is_halo.copy()
    wrong[is_halo] = halo_owner[inverse] != owner[is_halo]
    refuse(
        src,
        wrong,
        _describe_array(path, "src"),
        "`src_owner` names two sites for it; an id has one owner",
    )
    order = np.lexsort((halo_ids, halo_owner))
    local = np.empty(len(src), np.int32)
    local[~is_halo] = np.searchsorted(ids, src[~is_halo])
    local[is_halo] = len(ids) + np.argsort(order)[inverse]
    unresolved = UnresolvedHalo(
        torch.from_numpy(halo_ids[order]),
        site.folder / ARRAYS,
        site.sites,
        node_type,
        site.folder,
    )
    return local, {
        "halo_owner": torch.from_numpy(halo_owner[order]),
        "halo_index": torch.full((len(halo_ids),), -1),
        "unresolved_halo": unresolved,
    }


def _sort_edges(
    edges: _Edges, local_src: NDArray[np.int32], dst_ids: Ints, *, same_type: bool
) -> PartEdges:
    """Sort edges by destination, then by owner and id of the source, without self loops.

    Args:
        dst_ids: int64 [I] ascending, of the inner nodes of the destinations' type.
        same_type: whether sources and destinations are of one type, so that loops are possible.
    """
    order = np.lexsort((edges.src, edges.owner, edges.dst))
    if same_type:
        order = order[(edges.src != edges.dst)[order]]
    dst = np.searchsorted(dst_ids, edges.dst[order]).astype(np.int32)
    data = (
        None if array is None else torch.from_numpy(array[order])
        for array in (edges.weight, edges.feat)
    )
    return PartEdges(torch.from_numpy(local_src[order]), torch.from_numpy(dst), *data)


def _read_features(
    arrays: Mapping[str, Array], num_nodes: int, path: Path | str, width: int | None = None
) -> NDArray[np.float32]:
    """Return features [I, F].

    Args:
        width: F in site.json; None: of a plain graph, where the others tell it to a site without
            nodes.
    """
    if num_nodes == 0 or (width == 0 and not {*FEATURE_ARRAYS} & arrays.keys()):
        return np.zeros((num_nodes, width or 0), np.float32)
    where = partial(_describe_array, path)
    features = check_features(features_among(arrays, path), num_nodes, where)
    if width not in (None, features.shape[1]):
        raise InputError(
            f"{path}: its features are {features.shape[1]} wide, `types` of {DESCRIPTION} says"
            f" {width}"
        )
    return np.asarray(features.toarray()) if isinstance(features, sp.csr_array) else features


def _read_plain_features(
    arrays: Mapping[str, Array], ids: Ints, site: Site, pipeline: SitePipeline | None
) -> NDArray[np.float32]:
    """Return features [I, F], of part.npz or encoded from the site's table.

    InputError if both exist.
    """
    path, table = site.folder / ARRAYS, find_site_table(site)
    names = [name for name in FEATURE_ARRAYS if name in arrays]
    if table is None or len(ids) == 0:
        if pipeline is not None and names:
            raise InputError(
                f"{path}: array `{names[0]}` is taken as it is, and features.spec encodes tables:"
                f" replace the array by {SITE_TABLES[0]}, or leave features.spec out"
            )
        return _read_features(arrays, len(ids), path)
    if names:
        raise InputError(f"{path}: has array `{names[0]}`, and there is {table}; keep one of them")
    if pipeline is None:
        raise InputError(
            f"{table}: needs features.spec=FILE, the spec.json that app=describe fits with all"
            " sites (docs/residency.md)"
        )
    return pipeline.read(table, ids)


def _read_target(
    arrays: Mapping[str, Array], ids: Ints, site: Site, path: Path | str
) -> dict[str, Array]:
    """Return labels and masks, in the order of the file, by their field names in Partition."""
    for name in ("feat", *TARGET_ARRAYS):
        if name in arrays and arrays[name].shape[:1] != (len(ids),):
            raise InputError(
                f"{_describe_array(path, name)} has shape {arrays[name].shape}; `node_id` has"
                f" {len(ids)} rows"
            )
    labels = _read_labels(arrays, len(ids), site, path)
    masks = _read_masks(arrays, len(ids), path)
    check_split(masks, is_labelled(labels), str(path), ids)
    return {"labels": labels, **masks}


def _read_labels(
    arrays: Mapping[str, Array], num_nodes: int, site: Site, path: Path | str
) -> Array:
    """Return the checked labels [N] or [N, C]; without an array of labels -1 or NaN, and warn."""
    if "label" not in arrays or num_nodes == 0:
        if num_nodes:
            log.warning(
                "%s: there is no array `label`; this site's nodes have no part in training or"
                " scores",
                path,
            )
        if site.task == "multiclass":
            return np.full(num_nodes, -1)
        dtype = np.float64 if site.task == "regression" else np.float32
        return np.full((num_nodes, site.num_classes or 0), np.nan, dtype)
    label, where = arrays["label"], _describe_array(path, "label")
    if site.task == "regression":
        label = check_targets(label, where)
    if (label.ndim == 1) != (site.task == "multiclass"):
        raise InputError(f"{where} has shape {label.shape}; task of {DESCRIPTION} is {site.task}")
    if site.task == "multiclass":
        return check_classes(label, site.num_classes or max(num_nodes, MANY_CLASSES), where)
    if label.shape[1] != site.num_classes:
        raise InputError(
            f"{where} has {label.shape[1]} columns; num_classes of {DESCRIPTION} is"
            f" {site.num_classes}"
        )
    return label if site.task == "regression" else check_multilabel(label, where)


def _read_masks(
    arrays: Mapping[str, Array], num_nodes: int, path: Path | str
) -> dict[str, NDArray[np.bool_]]:
    mask_arrays = {name: arrays[name] for name in MASKS if name in arrays}
    masks = check_masks(mask_arrays, num_nodes, partial(_describe_array, path))
    if not masks and "label" in arrays and num_nodes:
        raise InputError(
            f"{path}: has `label` and no {', '.join(MASKS)}; say which nodes train, validate and"
            " test"
        )
    return masks or {name: np.zeros(num_nodes, np.bool_) for name in MASKS}
