"""A partition directory of a heterogeneous graph: meta.json, and for each part npy files, read by memory mapping.

    partP/{label,train_mask,val_mask,test_mask}.npy    of the target's inner nodes
    partP/nodes/TYPE/feat.npy, orig_id.npy             [I, F] and [I] of inner nodes; their names, where there are any
    partP/nodes/TYPE/halo.npy                          int64 [H] ids of halo nodes in the partitioned graph, ascending
    partP/edges/SOURCE__RELATION__DESTINATION/{src,dst}.npy    int32 [E] local ids; edge_weight.npy, where there are any

In the partitioned graph the nodes of a type are numbered part after part. P parts, I inner and H halo nodes of a type.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partitioning.array_checks import (
    check_dense,
    check_edge_weight,
    check_endpoints,
    check_labels,
    check_length,
    check_mask,
    check_node_ids,
    check_split,
)
from partitioning.directory.meta import VERSION, HeteroMeta
from partitioning.directory.npy_files import AGAIN, content_of, load_array
from partitioning.directory.partition import (
    HeteroPartition,
    PartCounts,
    PartEdges,
    Partition,
    PartNodes,
)
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.directory.write_directory import checksums_of, made_beside, make_layout
from partitioning.errors import InputError
from partitioning.graph_data import MASKS, SEPARATOR, HeteroGraphData, is_labelled
from partitioning.node_names import Names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HeteroDirectory(PartitionDirectory):
    """One that was found; `bounds` count the nodes of all types together."""

    @property
    def hetero(self) -> HeteroMeta:
        assert isinstance(self.meta, HeteroMeta)
        return self.meta

    @property
    def type_names(self) -> list[str]:
        return list(self.hetero.types)

    def read(self, part: int) -> Partition:
        raise InputError(
            f"{self.path}: a heterogeneous graph, of {', '.join(self.type_names)}; train it with "
            "--config-name node_classification_rgcn, node_classification_hetero_sage or node_classification_rgat"
        )

    def check(self, part: int) -> None:
        """InputError for what reading the part finds wrong."""
        self.read_hetero(part)

    def node_names(self, part: int) -> Names | None:
        """What the data set calls the target's inner nodes."""
        return Names.read(self.path / f"part{part}" / "nodes" / self.hetero.target)

    def bounds_of(self, name: str) -> NDArray[np.int64]:
        """[P + 1] part p owns ids bounds[p] ... bounds[p + 1] - 1 of a type's nodes."""
        return np.cumsum([0, *self.hetero.types[name]["nodes"]])

    def read_hetero(self, part: int) -> HeteroPartition:
        """Read one part, checked; InputError names what is wrong with it."""
        folder, meta = self.path / f"part{part}", self.hetero
        nodes = {name: self._nodes(folder / "nodes" / name, name, part) for name in meta.types}
        relations = {}
        for each, of_parts in meta.relations.items():
            source, name, destination = each.split(SEPARATOR)
            at, count = folder / "edges" / each, of_parts["edges"][part]
            edges = _edges(at, nodes[source], nodes[destination])
            if len(edges.src) != count:
                raise InputError(
                    f"{at}: has {len(edges.src)} edges, meta.json says {count}; {AGAIN}"
                )
            relations[source, name, destination] = edges
        target = self._target(folder, nodes[meta.target].num_inner)
        self_loops = meta.parts[part].edges - sum(len(edges.src) for edges in relations.values())
        return HeteroPartition(
            part, self.num_parts, meta.target, nodes, relations, self_loops=self_loops, **target
        )

    def _nodes(self, folder: Path, name: str, part: int) -> PartNodes:
        bounds, where = self.bounds_of(name), f"{folder}: "
        first, end = bounds[part : part + 2].tolist()
        arrays = {each: load_array(folder / f"{each}.npy") for each in ("feat", "orig_id", "halo")}
        feat, width = arrays["feat"], self.hetero.types[name]["features"]
        if feat.shape != (end - first, width):
            raise InputError(
                f"{where}feat has shape {feat.shape}, meta.json says {(end - first, width)}; {AGAIN}"
            )
        ids = check_node_ids(arrays["orig_id"], end - first, f"{where}orig_id")
        halo = check_endpoints(arrays["halo"], int(bounds[-1]), f"{where}halo").astype(
            np.int64, copy=False
        )
        if (np.diff(halo) <= 0).any() or ((halo >= first) & (halo < end)).any():
            raise InputError(f"{where}halo is not ascending, or has inner nodes; {AGAIN}")
        owner = np.searchsorted(bounds, halo, side="right") - 1
        return PartNodes(
            features=torch.from_numpy(
                check_dense(feat, end - first, f"{where}feat") if width else feat
            ),
            node_ids=torch.from_numpy(ids),
            halo_owner=torch.from_numpy(owner),
            halo_index=torch.from_numpy(halo - bounds[owner]),
        )

    def _target(self, folder: Path, num_inner: int) -> dict[str, Any]:
        labels = check_labels(
            load_array(folder / "label.npy"), self.hetero.num_nodes, f"{folder}: label"
        )
        check_length(labels, num_inner, f"{folder}: label")
        multilabel = self.hetero.task == "multilabel"
        classes = labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1
        fits = (
            classes == self.hetero.num_classes if multilabel else classes <= self.hetero.num_classes
        )
        if (labels.ndim == 2) != multilabel or not fits:
            raise InputError(
                f"{folder}: label has {classes} classes, meta.json says {self.hetero.num_classes} "
                f"({self.hetero.task}); {AGAIN}"
            )
        masks = {
            name: check_mask(load_array(folder / f"{name}.npy"), num_inner, f"{folder}: {name}")
            for name in MASKS
        }
        check_split(masks, is_labelled(labels), str(folder))
        return {
            "labels": torch.from_numpy(labels),
            **{name: torch.from_numpy(mask) for name, mask in masks.items()},
        }


