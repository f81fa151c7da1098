"""Parts that their owners hold: `dataset_name=parts dataset_file=FOLDER`, one folder per site, and no partitioner.

Nobody sees the whole graph. A site describes its own nodes and the edges into them; where such an edge begins
elsewhere, it knows the id of the source and the site that holds it. What remains, the workers ask each other when they
start (retexo/sites/halo_rows.py).

    FOLDER/
        site.json
            version         1
            site            name of this site
            sites           names of all sites, by rank; the same list at each site, and so are the next two
            task            multiclass (default) or multilabel
            num_classes     C; optional for multiclass: then it is the largest label of all sites, plus one
        part.npz            written by numpy.savez or savez_compressed; but for the ids as form (a) of datasets/file.py
            node_id         int64 [I] your ids, from 0 to 2**63 - 1, each at one site only, in any order
            src, dst        int64 [E] ids of each edge's ends; all edges into this site's nodes, and no others
            src_owner       int [E] rank of the site that holds src: its place in `sites`
            edge_weight     float [E], optional: from 0 on
            edge_feat       float [E, K], optional: at all sites, or at none
            feat            float [I, F]; or the CSR matrix
            feat_data, feat_indices, feat_indptr, feat_shape
            label           int64 [I], -1 where there is none, or 0/1 [I, C]
            train_mask, val_mask, test_mask     bool [I]

A site without any label may leave out `label` and the masks, a site without nodes `feat`, too. An edge that is listed
twice counts twice, an edge from a node to itself is left out. Nothing is ever unpickled.

I inner nodes, H halo nodes, E edges, F features, C classes, W sites.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from partitioning.checks import (
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
from partitioning.directory.read import PartitionDirectory
from partitioning.directory.types import Partition, UnresolvedHalo
from partitioning.errors import InputError
from partitioning.files import check_path, exclusive, file_checksum, read_json
from partitioning.graph_data import EDGE_DATA, MASKS, GraphData, is_labelled
from partitioning.setting_fields import one_of

log = logging.getLogger(__name__)

VERSION = 1
MAX_CLASSES = 1_000_000
"""The last layer has a column for each; more are taken for a mistake."""
DESCRIPTION, ARRAYS = "site.json", "part.npz"
KEYS = ("version", "site", "sites", "task", "num_classes")
EDGES = ("src", "dst", "src_owner")
NODE_ARRAYS = ("feat", "label", *MASKS)
"""Arrays with one row per node."""


@dataclass(frozen=True)
class Site:
    """A site.json, checked."""

    folder: Path
    name: str
    sites: tuple[str, ...]
    """By rank."""
    task: str
    num_classes: int | None

    @property
    def rank(self) -> int:
        return self.sites.index(self.name)

    @property
    def agreed(self) -> list[Any]:
        """What has to be the same at every site."""
        return [VERSION, self.sites, self.task, self.num_classes]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read FOLDER/site.json; InputError names what is wrong with it."""
        path = folder / DESCRIPTION
        fields = read_json(path)
        unknown = sorted(fields.keys() - set(KEYS))
        if unknown:
            raise InputError(f"{path}: `{unknown[0]}` has no meaning here; it may have {', '.join(KEYS)}")
        if fields.get("version") != VERSION:
            raise InputError(f"{path}: version is {fields.get('version')!r}; this program reads version {VERSION}")
        name, sites = fields.get("site"), fields.get("sites")
        if not isinstance(sites, list) or not all(isinstance(other, str) and other for other in sites):
            raise InputError(f"{path}: sites is {sites!r}; expected a list of names, one per site, by rank")
        if len(set(sites)) < len(sites):
            raise InputError(f"{path}: sites names {max(sites, key=sites.count)} twice; expected each name once")
        if not isinstance(name, str) or name not in sites:
            raise InputError(f"{path}: site is {name!r}; expected one of its `sites`: {', '.join(sites)}")
        task, classes = fields.get("task", "multiclass"), fields.get("num_classes")
        one_of("multiclass", "multilabel")(f"{path}: task", task)
        integer = type(classes) is int and 1 <= classes <= MAX_CLASSES
        if not integer and not (classes is None and task == "multiclass"):
            raise InputError(
                f"{path}: num_classes is {classes!r}; expected an integer in [1, {MAX_CLASSES:,}] (multilabel needs it)"
            )
        return cls(folder, name, tuple(sites), task, classes)


