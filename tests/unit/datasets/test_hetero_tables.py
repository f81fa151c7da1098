"""Folders of tables of heterogeneous graphs: read, with reverse relations, or refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from support import dataset_settings

from partitioning.datasets import load_graph, read_graph
from partitioning.errors import InputError
from partitioning.features.build import encode_tables, stored_columns
from partitioning.graph_data import HeteroGraphData
from partitioning.partition_settings import ColumnSettings

CREW = ("person", "acts_in", "movie")


def write(folder: Path) -> Path:
    """Three movies with classes, names and features.

    Two persons with ids of their own; cities by position.
    """
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    (folder / "nodes/movie.csv").write_text(
        "id,label,year,score\nalien,horror,1979,1\nheat,,1995,2\nup,cartoon,2009,3\n"
    )
    (folder / "nodes/person.csv").write_text("id\n70\n30\n")
    sp.save_npz(
        folder / "nodes/person.features.npz",
        sp.csr_array(np.array([[0, 1, 0], [2, 0, 0]], np.float32)),
    )
    np.save(folder / "nodes/city.npy", np.ones((4, 2)))
    (folder / "edges/person__acts_in__movie.csv").write_text(
        "src,dst,weight\n30,up,2\n70,up,1\n70,alien,4\n"
    )
    (folder / "edges/person__lives_in__city.csv").write_text(
        "src,dst,since\n30,3,2000\n70,0,1999\n"
    )
    return folder


def read(folder: Path, **fields: Any) -> HeteroGraphData:
    graph = load_graph(dataset_settings("file", str(folder), **fields))
    assert isinstance(graph, HeteroGraphData)
    return graph


def test_times_of_typed_nodes_are_refused(tmp_path: Path) -> None:
    """They would be left out without a word: only pairs of edges are split by them."""
    folder = write(tmp_path / "films")
    with pytest.raises(InputError, match=r"columns\.time=year: nodes of several types .*leave it"):
        read(folder, columns={"time": "year"})


def test_relations_have_ends_of_their_own_names(tmp_path: Path) -> None:
    """By relation, or by its whole name; the message names what works for all tables."""
    folder = write(tmp_path / "films")
    (folder / "edges/person__acts_in__movie.csv").write_text("actor,film\n30,up\n70,alien\n")
    (folder / "edges/person__lives_in__city.csv").write_text("who,since,place\n30,2000,3\n")
    ends: dict[str, Any] = {
        "src": {"acts_in": "actor", "lives_in": "who"},
        "dst": {"person__acts_in__movie": "film", "lives_in": "place"},
    }
    with pytest.raises(
        InputError,
        match=r"movie.csv: has the columns actor, film; .* such as"
        r" columns\.src=\{acts_in: actor, lives_in: who\}"
        r" columns\.dst=\{acts_in: film, lives_in: since\}",
    ):
        read(folder)
    for columns in (ends, {"src": ["actor", "who"], "dst": ["film", "place"]}):
        graph = read(folder, columns=columns)
        assert graph.relations[CREW].src.tolist() == [1, 0]
        assert graph.relations["person", "lives_in", "city"].dst.tolist() == [3]
    settings = dataset_settings("file", str(folder), columns=ends)
    _, states = encode_tables(read_graph(settings), settings.features, None)
    later = stored_columns(states, ColumnSettings())
    assert later.src == {"person__acts_in__movie": "actor", "person__lives_in__city": "who"}
    with pytest.raises(
        InputError, match=r"columns\.src: there is no relation 'sings', only acts_in"
    ):
        read(folder, columns={**ends, "src": {**ends["src"], "sings": "who"}})


def test_tables_have_names_of_their_own(tmp_path: Path) -> None:
    """Of one type, and by type and relation."""
    files = {
        "accounts.csv": "id,label,x\na,0,1\nb,1,2\n",
        "more.csv": "id,y\nb,4\na,3\n",
        "payments.csv": "src,dst\na,b\n",
        "shops.csv": "id\ns\n",
        "sales.csv": "src,dst\nb,s\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    one: dict[str, Any] = {"tables.nodes": "accounts.csv", "tables.edges": "payments.csv"}
    graph = load_graph(dataset_settings("file", str(tmp_path), **one))
    assert (graph.features.tolist(), graph.dst.tolist()) == ([[1.0], [2.0]], [1])
    typed: dict[str, Any] = {
        "tables.nodes": {"account": "accounts.csv", "shop": "shops.csv"},
        "tables.edges": {
            "account__pays__account": "payments.csv",
            "account__buys_at__shop": "sales.csv",
        },
    }
    found = read(tmp_path, **typed, reverse=False)
    assert found.relations["account", "buys_at", "shop"].src.tolist() == [1]
    assert list(found.nodes) == ["account", "shop"]
    for change, words in (
        ({"tables.edges": "sells.csv"}, r"tables\.edges=sells\.csv: no such table in .*sales.csv"),
        ({"tables.edges": "../payments.csv"}, r"tables\.edges=\.\./payments\.csv: no such table"),
        ({"tables.edges": ["a.csv", "b.csv"]}, r"tables\.edges=.*: expected one table"),
        ({"tables.nodes": typed["tables.nodes"]}, r"tables\.edges=payments\.csv: .*by type"),
        (
            {**typed, "tables.edges": {"pays": "sales.csv"}},
            r"tables\.edges: pays: expected SOURCE__",
        ),
    ):
        with pytest.raises(InputError, match=words):
            read(tmp_path, **{**one, **change})


def test_a_column_names_relations(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a folder of triples, and of one table of a typed folder."""
    folder = tmp_path / "facts"
    folder.mkdir()
    table = "subject,predicate,object\nrome,/in/land,italy\nbonn,near,rome\nrome,near,bonn\n"
    (folder / "edges.csv").write_text(table)
    settings: dict[str, Any] = {
        "columns": {"src": "subject", "dst": "object", "relation": "predicate"},
        "task": "link_prediction",
    }
    graph = read(folder, **settings)
    assert graph.nodes["node"].node_names.tolist() == ["rome", "bonn", "italy"]
    land, near = (graph.relations["node", name, "node"] for name in ("in_land", "near"))
    assert (land.src.tolist(), land.dst.tolist()) == ([0], [2])
    assert (near.src.tolist(), near.dst.tolist()) == ([1, 0], [0, 1])
    assert "relation `/in/land` is called `in_land`" in caplog.text
    for row, words in (("a,,b", "row 3 is blank; .* name of a relation"), ("a,in/land,b", "both")):
        (folder / "edges.csv").write_text(f"{table}{row}\n")
        with pytest.raises(InputError, match=words):
            read(folder, **settings)
    films = write(tmp_path / "films")
    (films / "edges/person__acts_in__movie.csv").write_text(
        "src,dst,role\n30,up,lead\n70,up,extra\n70,alien,lead\n"
    )
    graph = read(films, columns={"relation": "role"}, reverse=False)
    assert [each[1] for each in graph.relations] == ["extra", "lead", "lives_in"]
    assert graph.relations["person", "lead", "movie"].src.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"columns\.relation=kind: no table has such a column"):
        read(films, columns={"relation": "kind"})


