"""Heterogeneous graphs on disk come back as written, and each mistake is named.

Partition directories, those of DGL, site folders and files of an assignment.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import assert_same, change_json, change_site, change_tensors, write_files
from hetero_support import (
    RELATIONS,
    SIZES,
    WEIGHTED,
    hetero_parts,
    random_assignment,
    random_hetero,
    reassembled,
    write_hetero,
    write_hetero_sites,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import dgl_directory, need_dgl, thirds

from partitioning.directory.meta import Meta
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import PartitionDirectory, find_partition_directory
from partitioning.errors import InputError
from partitioning.graph.graph_data import DESTINATION, SEPARATOR, SOURCE, GraphData
from partitioning.sites.site_folders import find_sites
from retexo.apps import partition_data
from retexo.apps.find_partitions import find_or_make_partitions
from retexo.comm.collectives import Communicator
from retexo.comm.thread_transport import run_threads
from retexo.comm.transport import PeerLost
from retexo.settings.compose import compose
from retexo.worker.make_context import resolve_halo_by_type


@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.integers(1, 6),
    st.integers(0, 2**16),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
    st.lists(st.integers(0, 60), min_size=5, max_size=5),
    st.booleans(),
)
def test_what_is_split_and_written_is_read_and_put_together_again(
    tmp_path: Path, num_parts: int, seed: int, counts: list[int], edges: list[int], multi: bool
) -> None:
    counts[0] = max(counts[0], 1)
    sizes = {name: (count, SIZES[name][1]) for name, count in zip(SIZES, counts, strict=True)}
    empty = {name for name, (count, _) in sizes.items() if not count}
    relations = {
        edge_type: 0 if {edge_type[0], edge_type[2]} & empty else number
        for edge_type, number in zip(RELATIONS, edges, strict=True)
    }
    graph = random_hetero(
        sizes, relations, seed=seed, multi=multi, weighted=[("studio", "makes", "movie")]
    )
    directory = write_hetero(tmp_path, graph, num_parts, seed=seed)
    read = [directory.read_part(part) for part in range(num_parts)]
    meta: Any = directory.meta
    num_directs = relations["person", "directs", "movie"]
    assert sum(meta.relations["person__directs__movie"]["edges"]) == num_directs
    of_parts, of_one = reassembled(read), reassembled(hetero_parts(graph, 1))
    assert of_parts == of_one
    assert [len(of_parts["rows"][name]) for name in sizes] == [count for count, _ in sizes.values()]
    assert sum(map(len, of_parts["edges"].values())) + sum(part.self_loops for part in read) == (
        graph.num_edges
    )
    directory.verify(range(directory.num_parts))


def test_the_target_may_be_named_again_and_no_other(tmp_path: Path) -> None:
    path = write_hetero(tmp_path, random_hetero(), 2).path
    overrides = ("dataset_name=file", "dataset_file=gone.npz", "num_partitions=2")
    settings = compose([*overrides, f"partition_dir={path}", "target=movie"])
    settings = replace(settings, given=settings.given - {"dataset_file"})
    assert find_or_make_partitions(settings).path == path
    with pytest.raises(
        InputError,
        match=r"other settings: target \(movie there, person now\)",
    ):
        find_or_make_partitions(replace(settings, target="person"))


NAMES = ["north", "east", "south"]
SITES_WEIGHTED = [("person", "directs", "movie"), ("movie", "sequel_of", "movie")]


def write(base: Path, graph: GraphData, num_parts: int = 3) -> list[Path]:
    masks = thirds(len(graph.labels))
    return write_hetero_sites(
        base, graph, masks, random_assignment(graph, num_parts), NAMES[:num_parts]
    )


def hetero(base: Path, num_parts: int = 3) -> PartitionDirectory:
    sites = find_sites(base, num_parts)
    assert not sites.is_plain
    return sites


def ask(base: Path) -> list[Partition | str]:
    """Each site's part once the owners were asked, or its error; by threads."""
    parts = [hetero(base).read_part(rank) for rank in range(3)]
    sizes = {name: tuple(part.nodes[name].num_inner for part in parts) for name in parts[0].nodes}

    def worker(comm: Communicator) -> Partition | str:
        try:
            return resolve_halo_by_type(parts[comm.rank], sizes, comm, None)
        except (InputError, PeerLost) as error:
            return f"{type(error).__name__}: {error}"

    return run_threads(3, worker)


OF_PART = ("labels", "train_mask", "val_mask", "test_mask", "rank", "num_parts", "target")
OF_NODES = ("features", "node_ids", "halo_owner", "halo_index")
OF_EDGES = ("src", "dst", "edge_weight")


def assert_same_part(actual: Partition | str, expected: Partition) -> None:
    assert isinstance(actual, Partition), actual
    assert_same(actual, expected, *OF_PART, "self_loops")
    assert (*actual.nodes, *actual.relations) == (*expected.nodes, *expected.relations)
    for name, nodes in expected.nodes.items():
        assert_same(actual.nodes[name], nodes, *OF_NODES)
    for edge_type, edges in expected.relations.items():
        assert_same(actual.relations[edge_type], edges, *OF_EDGES)