def _edges(folder: Path, source: PartNodes, destination: PartNodes) -> PartEdges:
    ends = []
    for name, count in (
        ("src", source.num_inner + source.num_halo),
        ("dst", destination.num_inner),
    ):
        ids = check_endpoints(load_array(folder / f"{name}.npy"), count, f"{folder}/{name}.npy")
        ends.append(torch.from_numpy(ids.astype(np.int32, copy=False)))
    if len(ends[0]) != len(ends[1]):
        raise InputError(f"{folder}: src has {len(ends[0])} entries, dst {len(ends[1])}; {AGAIN}")
    if not (folder / "edge_weight.npy").exists():
        return PartEdges(ends[0], ends[1])
    weight = check_edge_weight(
        load_array(folder / "edge_weight.npy"), len(ends[0]), f"{folder}/edge_weight.npy"
    )
    return PartEdges(
        ends[0], ends[1], torch.ones(len(ends[0])) if weight is None else torch.from_numpy(weight)
    )


def write(
    directory: Path,
    graph: HeteroGraphData,
    parts: Iterable[HeteroPartition],
    assignment: Mapping[str, NDArray[np.int64]],
    *,
    num_parts: int,
    provenance: Mapping[str, Any],
    overwrite: bool,
) -> HeteroMeta:
    """Write the partition directory, beside its place first; one part is in memory beside the graph.

    Args:
        parts: those of split_hetero for the assignment, in order.
        provenance: the fields request, split, versions and notes of Meta.

    Raises:
        InputError: without overwrite, where something is there.
    """
    layouts = {name: make_layout(assignment[name], num_parts) for name in graph.nodes}
    counts: list[PartCounts] = []
    types: dict[str, Any] = {
        name: {"features": int(table.features.shape[1]), "nodes": [], "halo": []}
        for name, table in graph.nodes.items()
    }
    relations: dict[str, Any] = {
        SEPARATOR.join(each): {"edges": [], "cut": 0} for each in graph.relations
    }
    with made_beside(directory, overwrite) as unfinished:
        for part in parts:
            folder = unfinished / f"part{part.rank}"
            folder.mkdir()
            for name, nodes in part.nodes.items():
                _write_nodes(folder / "nodes" / name, nodes, layouts[name].node_bounds)
                types[name]["nodes"].append(nodes.num_inner)
                types[name]["halo"].append(nodes.num_halo)
                names = graph.nodes[name].node_names
                if names is not None:
                    inner = slice(*layouts[name].node_bounds[part.rank : part.rank + 2])
                    names.take(layouts[name].node_order[inner]).save(folder / "nodes" / name)
            for each, edges in part.relations.items():
                _write_edges(folder / "edges" / SEPARATOR.join(each), edges)
                said = relations[SEPARATOR.join(each)]
                said["edges"].append(len(edges.src))
                said["cut"] += int((edges.src >= part.nodes[each[0]].num_inner).sum())
            for name, tensor in (
                ("label", part.labels),
                *((name, getattr(part, name)) for name in MASKS),
            ):
                np.save(folder / f"{name}.npy", tensor.numpy())
            counts.append(_counts(part))
            log.info(
                "wrote part %d: %s nodes, %s edges",
                part.rank,
                f"{counts[-1].nodes:,}",
                f"{counts[-1].edges:,}",
            )
        checksums = checksums_of(unfinished)
        meta = HeteroMeta(
            version=VERSION,
            name=directory.name,
            dataset=graph.name,
            task="multilabel" if graph.multilabel else "multiclass",
            num_nodes=sum(part.nodes for part in counts),
            num_edges=sum(part.edges for part in counts),
            num_features=types[graph.target]["features"],
            num_classes=graph.num_classes,
            class_names=list(graph.class_names or ()),
            cut_edges=sum(each["cut"] for each in relations.values()),
            parts=[
                PartCounts(**{**vars(part), "content": content_of(checksums, at)})
                for at, part in enumerate(counts)
            ],
            checksums=checksums,
            target=graph.target,
            types=types,
            relations=relations,
            **provenance,
        )
        (unfinished / "meta.json").write_text(
            json.dumps(asdict(meta), indent=2) + "\n", encoding="utf-8"
        )
    return meta


def _counts(part: HeteroPartition) -> PartCounts:
    return PartCounts(
        nodes=sum(nodes.num_inner for nodes in part.nodes.values()),
        edges=sum(len(edges.src) for edges in part.relations.values()) + part.self_loops,
        halo=sum(nodes.num_halo for nodes in part.nodes.values()),
        content="",
        **{name.removesuffix("_mask"): int(getattr(part, name).sum()) for name in MASKS},
    )


def _write_nodes(folder: Path, nodes: PartNodes, bounds: NDArray[np.int64]) -> None:
    folder.mkdir(parents=True)
    np.save(folder / "feat.npy", nodes.features.numpy())
    np.save(folder / "orig_id.npy", nodes.node_ids.numpy())
    np.save(folder / "halo.npy", bounds[nodes.halo_owner.numpy()] + nodes.halo_index.numpy())


def _write_edges(folder: Path, edges: PartEdges) -> None:
    folder.mkdir(parents=True)
    np.save(folder / "src.npy", edges.src.numpy())
    np.save(folder / "dst.npy", edges.dst.numpy())
    if edges.edge_weight is not None:
        np.save(folder / "edge_weight.npy", edges.edge_weight.numpy())
