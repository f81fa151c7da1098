"""Folders of tables of heterogeneous graphs: read, with reverse relations, or refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from graph_files import assert_graph, write_files
from support import dataset_settings, split_settings

from partitioning.datasets import load_graph, read_graph
from partitioning.errors import InputError
from partitioning.features.build import encode_tables, stored_columns
from partitioning.partition_settings import ColumnSettings

CREW = ("person", "acts_in", "movie")
ACTS = "edges/person__acts_in__movie.csv"
LIVES = "edges/person__lives_in__city.csv"
# Three movies with classes, names and features; two persons with ids of their own; cities by row.
FILMS = {
    "nodes/movie.csv": "id,label,year,score\nalien,horror,1979,1\nheat,,1995,2\n"
    "up,cartoon,2009,3\n",
    "nodes/person.csv": "id\n70\n30\n",
    "nodes/person.features.npz": sp.csr_array(np.array([[0, 1, 0], [2, 0, 0]], np.float32)),
    "nodes/city.npy": np.ones((4, 2)),
    ACTS: "src,dst,weight\n30,up,2\n70,up,1\n70,alien,4\n",
    LIVES: "src,dst,since\n30,3,2000\n70,0,1999\n",
}
# The same ends under names of their own.
NAMED_ENDS = FILMS | {
    ACTS: "actor,film\n30,up\n70,alien\n",
    LIVES: "who,since,place\n30,2000,3\n",
}
ENDS = {
    "src": {"acts_in": "actor", "lives_in": "who"},
    "dst": {"person__acts_in__movie": "film", "lives_in": "place"},
}
# Files of other names, and a table of triples.
SHOPS = {
    "accounts.csv": "id,label,x\na,0,1\nb,1,2\n",
    "more.csv": "id,y\nb,4\na,3\n",
    "payments.csv": "src,dst\na,b\n",
    "shops.csv": "id\ns\n",
    "sales.csv": "src,dst\nb,s\n",
}
ONE_TABLE = {"tables.nodes": "accounts.csv", "tables.edges": "payments.csv"}
TYPED_TABLES = {
    "tables.nodes": {"account": "accounts.csv", "shop": "shops.csv"},
    "tables.edges": {
        "account__pays__account": "payments.csv",
        "account__buys_at__shop": "sales.csv",
    },
}
TRIPLES = "subject,predicate,object\nrome,/in/land,italy\nbonn,near,rome\nrome,near,bonn\n"
PREDICATE = {
    "columns": {"src": "subject", "dst": "object", "relation": "predicate"},
    "task": "link_prediction",
}
UNLISTED = FILMS | {
    "nodes/person.features.npz": None,
    ACTS: "src,dst\n30,up\n99,alien\n",
    "edges/movie__made_by__studio.csv": "src,dst\nup,pixar\nheat,fox\n",
}
# Edges in both directions, and a relation that has its reverse.
BACKWARDS = FILMS | {
    "edges/movie__cast__person.csv": "src,dst,weight\nup,70,1\nup,30,2\nalien,70,4\n",
    "edges/person__knows__person.csv": "src,dst\n30,70\n70,30\n",
    "edges/movie__after__movie.csv": "src,dst\nup,heat\n",
    "edges/city__rev_lives_in__person.csv": "src,dst\n1,70\n",
}
# No type has features.
FEATURELESS = FILMS | {
    "nodes/movie.csv": "id,label\nalien,horror\nheat,\nup,cartoon\n",
    "nodes/person.features.npz": None,
    "nodes/city.npy": None,
    "nodes/city.csv": "id\n0\n1\n2\n3\n",
    LIVES: "src,dst\n30,3\n70,0\n",
}
ACTORS = {
    "nodes/film.csv": "id,year,kind\nf0,1990,a\nf1,,b\n",
    "nodes/actor.csv": "id,age\na0,30\n",
    "edges/actor__in__film.csv": "src,dst\na0,f1\n",
}


def read(folder, **fields) -> Any:
    return load_graph(dataset_settings("file", str(folder), **fields))


def test_a_folder_of_types_is_read(tmp_path):
    graph = read(write_files(tmp_path / "films", FILMS))
    classes = ("cartoon", "horror")
    assert_graph(graph, name="films", target="movie", class_names=classes, labels=[1, -1, 0])
    names = ["alien", "heat", "up"]
    movies = [[1979, 1], [1995, 2], [2009, 3]]
    assert_graph(graph.nodes["movie"], node_names=names, features=movies)
    # the third column is `since` of the edges back from the cities
    persons = [[0, 1, 0, 1999], [2, 0, 0, 2000]]
    assert_graph(graph.nodes["person"], node_ids=[70, 30], features=persons)
    assert graph.nodes["city"].features[:, 2].tolist() == [1999, 0, 0, 2000]
    crew = {"edge_weight": [2, 1, 4], "edge_feat": None}
    assert_graph(graph.relations[CREW], src=[1, 0, 0], dst=[2, 2, 0], **crew)
    back = graph.relations["movie", "rev_acts_in", "person"]
    assert_graph(back, src=[2, 2, 0], dst=[1, 0, 0], **crew)
    lives = {"dst": [3, 0], "edge_feat": None}
    assert_graph(graph.relations["person", "lives_in", "city"], **lives)
    assert len(graph.relations) == 4


@pytest.mark.parametrize(
    ("files", "fields", "nodes", "relations", "said"),
    [
        *(
            pytest.param(
                NAMED_ENDS,
                {"columns": columns, "reverse": False},
                {},
                {CREW: {"src": [1, 0]}, ("person", "lives_in", "city"): {"dst": [3]}},
                [],
                id=f"ends of their own names: {columns}",
            )
            for columns in (ENDS, {"src": ["actor", "who"], "dst": ["film", "place"]})
        ),
        pytest.param(
            SHOPS,
            {**TYPED_TABLES, "reverse": False},
            {"account": {"features": [[1], [2]]}, "shop": {"num_nodes": 1}},
            {
                ("account", "buys_at", "shop"): {"src": [1]},
                ("account", "pays", "account"): {"dst": [1]},
            },
            [],
            id="files of their own names",
        ),
        pytest.param(
            {"edges.csv": TRIPLES},
            PREDICATE,
            {"node": {"node_names": ["rome", "bonn", "italy"]}},
            {
                ("node", "in_land", "node"): {"src": [0], "dst": [2]},
                ("node", "near", "node"): {"src": [1, 0], "dst": [0, 1]},
                ("node", "rev_in_land", "node"): {},
            },
            ["relation `/in/land` is called `in_land`"],
            id="a column of a table of triples names the relation",
        ),
        pytest.param(
            FILMS | {ACTS: "src,dst,role\n30,up,lead\n70,up,extra\n70,alien,lead\n"},
            {"columns": {"relation": "role"}, "reverse": False},
            {},
            {
                ("person", "extra", "movie"): {"src": [0]},
                ("person", "lead", "movie"): {"src": [1, 0]},
                ("person", "lives_in", "city"): {},
            },
            [],
            id="a column of a typed folder names the relation",
        ),
        pytest.param(
            UNLISTED,
            {"unknown": "add", "reverse": False},
            {"person": {"node_ids": [70, 30, 99]}, "studio": {"node_names": ["pixar", "fox"]}},
            {
                CREW: {"src": [1, 2]},
                ("movie", "made_by", "studio"): {"dst": [0, 1]},
                ("person", "lives_in", "city"): {},
            },
            [
                "1 nodes of person that only edges name are added",
                "2 nodes of studio that only edges name are added",
            ],
            id="nodes and types that only edges name",
        ),
        pytest.param(
            FILMS,
            {"features": {"person": "degree", "movie": ["given", "random"], "city": "positional"}},
            {
                "person": {"features": np.log1p([[2, 1], [1, 1]])},
                "movie": {"features.shape": (3, 2 + 128)},
                "city": {"features.shape": (4, 128)},
            },
            {
                CREW: {},
                ("movie", "rev_acts_in", "person"): {},
                ("person", "lives_in", "city"): {},
                ("city", "rev_lives_in", "person"): {},
            },
            [],
            id="kinds of features by type",
        ),
        pytest.param(
            FEATURELESS,
            {"reverse": False},
            {
                "movie": {"features.shape": (3, 1 + 128)},
                "person": {"features.shape": (2, 1 + 128)},
                "city": {"features.shape": (4, 1 + 128)},
            },
            {CREW: {}, ("person", "lives_in", "city"): {}},
            [],
            id="no type has features: degrees and positions",
        ),
        pytest.param(
            {
                "nodes/film.csv": "film_key,label,x\n7,0,1\n5,1,2\n",
                "nodes/actor.csv": "actor_key,x\nann,1\nbob,2\n",
                "edges/actor__in__film.csv": "src,dst\nbob,7\nann,5\nbob,5\n",
            },
            {"reverse": False},
            {"film": {"node_ids": [7, 5]}, "actor": {"features": [[1], [2]]}},
            {("actor", "in", "film"): {"src": [1, 0, 1], "dst": [0, 1, 1]}},
            [],
            id="id columns of any name",
        ),
        pytest.param(
            ACTORS,
            {
                "target": "film",
                "split": split_settings("none"),
                "features": {"missing": "median"},
                "reverse": False,
            },
            {"film": {"features": [[1990, 0, 1, 0], [1990, 1, 0, 1]]}},
            {("actor", "in", "film"): {}},
            [],
            id="no labels",
        ),
        pytest.param(
            BACKWARDS,
            {},
            {},
            {
                CREW: {},
                ("person", "lives_in", "city"): {},
                ("movie", "cast", "person"): {},
                ("person", "knows", "person"): {},
                ("movie", "after", "movie"): {},
                ("movie", "rev_after", "movie"): {},
                ("city", "rev_lives_in", "person"): {},
            },
            [],
            id="no reverse of what is there backwards",
        ),
        *(
            pytest.param(
                FILMS
                | {"nodes/movie.csv": "id,score\n7,1\n8,2\n9,3\n", ACTS: "src,dst\n30,8\n"}
                | {"nodes/movie.features.npz": {"node_id": [9, 7], "label": labels}},
                {"reverse": False},
                {"movie": {"node_ids": [7, 8, 9]}},
                {CREW: {}, ("person", "lives_in", "city"): {}},
                ["1 of 3 rows have no label"],
                id=f"labels of some nodes: {labels}",
            )
            for labels in (["sf", "art"], [True, False], np.array([1, 0], np.uint64))
        ),
        *(
            pytest.param(
                {
                    "nodes/person.csv": "id\n0\n1\n",
                    "nodes/movie.csv": "id,label,score\n0,1,1\n1,0,2\n",
                    ACTS.replace("csv", "npz"): {
                        "src": [0, 0, 1],
                        "dst": [0, 0, 1],
                        "edge_weight": weights,
                    },
                },
                {"duplicates": "merge", "reverse": False},
                {},
                {CREW: {"src": [0, 1], "edge_weight": merged}},
                [],
                id=f"weights of merged edges: {weights}",
            )
            for weights, merged in (
                ([1, 1, 1], [2, 1]),
                ([2, 0.5, 1], [2.5, 1]),
                ([1, 0, 1], None),
                ([0, 0, 0], [0, 0]),
            )
        ),
        pytest.param(
            FILMS
            | {LIVES: "src,dst\n30,3\n70,0\n", "nodes/ghost.csv": "id\n"}
            | {
                "edges/ghost__haunts__city.csv": "src,dst\n",
                "nodes/person.csv": "id,label\n70,1\n30,0\n",
            },
            {"target": "person", "reverse": False, "duplicates": "merge"},
            {"ghost": {"num_nodes": 0}},
            {
                CREW: {"num_edges": 3},
                ("person", "lives_in", "city"): {},
                ("ghost", "haunts", "city"): {"num_edges": 0},
            },
            [],
            id="a type without nodes, and one of two types with labels",
        ),
    ],
)
def test_types_and_relations_are_read(tmp_path, caplog, files, fields, nodes, relations, said):
    caplog.set_level("INFO")
    graph = read(write_files(tmp_path, files), **fields)
    assert set(graph.relations) == set(relations)
    for name, expected in nodes.items():
        assert_graph(graph.nodes[name], **expected)
    for edge_type, expected in relations.items():
        assert_graph(graph.relations[edge_type], **expected)
    for words in said:
        assert words in caplog.text


def test_one_type_may_have_tables_of_its_own_names(tmp_path):
    graph = read(write_files(tmp_path, SHOPS), **ONE_TABLE)
    assert_graph(graph, features=[[1], [2]], dst=[1])


def test_a_checkpoint_has_the_names_of_the_ends_by_relation(tmp_path):
    asked = dataset_settings("file", str(write_files(tmp_path, NAMED_ENDS)), columns=ENDS)
    _, states = encode_tables(read_graph(asked), asked.features, None)
    later = stored_columns(states, ColumnSettings())
    assert later.src == {"person__acts_in__movie": "actor", "person__lives_in__city": "who"}


def test_means_of_edge_features_by_hand(tmp_path):
    """Weighted means by relation, as matrices of weights give them; without self loops."""
    rng = np.random.default_rng(0)
    files = {
        "nodes/film.csv": "id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(6)),
        "nodes/actor.csv": "id\n0\n1\n2\n3\n",
    }
    expected = []
    for name, num_sources in (("actor__in__film", 4), ("film__after__film", 6)):
        src, dst = rng.integers(num_sources, size=20), rng.integers(6, size=20)
        weight, pay, days = rng.integers(1, 5, 20), rng.random(20), rng.random(20)
        columns = {"src": src, "dst": dst, "weight": weight, "pay": pay, "days": days}
        files[f"edges/{name}.csv"] = pd.DataFrame(columns)
        counted = weight * ~((num_sources == 6) & (src == dst))
        shares = (dst == np.arange(6)[:, None]) * counted  # [6, 20]
        total = np.maximum(shares.sum(axis=1), 1)[:, None]
        expected.append(shares @ np.stack((pay, days), axis=1) / total)
    graph = read(write_files(tmp_path, files), reverse=False)
    np.testing.assert_allclose(graph.nodes["film"].features, np.hstack(expected), rtol=1e-5)
    actors = graph.nodes["actor"].features  # degree and position
    assert (actors.shape, actors[:, 0].any()) == ((4, 1 + 128), False)
    films = read(tmp_path, reverse=False, features=("degree",)).nodes["film"]
    assert films.features.shape == (6, 2)
    with pytest.raises(InputError, match="duplicates=merge: features or times of edges"):
        read(tmp_path, duplicates="merge")


def test_types_without_features_take_the_means_of_their_neighbours(tmp_path):
    files = FILMS | {"nodes/person.features.npz": None}
    features = read(write_files(tmp_path, files)).nodes["person"].features
    # of movies, then of cities
    np.testing.assert_allclose(features[:, :4], [[1994, 2, 1, 1], [2009, 3, 1, 1]])


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        # --- files
        (
            {LIVES: None, "edges/person__lives_in__town.csv": FILMS[LIVES]},
            {},
            "no type of nodes 'town'",
        ),
        ({"edges/person_lives_in_city.csv": "src,dst\n"}, {}, "three names"),
        ({"edges/person____city.csv": "src,dst\n"}, {}, "three names|cannot be the name"),
        ({"nodes/a__b.npy": np.ones((4, 2))}, {}, "cannot be the name"),
        ({LIVES.replace("csv", "parquet"): "nothing"}, {}, "expected one of them"),
        (
            {name: None for name in FILMS if "edges" in name} | {"edges/README.md": ""},
            {},
            "there is no table",
        ),
        (
            {name: None for name in FILMS if "nodes" in name} | {"nodes/README.md": ""},
            {},
            "there is no table",
        ),
        ({"nodes/city.npy": np.array([[1.0, np.inf]])}, {}, "city.npy"),
        ({"nodes/city.npy": "nothing"}, {}, "city.npy"),
        # --- ids
        ({ACTS: "src,dst\n30,up\n30,70\n"}, {}, "row 1 is 70.*3 `movie` ids"),
        ({ACTS: "src,dst\nup,alien\n"}, {}, "row 0 is 'up'.*2 `person` ids"),
        ({ACTS: "src,dst\n31,alien\n"}, {}, "row 0 is 31.*2 `person` ids"),
        ({LIVES: "src,dst\n30,4\n"}, {}, r"row 0 is 4; .*\[0, 4\) of `city`"),
        (
            {LIVES: "src,dst\n30,7\n"},
            {"unknown": "add"},
            r"row 0 is 7; expected .*\[0, 4\) of `city`",
        ),
        ({"nodes/person.csv": "id\n70\n70\n"}, {}, "rows 0 and 1 are both 70"),
        ({"nodes/person.csv": "id\n70\n"}, {}, "person.features.npz"),
        (UNLISTED, {}, r"no type of nodes 'studio'.*edges\.unknown=add"),
        # --- labels and features
        (
            {"nodes/movie.csv": "id,year\nalien,1\nheat,2\nup,3\n"},
            {},
            "no type of nodes has labels",
        ),
        (
            {"nodes/person.csv": "id,label\n70,1\n30,0\n"},
            {},
            "several types of nodes have labels.*set target=",
        ),
        ({"nodes/movie.csv": "id,label\nalien,-1\nheat,-1\nup,\n"}, {}, "no node has a label"),
        (
            {"nodes/movie.csv": "id,label,x\nalien,1,\nheat,1,2\nup,0,2\n"},
            {},
            "1 of 3 nodes of type movie.*alien",
        ),
        # --- columns
        ({LIVES: "who,where\n30,4\n"}, {}, "expected src and dst"),
        (
            NAMED_ENDS,
            {},
            r"movie.csv: has the columns actor, film; .* such as"
            r" columns\.src=\{acts_in: actor, lives_in: who\}"
            r" columns\.dst=\{acts_in: film, lives_in: since\}",
        ),
        (
            NAMED_ENDS,
            {"columns": {"src": ("actor",), "dst": ("film", "place")}},
            r"person__lives_in__city.*or a list of those of all tables",
        ),
        (
            NAMED_ENDS,
            {"columns": {**ENDS, "src": {**ENDS["src"], "sings": "who"}}},
            r"columns\.src: there is no relation 'sings', only acts_in",
        ),
        ({}, {"columns": {"relation": "kind"}}, r"columns\.relation=kind: no table has such a col"),
        ({}, {"columns": {"time": "year"}}, r"columns\.time=year: nodes of several types .*leave"),
        # --- settings
        ({}, {"target": "person"}, "target=person: it has no labels"),
        ({}, {"target": "robot"}, "no such type of nodes, only city, movie, person"),
        ({}, {"features": {"robot": "degree"}}, "no type of nodes 'robot'"),
        ({}, {"symmetrize": True}, "relations.reverse=true"),
        # --- weights, before equal edges are merged
        *(
            (
                {
                    LIVES: None,
                    "edges/city__near__city.npz": {
                        "src": [0, 0, 1],
                        "dst": [1, 1, 0],
                        "edge_weight": weights,
                    },
                },
                {"duplicates": "merge"},
                f"weight.*{message}",
            )
            for weights, message in (
                ([1.0, 2, 3, 4], r"has shape \(4,\), .* expected \[3\], a weight per edge"),
                ([1.0, 2], r"has shape \(2,\), .* expected \[3\], a weight per edge"),
                ([-2.0, 3, 1], r"row 0 is -2\.0; expected 0, or a weight"),
                ([np.nan, 3, 1], "row 0, column 0 is nan; expected a finite"),
                ([9e17, 9e17, 1], r"merged: row 0 is 1\.8.*e\+18; expected 0, or a weight"),
            )
        ),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path, files, fields, message):
    with pytest.raises(InputError, match=message):
        read(write_files(tmp_path, FILMS | files), **fields)


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        (ACTORS, {"target": "film"}, "target=film: it has no labels"),
        ({"edges.csv": f"{TRIPLES}a,,b\n"}, PREDICATE, "row 3 is blank; .* name of a relation"),
        ({"edges.csv": f"{TRIPLES}a,in/land,b\n"}, PREDICATE, "both"),
        (
            SHOPS,
            {**ONE_TABLE, "tables.edges": "sells.csv"},
            r"edges=sells\.csv: no such table in .*sales",
        ),
        (
            SHOPS,
            {**ONE_TABLE, "tables.edges": "../payments.csv"},
            r"=\.\./payments\.csv: no such table",
        ),
        (SHOPS, {**ONE_TABLE, "tables.edges": ["a.csv", "b.csv"]}, r"edges=.*: expected one table"),
        (
            SHOPS,
            {**ONE_TABLE, "tables.nodes": TYPED_TABLES["tables.nodes"]},
            r"tables\.edges=payments\.csv: .*by type",
        ),
        (
            SHOPS,
            {**TYPED_TABLES, "tables.edges": {"pays": "sales.csv"}},
            r"tables\.edges: pays: expected SOURCE__",
        ),
        (
            {
                "g.npz": {
                    "src": [0, 0],
                    "dst": [1, 1],
                    "edge_weight": [9e17, 9e17],
                    "feat": np.eye(2),
                    "label": [0, 1],
                }
            },
            {"duplicates": "merge"},
            r"merged: row 0 is 1\.8.*e\+18; expected 0, or a weight",
        ),
    ],
)
def test_other_folders_are_refused(tmp_path, files, fields, message):
    write_files(tmp_path, files)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "g.npz" if "g.npz" in files else tmp_path, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "a"}, "target=a"),
        ({"reverse": False}, "relations.reverse"),
        ({"features": {"a": "degree"}}, "features="),
    ],
)
def test_where_one_type_is_needed_it_is_said(fields, message):
    with pytest.raises(InputError, match=f"{message}.*one type of nodes"):
        load_graph(dataset_settings("synthetic", **fields))
