"""Finds a partition directory, checks it and reads its partitions.

Our own directories hold npy files and meta.json. Those of DGL are imported into ours first.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from partitioning.directory import dgl_config
from partitioning.directory.meta import Meta
from partitioning.directory.npy_files import load_array, node_folder, read_arrays
from partitioning.directory.partition import HALO_IDS, PartEdges, Partition
from partitioning.errors import InputError
from partitioning.features.random_rows import random_rows
from partitioning.graph.graph_data import DESTINATION, PLAIN_RELATION, PLAIN_TYPE, SOURCE
from partitioning.graph.node_names import Names

GRAPH_SETTINGS = (
    "symmetrize",
    "duplicates",
    "features",
    "relations.reverse",
    "task.relation",
    "labels.of",
)


class MissingPartitions(InputError):
    """There is no partition directory where one was looked for."""


@dataclass(frozen=True)
class PartitionDirectory:
    """A partition directory with its description."""

    path: Path
    num_parts: int
    is_plain: bool
    """Whether the graph has one type of nodes and one relation, both without a name."""
    description: Meta | None = None
    """Content of meta.json beside its files; None for sites."""
    stated_task: str | None = None
    """multiclass, multilabel or regression; None for directories of DGL's, like the next one."""
    stated_classes: int | None = None
    """Number of classes."""
    class_names: list[Any] = field(default_factory=list)
    """Names of the classes; empty for 0 ... C-1."""
    feature_pipelines: dict[str, Any] = field(default_factory=dict)
    """Fitted pipelines of the features, by table; empty where they are as given."""
    sites: tuple[str, ...] = ()
    """Names of the owners by rank, where each owner holds its own partition."""

    @property
    def meta(self) -> Meta | None:
        """What partitioning decided; None for sites and for directories of DGL's, which lack it."""
        is_ours = self.description is not None and not self.description.is_imported
        return self.description if is_ours else None

    @property
    def own_meta(self) -> Meta:
        """Return the description of a directory that is not of sites."""
        assert self.description is not None
        return self.description

    @property
    def dgl_folder(self) -> Path:
        """Return the folder that has DGL's own files, if there are any."""
        is_imported = self.description is not None and self.description.is_imported
        return self.path.parent if is_imported else self.path

    def digest(self) -> str:
        """Return a sha256 (hex) that is equal on all nodes with the same partitioning."""
        return self.own_meta.digest()

    def content_digest(self, parts: range) -> str:
        """Return a sha256 (hex) that also depends on what these partitions hold.

        That of our own directories depends on all partitions, and equals `digest`.
        """
        if self.meta is not None:
            return self.digest()  # meta.json has the checksums of their contents
        digests = [self.own_meta.parts[part].content for part in parts]
        return hashlib.sha256(json.dumps([self.digest(), digests]).encode()).hexdigest()

    @property
    def graph_settings(self) -> dict[str, Any]:
        """Return settings that changed edges or features, by name; prediction needs the same.

        {} where none are stored: without meta.json.
        """
        request = {} if self.meta is None else self.meta.request
        if request.get("labels.of") == "edges":  # without labels it is not found again
            request = {**request, "task.relation": self.own_meta.labelled_edges}
        return {name: request[name] for name in GRAPH_SETTINGS if name in request}

    @property
    def remedy(self) -> str:
        """Return what messages say of a node that has another digest, with the remedy."""
        return "another partitioning (its digest differs); copy it the same partition directory"

    def verify(self, parts: Iterable[int]) -> None:
        """Check the files of these partitions by their checksums.

        Raises:
            InputError: names a file that is missing, damaged or of another partitioning.
        """
        for part in parts:
            if not (self.path / f"part{part}").is_dir():
                raise InputError(
                    f"{self.dgl_folder}/part{part}: missing; copy the whole part or partition again"
                )
        begin = tuple(f"part{part}/" for part in parts)
        path = self.own_meta.first_damaged(self.path, begin, ".npy")
        if path is not None:
            raise InputError(
                f"{path}: its checksum is not the one in meta.json, so it is missing, damaged or of"
                " another partitioning; copy it again, or partition again with overwrite=true"
            )

    def read_part(self, part: int) -> Partition:
        """Read one partition, its arrays mapped; `verify` checks its files."""
        partition = read_arrays(self.path, self.own_meta, part)
        if not self.is_plain:
            return partition
        return _complete(partition, self.path / f"part{part}", self.own_meta)

    def node_names(self, part: int) -> Names | None:
        """Return the names of the target's inner nodes; None where their ids are integers."""
        return Names.read(node_folder(self.path / f"part{part}", self.own_meta.target))

    @property
    def types_of_pairs(self) -> list[str]:
        """Types of the source and the destination of the relation whose pairs are split, or []."""
        return list(getattr(self.meta, "links", {}).get("types", ()))

    def ends_of_edges(self, part: int) -> dict[str, Any]:
        """Return the ids of a part's labelled edges' ends, [I] by SOURCE and DESTINATION.

        {} where it has none, and for sites.
        """
        if self.description is None:
            return {}
        folder = node_folder(self.path / f"part{part}", self.own_meta.target)
        files = {name: folder / f"{name}.npy" for name in (SOURCE, DESTINATION)}
        return {name: load_array(file) for name, file in files.items() if file.is_file()}


