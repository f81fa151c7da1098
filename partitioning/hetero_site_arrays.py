"""Sites of a heterogeneous graph: `dataset_name=parts`, as in partitioning/site_folders.py, with types and relations.

    FOLDER/
        site.json           as there, and, the same at each site:
            target          the type that has labels
            types           {TYPE: width of its features, 0 for none}
            relations       ["SOURCE__RELATION__DESTINATION", ...]
            weighted        those of them whose edges have weights; optional
        part.npz
            TYPE/node_id, TYPE/feat or feat_data ...     of the site's nodes of a type; an id is unique within its type
            TARGET/label, TARGET/train_mask ...
            S__R__D/src, S__R__D/dst, S__R__D/src_owner, S__R__D/edge_weight    of the edges into this site's nodes

What a site has none of may be left out. Nobody adds reverse relations: a site lists them as relations of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from partitioning.array_checks import CSR, Array, Ints
from partitioning.directory.hetero_files import HeteroDirectory
from partitioning.directory.partition import HeteroPartition, PartEdges, Partition, PartNodes
from partitioning.errors import InputError
from partitioning.graph_data import MASKS, SEPARATOR
from partitioning.node_names import Names
from partitioning.site_arrays import (
    EDGES,
    Edges,
    arrays_of,
    check_ends,
    check_names,
    checked_edges,
    checked_ids,
    numbered,
    read_features,
    target_arrays,
)
from partitioning.site_description import ARRAYS, DESCRIPTION, Site, SiteTypes
from partitioning.site_folders import SiteFolders


@dataclass(frozen=True)
class HeteroSiteFolders(SiteFolders, HeteroDirectory):
    """The site folders of this machine, of a heterogeneous graph."""

    @property
    def type_names(self) -> list[str]:
        return list(_types(self.local_sites[0]).types)

    def node_names(self, part: int) -> Names | None:
        return None

    def read(self, part: int) -> Partition:
        return HeteroDirectory.read(self, part)

    def read_hetero(self, part: int) -> HeteroPartition:
        """Read one part; InputError where it is not on this machine, or names what is wrong with it."""
        return _read_part(self.site_of(part))


def _types(site: Site) -> SiteTypes:
    assert site.types is not None
    return site.types


def _read_part(site: Site) -> HeteroPartition:
    types, path, held = _types(site), site.folder / ARRAYS, _by_name(site)
    ids = {name: _ids(name, held[name], site, f"{path}: {name}") for name in types.types}
    order = {name: np.argsort(each) for name, each in ids.items()}
    ascending = {name: each[order[name]] for name, each in ids.items()}
    edges = {
        each: _edges(each, held[each], ascending, site, f"{path}: {each}")
        for each in types.relations
    }
    nodes: dict[str, PartNodes] = {}
    local_ids: dict[str, NDArray[np.int32]] = {}
    for name, width in types.types.items():
        leaving = [each for each in types.relations if each.split(SEPARATOR)[0] == name]
        src, owner = (
            np.concatenate(
                [np.empty(0, np.int64), *(getattr(edges[each], end) for each in leaving)]
            )
            for end in ("src", "owner")
        )
        local, halo = numbered(
            ascending[name], src, owner, site, f"{path}: edges from {name}", name
        )
        rows = _rows(held[name], width, len(ids[name]), f"{path}: {name}")[order[name]]
        nodes[name] = PartNodes(torch.from_numpy(rows), torch.from_numpy(ascending[name]), **halo)
        bounds = np.cumsum([len(edges[each].src) for each in leaving])[:-1]
        local_ids |= dict(zip(leaving, np.split(local, bounds), strict=False))
    target = target_arrays(held[types.target], ids[types.target], site, f"{path}: {types.target}")
    made = {
        each: _part_edges(each, edges[each], local_ids[each], ascending) for each in types.relations
    }
    return HeteroPartition(
        site.rank,
        len(site.sites),
        types.target,
        nodes,
        {
            (ends[0], ends[1], ends[2]): of
            for each, of in made.items()
            for ends in [each.split(SEPARATOR)]
        },
        self_loops=sum(len(edges[each].src) - len(of.src) for each, of in made.items()),
        **{name: torch.from_numpy(array[order[types.target]]) for name, array in target.items()},
    )


def _by_name(site: Site) -> dict[str, dict[str, Array]]:
    """The arrays of each type and relation by their names."""
    types, path = _types(site), site.folder / ARRAYS
    held: dict[str, dict[str, Array]] = {name: {} for name in (*types.types, *types.relations)}
    for key, array in arrays_of(site).items():
        name, _, short = key.rpartition("/")
        if name not in held:
            raise InputError(
                f"{path}: array `{key}` has no meaning here; expected TYPE/ARRAY or "
                f"SOURCE__RELATION__DESTINATION/ARRAY, of {DESCRIPTION}: {', '.join(held)}"
            )
        held[name][short] = array
    return held


def _ids(name: str, arrays: Mapping[str, Array], site: Site, where: str) -> Ints:
    of_target = ("label", *MASKS) if name == _types(site).target else ()
    check_names(arrays, ("node_id", "feat", *CSR, *of_target), where)
    return checked_ids(arrays, where) if arrays else np.empty(0, np.int64)


def _edges(
    each: str, arrays: Mapping[str, Array], ids: Mapping[str, Ints], site: Site, where: str
) -> Edges:
    weighted = each in _types(site).weighted
    check_names(arrays, (*EDGES, "edge_weight") if weighted else EDGES, where)
    if arrays and weighted and "edge_weight" not in arrays:
        raise InputError(
            f"{where}: there is no array `edge_weight`; {DESCRIPTION} says that the relation is weighted"
        )
    edges = checked_edges(arrays or dict.fromkeys(EDGES, np.empty(0, np.int64)), site, where)
    source, _, destination = each.split(SEPARATOR)
    check_ends(ids[source], ids[destination], edges, site, where)
    if weighted and edges.weight is None:
        return Edges(edges.src, edges.dst, edges.owner, np.ones(len(edges.src), np.float32), None)
    return edges


def _rows(
    arrays: Mapping[str, Array], width: int, num_nodes: int, where: str
) -> NDArray[np.float32]:
    given = width or {"feat", *CSR} & arrays.keys()
    rows = (
        read_features(arrays, num_nodes, where)
        if num_nodes and given
        else np.zeros((num_nodes, width), np.float32)
    )
    if rows.shape[1] != width:
        raise InputError(
            f"{where}: its features are {rows.shape[1]} wide, `types` of {DESCRIPTION} says {width}"
        )
    return rows


def _part_edges(
    each: str, edges: Edges, local: NDArray[np.int32], ids: Mapping[str, Ints]
) -> PartEdges:
    """Sorted as those of a partition directory, without self loops; local: int32 [E] their sources."""
    source, _, destination = each.split(SEPARATOR)
    order = np.lexsort((edges.src, edges.owner, edges.dst))
    if source == destination:
        order = order[(edges.src != edges.dst)[order]]
    dst = np.searchsorted(ids[destination], edges.dst[order]).astype(np.int32)
    weight = None if edges.weight is None else torch.from_numpy(edges.weight[order])
    return PartEdges(torch.from_numpy(local[order]), torch.from_numpy(dst), weight)
