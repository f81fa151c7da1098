"""Site folders of heterogeneous graphs: their parts equal a partition directory's, and each mistake
is named.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hetero_support import random_assignment, random_hetero, write_hetero, write_hetero_sites
from support import thirds

from partitioning.directory.partition import HeteroPartition
from partitioning.directory.read_directory import PartitionDirectory
from partitioning.errors import InputError
from partitioning.graph_data import HeteroGraphData
from partitioning.site_folders import find_sites
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.transport import PeerLost
from retexo.worker.make_context import resolve_halo_by_type

pytestmark = pytest.mark.timeout(60)
NAMES = ["north", "east", "south"]
WEIGHTED = [("person", "directs", "movie"), ("movie", "sequel_of", "movie")]


def write(base: Path, graph: HeteroGraphData, num_parts: int = 3) -> list[Path]:
    masks = thirds(len(graph.labels))
    return write_hetero_sites(
        base, graph, masks, random_assignment(graph, num_parts), NAMES[:num_parts]
    )


def change(folder: Path, described: Any = None, **arrays: Any) -> None:
    """Replace fields of site.json and arrays; None takes one away."""
    before = json.loads((folder / "site.json").read_text())
    after = {
        key: value for key, value in {**before, **(described or {})}.items() if value is not None
    }
    (folder / "site.json").write_text(json.dumps(after))
    with np.load(folder / "part.npz") as file:
        held = {**file, **arrays}
    np.savez(
        folder / "part.npz", **{name: array for name, array in held.items() if array is not None}
    )


def hetero(base: Path, num_parts: int = 3) -> PartitionDirectory:
    found = find_sites(base, num_parts)
    assert found.is_hetero
    return found


def ask(base: Path) -> list[HeteroPartition | str]:
    """Each site's part once the owners were asked, or its error; by threads."""
    parts = [hetero(base).read_hetero(rank) for rank in range(3)]
    sizes = {name: tuple(part.nodes[name].num_inner for part in parts) for name in parts[0].nodes}

    def worker(comm: Communicator) -> HeteroPartition | str:
        try:
            return resolve_halo_by_type(parts[comm.rank], sizes, comm, None)
        except (InputError, PeerLost) as error:
            return f"{type(error).__name__}: {error}"

    return run_threads(3, worker)


def assert_same_part(found: HeteroPartition | str, wanted: HeteroPartition) -> None:
    assert isinstance(found, HeteroPartition), found
    assert list(found.nodes) == list(wanted.nodes)
    assert list(found.relations) == list(wanted.relations)
    of_nodes, of_edges = (
        ("features", "node_ids", "halo_owner", "halo_index"),
        ("src", "dst", "edge_weight"),
    )
    pairs: list[tuple[Any, Any, tuple[str, ...]]] = [
        (found, wanted, ("labels", "train_mask", "val_mask", "test_mask")),
        *((found.nodes[name], wanted.nodes[name], of_nodes) for name in wanted.nodes),
        *((found.relations[each], wanted.relations[each], of_edges) for each in wanted.relations),
    ]
    for one, other, names in pairs:
        for name in names:
            a, b = getattr(one, name), getattr(other, name)
            assert (a is None) == (b is None), name
            assert a is None or (
                a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))
            ), name
    assert (found.rank, found.num_parts, found.target, found.self_loops) == (
        wanted.rank,
        wanted.num_parts,
        wanted.target,
        wanted.self_loops,
    )


@pytest.mark.parametrize("multi", [False, True])
def test_a_part_is_that_of_the_partition_directory(tmp_path: Path, multi: bool) -> None:
    graph = random_hetero(multi=multi, weighted=WEIGHTED)
    directory = write_hetero(tmp_path, graph, 3)
    write(tmp_path / "sites", graph)
    for rank, found in enumerate(ask(tmp_path / "sites")):
        assert_same_part(found, directory.read_hetero(rank))


def test_what_a_site_has_none_of_may_be_left_out(tmp_path: Path) -> None:
    graph = random_hetero()
    assignment = random_assignment(graph, 2)
    *_, south = write_hetero_sites(tmp_path, graph, thirds(40), assignment, NAMES)
    with np.load(south / "part.npz") as file:
        assert all(not len(array) for array in file.values())
    np.savez(south / "part.npz")
    found = ask(tmp_path)[2]
    assert isinstance(found, HeteroPartition)
    assert [nodes.features.shape for nodes in found.nodes.values()] == [(0, 6), (0, 4), (0, 0)]


