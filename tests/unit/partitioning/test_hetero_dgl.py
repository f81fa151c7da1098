"""Partition directories that DGL's partition_graph makes of heterographs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_support import WEIGHTED, hetero_parts, partitioned_by_dgl, random_hetero, reassembled
from support import dgl, need_dgl

from partitioning.directory.read_directory import PartitionDirectory, find
from partitioning.directory.verify import verify_directory
from partitioning.errors import InputError
from partitioning.graph_data import HeteroGraphData


@pytest.fixture(scope="module")
def graph() -> HeteroGraphData:
    need_dgl()
    return random_hetero(weighted=[WEIGHTED])


@pytest.fixture
def directory(
    tmp_path: Path, graph: HeteroGraphData, monkeypatch: pytest.MonkeyPatch
) -> PartitionDirectory:
    return partitioned_by_dgl(tmp_path, graph, monkeypatch)


@pytest.mark.parametrize("halo_hops", [1, 2])
def test_the_parts_are_those_of_the_graph(
    tmp_path: Path, graph: HeteroGraphData, monkeypatch: pytest.MonkeyPatch, halo_hops: int
) -> None:
    directory = partitioned_by_dgl(tmp_path, graph, monkeypatch, halo_hops)
    parts, ours = [directory.read_hetero(part) for part in range(3)], hetero_parts(graph, 3)
    found, expected = reassembled(parts), reassembled(hetero_parts(graph, 1))
    assert found["edges"] == expected["edges"]
    del found["rows"]["studio"], expected["rows"]["studio"]  # which has no features
    assert found["rows"] == expected["rows"]
    assert all(
        torch.equal(part.nodes["studio"].features, torch.zeros_like(part.nodes["studio"].features))
        for part in parts
    )
    for part, own in zip(parts, ours, strict=True):
        assert sorted(part.nodes["movie"].node_ids.tolist()) == sorted(
            own.nodes["movie"].node_ids.tolist()
        )
        assert {name: nodes.num_halo for name, nodes in part.nodes.items()} == {
            name: nodes.num_halo for name, nodes in own.nodes.items()
        }
        rows = part.nodes["movie"].node_ids - 1000
        assert part.labels.tolist() == graph.labels[rows].tolist()
        assert part.val_mask.tolist() == (rows % 3 == 1).tolist()
        for nodes in part.nodes.values():
            keys = (nodes.halo_owner * 10**6 + nodes.halo_index).tolist()
            assert keys == sorted(set(keys))
    assert sum(part.self_loops for part in parts) == 1
    assert verify_directory(directory.path) == {}
    with pytest.raises(InputError, match="node_classification_rgcn"):
        directory.read(0)


def edit(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        content = json.loads((path / "toy.json").read_text())
        change(content)
        (path / "toy.json").write_text(json.dumps(content))

    return apply


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        file = str(path / "part1" / "node_feat.dgl")
        held = dgl.data.utils.load_tensors(file)
        change(held)
        dgl.data.utils.save_tensors(file, held)

    return apply


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            edit(lambda content: content["node_map"].pop("studio")),
            "node_map leave a gap|types of node_map",
        ),
        (edit(lambda content: content["node_map"]["movie"].pop()), "node_map has no range"),
        (
            edit(lambda content: content["edge_map"].pop("person:directs:movie")),
            "edge_map leave a gap",
        ),
        (edit(lambda content: content.pop("part-1")), "files of part 1"),
        (edit(lambda content: content.update(num_parts="3")), "num_parts is '3'"),
        (tensors(lambda held: held.pop("movie/val_mask")), "has no 'movie/val_mask'"),
        (tensors(lambda held: held.pop("movie/label")), "one type of nodes with label"),
        (
            tensors(lambda held: held.update({"movie/feat": held["movie/feat"][1:]})),
            "movie/feat has",
        ),
        (lambda path: (path / "part1" / "graph.dgl").write_bytes(b"nothing"), "part1"),
        (lambda path: (path / "part1" / "graph.dgl").unlink(), "part1.*missing"),
        (
            lambda path: (path / "part1/graph.dgl").write_bytes(
                (path / "part0/graph.dgl").read_bytes()
            ),
            "inner nodes",
        ),
    ],
)
def test_damage_is_named(
    directory: PartitionDirectory, change: Callable[[Path], None], said: str
) -> None:
    change(directory.path)
    with pytest.raises(InputError, match=said):
        read_1(directory.path)


def read_1(path: Path) -> None:
    found = find([path], None)
    assert found.is_hetero
    found.read_hetero(1)
