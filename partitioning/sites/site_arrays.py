"""Reads and checks a site's part.npz and table of features, and makes a partition of them.

site_folders.py describes the format. features/sums.py describes how all sites fit the pipeline that
encodes their tables together.

The owners of halo nodes tell their rows when the workers start, so the halo is unresolved here.
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

from partitioning.directory.partition import PartEdges, Partition, PartNodes, UnresolvedHalo
from partitioning.directory.read_directory import drop_unit_weights
from partitioning.errors import InputError, join_names
from partitioning.features.build import stored_columns
from partitioning.features.encoder import State, apply_pipeline
from partitioning.graph.array_checks import (
    CSR,
    MANY_CLASSES,
    Array,
    Ints,
    check_classes,
    check_columns,
    check_edge_feat,
    check_edge_weight,
    check_features,
    check_integers,
    check_masks,
    check_split,
    check_unique,
    features_among,
    refuse,
)
from partitioning.graph.graph_data import EDGE_DATA, MASKS, is_labelled
from partitioning.graph.schema import Rows, Schema
from partitioning.partition_settings import ColumnSettings
from partitioning.read.array_files import list_arrays, read_arrays
from partitioning.read.node_tables import in_node_order, read_table
from partitioning.read.nodes import Nodes
from partitioning.read.tables import files_named
from partitioning.sites.site_description import ARRAYS, DESCRIPTION, Site

log = logging.getLogger(__name__)

EDGE_ENDS = ("src", "dst", "src_owner")
FEATURE_ARRAYS = ("feat", *CSR)
TARGET_ARRAYS = ("label", *MASKS)

SUFFIXES = ("csv", "csv.gz", "parquet")
SITE_TABLES = tuple(f"features.{suffix}" for suffix in SUFFIXES)

Arrays = Mapping[str, Array]


def read_part(site: Site, pipeline: "SitePipeline | None" = None) -> Partition:
    """Read a site's partition; that of a plain graph has one type and one relation.

    Nodes ascend by id. The log warns where labels are missing. InputError names what is wrong.

    pipeline: encodes its table of features; None: part.npz has them.
    """
    of_nodes, of_edges = _group_by_owner(site)
    file_ids = {
        # A site may have no nodes of some types, but a plain graph's site has its arrays.
        name: _read_ids(arrays, _where(site, name))
        if arrays or site.is_plain
        else np.empty(0, np.int64)
        for name, arrays in of_nodes.items()
    }
    order = {name: np.argsort(unordered) for name, unordered in file_ids.items()}
    ids = {name: unordered[order[name]] for name, unordered in file_ids.items()}
    edges = {name: _read_edges(name, arrays, ids, site) for name, arrays in of_edges.items()}
    target = _read_target(of_nodes[site.target], file_ids[site.target], site)
    nodes, relations, num_loops = {}, {}, 0
    for name, arrays in of_nodes.items():
        leaving = {key: edges[key] for key, ends in site.relations.items() if ends[0] == name}
        rows = _read_features(name, arrays, file_ids[name], site, pipeline)
        halo_ids, halo_owner = _find_halo(name, [*leaving.values()], site)
        nodes[name] = PartNodes(
            torch.from_numpy(rows[order[name]]),
            torch.from_numpy(ids[name]),
            torch.from_numpy(halo_owner),
            torch.full((len(halo_ids),), -1),
            UnresolvedHalo(
                torch.from_numpy(halo_ids), site.folder / ARRAYS, site.sites, name, site.folder
            ),
        )
        for relation, arrays in leaving.items():
            edge_type = site.relations[relation]
            same = edge_type[2] == name
            dst_ids = ids[edge_type[2]]
            sorted_edges = _sort_edges(arrays, ids[name], halo_ids, dst_ids, site, same_type=same)
            num_loops += len(arrays["src"]) - len(sorted_edges.src)
            relations[edge_type] = (
                drop_unit_weights(sorted_edges) if site.is_plain else sorted_edges
            )
    of_target: dict[str, Any] = {
        key: torch.from_numpy(array[order[site.target]]) for key, array in target.items()
    }
    return Partition(
        rank=site.rank,
        num_parts=len(site.sites),
        target=site.target,
        nodes=nodes,
        relations={edge_type: relations[edge_type] for edge_type in site.relations.values()},
        self_loops=num_loops,
        **of_target,
    )


def read_ids_and_masks(site: Site) -> tuple[Ints, dict[str, NDArray[np.bool_]]]:
    """Return the ids and masks [I] of a site's nodes, in the order of the file.

    Masks are False where there are none. InputError for a missing or wrong array.
    """
    path = site.folder / ARRAYS
    arrays = read_arrays(path, ("node_id", *MASKS), warn=False)
    ids = _read_ids(arrays, str(path))
    return ids, _read_masks(arrays, len(ids), str(path))


def _where(site: Site, name: str, what: str = "") -> str:
    """Return what messages about a type or relation begin with."""
    path = str(site.folder / ARRAYS)
    return path if site.is_plain else f"{path}: {what}{name}"


def _group_by_owner(site: Site) -> tuple[dict[str, dict[str, Array]], dict[str, dict[str, Array]]]:
    """Return the arrays of each node type, and of each relation, by their names without it.

    Those of a plain graph have no owner in their names. InputError for an array of another name.
    """
    path = site.folder / ARRAYS
    of_nodes: dict[str, dict[str, Array]] = {name: {} for name in site.types}
    of_edges: dict[str, dict[str, Array]] = {name: {} for name in site.relations}
    keys: dict[str, tuple[dict[str, Array], str]] = {}
    for name, group in of_nodes.items():
        of_target = TARGET_ARRAYS if name == site.target else ()
        known = ("node_id", *FEATURE_ARRAYS, *of_target)
        keys |= {f"{name}/{array}".removeprefix("/"): (group, array) for array in known}
    for name, group in of_edges.items():
        data = EDGE_DATA if site.is_plain else EDGE_DATA[:1] if name in site.weighted else ()
        known = (*EDGE_ENDS, *data)
        keys |= {f"{name}/{array}".removeprefix("/"): (group, array) for array in known}
    for key in list_arrays(path):
        if key not in keys:
            owner = key.rpartition("/")[0]
            beside = [other for other in keys if other.rpartition("/")[0] == owner]
            expected = f"it may have {', '.join(beside)}"
            if not beside:
                expected = (
                    "expected TYPE/ARRAY or SOURCE__RELATION__DESTINATION/ARRAY, of"
                    f" {DESCRIPTION}: {join_names((*of_nodes, *of_edges))}"
                )
            raise InputError(f"{path}: array `{key}` has no meaning here; {expected}")
    for key, array in read_arrays(path, keys).items():
        group, name = keys[key]
        group[name] = array
    return of_nodes, of_edges


def _describe_array(where: str, name: str) -> str:
    return f"{where}: array `{name}`"


def _require_integers(arrays: Arrays, name: str, where: str) -> Ints:
    """Return an array as integers; InputError if it is missing or has other values."""
    if name not in arrays:
        raise InputError(f"{where}: there is no array `{name}`; found {join_names(sorted(arrays))}")
    return check_integers(arrays[name], _describe_array(where, name))


def _read_ids(arrays: Arrays, where: str) -> Ints:
    """Return the ids of the site's nodes, int64 [I], in the order of the file.

    InputError where they are missing, negative or repeated.
    """
    ids = _require_integers(arrays, "node_id", where)
    where = _describe_array(where, "node_id")
    refuse(ids, ids < 0, where, "expected ids from 0 on")
    check_unique(ids, where)
    return ids


def _read_edges(name: str, arrays: Arrays, ids: Mapping[str, Ints], site: Site) -> dict[str, Array]:
    """Read the edges of one relation by the ids of their ends, in the order of the file.

    No arrays are no edges, but in a plain graph. Weights stay where all are 1.

    Raises:
        InputError: an array is missing or wrong, or of another length; a destination is at another
            site; an owner contradicts `node_id`.
    """
    where = _where(site, name)
    if not arrays and not site.is_plain:
        weight = ("edge_weight",) if name in site.weighted else ()
        arrays = dict.fromkeys((*EDGE_ENDS, *weight), np.empty(0, np.int64))
    edges: dict[str, Array] = {end: _require_integers(arrays, end, where) for end in EDGE_ENDS}
    src, dst, owner = edges.values()
    for end, array in edges.items():
        if len(array) != len(src):
            raise InputError(
                f"{_describe_array(where, end)} has {len(array)} rows, `src` has {len(src)};"
                " expected one per edge"
            )
    if name in site.weighted and "edge_weight" not in arrays:
        raise InputError(
            f"{where}: there is no array `edge_weight`; {DESCRIPTION} says that the relation is"
            " weighted"
        )
    checks: dict[str, Any] = {"edge_weight": check_edge_weight, "edge_feat": check_edge_feat}
    for key, check in checks.items():
        if key in arrays:
            data = check(arrays[key], len(src), _describe_array(where, key))
            edges[key] = np.ones(len(src), np.float32) if data is None else data
    source, _, destination = site.relations[name]
    is_own, is_held = owner == site.rank, np.isin(src, ids[source])
    for end, wrong, expected in (
        (
            "src_owner",
            (owner < 0) | (owner >= len(site.sites)),
            f"expected a rank in [0, {len(site.sites)}), a place in `sites` of {DESCRIPTION}",
        ),
        (
            "dst",
            ~np.isin(dst, ids[destination]),
            "expected a node of this site, one of `node_id`; an edge belongs to the site of its"
            " dst",
        ),
        (
            "src",
            is_own & ~is_held,
            f"`src_owner` says that {site.name} holds it, and it is not in `node_id`",
        ),
        (
            "src",
            ~is_own & is_held,
            "it is in `node_id`, and `src_owner` names another site; an id has one owner",
        ),
    ):
        refuse(edges[end], wrong, _describe_array(where, end), expected)
    return edges


def _find_halo(name: str, leaving: Sequence[Arrays], site: Site) -> tuple[Ints, Ints]:
    """Return ids and owners of the halo nodes of a type, int64 [H] by owner, then ascending.

    InputError for a node with two owners.

    Args:
        leaving: edges of the relations from the type.
    """
    none = np.empty(0, np.int64)
    src, owner = (
        np.concatenate([none, *(edges[end] for edges in leaving)]) for end in ("src", "src_owner")
    )
    halo, first, inverse = np.unique(src, return_index=True, return_inverse=True)
    refuse(
        src,
        owner[first][inverse] != owner,
        _describe_array(_where(site, name, "edges from "), "src"),
        "`src_owner` names two sites for it; an id has one owner",
    )
    order = np.lexsort((halo, owner[first]))
    order = order[(owner[first] != site.rank)[order]]
    return halo[order], owner[first][order]


def _sort_edges(
    edges: Arrays, src_ids: Ints, halo_ids: Ints, dst_ids: Ints, site: Site, *, same_type: bool
) -> PartEdges:
    """Sort edges by destination, then by owner and id of the source, without self loops.

    Args:
        src_ids, dst_ids: int64 [I] ascending, of the inner nodes of both types.
        halo_ids: int64 [H] of the sources' type.
        same_type: whether sources and destinations are of one type, so that loops are possible.
    """
    order = np.lexsort((edges["src"], edges["src_owner"], edges["dst"]))
    if same_type:
        order = order[(edges["src"] != edges["dst"])[order]]
    src, is_own = edges["src"][order], edges["src_owner"][order] == site.rank
    by_id = np.argsort(halo_ids)
    local = np.searchsorted(src_ids, src)
    place = np.searchsorted(halo_ids, src[~is_own], sorter=by_id)
    local[~is_own] = len(src_ids) + by_id[place]
    dst = np.searchsorted(dst_ids, edges["dst"][order])
    ends = (torch.from_numpy(end.astype(np.int32)) for end in (local, dst))
    data = {key: torch.from_numpy(edges[key][order]) for key in EDGE_DATA if key in edges}
    return PartEdges(*ends, **data)


def _read_features(
    name: str, arrays: Arrays, ids: Ints, site: Site, pipeline: "SitePipeline | None"
) -> NDArray[np.float32]:
    """Return features [I, F] of a type, of part.npz or encoded from the site's table.

    Zeros for no nodes, or a width of 0. InputError if both exist, the table or `pipeline` lacks the
    other, or the features are wrong or of another width.
    """
    where, width, table = _where(site, name), site.types[name], find_site_table(site)
    names = [key for key in FEATURE_ARRAYS if key in arrays]
    if table is not None and not site.is_plain:
        raise InputError(
            f"{table}: sites of a heterogeneous graph hold their features in {ARRAYS}; encode them"
            " before, and take the table out"
        )
    if table is not None and len(ids):
        if names:
            raise InputError(
                f"{where}: has array `{names[0]}`, and there is {table}; keep one of them"
            )
        if pipeline is None:
            raise InputError(
                f"{table}: needs features.spec=FILE, the spec.json that app=describe fits with all"
                " sites (docs/residency.md)"
            )
        return pipeline.read(table, ids)
    if pipeline is not None and names:
        raise InputError(
            f"{where}: array `{names[0]}` is taken as it is, and features.spec encodes tables:"
            f" replace the array by {SITE_TABLES[0]}, or leave features.spec out"
        )
    if not len(ids) or (width == 0 and not names):
        return np.zeros((len(ids), width or 0), np.float32)
    features = check_features(
        features_among(arrays, where), len(ids), partial(_describe_array, where)
    )
    if width not in (None, features.shape[1]):
        raise InputError(
            f"{where}: its features are {features.shape[1]} wide, `types` of {DESCRIPTION} says"
            f" {width}"
        )
    return np.asarray(features.toarray()) if isinstance(features, sp.csr_array) else features


def _read_target(arrays: Arrays, ids: Ints, site: Site) -> dict[str, Array]:
    """Return labels and masks, in the order of the file, by their field names in Partition.

    InputError for wrong ones, and for masks that overlap or have unlabelled nodes.
    """
    where = _where(site, site.target)
    for name in ("feat", *TARGET_ARRAYS):
        if name in arrays and arrays[name].shape[:1] != (len(ids),):
            raise InputError(
                f"{_describe_array(where, name)} has shape {arrays[name].shape}; `node_id` has"
                f" {len(ids)} rows"
            )
    labels = _read_labels(arrays, len(ids), site, where)
    masks = _read_masks(arrays, len(ids), where)
    check_split(masks, is_labelled(labels), where, ids.item)
    return {"labels": labels, **masks}


def _read_labels(arrays: Arrays, num_nodes: int, site: Site, where: str) -> Array:
    """Return the checked labels [N] or [N, C]; without an array of labels -1 or NaN, and warn.

    InputError for wrong ones.
    """
    if "label" not in arrays or num_nodes == 0:
        if num_nodes:
            log.warning(
                "%s: there is no array `label`; this site's nodes have no part in training or"
                " scores",
                where,
            )
        if site.task == "multiclass":
            return np.full(num_nodes, -1)
        dtype = np.float64 if site.task == "regression" else np.float32
        return np.full((num_nodes, site.num_classes or 0), np.nan, dtype)
    label, where = arrays["label"], _describe_array(where, "label")
    if site.task == "multiclass":
        return check_classes(label, site.num_classes or max(num_nodes, MANY_CLASSES), where)
    assert site.num_classes is not None
    return check_columns(label, site.num_classes, where, regression=site.task == "regression")


def _read_masks(arrays: Arrays, num_nodes: int, where: str) -> dict[str, NDArray[np.bool_]]:
    """Return the masks [N], False without any; InputError for wrong ones, or labels alone."""
    mask_arrays = {name: arrays[name] for name in MASKS if name in arrays}
    masks = check_masks(mask_arrays, num_nodes, partial(_describe_array, where))
    if not masks and "label" in arrays and num_nodes:
        raise InputError(
            f"{where}: has `label` and no {', '.join(MASKS)}; say which nodes train, validate and"
            " test"
        )
    return masks or {name: np.zeros(num_nodes, np.bool_) for name in MASKS}


# --- tables of features ----------


@dataclass(frozen=True)
class SitePipeline:
    """How a site encodes its table."""

    state: State
    columns: ColumnSettings

    def read(self, path: Path, ids: Ints) -> Rows:
        """Return the features [I, F] of nodes by their ids [I]; InputError for an unfit table.

        The log warns of further columns and of unknown categories.
        """
        state = self.state | {"roles": {}}  # each site names its column of ids
        columns = stored_columns({"nodes": state}, self.columns)
        rows, schema = read_site_table(path, ids, columns)
        encoded: Rows = apply_pipeline(self.state, rows, schema).toarray()
        return encoded


def find_site_table(site: Site) -> Path | None:
    """Return the site's table of features; None if its part.npz has them."""
    return next(iter(files_named(site.folder, "features", SUFFIXES)), None)


def read_site_table(path: Path, ids: Ints, columns: ColumnSettings) -> tuple[Rows, Schema]:
    """Read the raw features [I, W] of nodes by their ids [I], NaN where blank or without a row.

    Raises:
        InputError: there is no id column or no feature, an id is a name, unknown or repeated, or
            the table has labels, masks or times.
    """
    table = read_table(path, columns)
    if table.ids is not None and table.ids.dtype == object:
        raise InputError(
            f"{path}: its ids are names; expected the numbers of `node_id` in {ARRAYS}"
        )
    if table.ids is None:
        raise InputError(f"{path}: there is no column `id`; set columns.id=NAME to the ids")
    others = sorted(table.values.keys() - {"feat"})
    if others:
        raise InputError(f"{path}: has {others[0]}, which {ARRAYS} holds; take the column out")
    if "feat" not in table.values or table.schema is None:
        raise InputError(f"{path}: has no feature column besides the ids")
    nodes = Nodes(len(ids), ids, grows=False, where=str(path))
    return np.asarray(in_node_order(table, nodes)["feat"], np.float32), table.schema
