"""Reads meta.json of a partition directory.

It has counts, task, split, request, versions and checksums.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.directory.partition import PartCounts
from partitioning.errors import InputError
from partitioning.files.file_io import (
    check_unchanged,
    file_checksum,
    json_checksum,
    path_below,
    read_json,
)
from partitioning.graph.array_checks import Ints
from partitioning.graph.graph_data import (
    DESTINATION,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    SOURCE,
    EdgeType,
)

IMPORTED = "imported"
"""Field of `request`, of a directory that import_dgl.py made: sha256 (hex) of DGL's config. Others:
`files`, name, size and time of DGL's files of each partition."""
VERSION = 2
"""Format version: npy files."""


def _is_intact(path: Path, checksum: str) -> bool:
    return path.is_file() and file_checksum(path) == checksum


@dataclass(frozen=True)
class Meta:
    """meta.json: what training needs to know of the data, and checksums that show changes."""

    version: int
    name: str
    dataset: str
    task: str
    """multiclass, multilabel or regression."""
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    """Regression: number of targets."""
    cut_edges: int
    parts: list[PartCounts]
    request: dict[str, Any]
    """The settings that decide the content, by command-line name (apps/partition_request.py)."""
    split: dict[str, Any]
    versions: dict[str, str]
    checksums: dict[str, str]
    """sha256 of every other file, by path in the directory."""
    notes: list[str] = field(default_factory=list)
    """Warnings while the data were loaded: what was left out, or may be misread."""
    links: dict[str, Any] = field(default_factory=dict)
    """With task=link_prediction: numbers of pairs and removed edges, scores of untrained baselines.
    """
    class_names: list[Any] = field(default_factory=list)
    """Names or integers; empty for 0 ... num_classes - 1. Regression: names of the targets."""
    features: dict[str, Any] = field(default_factory=dict)
    """Fitted feature pipelines by table (features/encoder.py); empty: features as given."""

    history: list[Any] = field(default_factory=list)
    """The updates since the directory was partitioned (partitioning/update/), oldest first: time,
    checksum of the change, counts."""
    target: str = PLAIN_TYPE
    """The node type with labels; num_features is its. A plain graph has this type alone, and its
    meta.json lacks this field and the next two."""
    types: dict[str, Any] = field(default_factory=dict)
    """By type: `features`, their number; `nodes` and `halo`, one count for each partition."""
    relations: dict[str, Any] = field(default_factory=dict)
    """By relation, written SOURCE__RELATION__DESTINATION, for each partition: `edges` without self
    loops; `cut`, edges between two."""

    @property
    def is_imported(self) -> bool:
        """Whether import_dgl.py made it: some counts, such as that of classes, may be unknown."""
        return IMPORTED in self.request

    @property
    def is_plain(self) -> bool:
        """Whether the graph has one type of nodes and one relation, both without a name."""
        return self.target == PLAIN_TYPE

    @property
    def node_counts(self) -> dict[str, dict[str, Any]]:
        """By node type: number of `features`; `nodes`, one count for each partition."""
        if not self.is_plain:
            return self.types
        nodes = [part.nodes for part in self.parts]
        return {PLAIN_TYPE: {"features": self.num_features, "nodes": nodes}}

    @property
    def bounds(self) -> dict[str, Ints]:
        """Return int64 [P + 1] by type: partition p owns ids bounds[p] ... bounds[p + 1] - 1.

        Of the partitioned graph, where the nodes of a type are numbered partition after partition.
        """
        return {name: np.cumsum([0, *counts["nodes"]]) for name, counts in self.node_counts.items()}

    @property
    def edge_types(self) -> list[EdgeType]:
        if self.is_plain:
            return [PLAIN_RELATION]
        split = (joined.split(SEPARATOR) for joined in self.relations)
        return [(source, name, destination) for source, name, destination in split]

    @property
    def labelled_edges(self) -> str | None:
        """The relation whose edges are the target's nodes; None where they are no edges."""
        ends = {name: source for source, name, to in self.edge_types if to == self.target}
        for source, name, destination in self.edge_types:
            has_ends = (source, destination) == (ends.get(SOURCE), ends.get(DESTINATION))
            if has_ends and self.target in (name, f"{name}_edge"):
                return SEPARATOR.join((source, name, destination))
        return None

    def content(self) -> dict[str, Any]:
        """Return what meta.json holds, but for its own checksum."""
        of_types = ("target", "types", "relations") if self.is_plain else ()
        return {name: value for name, value in asdict(self).items() if name not in of_types}

    def digest(self) -> str:
        """Return the sha256 (hex) of all that decides the partitions; equal only if they are.

        An imported directory has that of DGL's config alone.
        """
        if self.is_imported:
            return str(self.request[IMPORTED])
        others = ("checksums", "notes", "history")
        content = {name: value for name, value in self.content().items() if name not in others}
        return json_checksum(content)

    def first_damaged(
        self, directory: Path, begin: str | tuple[str, ...] = "", end: str = ""
    ) -> Path | None:
        """Return the first missing or changed file whose path begins and ends so.

        None: all are intact.
        """
        concerned = {
            file: checksum
            for file, checksum in self.checksums.items()
            if file.startswith(begin) and file.endswith(end)
        }
        paths = [directory / file for file in concerned]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashlib releases Python's lock
            intact = pool.map(_is_intact, paths, concerned.values())
            return next(
                (path for path, is_intact in zip(paths, intact, strict=True) if not is_intact), None
            )

    @classmethod
    def read(cls, directory: Path) -> "Meta | None":
        """Read meta.json; None where there is none, or that of the public Retexo code.

        InputError where it was changed since it was written, is damaged or of another version, or
        names files outside of the directory.
        """
        path = directory / "meta.json"
        if not os.path.lexists(path):
            return None
        fields = read_json(path)
        if fields and "version" not in fields and "checksums" not in fields:
            return None
        if fields.get("version") != VERSION:
            raise InputError(
                f"{path}: version {fields.get('version')}, this program reads version {VERSION};"
                " partition again with overwrite=true"
            )
        check_unchanged(fields, path, "copy it again, or partition again with overwrite=true")
        try:
            fields.pop("cover_rows", None)  # of versions that counted them
            parts = [PartCounts(**part) for part in fields.pop("parts")]
            meta = cls(parts=parts, **fields)
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{path}: damaged ({error}); copy it again, or partition again with overwrite=true"
            ) from error
        for name in (*meta.checksums, *fields.get("types", ()), *fields.get("relations", ())):
            path_below(directory, name, str(path))  # types and relations are names of folders
        return meta
