"""Small heterogeneous graphs for tests."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from support import Masks, thirds, write_partitions

from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.graph.graph_data import EdgeType, GraphData, NodeTable, Relation

SIZES = {"movie": (40, 6), "person": (25, 4), "studio": (5, 0)}
"""Nodes and features of each type of a random graph; the first type is the target."""
RELATIONS: dict[EdgeType, int] = {
    ("person", "acts_in", "movie"): 90,
    ("movie", "rev_acts_in", "person"): 90,
    ("person", "directs", "movie"): 30,
    ("studio", "makes", "movie"): 40,
    ("movie", "sequel_of", "movie"): 12,
}
"""And edges of each relation."""


WEIGHTED = ("person", "directs", "movie")


def random_hetero(
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    relations: Mapping[EdgeType, int] = RELATIONS,
    *,
    num_classes: int = 3,
    seed: int = 0,
    multi: bool = False,
    weighted: Sequence[EdgeType] = (),
) -> GraphData:
    """Random edges, some of them twice, a self loop where the ends are of one type.

    Ids from 1000, 2000 ... on.
    """
    rng = np.random.default_rng(seed)
    target, number = next(iter(sizes)), next(iter(sizes.values()))[0]
    labels = np.arange(number) // 3 % num_classes
    nodes = {}
    for place, (name, (count, width)) in enumerate(sizes.items()):
        rows = rng.standard_normal((count, width)).astype(np.float32)
        if name == target and width:
            rows += 1.5 * np.eye(num_classes, width, dtype=np.float32)[labels]
        nodes[name] = NodeTable(rows, 1000 * (place + 1) + np.arange(count))
    edges = {}
    for edge_type, count in relations.items():
        src, dst = (
            rng.integers(sizes[edge_type[end]][0], size=count if sizes[edge_type[end]][0] else 0)
            for end in (0, 2)
        )
        if edge_type[0] == edge_type[2] and len(src) > 2:
            src[0] = dst[0]
        if len(src) > 2:
            src[-1], dst[-1] = src[1], dst[1]
        weight = rng.uniform(0.5, 2, len(src)).astype(np.float32) if edge_type in weighted else None
        edges[edge_type] = Relation(src, dst, weight)
    multi_labels = (rng.random((number, num_classes)) < 0.4).astype(np.float32)
    return GraphData("toy", nodes, edges, target, multi_labels if multi else labels, num_classes)


def write_hetero(
    base: Path, graph: GraphData, num_parts: int, *, seed: int = 0, masks: Masks | None = None
) -> PartitionDirectory:
    """Write the parts of a random assignment to base/toy-random-vol-P, and open them."""
    assignment = random_assignment(graph, num_parts, seed)
    return write_partitions(base, graph, masks or thirds(len(graph.labels)), assignment, num_parts)


def random_assignment(graph: GraphData, num_parts: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(num_parts, size=table.num_nodes) for name, table in graph.nodes.items()
    }


def hetero_parts(
    graph: GraphData, num_parts: int, *, seed: int = 0, masks: Masks | None = None
) -> list[Partition]:
    """The parts of a random assignment.

    Every third target trains, the next ones validate and test.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = write_hetero(Path(folder), graph, num_parts, seed=seed, masks=masks)
        return [directory.read_part(part) for part in range(num_parts)]


def reassembled(parts: list[Partition]) -> dict:
    """Return by type the rows with ids, and by relation the pairs of ids with weights, sorted."""
    ids = {name: [part.nodes[name].node_ids.tolist() for part in parts] for name in parts[0].nodes}
    rows = {
        name: sorted(
            (number, *row)
            for part in parts
            for number, row in zip(
                part.nodes[name].node_ids.tolist(), part.nodes[name].features.tolist(), strict=True
            )
        )
        for name in ids
    }
    edges: dict = {edge_type: [] for edge_type in parts[0].relations}
    for part in parts:
        for edge_type, relation in part.relations.items():
            source = part.nodes[edge_type[0]]
            halo = zip(source.halo_owner.tolist(), source.halo_index.tolist(), strict=True)
            source_ids = source.node_ids.tolist() + [
                ids[edge_type[0]][owner][index] for owner, index in halo
            ]
            weight = (
                torch.ones(len(relation.src))
                if relation.edge_weight is None
                else relation.edge_weight
            )
            for src, dst, number in zip(
                relation.src.tolist(), relation.dst.tolist(), weight.tolist(), strict=True
            ):
                edges[edge_type].append(
                    (source_ids[src], part.nodes[edge_type[2]].node_ids.tolist()[dst], number)
                )
    return {"rows": rows, "edges": {edge_type: sorted(pairs) for edge_type, pairs in edges.items()}}


def write_hetero_sites(
    base: Path,
    graph: GraphData,
    masks: Masks,
    assignment: Mapping[str, np.ndarray],
    names: Sequence[str],
) -> list[Path]:
    """Cut a graph into site folders base/NAME, by the rank of each node of a type."""
    relations = {"__".join(edge_type): edge_type for edge_type in graph.relations}
    agreed = {
        "version": 1,
        "sites": list(names),
        "target": graph.target,
        "relations": list(relations),
        "types": {name: table.features.shape[1] for name, table in graph.nodes.items()},
        "weighted": [
            name
            for name, edge_type in relations.items()
            if graph.relations[edge_type].edge_weight is not None
        ],
        "task": graph.label_kind,
        "num_classes": graph.num_classes,
    }
    for rank, site in enumerate(names):
        arrays: dict[str, np.ndarray] = {}
        for name, table in graph.nodes.items():
            is_own = assignment[name] == rank
            arrays[f"{name}/node_id"] = table.node_ids[is_own]
            if table.features.shape[1]:
                arrays[f"{name}/feat"] = table.features[is_own]
            if name == graph.target:
                arrays |= {
                    f"{name}/{field}": rows[is_own]
                    for field, rows in {"label": graph.labels, **masks}.items()
                }
        for name, (source, relation, destination) in relations.items():
            edges = graph.relations[source, relation, destination]
            into = assignment[destination][edges.dst] == rank
            arrays[f"{name}/src"] = graph.nodes[source].node_ids[edges.src[into]]
            arrays[f"{name}/dst"] = graph.nodes[destination].node_ids[edges.dst[into]]
            arrays[f"{name}/src_owner"] = assignment[source][edges.src[into]]
            if edges.edge_weight is not None:
                arrays[f"{name}/edge_weight"] = edges.edge_weight[into]
        (base / site).mkdir(parents=True)
        (base / site / "site.json").write_text(json.dumps({**agreed, "site": site}))
        np.savez(base / site / "part.npz", **arrays)  # type: ignore[arg-type]
    return [base / name for name in names]
