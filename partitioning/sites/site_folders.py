"""Reads partitions that their owners hold: `dataset_name=parts dataset_file=FOLDER`, one a site.

Nobody sees the whole graph, and there is no partitioner. A site describes its own nodes and the
edges into them. Where the source of such an edge is elsewhere, the site knows its id and the site
that holds it. The workers ask each other for the rest when they start
(retexo/sites/resolve_halo.py).

    FOLDER/
        site.json
            version         1
            site            name of this site
            sites           names of all sites, by rank; the same at each site, like the next two
            task            multiclass (default), multilabel or regression
            num_classes     C; optional for multiclass: the largest label of all sites, plus one
        part.npz            written by numpy.savez or savez_compressed
            node_id         int64 [I] your ids, from 0 to 2**63 - 1, each at one site, in any order
            src, dst        int64 [E] ids of each edge's ends; all edges into this site's nodes
            src_owner       int [E] rank of the site that holds src: its place in `sites`
            edge_weight     float [E], optional: not negative
            edge_feat       float [E, K], optional: at all sites, or at none
            feat            float [I, F]; or a CSR matrix:
            feat_data, feat_indices, feat_indptr, feat_shape
            label           int64 [I], -1 where there is none, or 0/1 [I, C]
            train_mask, val_mask, test_mask     bool [I]

        features.csv        in place of `feat`, also csv.gz or parquet: a column `id` and columns
                            as of dataset_name=file, encoded by features.spec (docs/residency.md)

A site without any label may leave out `label` and the masks, a site without nodes also `feat`. An
edge that is listed twice counts twice, an edge from a node to itself is left out. Nothing is
unpickled.

For a heterogeneous graph, site.json also has

            target          the type that has labels
            types           {TYPE: width of its features, 0 for none}
            relations       ["SOURCE__RELATION__DESTINATION", ...]
            weighted        the relations whose edges have weights; optional

and part.npz has TYPE/node_id, TYPE/feat ..., TARGET/label, TARGET/train_mask ... of the site's
nodes (an id is unique within its type), and RELATION/src, dst, src_owner, edge_weight of the edges
into them, with RELATION as in `relations`. Arrays without rows may be left out. No reverse
relations are added.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.features.encoder import State
from partitioning.features.spec import read_spec
from partitioning.files.file_io import check_path, file_checksum
from partitioning.files.unpacked_size import check_table_sizes
from partitioning.graph.node_names import Names
from partitioning.partition_settings import ColumnSettings, FeatureSettings
from partitioning.sites.site_arrays import SitePipeline, find_site_table, read_part
from partitioning.sites.site_description import ARRAYS, DESCRIPTION, Site


@dataclass(frozen=True, kw_only=True)
class SiteFolders(PartitionDirectory):
    """The site folders on this machine, read as partitions; other sites' need not be here."""

    local_sites: tuple[Site, ...]
    pipeline: SitePipeline | None = None
    """Encodes the tables of features of all sites; None where part.npz has the features."""

    def digest(self) -> str:
        """Return the sha256 (hex) of the values that all sites have agreed on."""
        agreed = self.local_sites[0].agreed
        if self.pipeline is not None:
            agreed = [*agreed, self.pipeline.state]
        return hashlib.sha256(json.dumps(agreed).encode()).hexdigest()

    def content_digest(self, parts: range) -> str:
        local = [site for site in self.local_sites if site.rank in parts]
        tables = [table for site in local if (table := find_site_table(site)) is not None]
        files = [*(site.folder / ARRAYS for site in local), *tables]
        digests = list(map(file_checksum, files))
        return hashlib.sha256(json.dumps([self.digest(), digests]).encode()).hexdigest()

    @property
    def remedy(self) -> str:
        return f"another {DESCRIPTION} or features.spec; make all but `site` the same at each site"

    def verify(self, parts: Iterable[int]) -> None:
        """Check partitions by reading them: site folders have no checksums."""
        for part in parts:
            self.read_part(part)

    def node_names(self, part: int) -> Names | None:
        return None

    def read_part(self, part: int) -> Partition:
        return read_part(self.site_of(part), self.pipeline)

    def site_of(self, part: int) -> Site:
        """Return the site of a rank; InputError where its folder is not on this machine."""
        for site in self.local_sites:
            if site.rank == part:
                return site
        there = ", ".join(f"{site.name} (rank {site.rank})" for site in self.local_sites)
        raise InputError(
            f"dataset_file={self.path}: has no folder of site {self.local_sites[0].sites[part]}"
            f" (rank {part}), only of {there}; set node_rank to the rank of this site, and"
            " parts_per_node to the number of sites on this machine (app=plan needs all)"
        )


def find_sites(
    path: Path,
    num_parts: int,
    max_gib: float = math.inf,
    features: FeatureSettings | None = None,
    columns: ColumnSettings | None = None,
) -> SiteFolders:
    """Open a site's folder, or a folder that holds the folders of several sites on one machine.

    Args:
        max_gib: the setting dataset_max_gib, for each part.npz and table of features.
        features, columns: how tables of features are read and encoded.

    Raises:
        InputError: there is no site, a site.json or features.spec is wrong, a file grows too much,
            or the sites contradict each other or num_partitions.
    """
    local_sites = read_sites(path)
    for site in local_sites:
        files = (site.folder / ARRAYS, find_site_table(site))
        check_table_sizes((file for file in files if file is not None and file.exists()), max_gib)
    ranks = [site.rank for site in local_sites]
    if len(set(ranks)) < len(ranks):
        raise InputError(f"dataset_file={path}: holds several folders of one site; keep one")
    if len(local_sites[0].sites) != num_parts:
        raise InputError(
            f"{local_sites[0].folder / DESCRIPTION}: names {len(local_sites[0].sites)} sites,"
            f" num_partitions={num_parts}; set num_partitions={len(local_sites[0].sites)}"
        )
    pipeline = None
    if features is not None and columns is not None and features.spec is not None:
        pipeline = SitePipeline(_read_pipeline(features), columns)
    return SiteFolders(
        path,
        num_parts,
        local_sites[0].is_plain,
        stated_task=local_sites[0].task,
        stated_classes=local_sites[0].num_classes,
        feature_pipelines={} if pipeline is None else {"nodes": pipeline.state},
        sites=local_sites[0].sites,
        local_sites=local_sites,
        pipeline=pipeline,
    )


def _read_pipeline(features: FeatureSettings) -> State:
    """Read the encoding of nodes from features.spec; InputError if it has node types instead."""
    states = read_spec(features)
    if "nodes" not in states:
        raise InputError(
            f"features.spec={features.spec}: describes {', '.join(states)};"
            " expected `nodes`: sites of a heterogeneous graph hold their features in part.npz"
        )
    return states["nodes"]


def read_sites(path: Path) -> tuple[Site, ...]:
    """Read the site.json of a folder, or of the folders in it, by their names.

    Raises:
        InputError: there is no site, a site.json is wrong, or the sites contradict each other.
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
    return local_sites


def has_site_tables(path: Path) -> bool:
    """Return whether a site in a folder has a table of features."""
    return any(find_site_table(site) is not None for site in read_sites(path))