@dataclass(frozen=True)
class SiteFolders(PartitionDirectory):
    """The site folders of this machine, read as parts; those of other sites need not be here."""

    local_sites: tuple[Site, ...]

    def digest(self) -> str:
        """sha256 (hex) of what the sites have agreed on: nobody knows more of the whole."""
        return hashlib.sha256(json.dumps(self.local_sites[0].agreed).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        held = [file_checksum(site.folder / ARRAYS) for site in self.local_sites if site.rank in parts]
        return hashlib.sha256(json.dumps([self.digest(), held]).encode()).hexdigest()

    @property
    def stated_classes(self) -> int | None:
        return self.local_sites[0].num_classes

    @property
    def remedy(self) -> str:
        return f"another {DESCRIPTION}; make version, sites, task and num_classes the same at each site"

    def verify(self, parts: Iterable[int]) -> None:
        """Check parts by reading them: nobody took checksums."""
        for part in parts:
            self.read(part)

    def read(self, part: int) -> Partition:
        """Read one part; InputError where it is not on this machine, or names what is wrong with it."""
        for site in self.local_sites:
            if site.rank == part:
                return _read_part(site)
        there = ", ".join(f"{site.name} (rank {site.rank})" for site in self.local_sites)
        raise InputError(
            f"dataset_file={self.path}: has no folder of site {self.local_sites[0].sites[part]} (rank {part}), only of "
            f"{there}; set node_rank to the rank of this site, and parts_per_node to the number of sites on this "
            "machine (app=plan needs all)"
        )


def find_sites(path: Path, num_parts: int) -> SiteFolders:
    """Open a site's folder, or a folder that holds those of several sites on one machine."""
    check_path("dataset_file", str(path))
    folders = (
        [path] if (path / DESCRIPTION).is_file() else [file.parent for file in sorted(path.glob(f"*/{DESCRIPTION}"))]
    )
    if not folders:
        raise InputError(f"dataset_file={path}: there is no {path / DESCRIPTION}, nor one in a folder below")
    local_sites = tuple(map(Site.read, folders))
    for other in local_sites[1:]:
        if other.agreed != local_sites[0].agreed:
            raise InputError(
                f"{other.folder / DESCRIPTION}: its sites, task or num_classes differ from {local_sites[0].folder}"
            )
    ranks = [site.rank for site in local_sites]
    if len(set(ranks)) < len(ranks):
        raise InputError(f"dataset_file={path}: holds several folders of one site; keep one")
    if len(local_sites[0].sites) != num_parts:
        raise InputError(
            f"{folders[0] / DESCRIPTION}: names {len(local_sites[0].sites)} sites, num_partitions={num_parts}; "
            f"set num_partitions={len(local_sites[0].sites)}"
        )
    return SiteFolders(path, num_parts, None, [], None, local_sites)


# --- from arrays to a part -------------------------------------------------------------------------------------------


def _read_part(site: Site) -> Partition:
    path = site.folder / ARRAYS
    if not path.exists():
        raise InputError(f"{path}: missing; write it with numpy.savez")
    arrays = read_arrays(path)
    ids, edges = _checked_ids(arrays, path), _checked_edges(arrays, site, path)
    order = np.argsort(ids)
    nodes: dict[str, Any] = {
        name: torch.from_numpy(array[order]) for name, array in _node_arrays(arrays, ids, site, path).items()
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


def _at(path: Path, name: str) -> str:
    return f"{path}: array `{name}`"


def _required(arrays: Mapping[str, Array], name: str, path: Path) -> Ints:
    if name not in arrays:
        raise InputError(f"{path}: there is no array `{name}`; found {', '.join(sorted(arrays)) or 'nothing'}")
    return check_integers(arrays[name], _at(path, name))


def _checked_ids(arrays: Mapping[str, Array], path: Path) -> Ints:
    known = ("node_id", *EDGES, *EDGE_DATA, *NODE_ARRAYS, *CSR)
    unknown = sorted(arrays.keys() - set(known))
    if unknown:
        raise InputError(f"{path}: array `{unknown[0]}` has no meaning here; it may have {', '.join(known)}")
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


def _checked_edges(arrays: Mapping[str, Array], site: Site, path: Path) -> Edges:
    src, dst, owner = (_required(arrays, name, path) for name in EDGES)
    for name, array in zip(EDGES[1:], (dst, owner), strict=True):
        if len(array) != len(src):
            raise InputError(f"{_at(path, name)} has {len(array)} rows, `src` has {len(src)}; expected one per edge")
    refuse(owner, (owner < 0) | (owner >= len(site.sites)), _at(path, "src_owner"),
           f"expected a rank in [0, {len(site.sites)}), a place in `sites` of {DESCRIPTION}")  # fmt: skip
    weight, feat = (
        check(arrays[name], len(src), _at(path, name)) if name in arrays else None
        for name, check in zip(EDGE_DATA, (check_edge_weight, check_edge_feat), strict=True)
    )
    return Edges(src, dst, owner, weight, feat)


def _structure(ids: Ints, edges: Edges, site: Site, path: Path) -> dict[str, Any]:
    """The fields of Partition that edges decide; ids are int64 [I] ascending, which is the order of the rows."""
    own = edges.owner == site.rank
    refuse(edges.dst, ~np.isin(edges.dst, ids), _at(path, "dst"),
           "expected a node of this site, one of `node_id`; an edge belongs to the site of its dst")  # fmt: skip
    held = np.isin(edges.src, ids)
    refuse(edges.src, own & ~held, _at(path, "src"),
           f"`src_owner` says that {site.name} holds it, and it is not in `node_id`")  # fmt: skip
    refuse(edges.src, ~own & held, _at(path, "src"),
           "it is in `node_id`, and `src_owner` names another site; an id has one owner")  # fmt: skip
    loop = edges.src == edges.dst
    order = np.lexsort((edges.src, edges.owner, edges.dst))
    order = order[~loop[order]]
    src, dst, owner, own = edges.src[order], np.searchsorted(ids, edges.dst[order]), edges.owner[order], own[order]
    halo, first, place = np.unique(src[~own], return_index=True, return_inverse=True)
    halo_owner = owner[~own][first]
    refuse(src[~own], halo_owner[place] != owner[~own], _at(path, "src"),
           "`src_owner` names two sites for it; an id has one owner")  # fmt: skip
    by_owner = np.lexsort((halo, halo_owner))
    local = np.empty(len(src), np.int32)
    local[own] = np.searchsorted(ids, src[own])
    local[~own] = len(ids) + np.argsort(by_owner)[place]
    weight, feat = (None if data is None else torch.from_numpy(data[order]) for data in (edges.weight, edges.feat))
    return {
        "num_halo": len(halo),
        "src": torch.from_numpy(local),
        "dst": torch.from_numpy(dst.astype(np.int32)),
        "halo_owner": torch.from_numpy(halo_owner[by_owner]),
        "halo_index": torch.full((len(halo),), -1),
        "unresolved_halo": UnresolvedHalo(torch.from_numpy(halo[by_owner]), path, site.sites),
        "in_degree": torch.bincount(torch.from_numpy(dst), None if weight is None else weight.double(), len(ids)),
        "edge_weight": weight,
        "edge_feat": feat,
        "self_loops": int(loop.sum()),
    }


def _node_arrays(arrays: Mapping[str, Array], ids: Ints, site: Site, path: Path) -> dict[str, NDArray[Any]]:
    """Features, labels and masks by the names of Partition's fields, in the order of the file."""
    for name in NODE_ARRAYS:
        if name in arrays and (arrays[name].ndim == 0 or len(arrays[name]) != len(ids)):
            raise InputError(f"{_at(path, name)} has shape {arrays[name].shape}; `node_id` has {len(ids)} rows")
    labels = _labels(arrays, len(ids), site, path)
    masks = _masks(arrays, len(ids), path)
    check_split(masks, is_labelled(labels), str(path), ids)
    return {"features": _features(arrays, len(ids), path), "labels": labels, **masks}


def _features(arrays: Mapping[str, Array], num_nodes: int, path: Path) -> NDArray[np.float32]:
    if num_nodes == 0:
        return np.zeros((0, 0), np.float32)  # the others know the width
    features = check_features(features_among(arrays, path), num_nodes, partial(_at, path))
    return np.asarray(features.toarray()) if isinstance(features, sp.csr_array) else features


def _labels(arrays: Mapping[str, Array], num_nodes: int, site: Site, path: Path) -> Ints | NDArray[np.float32]:
    multilabel = site.task == "multilabel"
    if "label" not in arrays or num_nodes == 0:
        if num_nodes:
            log.warning("%s: there is no array `label`; this site's nodes have no part in training or scores", path)
        return np.full((num_nodes, site.num_classes or 0), np.nan, np.float32) if multilabel else np.full(num_nodes, -1)
    label, where = arrays["label"], _at(path, "label")
    if (label.ndim == 2) != multilabel:
        raise InputError(f"{where} has shape {label.shape}; task of {DESCRIPTION} is {site.task}")
    if not multilabel:
        return check_classes(label, site.num_classes or max(num_nodes, MANY_CLASSES), where)
    if label.shape[1] != site.num_classes:
        raise InputError(f"{where} has {label.shape[1]} columns; num_classes of {DESCRIPTION} is {site.num_classes}")
    return check_multilabel(label, where)


def _masks(arrays: Mapping[str, Array], num_nodes: int, path: Path) -> dict[str, NDArray[np.bool_]]:
    masks = check_masks({name: arrays[name] for name in MASKS if name in arrays}, num_nodes, partial(_at, path))
    if not masks and "label" in arrays and num_nodes:
        raise InputError(f"{path}: has `label` and no {', '.join(MASKS)}; say which nodes train, validate and test")
    return masks or {name: np.zeros(num_nodes, np.bool_) for name in MASKS}


# --- writing, to try it out ------------------------------------------------------------------------------------------


def write_sites(
    base: Path,
    graph: GraphData,
    masks: Mapping[str, NDArray[np.bool_]],
    assignment: NDArray[np.int64],
    names: list[str],
) -> list[Path]:
    """Cut a graph that one place holds into site folders base/NAME, by assignment int64 [N] to ranks; the folders.

    InputError where a folder is there, or another process writes them.
    """
    folders = [base / name for name in names]
    with exclusive(base / ".lock", str(base)):
        for rank, folder in enumerate(folders):
            if folder.exists():
                raise InputError(f"{folder}: exists; choose another place")
            nodes, incoming = np.flatnonzero(assignment == rank), assignment[graph.dst] == rank
            description: dict[str, Any] = {"version": VERSION, "site": names[rank], "sites": names}
            if graph.multilabel:
                description |= {"task": "multilabel", "num_classes": graph.num_classes}
            rows = graph.features[nodes]
            arrays: dict[str, Any] = {"feat": rows}
            if isinstance(rows, sp.csr_array):
                arrays = dict(zip(CSR, (rows.data, rows.indices, rows.indptr, np.array(rows.shape)), strict=True))
            arrays |= {mask: values[nodes] for mask, values in masks.items()}
            folder.mkdir(parents=True)
            (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
            np.savez_compressed(
                folder / ARRAYS,
                node_id=graph.node_ids[nodes],
                src=graph.node_ids[graph.src[incoming]],
                dst=graph.node_ids[graph.dst[incoming]],
                src_owner=assignment[graph.src[incoming]],
                label=graph.labels[nodes],
                **arrays,
                **{name: data[incoming] for name, data in graph.edge_data.items()},
            )
    return folders
