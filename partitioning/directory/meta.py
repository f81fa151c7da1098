"""Reads and checks meta.json of a partition directory.

It has counts, task, split, request, versions and checksums.
"""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from partitioning.array_checks import MANY_CLASSES
from partitioning.directory.partition import PartCounts
from partitioning.errors import InputError
from partitioning.features.schema import check_states
from partitioning.file_io import check_types, file_checksum, path_below, read_json
from partitioning.graph_data import (
    DESTINATION,
    PLAIN_RELATION,
    PLAIN_TYPE,
    SEPARATOR,
    SOURCE,
    EdgeType,
)
from partitioning.json_shape import WHOLE, check_shape

IMPORTED = "imported"
"""Field of `request`, of a directory that import_dgl.py made: sha256 (hex) of DGL's config. Others:
`files`, name, size and time of DGL's files of each partition."""
VERSION = 2
"""Format version: npy files."""


def check_class_names(names: list[Any], num_classes: int) -> None:
    """Raise ValueError unless these are distinct names or integers, one for each class, or none."""
    if not all(isinstance(name, str) or type(name) is int for name in names):
        raise ValueError("class_names has something else than names and integers")
    if names and (len(names) != num_classes or len(set(names)) < len(names)):
        raise ValueError(
            f"class_names has {len(set(names))} different names, num_classes is {num_classes}"
        )


LINKS: dict[str, Any] = {
    "evaluator?": str,
    "relations?": [str],
    "types?": [str],
    **dict.fromkeys(("spectral?", "edges_removed?", "cut_rows?"), WHOLE),
    "pairs?": {"*": WHOLE},
    "rows?": {"*": WHOLE},
    "baselines?": {"*": {"*": (int, float)}},
}
"""Shapes (json_shape.py) of `links`, and of an entry of `types` and of `relations`."""
TYPE: dict[str, Any] = {"features": WHOLE, "nodes": [WHOLE], "halo": [WHOLE]}
RELATION: dict[str, Any] = {"edges": [WHOLE], "cut": WHOLE}


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
    cover_rows: int | None = None
    """Rows of one exchange if partial sums replace rows where that saves rows; None: unknown."""
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

    @property
    def is_imported(self) -> bool:
        """Whether import_dgl.py made it: some counts, such as that of classes, may be unknown."""
        return IMPORTED in self.request

    @property
    def target_type(self) -> str:
        """Return the node type with labels; that of a plain graph is PLAIN_TYPE."""
        return PLAIN_TYPE

    @property
    def node_counts(self) -> dict[str, dict[str, Any]]:
        """By node type: number of `features`; `nodes`, one count for each partition."""
        nodes = [part.nodes for part in self.parts]
        return {PLAIN_TYPE: {"features": self.num_features, "nodes": nodes}}

    @property
    def edge_counts(self) -> dict[EdgeType, list[int] | None]:
        """Edges of each relation by partition, without self loops; None where it is not stated."""
        return {PLAIN_RELATION: None}

    def digest(self) -> str:
        """Return the sha256 (hex) of all that decides the partitions; equal only if they are."""
        if self.is_imported:
            return str(self.request[IMPORTED])
        content = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("checksums", "cover_rows", "notes", "history")
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

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

    def check(self) -> None:
        """Raise ValueError for fields that contradict each other."""

    @classmethod
    def read(cls, directory: Path) -> "Meta | None":
        """Read and check meta.json; None where there is none, or that of the public Retexo code.

        InputError where it is damaged or of another version.
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
        try:
            parts = [PartCounts(**part) for part in fields.pop("parts")]
            meta = (HeteroMeta if "target" in fields else cls)(parts=parts, **fields)
            check_types(meta)
            meta.check()
            check_shape(meta.links, LINKS, "links")
            if not re.fullmatch(r"(hits@\d{1,9}|mrr)?", meta.links.get("evaluator", "")):
                raise ValueError(f"links.evaluator is {meta.links['evaluator']!r}")
            check_states(meta.features)
            check_class_names(meta.class_names, meta.num_classes)
            if not all(isinstance(entry, dict) for entry in meta.history):
                raise ValueError("history has something else than objects")
            for counts in parts:
                check_types(counts)
            if not all(isinstance(checksum, str) for checksum in meta.checksums.values()):
                raise ValueError("a checksum is no string")
            for name in meta.checksums:
                path_below(directory, name, f"{path}: checksums")
            if meta.task == "multiclass" and meta.num_classes > max(meta.num_nodes, MANY_CLASSES):
                raise ValueError(f"num_classes is {meta.num_classes}, more than nodes")
            return meta
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise InputError(
                f"{path}: damaged ({error}); copy it again, or partition again with overwrite=true"
            ) from error


@dataclass(frozen=True)
class HeteroMeta(Meta):
    """meta.json of a heterogeneous graph.

    The counts of Meta add up all types and relations; num_features is the target's. A relation is
    written SOURCE__RELATION__DESTINATION.
    """

    target: str = ""
    types: dict[str, Any] = field(default_factory=dict)
    """By type: `features`, their number; `nodes` and `halo`, one count for each partition."""
    relations: dict[str, Any] = field(default_factory=dict)
    """By relation, for each partition: `edges` without self loops; `cut`, edges between two."""

    @property
    def target_type(self) -> str:
        return self.target

    @property
    def node_counts(self) -> dict[str, dict[str, Any]]:
        return self.types

    @property
    def edge_counts(self) -> dict[EdgeType, list[int] | None]:
        counts: dict[EdgeType, list[int] | None] = {}
        for joined, relation in self.relations.items():
            source, name, destination = joined.split(SEPARATOR)
            counts[source, name, destination] = relation["edges"]
        return counts

    @property
    def labelled(self) -> str | None:
        """The relation whose edges are the target's nodes; None where they are no edges."""
        relations = list(self.edge_counts)
        ends = {name: source for source, name, to in relations if to == self.target}
        for source, name, destination in relations:
            has_ends = (source, destination) == (ends.get(SOURCE), ends.get(DESTINATION))
            if has_ends and self.target in (name, f"{name}_edge"):
                return SEPARATOR.join((source, name, destination))
        return None

    def check(self) -> None:
        """Raise ValueError for fields that contradict each other.

        Types and relations are the folders of the files, so their names are those of folders.
        """
        check_shape(self.types, {"*": TYPE}, "types")
        check_shape(self.relations, {"*": RELATION}, "relations")
        lists = [counts[name] for counts in self.types.values() for name in ("nodes", "halo")]
        lists += [counts["edges"] for counts in self.relations.values()]
        if any(len(counts) != len(self.parts) for counts in lists):
            raise ValueError("a list of counts has not one for each part")
        ends = {end for source, _, destination in self.edge_counts for end in (source, destination)}
        if not {self.target, *ends} <= self.types.keys():
            raise ValueError("its target, or an end of a relation, is none of its types")
        folders = {tuple(name.split("/")[1:-1]) for name in self.checksums} - {()}
        stated = {("nodes", name) for name in self.types}
        stated |= {("edges", joined) for joined in self.relations}
        if folders != stated:
            raise ValueError("its types and relations are not those of the files in checksums")
        nodes = np.sum([counts["nodes"] for counts in self.types.values()], axis=0)
        if nodes.tolist() != [counts.nodes for counts in self.parts]:
            raise ValueError("the nodes of the types are not those of the parts")