def test_ids_that_contradict_are_named_with_their_type(tmp_path: Path) -> None:
    """A studio that its owner does not hold."""
    folders = write(tmp_path, random_hetero())
    with np.load(folders[2] / "part.npz") as file:
        into = int(file["movie/node_id"][0])
    one = {"src": [77], "dst": [into], "src_owner": [0]}
    change(
        folders[2],
        None,
        **{f"studio__makes__movie/{name}": np.array(value) for name, value in one.items()},
    )
    assert "south/part.npz: studio: array `src`: north does not hold node 77" in str(
        ask(tmp_path)[2]
    )


ONE = {"src": np.array([5, 7]), "dst": np.array([1, 1]), "src_owner": np.array([0, 1])}
ARRAYS: dict[str, Any] = {
    "movie/node_id": np.array([1, 2]),
    "movie/feat": np.ones((2, 2)),
    "movie/label": np.array([0, 1]),
    "movie/train_mask": np.array([True, False]),
    "movie/val_mask": np.array([False, True]),
    "movie/test_mask": np.array([False, False]),
    "person/node_id": np.array([5, 6]),
    **{f"person__directs__movie/{name}": array for name, array in ONE.items()},
}
DESCRIBED: dict[str, Any] = {
    "version": 1,
    "site": "north",
    "sites": ["north", "east"],
    "target": "movie",
    "types": {"movie": 2, "person": 0},
    "relations": ["person__directs__movie", "person__acts_in__movie"],
}
MISTAKES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no-types": ({"types": None}, {}, "site.json: types is None; expected {TYPE: width"),
    "type-name": ({"types": {"movie": 2, "a__b": 0}}, {}, "no name has __ or / in it"),
    "target": (
        {"target": "actor"},
        {},
        "site.json: target is 'actor'; expected one of its types: movie, person",
    ),
    "relation": (
        {"relations": ["robot__builds__movie"]},
        {},
        "relations is .*robot__builds__movie.*; expected a list",
    ),
    "weighted": (
        {"weighted": ["directs"]},
        {},
        "weighted is .*directs.*; expected a list of some of its relations",
    ),
    "stranger": (
        None,
        {"actor/node_id": np.array([1])},
        "array `actor/node_id` has no meaning here; expected TYPE/ARRAY",
    ),
    "wide": (
        None,
        {"movie/feat": np.ones((2, 3))},
        "movie: its features are 3 wide, `types` of site.json says 2",
    ),
    "unwanted": (
        None,
        {"person/feat": np.ones((2, 1))},
        "person: its features are 1 wide, `types` of site.json says 0",
    ),
    "no-features": (None, {"movie/feat": None}, "movie: there is no array `feat`"),
    "dst": (
        None,
        {"person__directs__movie/dst": np.array([1, 5])},
        "person__directs__movie: array `dst`: row 1 is 5",
    ),
    "weight": (
        None,
        {"person__directs__movie/edge_weight": np.ones(2)},
        "movie: array `edge_weight` has no meaning here",
    ),
    "no-weight": (
        {"weighted": ["person__directs__movie"]},
        {},
        "no array `edge_weight`; site.json says .* weighted",
    ),
    "owners": (
        {"sites": ["north", "east", "south"]},
        {
            f"person__acts_in__movie/{name}": array
            for name, array in {**ONE, "src_owner": np.array([0, 2])}.items()
        },
        "edges from person: array `src`: row 3 is 7; `src_owner` names two sites",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(tmp_path: Path, name: str) -> None:
    described, arrays, message = MISTAKES[name]
    (tmp_path / "site.json").write_text(json.dumps(DESCRIBED))
    np.savez(tmp_path / "part.npz", **ARRAYS)
    num_parts = len((described or DESCRIBED).get("sites", DESCRIBED["sites"]))
    assert hetero(tmp_path, 2).read_hetero(0).nodes["person"].num_halo == 1
    change(tmp_path, described, **arrays)
    with pytest.raises(InputError, match=message):
        hetero(tmp_path, num_parts).read_hetero(0)


def test_the_order_of_types_is_agreed_on(tmp_path: Path) -> None:
    folders = write(tmp_path, random_hetero())
    types = json.loads((folders[1] / "site.json").read_text())["types"]
    change(folders[1], {"types": dict(reversed(types.items()))})
    with pytest.raises(InputError, match="its sites, task, num_classes or types differ"):
        find_sites(tmp_path, 3)