@pytest.mark.parametrize("multi", [False, True])
def test_a_part_is_that_of_the_partition_directory(tmp_path: Path, multi: bool) -> None:
    graph = random_hetero(multi=multi, weighted=SITES_WEIGHTED)
    directory = write_hetero(tmp_path, graph, 3)
    write(tmp_path / "sites", graph)
    for rank, site_part in enumerate(ask(tmp_path / "sites")):
        assert_same_part(site_part, directory.read_part(rank))


def test_what_a_site_has_none_of_may_be_left_out(tmp_path: Path) -> None:
    graph = random_hetero()
    assignment = random_assignment(graph, 2)
    *_, south = write_hetero_sites(tmp_path, graph, thirds(40), assignment, NAMES)
    with np.load(south / "part.npz") as file:
        assert all(not len(array) for array in file.values())
    np.savez(south / "part.npz")
    empty_part = ask(tmp_path)[2]
    assert isinstance(empty_part, Partition)
    assert [nodes.features.shape for nodes in empty_part.nodes.values()] == [(0, 6), (0, 4), (0, 0)]


def test_ids_that_contradict_are_named_with_their_type(tmp_path: Path) -> None:
    """A studio that its owner does not hold."""
    folders = write(tmp_path, random_hetero())
    with np.load(folders[2] / "part.npz") as file:
        into = int(file["movie/node_id"][0])
    one = {"src": [77], "dst": [into], "src_owner": [0]}
    change_site(
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
    "no-types": ({"types": None}, {}, "site.json: has no types"),
    "type-name": ({"types": {"movie": 2, "a__b": 0}}, {}, "expected names without __ and /"),
    "type-empty": ({"types": {"movie": 2, "": 0}}, {}, "expected names without __ and /, none em"),
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
        "movie/edge_weight` has no meaning here; it may have person__directs__movie/src",
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
    assert hetero(tmp_path, 2).read_part(0).nodes["person"].num_halo == 1
    change_site(tmp_path, described, **arrays)
    with pytest.raises(InputError, match=message):
        hetero(tmp_path, num_parts).read_part(0)


def test_the_order_of_types_is_agreed_on(tmp_path: Path) -> None:
    folders = write(tmp_path, random_hetero())
    types = json.loads((folders[1] / "site.json").read_text())["types"]
    change_site(folders[1], {"types": dict(reversed(types.items()))})
    with pytest.raises(InputError, match="its sites, task, num_classes or types differ"):
        find_sites(tmp_path, 3)


GRAPH = random_hetero()
PARTS = random_assignment(GRAPH, 3)


BY = {
    "by/movie.npy": PARTS["movie"],
    "by/studio.npy": PARTS["studio"].astype(np.uint8),
    "by/person.csv": "".join(f"{part}\n" for part in PARTS["person"]),
}
"""The assignment, a file of each type."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """films, tables of the graph; by, its assignment."""
    files: dict[str, Any] = {}
    for name, table in GRAPH.nodes.items():
        arrays = {"label": GRAPH.labels} if name == GRAPH.target else {}
        arrays |= {"feat": table.features} if table.features.shape[1] else {}
        files[f"films/nodes/{name}.npz"] = {"node_id": table.node_ids, **arrays}
    for edge_type, edges in GRAPH.relations.items():
        src = GRAPH.nodes[edge_type[0]].node_ids[edges.src]
        dst = GRAPH.nodes[edge_type[2]].node_ids[edges.dst]
        files[f"films/edges/{SEPARATOR.join(edge_type)}.npz"] = {"src": src, "dst": dst}
    return write_files(tmp_path, files | BY)


def partition_films(folder: Path, by: str = "by", *more: str) -> Meta:
    overrides = [
        "app=partition_data",
        "dataset_name=file",
        f"dataset_file={folder}/films",
        f"partition_dir={folder}/parts",
        "split=fraction",
        "split.train=0.5",
        "split.val=0.2",
        "split.test=0.3",
        "num_partitions=3",
        "features=degree",
        "partition_method=file",
        f"partition_file={folder}/{by}",
    ]
    return partition_data.run(compose([*overrides, *more]))


def test_nodes_go_where_their_files_say(folder: Path) -> None:
    directory = find_partition_directory([folder / "parts" / partition_films(folder).name], 3)
    assert not directory.is_plain
    for part in map(directory.read_part, range(3)):
        for name, nodes in part.nodes.items():
            assert (
                nodes.node_ids.tolist()
                == GRAPH.nodes[name].node_ids[PARTS[name] == part.rank].tolist()
            )


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("studio.npy", None, r": has 0 of studio\.npy and studio\.csv; expected one, .* 5 nodes"),
        ("studio.npy", np.zeros(4, int), r"/studio\.npy has 4 rows; expected 5, one per node"),
        ("movie.npy", np.full(40, 3), r"/movie\.npy: row 0 is 3; expected a partition in \[0, 3\)"),
        ("person.npy", PARTS["person"], r": has 2 of person\.npy and person\.csv; expected one"),
        (
            "actor.npy",
            np.zeros(3, int),
            r": actor\.npy belongs to no node type .* movie, person, studio",
        ),
    ],
    ids=["missing", "short", "large", "twice", "unknown"],
)
def test_a_wrong_file_is_named(folder: Path, name: str, values: Any, message: str) -> None:
    (folder / "by" / name).unlink(missing_ok=True)
    write_files(folder, {f"by/{name}": values})
    with pytest.raises(InputError, match=f"partition_file={folder}/by{message}"):
        partition_films(folder)
    assert not (folder / "parts").exists()


@pytest.mark.parametrize("by", ["by/movie.npy", "nowhere"])
def test_a_folder_is_asked_for(folder: Path, by: str) -> None:
    with pytest.raises(
        InputError, match=r"no such folder; expected one with TYPE\.npy or TYPE\.csv"
    ):
        partition_films(folder, by)


@pytest.fixture(scope="module")
def graph() -> GraphData:
    need_dgl()
    return random_hetero(weighted=[WEIGHTED])


@pytest.fixture
def directory(tmp_path: Path, graph: GraphData) -> PartitionDirectory:
    return dgl_directory(tmp_path, graph, thirds(len(graph.labels)), random_assignment(graph, 3))


@pytest.mark.parametrize("halo_hops", [1, 2])
def test_the_parts_are_those_of_the_graph(tmp_path: Path, graph: GraphData, halo_hops: int) -> None:
    assignment = random_assignment(graph, 3)
    directory = dgl_directory(tmp_path, graph, thirds(len(graph.labels)), assignment, halo_hops)
    parts, ours = [directory.read_part(part) for part in range(3)], hetero_parts(graph, 3)
    actual, expected = reassembled(parts), reassembled(hetero_parts(graph, 1))
    assert actual["edges"] == expected["edges"]
    del actual["rows"]["studio"], expected["rows"]["studio"]  # which has no features
    assert actual["rows"] == expected["rows"]
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
    directory.verify(range(directory.num_parts))


def edit(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda path: change_json(path / "toy.json", change)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    return lambda path: change_tensors(path / "part1" / "node_feat.dgl", change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            edit(lambda content: content["node_map"].pop("studio")),
            "node_map leave a gap|types in node_map",
        ),
        (
            edit(lambda content: content["node_map"]["movie"].pop()),
            "not a readable partition config",
        ),
        (
            edit(lambda content: content["edge_map"].pop("person:directs:movie")),
            "edge_map leave a gap",
        ),
        (edit(lambda content: content.pop("part-1")), "part-1"),
        (
            edit(lambda content: content["edge_map"].update({"movie:../../x:movie": [[0, 0]] * 3})),
            "'../../x' cannot be the name",
        ),
        (
            edit(lambda content: content["node_map"].update({"": [[0, 0]] * 3})),
            "'' cannot be the name",
        ),
        (
            edit(
                lambda content: (
                    content["node_map"].update({"": [[0, 0]] * 3}),
                    content["edge_map"].update({"::": [[0, 0]] * 3}),
                )
            ),
            "'' cannot be the name",
        ),
        (
            edit(lambda content: content["edge_map"].update({"movie::movie": [[0, 0]] * 3})),
            "'' cannot be the name",
        ),
        (edit(lambda content: content.update(num_parts="3")), "not a readable partition config"),
        (tensors(lambda arrays: arrays.pop("movie/val_mask")), "movie: has no `val_mask`"),
        (tensors(lambda arrays: arrays.pop("movie/label")), "one type of nodes with label"),
        (
            tensors(lambda arrays: arrays.update({"movie/feat": arrays["movie/feat"][1:]})),
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
def test_damage_of_dgls_files_is_named(
    directory: PartitionDirectory, change: Callable[[Path], None], message: str
) -> None:
    change(directory.dgl_folder)
    with pytest.raises(InputError, match=message):
        read_1(directory.dgl_folder)


def read_1(path: Path) -> None:
    directory = find_partition_directory([path], None)
    assert not directory.is_plain
    directory.read_part(1)


def test_a_relation_that_has_the_name_of_the_target_is_not_labelled_by_it() -> None:
    """Labelled edges are nodes of the target, whose two relations lead to their ends."""
    meta: Any = SimpleNamespace(target="rates", edge_types=[("user", "rates", "film")])
    assert Meta.labelled_edges.fget(meta) is None  # type: ignore[attr-defined]
    ends = [("user", SOURCE, "rates"), ("film", DESTINATION, "rates")]
    meta.edge_types += ends
    assert Meta.labelled_edges.fget(meta) == "user__rates__film"  # type: ignore[attr-defined]
