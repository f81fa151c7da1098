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
Of a heterogeneous graph both files have more: partitioning/hetero_site_arrays.py.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from partitioning.array_checks import CSR
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.file_io import check_path, check_unpacked_size, exclusive, file_checksum, reading
from partitioning.graph_data import GraphData
from partitioning.site_arrays import read_part
from partitioning.site_description import ARRAYS, DESCRIPTION, VERSION, Site


@dataclass(frozen=True)
class SiteFolders(PartitionDirectory):
    """The site folders of this machine, read as parts; those of other sites need not be here."""

    local_sites: tuple[Site, ...]

    def digest(self) -> str:
        """sha256 (hex) of what the sites have agreed on: nobody knows more of the whole."""
        return hashlib.sha256(json.dumps(self.local_sites[0].agreed).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        held = [
            file_checksum(site.folder / ARRAYS) for site in self.local_sites if site.rank in parts
        ]
        return hashlib.sha256(json.dumps([self.digest(), held]).encode()).hexdigest()

    @property
    def stated_classes(self) -> int | None:
        return self.local_sites[0].num_classes

    @property
    def sites(self) -> tuple[str, ...]:
        return self.local_sites[0].sites

    @property
    def remedy(self) -> str:
        return f"another {DESCRIPTION}; make all but `site` the same at each site"

    def verify(self, parts: Iterable[int]) -> None:
        """Check parts by reading them: nobody took checksums."""
        for part in parts:
            self.check(part)

    def read(self, part: int) -> Partition:
        """Read one part; InputError where it is not on this machine, or names what is wrong with it."""
        return read_part(self.site_of(part))

    def site_of(self, part: int) -> Site:
        """InputError where its folder is not on this machine."""
        for site in self.local_sites:
            if site.rank == part:
                return site
        there = ", ".join(f"{site.name} (rank {site.rank})" for site in self.local_sites)
        raise InputError(
            f"dataset_file={self.path}: has no folder of site {self.local_sites[0].sites[part]} (rank {part}), only of "
            f"{there}; set node_rank to the rank of this site, and parts_per_node to the number of sites on this "
            "machine (app=plan needs all)"
        )


def find_sites(path: Path, num_parts: int, max_gib: float = math.inf) -> SiteFolders:
    """Open a site's folder, or a folder that holds those of several sites on one machine.

    max_gib: the setting dataset_max_gib, for each part.npz.
    """
    check_path("dataset_file", str(path))
    folders = (
        [path]
        if (path / DESCRIPTION).is_file()
        else [file.parent for file in sorted(path.glob(f"*/{DESCRIPTION}"))]
    )
    if not folders:
        raise InputError(
            f"dataset_file={path}: there is no {path / DESCRIPTION}, nor one in a folder below"
        )
    local_sites = tuple(map(Site.read, folders))
    for other in local_sites[1:]:
        if other.agreed != local_sites[0].agreed:
            raise InputError(
                f"{other.folder / DESCRIPTION}: its sites, task, num_classes or types differ from "
                f"{local_sites[0].folder}"
            )
    for part in (site.folder / ARRAYS for site in local_sites):
        if part.exists():
            with reading(part, "npz file", "write it anew with numpy.savez"):
                check_unpacked_size(part, max_gib)
    ranks = [site.rank for site in local_sites]
    if len(set(ranks)) < len(ranks):
        raise InputError(f"dataset_file={path}: holds several folders of one site; keep one")
    if len(local_sites[0].sites) != num_parts:
        raise InputError(
            f"{folders[0] / DESCRIPTION}: names {len(local_sites[0].sites)} sites, num_partitions={num_parts}; "
            f"set num_partitions={len(local_sites[0].sites)}"
        )
    kind = SiteFolders
    if local_sites[0].types is not None:
        from partitioning.hetero_site_arrays import (
            HeteroSiteFolders as kind,  # they are SiteFolders
        )
    return kind(path, num_parts, None, [], None, local_sites)


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
                arrays = dict(
                    zip(
                        CSR,
                        (rows.data, rows.indices, rows.indptr, np.array(rows.shape)),
                        strict=True,
                    )
                )
            arrays |= {mask: values[nodes] for mask, values in masks.items()}
            folder.mkdir(parents=True)
            (folder / DESCRIPTION).write_text(
                json.dumps(description, indent=2) + "\n", encoding="utf-8"
            )
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