def find_partition_directory(candidates: list[Path], num_parts: int | None) -> PartitionDirectory:
    """Open the first of the candidates that is a partition directory.

    DGL's files are imported first, which writes a directory.

    Raises:
        MissingPartitions: none of them is.
        InputError: it is damaged, or has not num_parts partitions (None: any number).
    """
    for path in candidates:
        directory = _open(path, num_parts)
        if directory is not None:
            _check_num_parts(path, directory.num_parts, num_parts)
            return directory
    raise MissingPartitions(
        f"no partition directory at {candidates[0]}; make it with app=partition_data"
    )


def _open(path: Path, num_parts: int | None) -> PartitionDirectory | None:
    """Open a directory by its description, or import DGL's files there, which writes a directory.

    None where it has neither. InputError for a damaged one.
    """
    meta = Meta.read(path)
    if meta is not None:
        directory = PartitionDirectory(path, len(meta.parts), meta.is_plain, meta)
        if meta.is_imported:
            return directory
        return replace(
            directory,
            stated_task=meta.task,
            stated_classes=meta.num_classes,
            class_names=meta.class_names,
            feature_pipelines=meta.features,
        )
    file = dgl_config.config_file(path)
    if file is None:
        return None
    from partitioning.directory.import_dgl import import_directory  # rare, and slow

    config = dgl_config.read_config(file)
    _check_num_parts(path, len(config.files), num_parts)  # before anything is written
    return _open(import_directory(config), num_parts)


def _check_num_parts(path: Path, actual: int, expected: int | None) -> None:
    if expected not in (None, actual):
        raise InputError(
            f"{path}: has {actual} parts, num_partitions={expected}; "
            "set num_partitions to it or partition again"
        )


def _complete(partition: Partition, folder: Path, meta: Meta) -> Partition:
    """Return a partition of a plain graph with what only such a graph has.

    Besides what complete_edges does, features of halo nodes that are computed from ids.
    """
    if (folder / HALO_IDS).is_file():
        rows = random_rows(load_array(folder / HALO_IDS), meta.num_features)
        nodes = replace(partition.target_nodes, halo_features=torch.from_numpy(rows))
        partition = replace(partition, nodes={PLAIN_TYPE: nodes})
    return complete_edges(partition, len(meta.links.get("relations", ())))


def complete_edges(partition: Partition, num_relations: int) -> Partition:
    """Return a partition of a plain graph without weights that are all 1.

    num_relations: of a union graph, whose one feature of edges, their numbers, becomes
    `edge_relation`; else 0.
    """
    edges = drop_unit_weights(partition.relations[PLAIN_RELATION])
    if num_relations:
        assert edges.edge_feat is not None  # a column of numbers
        edges = replace(edges, edge_feat=None, edge_relation=edges.edge_feat[:, 0].long())
    return replace(partition, relations={PLAIN_RELATION: edges}, num_relations=num_relations)


def drop_unit_weights(edges: PartEdges) -> PartEdges:
    """Return the edges of a plain graph without weights if all of them are 1."""
    is_weighted = edges.edge_weight is not None and bool((edges.edge_weight != 1).any())
    return edges if is_weighted else replace(edges, edge_weight=None)