def test_nodes_that_only_edges_name_are_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a type without a table; a type without ids has only its rows."""
    folder = write(tmp_path / "films")
    (folder / "nodes/person.features.npz").unlink()
    (folder / "edges/person__acts_in__movie.csv").write_text("src,dst\n30,up\n99,alien\n")
    (folder / "edges/movie__made_by__studio.csv").write_text("src,dst\nup,pixar\nheat,fox\n")
    with pytest.raises(InputError, match=r"no type of nodes 'studio'.*edges\.unknown=add"):
        read(folder)
    graph = read(folder, unknown="add")
    assert graph.nodes["person"].node_ids.tolist() == [70, 30, 99]
    assert graph.nodes["studio"].node_names.tolist() == ["pixar", "fox"]
    assert graph.relations[CREW].src.tolist() == [1, 2]
    assert "1 nodes of person that only edges name are added" in caplog.text
    assert "2 nodes of studio that only edges name are added" in caplog.text
    (folder / "edges/person__lives_in__city.csv").write_text("src,dst\n30,7\n")
    with pytest.raises(InputError, match=r"row 0 is 7; expected a node in \[0, 4\) of `city`"):
        read(folder, unknown="add")


def test_a_folder_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = read(write(tmp_path / "films"))
    assert (graph.name, graph.target, graph.class_names) == (
        "films",
        "movie",
        ("cartoon", "horror"),
    )
    assert graph.labels.tolist() == [1, -1, 0]
    names = graph.nodes["movie"].node_names
    assert names is not None
    assert names.tolist() == ["alien", "heat", "up"]
    assert graph.nodes["movie"].features.tolist() == [[1979, 1], [1995, 2], [2009, 3]]
    assert graph.nodes["person"].node_ids.tolist() == [70, 30]
    persons = sp.csr_array(graph.nodes["person"].features).toarray()
    assert persons[:, :3].tolist() == [[0, 1, 0], [2, 0, 0]]
    assert persons[:, 3].tolist() == [1999, 2000]  # `since` of the edges back from the cities
    assert graph.nodes["city"].features[:, 2].tolist() == [1999, 0, 0, 2000]
    crew = graph.relations[CREW]
    assert (crew.src.tolist(), crew.dst.tolist()) == ([1, 0, 0], [2, 2, 0])
    assert crew.edge_weight is not None
    assert crew.edge_weight.tolist() == [2, 1, 4]
    back = graph.relations["movie", "rev_acts_in", "person"]
    assert (back.src.tolist(), back.dst.tolist(), back.edge_weight) == (
        [2, 2, 0],
        [1, 0, 0],
        crew.edge_weight,
    )
    assert graph.relations["person", "lives_in", "city"].dst.tolist() == [3, 0]
    assert len(graph.relations) == 4
    assert all(relation.edge_feat is None for relation in graph.relations.values())


def test_means_of_edge_features_by_hand(tmp_path: Path) -> None:
    """Weighted means by relation, as matrices of weights give them; without self loops."""
    folder, rng = tmp_path / "films", np.random.default_rng(0)
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    (folder / "nodes/film.csv").write_text(
        "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(6))
    )
    (folder / "nodes/actor.csv").write_text("id\n" + "".join(f"{i}\n" for i in range(4)))
    wanted = []
    for name, num_sources in (("actor__in__film", 4), ("film__after__film", 6)):
        src, dst = rng.integers(num_sources, size=20), rng.integers(6, size=20)
        weight, pay, days = rng.integers(1, 5, 20), rng.random(20), rng.random(20)
        frame = pd.DataFrame({"src": src, "dst": dst, "weight": weight, "pay": pay, "days": days})
        frame.to_csv(folder / f"edges/{name}.csv", index=False)
        counted = weight * ~((num_sources == 6) & (src == dst))
        shares = (dst == np.arange(6)[:, None]) * counted  # [6, 20]
        total = np.maximum(shares.sum(axis=1), 1)[:, None]
        wanted.append(shares @ np.stack((pay, days), axis=1) / total)
    graph = read(folder, reverse=False)
    np.testing.assert_allclose(graph.nodes["film"].features, np.hstack(wanted), rtol=1e-5)
    without_features = graph.nodes["actor"].features  # degree and position
    assert without_features.shape == (4, 129)
    assert not without_features[:, 0].any()
    assert read(folder, reverse=False, features=("degree",)).nodes["film"].features.shape == (6, 2)
    with pytest.raises(InputError, match="duplicates=merge: features or times of edges"):
        read(folder, duplicates="merge")


def test_types_without_features_get_some(tmp_path: Path) -> None:
    folder = write(tmp_path / "films")
    (folder / "nodes/person.features.npz").unlink()
    heard = read(folder).nodes["person"].features
    assert np.allclose(
        heard[:, :4], [[1994, 2, 1, 1], [2009, 3, 1, 1]]
    )  # of movies, then of cities
    kinds = {"person": "degree", "movie": ["given", "random"], "city": "positional"}
    graph = read(folder, features=kinds)
    assert np.allclose(graph.nodes["person"].features, np.log1p([[2, 1], [1, 1]]))
    assert graph.nodes["movie"].features.shape == (3, 130)
    assert graph.nodes["city"].features.shape == (4, 128)
    for name in ("movie.csv", "person.csv"):
        text = (folder / "nodes" / name).read_text()
        (folder / "nodes" / name).write_text(
            "\n".join(",".join(line.split(",")[:2]) for line in text.split()) + "\n"
        )
    (folder / "nodes/city.npy").unlink()
    (folder / "nodes/city.csv").write_text("id\n0\n1\n2\n3\n")
    (folder / "edges/person__lives_in__city.csv").write_text("src,dst\n30,3\n70,0\n")
    assert [table.features.shape[1] for table in read(folder).nodes.values()] == [
        1 + 128,
        1 + 128,
        2 + 128,
    ]  # degrees and positions: nobody has any


def test_no_reverse_of_what_is_there_backwards(tmp_path: Path) -> None:
    folder = write(tmp_path / "films")
    (folder / "edges/movie__cast__person.csv").write_text(
        "src,dst,weight\nup,70,1\nup,30,2\nalien,70,4\n"
    )
    (folder / "edges/person__knows__person.csv").write_text("src,dst\n30,70\n70,30\n")
    (folder / "edges/movie__after__movie.csv").write_text("src,dst\nup,heat\n")
    (folder / "edges/city__rev_lives_in__person.csv").write_text("src,dst\n1,70\n")
    found = {each[1] for each in read(folder).relations}
    assert found == {"acts_in", "cast", "knows", "after", "rev_after", "lives_in", "rev_lives_in"}
    assert len(read(folder, reverse=False).relations) == 6


def test_given_masks_are_the_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "films")
    np.savez(
        folder / "nodes/movie.npz",
        label=[0, 1, 1],
        feat=np.ones((3, 1)),
        train_mask=[1, 0, 0],
        val_mask=[0, 1, 0],
        test_mask=[0, 0, 1],
        node_id=["alien", "heat", "up"],
    )
    (folder / "nodes/movie.csv").unlink()
    graph = read(folder)
    assert graph.target_graph().val_mask is not None
    assert graph.target_graph().shown_ids == ["alien", "heat", "up"]


def rename(old: str, new: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / old).rename(folder / new)


def text(name: str, content: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            rename("edges/person__lives_in__city.csv", "edges/person__lives_in__town.csv"),
            "no type of nodes 'town'",
        ),
        (
            rename("edges/person__lives_in__city.csv", "edges/person_lives_in_city.csv"),
            "three names",
        ),
        (
            rename("edges/person__lives_in__city.csv", "edges/person____city.csv"),
            "three names|cannot be the name",
        ),
        (
            text("edges/person__acts_in__movie.csv", "src,dst\n30,up\n30,70\n"),
            "row 1 is 70.*3 `movie` ids",
        ),
        (
            text("edges/person__acts_in__movie.csv", "src,dst\nup,alien\n"),
            "row 0 is 'up'.*2 `person` ids",
        ),
        (
            text("edges/person__acts_in__movie.csv", "src,dst\n31,alien\n"),
            "row 0 is 31.*2 `person` ids",
        ),
        (
            text("edges/person__lives_in__city.csv", "src,dst\n30,4\n"),
            r"row 0 is 4; .*\[0, 4\) of `city`",
        ),
        (text("edges/person__lives_in__city.csv", "who,where\n30,4\n"), "expected src and dst"),
        (text("edges/person__lives_in__city.parquet", "nothing"), "expected one of them"),
        (
            text("nodes/movie.csv", "id,year\nalien,1\nheat,2\nup,3\n"),
            "no type of nodes has labels",
        ),
        (
            text("nodes/person.csv", "id,label\n70,1\n30,0\n"),
            "several types of nodes have labels.*set target=",
        ),
        (text("nodes/movie.csv", "id,label\nalien,-1\nheat,-1\nup,\n"), "no node has a label"),
        (
            text("nodes/movie.csv", "id,label,x\nalien,1,\nheat,1,2\nup,0,2\n"),
            "1 of 3 nodes of type movie.*alien",
        ),
        (text("nodes/person.csv", "id\n70\n70\n"), "rows 0 and 1 are both 70"),
        (text("nodes/person.csv", "id\n70\n"), "person.features.npz"),
        (lambda folder: np.save(folder / "nodes/city.npy", [[1.0, np.inf]]), "city.npy"),
        (text("nodes/city.npy", "nothing"), "city.npy"),
        (
            lambda folder: [file.unlink() for file in (folder / "edges").iterdir()],
            "there is no table",
        ),
        (
            lambda folder: [file.unlink() for file in (folder / "nodes").iterdir()],
            "there is no table",
        ),
        (rename("nodes/city.npy", "nodes/a__b.npy"), "cannot be the name"),
        (lambda folder: os.mkfifo(folder / "edges/city__near__city.csv"), "not a regular file"),
    ],
)
def test_what_cannot_be_meant_is_named(
    tmp_path: Path, change: Callable[[Path], Any], said: str
) -> None:
    folder = write(tmp_path / "films")
    change(folder)
    with pytest.raises(InputError, match=said):
        read(folder)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "person"}, "target=person: it has no labels"),
        ({"target": "robot"}, "no such type of nodes, only city, movie, person"),
        ({"features": {"robot": "degree"}}, "no type of nodes 'robot'"),
        ({"symmetrize": True}, "relations.reverse=true"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / "films"), **fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target": "a"}, "target=a"),
        ({"reverse": False}, "relations.reverse"),
        ({"features": {"a": "degree"}}, "features="),
    ],
)
def test_where_one_type_is_needed_it_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"{said}.*one type of nodes"):
        load_graph(dataset_settings("synthetic", **fields))


@pytest.mark.parametrize(
    "labels", [["sf", "art"], [True, False], np.array([1, 0], np.uint64)], ids=["text", "b", "u"]
)
def test_arrays_may_have_labels_of_some_nodes(tmp_path: Path, labels: Any) -> None:
    folder = write(tmp_path / "films")
    (folder / "nodes/movie.csv").write_text("id,score\n7,1\n8,2\n9,3\n")
    np.savez(folder / "nodes/movie.features.npz", node_id=[9, 7], label=labels)
    (folder / "edges/person__acts_in__movie.csv").write_text("src,dst\n30,8\n")
    assert read(folder).labels.tolist() == [0, -1, 1]


@pytest.mark.parametrize(
    ("weights", "merged"),
    [([1, 1, 1], [2, 1]), ([2, 0.5, 1], [2.5, 1]), ([1, 0, 1], None), ([0, 0, 0], [0, 0])],
)
def test_weights_of_merged_edges_add_up(
    tmp_path: Path, weights: list[float], merged: list[float] | None
) -> None:
    folder = write(tmp_path / "films")
    (folder / "nodes/person.csv").write_text("id\n0\n1\n")
    (folder / "nodes/movie.csv").write_text("id,label,score\n0,1,1\n1,0,2\n")
    for file in (folder / "edges").iterdir():
        file.unlink()
    ends = [0, 0, 1]
    np.savez(folder / "edges/person__acts_in__movie.npz", src=ends, dst=ends, edge_weight=weights)
    relation = read(folder, duplicates="merge").relations[CREW]
    assert relation.num_edges == 2
    assert (None if relation.edge_weight is None else relation.edge_weight.tolist()) == merged


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2, 3, 4], r"has shape \(4,\); expected \[3\], a weight per edge"),
        ([1.0, 2], r"has shape \(2,\); expected \[3\], a weight per edge"),
        ([-2.0, 3, 1], r"row 0 is -2\.0; expected 0, or a weight"),
        ([np.nan, 3, 1], "row 0, column 0 is nan; expected a finite"),
        ([9e17, 9e17, 1], r"merged: row 0 is 1\.8.*e\+18; expected 0, or a weight"),
    ],
)
@pytest.mark.parametrize("typed", [False, True])
def test_weights_are_checked_before_edges_are_merged(
    tmp_path: Path, weights: list[float], message: str, typed: bool
) -> None:
    folder = write(tmp_path / "films")
    (folder / "edges/person__lives_in__city.csv").unlink()
    edges: dict[str, Any] = {"src": [0, 0, 1], "dst": [1, 1, 0], "edge_weight": weights}
    if typed:
        np.savez(folder / "edges/city__near__city.npz", **edges)
    else:
        folder = folder / "g.npz"
        np.savez(folder, **edges, label=[0, 1], feat=np.eye(2))
    with pytest.raises(InputError, match=f"weight.*{message}"):
        load_graph(dataset_settings("file", str(folder), duplicates="merge"))


def test_of_two_types_with_labels_one_is_asked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "films")
    (folder / "nodes/person.csv").write_text("id,label\n70,1\n30,0\n")
    assert read(folder, target="person").labels.tolist() == [1, 0]
    (folder / "edges/person__lives_in__city.csv").write_text("src,dst\n30,3\n70,0\n")
    assert read(folder, target="person", duplicates="merge").relations[CREW].num_edges == 3
    (folder / "nodes/ghost.csv").write_text("id\n")
    (folder / "edges/ghost__haunts__city.csv").write_text("src,dst\n")
    graph = read(folder, target="movie")
    assert (
        graph.nodes["ghost"].num_nodes == graph.relations["ghost", "haunts", "city"].num_edges == 0
    )
