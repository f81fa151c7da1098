"""The partition directory of a heterogeneous graph: what goes in comes out, and damage is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hetero_support import RELATIONS, SIZES, hetero_parts, random_hetero, reassembled, write_hetero
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitioning.directory.meta import HeteroMeta
from partitioning.directory.verify import verify_directory
from partitioning.errors import InputError
from partitioning.node_names import Names
from retexo.apps.find_partitions import open_directory
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings


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
        each: 0 if {each[0], each[2]} & empty else number
        for each, number in zip(RELATIONS, edges, strict=True)
    }
    graph = random_hetero(
        sizes, relations, seed=seed, multi=multi, weighted=[("studio", "makes", "movie")]
    )
    directory = write_hetero(tmp_path, graph, num_parts, seed=seed)
    read = [directory.read_hetero(part) for part in range(num_parts)]
    whole, again = reassembled(read), reassembled(hetero_parts(graph, 1))
    assert whole == again
    assert [len(whole["rows"][name]) for name in sizes] == [count for count, _ in sizes.values()]
    assert sum(map(len, whole["edges"].values())) + sum(part.self_loops for part in read) == (
        graph.num_edges
    )
    assert verify_directory(directory.path) == {}


def test_names_and_counts_are_kept(tmp_path: Path) -> None:
    graph = random_hetero()
    names = Names.of(f"m{row}" for row in range(40))
    graph = replace(
        graph, nodes={**graph.nodes, "movie": replace(graph.nodes["movie"], node_names=names)}
    )
    directory = write_hetero(tmp_path, graph, 3)
    for part in range(3):
        ids = directory.read_hetero(part).nodes["movie"].node_ids - 1000
        found = directory.node_names(part)
        assert found is not None
        assert found.tolist() == [f"m{row}" for row in ids.tolist()]
    meta = directory.meta
    assert isinstance(meta, HeteroMeta)
    assert sum(meta.types["person"]["nodes"]) == 25
    assert sum(meta.relations["person__directs__movie"]["edges"]) == 30
    assert meta.cut_edges == sum(each["cut"] for each in meta.relations.values())


def shortened(name: str) -> Callable[[Path], None]:
    return lambda part: np.save(part / name, np.load(part / name)[:-1])


def changed(name: str, value: float) -> Callable[[Path], None]:
    def change(part: Path) -> None:
        array = np.load(part / name)
        array[..., -1] = value
        np.save(part / name, array)

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shortened("nodes/movie/feat.npy"), "feat has shape"),
        (changed("nodes/person/halo.npy", 0), "halo is not ascending"),
        (changed("nodes/movie/feat.npy", np.nan), "finite"),
        (changed("edges/person__acts_in__movie/src.npy", 99), "src.npy: row"),
        (shortened("edges/person__acts_in__movie/src.npy"), "src has"),
        (shortened("label.npy"), "label"),
        (changed("label.npy", 7), "label has 8 classes"),
        (
            lambda part: (part / "edges/movie__sequel_of__movie/dst.npy").write_bytes(b"\x93NUMPY"),
            "dst.npy",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    directory = write_hetero(tmp_path, random_hetero(), 2)
    damage(directory.path / "part1")
    assert list(verify_directory(directory.path)) == [1]
    with pytest.raises(InputError, match=r"checksum|missing"):
        directory.verify([1])
    with pytest.raises(InputError, match=said):
        directory.read_hetero(1)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("target",), "nobody"),
        (("types", "movie", "nodes"), [41, -1]),
        (("types", "..", "nodes"), [0, 0]),
        (("relations", "person__directs__robot"), {"edges": [1, 1], "cut": 0}),
        (("relations", "person__directs__movie", "cut"), "many"),
    ],
)
def test_a_damaged_description_is_named(tmp_path: Path, at: tuple[str, ...], value: object) -> None:
    directory = write_hetero(tmp_path, random_hetero(), 2).path
    content = json.loads((directory / "meta.json").read_text())
    place = content
    for key in at[:-1]:
        place = place.setdefault(key, {"features": 0, "halo": [0, 0]})
    place[at[-1]] = value
    (directory / "meta.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"meta\.json"):
        verify_directory(directory)


@pytest.mark.parametrize("field", ["types.movie", "relations.person__directs__movie"])
@pytest.mark.parametrize("value", [None, {"nodes": [1, 1]}])
def test_a_damaged_type_or_relation_is_named(tmp_path: Path, field: str, value: object) -> None:
    path = write_hetero(tmp_path, random_hetero(), 2).path / "meta.json"
    content = json.loads(path.read_text())
    group, name = field.split(".")
    content[group][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"meta\.json: damaged \({field} is "):
        verify_directory(path.parent)


def test_a_plain_reader_is_told_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="node_classification_rgcn"):
        write_hetero(tmp_path, random_hetero(), 2).read(0)


def test_the_target_may_be_named_again_and_no_other(tmp_path: Path) -> None:
    path = write_hetero(tmp_path, random_hetero(), 2).path
    given = [
        f"partition_dir={path}",
        "num_partitions=2",
        "dataset_name=file",
        "dataset_file=gone.npz",
    ]
    assert open_directory(composed([*given, "target=movie"])).path == path
    with pytest.raises(InputError, match=r"target=person: .* was made with target=movie"):
        open_directory(composed([*given, "target=person"]))


def composed(overrides: list[str]) -> Settings:
    return replace(
        compose(overrides),
        given=frozenset(each.split("=")[0] for each in overrides) - {"dataset_file"},
    )
