"""Splits: sizes in closed form, and a message for each mistake.

Of pairs that are held out no edge is left, and what needs no training is scored right.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    dataset_settings,
    make_graph,
    random_graph,
    run_main,
    save_npz,
    split_settings,
)

from partitioning.datasets import load_graph
from partitioning.directory.read_directory import find_partition_directory
from partitioning.errors import InputError
from partitioning.features.kinds import with_features
from partitioning.graph_data import GraphData, HeteroGraphData
from partitioning.links import link_baselines, score_ranks, spectral_embedding
from partitioning.links.adamic_adar import ONE, weighted_neighbours
from partitioning.links.link_split import (
    LinkSplit,
    find_relation,
    read_pairs,
    split_links,
    to_graph_of_relation,
)
from partitioning.links.score_names import OF_LISTS
from partitioning.links.spectral_embedding import choose_spectral_embedding, decompose
from partitioning.node_names import Names, hash_names
from partitioning.node_split import Split, SplitRecipe, draw
from partitioning.partition_settings import TASKS, SplitSettings

PER_CLASS = SplitRecipe("per_class", train_per_class=2, num_val=3, num_test=4)
THIRDS = SplitRecipe("fraction", train=0.5, val=0.2, test=0.3)
GIVEN = SplitRecipe("given")


def wanted(kind="default", seed=0, **values) -> SplitSettings:
    return split_settings(kind, seed=seed, **values)


def graph(labels, masks=None, num_classes=None) -> GraphData:
    labels = np.asarray(labels)
    nodes = np.arange(len(labels))
    masks = (
        {}
        if masks is None
        else dict(zip(("train_mask", "val_mask", "test_mask"), masks, strict=True))
    )
    return GraphData(
        name="toy",
        src=nodes,
        dst=nodes,
        features=np.ones((len(labels), 1), dtype=np.float32),
        labels=labels,
        num_classes=int(labels.max()) + 1 if num_classes is None else num_classes,
        node_ids=nodes,
        **masks,
    )


def sizes(split: Split) -> tuple[int, int, int]:
    return int(split.train.sum()), int(split.val.sum()), int(split.test.sum())


def assert_sound(split: Split, of: GraphData) -> None:
    together = split.train.astype(int) + split.val + split.test
    assert together.max() <= 1
    assert not (together.astype(bool) & ~of.labelled).any()


@given(
    count=st.integers(1, 4),
    extra=st.lists(st.integers(-1, 2), max_size=40),
    num_val=st.integers(0, 8),
    num_test=st.integers(0, 8),
    seed=st.integers(0, 5),
)
def test_per_class_has_the_numbers_it_was_given_or_says_why_not(
    count, extra, num_val, num_test, seed
):
    toy = graph([0, 1, 2] * count + extra, num_classes=3)
    asked = wanted("per_class", seed, train_per_class=count, num_val=num_val, num_test=num_test)
    left = int(toy.labelled.sum()) - 3 * count
    if num_val + num_test > left:
        with pytest.raises(InputError, match=f"split.num_val={num_val}.*only {left} labelled"):
            draw(toy, asked, GIVEN)
        return
    split = draw(toy, asked, GIVEN)
    assert_sound(split, toy)
    assert sizes(split) == (3 * count, num_val, num_test)
    assert np.bincount(toy.labels[split.train]).tolist() == [count] * 3


@given(
    shares=st.tuples(st.integers(1, 100), st.integers(0, 100), st.integers(0, 100)).filter(
        lambda t: sum(t) <= 100
    ),
    labels=st.lists(st.integers(-1, 3), min_size=1, max_size=300).filter(
        lambda many: max(many) >= 0
    ),
)
def test_fraction_is_within_one_node_of_its_share(shares, labels):
    toy = graph(labels)
    train, val, test = (share / 100 for share in shares)
    labelled = int(toy.labelled.sum())
    asked = wanted("fraction", train=train, val=val, test=test)
    if round(train * labelled) == 0:
        with pytest.raises(InputError, match="training set is empty"):
            draw(toy, asked, GIVEN)
        return
    split = draw(toy, asked, GIVEN)
    assert_sound(split, toy)
    assert all(
        abs(size - share * labelled) <= 1
        for size, share in zip(sizes(split), (train, val, test), strict=True)
    )
    if sum(shares) == 100:
        assert sum(sizes(split)) == labelled


def test_published_numbers_hold_until_one_is_replaced():
    toy = graph([0, 1] * 50)
    assert sizes(draw(toy, wanted(), PER_CLASS)) == (4, 3, 4)
    assert sizes(draw(toy, wanted(train_per_class=5), PER_CLASS)) == (10, 3, 4)
    assert sizes(draw(toy, wanted("per_class", num_test=0), PER_CLASS)) == (4, 3, 0)


def test_description_is_json_and_says_what_was_resolved():
    described = draw(graph([0, 1] * 50), wanted(num_val=9, seed=3), PER_CLASS).describe()
    assert json.loads(json.dumps(described)) == {
        "kind": "per_class",
        "seed": 3,
        "train_per_class": 2,
        "num_val": 9,
        "num_test": 4,
        "nodes": {"train": 4, "val": 9, "test": 4},
    }


def test_given_masks_are_taken_as_they_are():
    masks = [
        np.array([1, 0, 0, 0], bool),
        np.array([0, 1, 0, 0], bool),
        np.array([0, 0, 1, 0], bool),
    ]
    split = draw(graph([0, 1, 0, -1], masks), wanted(), GIVEN)
    assert [mask.tolist() for mask in (split.train, split.val, split.test)] == [
        mask.tolist() for mask in masks
    ]
    assert split.describe() == {"kind": "given", "nodes": {"train": 1, "val": 1, "test": 1}}


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (
            ([1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]),
            "1 nodes are in train and have no label, the first is node 3",
        ),
        (([1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]), "both train and val, the first is node 1"),
        (([1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]), "both val and test, the first is node 2"),
        (([0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]), "training set is empty"),
    ],
)
def test_given_masks_are_checked(masks, message):
    with pytest.raises(InputError, match=message):
        draw(graph([0, 1, 0, -1], [np.array(mask, bool) for mask in masks]), wanted(), GIVEN)


def test_multilabel_graphs_split_by_fraction_only():
    labels = np.zeros((10, 3), dtype=np.float32)
    labels[4] = np.nan
    toy = graph(labels, num_classes=3)
    split = draw(toy, wanted(), SplitRecipe("fraction", train=1.0, val=0.0, test=0.0))
    assert np.flatnonzero(~split.train).tolist() == [4]
    with pytest.raises(InputError, match="split=per_class needs one class per node"):
        draw(toy, wanted("per_class", train_per_class=1, num_val=1, num_test=1), GIVEN)


@pytest.mark.parametrize(
    ("asked", "recipe", "message"),
    [
        (wanted(), GIVEN, "split=given.*without train, val and test masks.*set split=per_class"),
        (wanted("per_class"), GIVEN, "needs split.train_per_class, split.num_val, split.num_test"),
        (wanted("fraction", train=0.5), GIVEN, "needs split.val, split.test"),
        (wanted("files"), GIVEN, "needs split.train=PATH"),
        (
            wanted(train_per_class=2),
            THIRDS,
            "split.train_per_class=2 has no meaning with split=fraction",
        ),
        (
            wanted(train=0.3),
            PER_CLASS,
            "split.train=0.3 has no meaning.*set split=fraction or split=time or split=files",
        ),
        (
            wanted(train_per_class=51),
            PER_CLASS,
            "split.train_per_class=51: class 1 has 50 labelled nodes",
        ),
        (
            wanted(train=0.9),
            THIRDS,
            "split.train=0.9, split.val=0.2, split.test=0.3: the shares add up to 1.4",
        ),
        (wanted(train=1.5), THIRDS, "split.train=1.5"),
        (wanted(train="x.npy"), THIRDS, r"split.train=x.npy.*a number in \[0, 1\]"),
        (wanted(train=True), THIRDS, "split.train=True"),
        (wanted(train=0.0), THIRDS, "training set is empty"),
        (wanted("files", train=0.5), THIRDS, "split.train=0.5.*path of an index file"),
        (
            wanted("files", dir="/nowhere/at/all"),
            THIRDS,
            "split.dir=/nowhere/at/all: there is no such folder",
        ),
    ],
)
def test_a_setting_that_cannot_be_met_is_named_with_its_value(asked, recipe, message):
    labels = [0] * 51 + [1] * 50
    with pytest.raises(InputError, match=message):
        draw(graph(labels), asked, recipe)


def test_index_files_are_read_from_a_folder_or_one_by_one(tmp_path):
    np.save(tmp_path / "train.npy", np.array([4, 0], dtype=np.int32))
    (tmp_path / "valid.csv").write_text("node\n2\n")
    np.save(tmp_path / "test.npy", np.array([0, 1, 0, 1, 0, 0], dtype=bool))
    (tmp_path / "other.csv").write_text("5\n")
    toy = graph([0, 1, 0, 1, 0, 1])
    split = draw(toy, wanted("files", dir=str(tmp_path)), THIRDS)
    ids = [np.flatnonzero(mask).tolist() for mask in (split.train, split.val, split.test)]
    assert ids == [[0, 4], [2], [1, 3]]
    assert split.describe()["val"] == str(tmp_path / "valid.csv")
    replaced = draw(
        toy, wanted("files", dir=str(tmp_path), test=str(tmp_path / "other.csv")), THIRDS
    )
    assert np.flatnonzero(replaced.test).tolist() == [5]
    json.dumps(replaced.describe())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.npy", np.array([0, 6]), r"row 1 is 6; expected a node position in \[0, 6\)"),
        ("t.npy", np.array([0, -1]), "row 1 is -1"),
        ("t.npy", np.array([0.0, 1.0]), "dtype float64"),
        ("t.npy", np.array([[0, 1]]), "one dimension"),
        ("t.npy", np.array([True]), "a mask of 1 nodes; the graph has 6"),
        ("t.npy", np.array([0, 1, 0]), "row 2 lists node 0 for the second time"),
        ("t.npy", np.array([{}], dtype=object), "not a readable npy"),
        ("t.npy", b"rubbish", "not a readable npy"),
        ("t.csv", b"0\nx7\n", "row 1 is 'x7'"),
        ("t.csv", b"0\n1.5\n", r"row 1 is '?1\.5"),
        ("t.csv", b"0\n99999999999999999999\n", r"row 1 is 1e\+20"),
        ("t.csv", b"\xff\xfe\x00", "not a readable csv"),
        ("t.json", b"0\n", "expected a .npy or .csv file"),
        ("t.csv.gz", gzip.compress(b"0\n7\n", mtime=0), "row 1 is 7"),
        ("t.csv", b"a,b\n0,1\n", "has 2 columns; expected one of nodes"),
        ("t.csv", None, "there is no such file"),
    ],
)
def test_a_bad_index_file_is_named_with_its_row(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    asked = wanted("files", train=str(path), val=str(path), test=str(path))
    with pytest.raises(InputError, match=f"split.train=.*{message}"):
        draw(graph([0, 1, 0, 1, 0, 1]), asked, THIRDS)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "parquet", "npy"])
@pytest.mark.parametrize("ids", [[7, 2, 0, 4, 3], ["ann", "7", "id", "bob", "x y"]])
@pytest.mark.parametrize("header", ["node_id", None])
def test_index_files_list_ids_where_nodes_have_some(tmp_path, suffix, ids, header):
    """A first line that is no id is a header."""
    toy = graph([0, 1, 0, 1, 0])
    keys = {"node_ids": np.array(ids)}
    if isinstance(ids[0], str):
        names = np.array(ids, object)
        keys = {"node_ids": hash_names(names), "node_names": Names.of(ids)}
    toy = replace(toy, **keys)
    for name, rows in (("train", [2, 0]), ("val", [1]), ("test", [3, 4])):
        listed, path = [ids[row] for row in rows], tmp_path / f"{name}.{suffix}"
        if suffix == "npy":
            np.save(path, np.array(listed))
        elif suffix == "parquet":
            pd.DataFrame({"node": listed}).to_parquet(path)
        else:
            text = "\n".join(map(str, ([header] if header else []) + listed)) + "\n"
            path.write_bytes(gzip.compress(text.encode()) if suffix == "csv.gz" else text.encode())
    split = draw(toy, wanted("files", dir=str(tmp_path)), THIRDS)
    assert [np.flatnonzero(mask).tolist() for mask in (split.train, split.val, split.test)] == [
        [0, 2],
        [1],
        [3, 4],
    ]


def test_a_folder_with_two_candidates_or_none_is_refused(tmp_path):
    for name in ("train.npy", "val.npy", "valid.npy"):
        np.save(tmp_path / name, np.array([0]))
    asked = wanted("files", dir=str(tmp_path))
    with pytest.raises(InputError, match=r"found \['val.npy', 'valid.npy'\]"):
        draw(graph([0, 1]), asked, THIRDS)
    (tmp_path / "valid.npy").unlink()
    with pytest.raises(InputError, match=r"test.npy, test.csv .* there; found none"):
        draw(graph([0, 1]), asked, THIRDS)


def test_a_stratified_split_has_the_shares_of_each_class():
    labels = np.repeat([0, 1, -1], [400, 12, 50])
    for seed in range(4):
        split = draw(graph(labels), wanted(seed=seed, stratify=True), THIRDS)
        assert_sound(split, graph(labels))
        rare = [int(mask[labels == 1].sum()) for mask in (split.train, split.val, split.test)]
        assert np.abs(np.subtract(rare, [6, 2.4, 3.6])).max() <= 1
    with pytest.raises(InputError, match=r"split\.stratify=true has no meaning with split=given"):
        draw(graph(labels), wanted("given", stratify=True), GIVEN)


def test_a_split_by_time_trains_on_the_oldest():
    labels = np.array([0, 1, 0, 1, -1, 0])
    times = np.array([5.0, 1, 4, 2, np.nan, 3])
    dated = replace(graph(labels), node_time=times)
    asked = wanted("time", train=0.4, val=0.2, test=0.4)
    split = draw(dated, asked, GIVEN)
    assert [np.flatnonzero(mask).tolist() for mask in (split.train, split.val, split.test)] == [
        [1, 3],
        [5],
        [0, 2],
    ]
    with pytest.raises(InputError, match=r"split=time: toy has no times; set columns\.time"):
        draw(graph(labels), asked, GIVEN)
    with pytest.raises(InputError, match=r"columns\.time, node 1 for instance"):
        draw(replace(dated, node_time=np.where(times == 1, np.nan, times)), asked, GIVEN)


PARTS = ("train", "val", "test")


def pairs_of(rows: np.ndarray) -> set[tuple[int, int]]:
    return {(min(row), max(row)) for row in rows.tolist()}


def edges_of(graph: GraphData) -> set[tuple[int, int]]:
    return pairs_of(np.stack((graph.src, graph.dst), axis=1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_edge_of_a_pair_that_is_held_out_is_left_in_either_direction(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(4, 12))
    node = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(node, node), min_size=3, max_size=40))
    both = data.draw(st.booleans())
    edges = edges + [(v, u) for u, v in edges] if both else edges
    graph = replace(
        make_graph(edges, np.zeros((count, 1)), [0] * count),
        edge_time=np.arange(len(edges), dtype=float),
    )
    by = data.draw(st.sampled_from([None, "source", "time"]))
    try:
        seed = data.draw(st.integers(0, 5))
        split = split_links(graph, split_settings(edges=(0.5, 0.2, 0.3), by=by, seed=seed))
    except InputError as error:
        if "no training edge" in str(error) or "none exist" in str(error):
            return
        raise
    held = pairs_of(split.rows["val"]) | pairs_of(split.rows["test"])
    assert not held & edges_of(split.graph)
    assert not held & pairs_of(split.rows["train"])
    assert not pairs_of(split.rows["val"]) & pairs_of(split.rows["test"])
    proper = {pair for pair in edges_of(graph) if pair[0] != pair[1]}
    assert held | pairs_of(split.rows["train"]) == proper  # nothing lost, and each once
    for part in PARTS:
        assert len(np.unique(split.rows[part], axis=0)) == len(split.rows[part])
        assert set(map(tuple, split.rows[part].tolist())) <= set(edges)
        assert split.description["pairs"][part] == len(pairs_of(split.rows[part]))
    for part in ("val_neg", "test_neg"):
        assert not pairs_of(split.rows[part]) & proper
        assert (split.rows[part][:, 0] != split.rows[part][:, 1]).all()
    if by == "time":  # the first edge of a pair says when it was
        each = [(min(edge), max(edge)) for edge in edges]
        first = {pair: each.index(pair) for pair in proper}
        times = [[first[pair] for pair in pairs_of(split.rows[part])] for part in PARTS]
        assert max(times[0]) < min(times[1] + times[2], default=99)
        assert max(times[1], default=-1) < min(times[2], default=99)


def test_the_latest_pairs_of_a_relation_are_the_test(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Dates of the relation that is learned; the tables of others need none."""
    for name in ("nodes", "edges"):
        (tmp_path / name).mkdir()
    (tmp_path / "nodes/user.csv").write_text("id\na\nb\n")
    (tmp_path / "nodes/item.csv").write_text("id\n" + "".join(f"i{k}\n" for k in range(9)))
    days = [3, 1, 4, 5, 9, 2, 6, 8, 7]
    rows = [f"{'ab'[k % 2]},i{k},2024-01-0{day}\n" for k, day in enumerate(days)]
    (tmp_path / "edges/user__buys__item.csv").write_text("src,dst,day\n" + "".join(rows))
    (tmp_path / "edges/user__knows__user.csv").write_text("src,dst,weight\na,b,2\n")
    read = load_graph(
        dataset_settings("file", str(tmp_path), task=TASKS[2], columns={"time": "day"})
    )
    assert isinstance(read, HeteroGraphData)
    graph = to_graph_of_relation(read, "user__buys__item")
    assert "the weights of user__knows__user, user__rev_knows__user are left out" in caplog.text
    split = split_links(graph, split_settings(edges=(0.34, 0.33, 0.33), by="time"))
    assert graph.node_names is not None
    names = graph.node_names.tolist()
    of_day = {
        part: sorted(days[int(names[item].removeprefix("item:i"))] for _, item in rows.tolist())
        for part, rows in split.rows.items()
        if part in PARTS
    }
    assert of_day == {"train": [1, 2, 3], "val": [4, 5, 6], "test": [7, 8, 9]}


def test_of_each_source_its_share_is_held_out() -> None:
    edges = [(u, 10 + v) for u in range(4) for v in range(10 * (u + 1))]
    graph = make_graph(edges, np.zeros((60, 1)), [0] * 60)
    split = split_links(graph, split_settings(edges=(0.8, 0.1, 0.1), by="source"))
    for part in ("val", "test"):
        assert np.bincount(split.rows[part][:, 0], minlength=4).tolist()[:4] == [1, 2, 3, 4]


@pytest.mark.parametrize("by", [None, "source"])
def test_pairs_in_no_set_keep_their_edges_and_are_no_negatives(by: str | None) -> None:
    graph = random_graph(30, 150)
    split = split_links(graph, split_settings(edges=(0.4, 0.1, 0.2), by=by))
    learned = set().union(*(pairs_of(split.rows[part]) for part in PARTS))
    proper = {pair for pair in edges_of(graph) if pair[0] != pair[1]}
    assert 0.6 < len(learned) / len(proper) < 0.8
    assert proper - learned < edges_of(split.graph)
    assert proper - learned < pairs_of(np.stack(split.known(), axis=1))
    for part in ("val_neg", "test_neg"):
        assert not pairs_of(split.rows[part]) & proper


@pytest.mark.parametrize(
    ("edges", "fields", "named"),
    [
        ([(0, 1), (1, 0)], {"edges": (0.0, 0.5, 0.5)}, "no training edge"),
        (
            [(0, 1), (1, 2), (0, 2)],
            {"edges": (0.4, 0.3, 0.3)},
            "no negatives found",
        ),
        ([(0, 1), (1, 2)], {"edges": (0.9, 0.9, 0.3)}, "split.edges"),
        ([(0, 1), (1, 2)], {"by": "time"}, "columns.time"),
    ],
)
def test_what_cannot_be_split_is_refused(edges: Any, fields: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        split_links(make_graph(edges, np.zeros((3, 1)), [0] * 3), split_settings(**fields))


@pytest.mark.parametrize("power", [0.25, 0.5])
def test_spectral_products_are_those_of_the_largest_eigenvalues(power: float) -> None:
    blocks = [
        (range(10), range(30, 40)),
        (range(10, 18), range(40, 46)),
        (range(18, 30), range(46, 50)),
    ]
    pairs = np.array(
        [(u, v) for users, items in blocks for u in users for v in items if (u + v) % 7]
    )
    matrix = np.zeros((50, 50))
    matrix[tuple(pairs.T)] = 1
    matrix += matrix.T
    scale = np.maximum(matrix.sum(axis=1), 1) ** -power
    values, vectors = np.linalg.eigh(matrix * scale * scale[:, None])
    best = (vectors[:, -3:] * values[-3:] ** 2) @ vectors[:, -3:].T
    rows = decompose(pairs, 50, 3, power).embed(3, 0.0, 2.0)
    np.testing.assert_allclose(rows @ rows.T, best, atol=1e-3)
    degrees = np.maximum(matrix.sum(axis=1), 1) ** power
    weighted = decompose(pairs, 50, 3, power).embed(3, 1.0, 1.0)
    best = (vectors[:, -3:] * values[-3:]) @ vectors[:, -3:].T * degrees * degrees[:, None]
    np.testing.assert_allclose(weighted @ weighted.T, best, atol=1e-3)
    assert decompose(np.array([[0, 1]]), 2, 4, power).embed(4, 0.0, 2.0).shape == (2, 4)


def test_restarts_find_the_eigenvectors_of_a_flat_spectrum() -> None:
    """Of a graph that is not bipartite, with three separate parts, so of equal eigenvalues."""
    rng = np.random.default_rng(0)
    ends = rng.integers(200, size=(2, 3, 1000)) + 200 * np.arange(3)[:, None]
    pairs = ends.reshape(2, -1).T
    adjacency = np.zeros((600, 600))
    adjacency[tuple(pairs.T)] = adjacency[tuple(pairs[:, ::-1].T)] = 1
    degrees = np.maximum(adjacency.sum(axis=1), 1)
    matrix = adjacency / np.sqrt(degrees * degrees[:, None])
    spectrum = decompose(pairs, 600, 8, 0.5)
    wanted = np.linalg.eigvalsh(matrix)[::-1][:8]
    np.testing.assert_allclose(spectrum.values, wanted, atol=1e-4)
    residual = matrix @ spectrum.vectors - spectrum.vectors * spectrum.values
    assert np.abs(np.linalg.norm(residual, axis=0)).max() < 5e-3


@pytest.mark.parametrize("seed", range(5))
def test_planted_groups_are_found_as_by_singular_vectors(seed: int) -> None:
    """3,000 users, 600 items, 3 groups, 55 % of the purchases within the group."""
    num_users, num_items, groups, rng = 3000, 600, 3, np.random.default_rng(seed)
    of_user, of_item = rng.integers(groups, size=num_users), rng.integers(groups, size=num_items)
    users = np.repeat(np.arange(num_users), 10)
    items = rng.integers(num_items, size=len(users))
    within = rng.random(len(users)) < 0.55
    for group in range(groups):
        chosen = within & (of_user[users] == group)
        items[chosen] = rng.choice(np.flatnonzero(of_item == group), chosen.sum())
    pairs = np.unique(np.stack((users, num_users + items), axis=1), axis=0)
    total = num_users + num_items
    drawn = rng.integers((0, num_users), (num_users, total), size=(len(pairs), 2))
    negatives = drawn[~np.isin(drawn @ (total, 1), pairs @ (total, 1))]
    train, val, test = np.split(
        rng.permutation(pairs), [int(0.85 * len(pairs)), int(0.9 * len(pairs))]
    )
    rows = {"train": train, "val": val, "test": test, "val_neg": negatives[: len(val)]}
    candidates = np.arange(num_users, total)
    rows["candidates"] = np.stack((candidates, candidates), axis=1)
    embedding, _ = choose_spectral_embedding(rows, total, 3)
    dense = np.zeros((num_users, num_items))
    dense[train[:, 0], train[:, 1] - num_users] = 1
    right = np.linalg.eigh(dense.T @ dense)[1][:, -3:]
    by_numpy = dense @ right @ right.T  # the singular value decomposition of rank 3

    def area(scores: np.ndarray) -> float:
        held = (scores[each[:, 0], each[:, 1] - num_users] for each in (test, negatives))
        return score_ranks.auc(*held)

    assert area(embedding[:num_users] @ embedding[num_users:].T) >= area(by_numpy) - 0.01


@pytest.mark.parametrize("metric", ["mrr", "auc", "recall@20"])
@pytest.mark.parametrize("of_relation", [False, True])
def test_a_metric_chooses_the_spectral_embedding(metric: str, of_relation: bool) -> None:
    rng = np.random.default_rng(1)
    pairs = np.stack((rng.integers(40, size=900), 40 + rng.zipf(1.3, size=900) % 60), axis=1)
    train, val, test, negatives = np.split(np.unique(pairs, axis=0), [200, 260, 300])
    ends = np.arange(40, 100) if of_relation else np.arange(0)
    rows = {"train": train, "val": val, "test": test, "val_neg": negatives}
    rows["candidates"] = np.stack((ends, ends), axis=1)
    tried = {
        name: choose_spectral_embedding(rows, 100, 8, name)
        for name in ("auto", "mrr", "auc", "recall@20")
    }

    def measure(embedding: np.ndarray) -> float:
        own, other = (np.einsum("nk,nk->n", *embedding[each.T]) for each in (val, negatives))
        if metric == "auc":
            return score_ranks.auc(own, other)
        every = np.concatenate((train, val, test)).T
        known = sp.csr_array((np.ones(every.shape[1], bool), tuple(every)), shape=(100, 100))
        nodes = score_ranks.possible_destinations(rows, 100)
        ranks, *_ = score_ranks.rank_rows(
            lambda users: embedding[users] @ embedding[nodes].T, val, known, nodes
        )
        return score_ranks.measure_ranks(val[:, 0], ranks)[metric]

    scores = {name: measure(embedding) for name, (embedding, _) in tried.items()}
    chosen = tried[metric][1]
    assert chosen["spectral_metric"] == metric
    assert chosen["spectral_score"] == pytest.approx(scores[metric], abs=1e-6)
    assert scores[metric] >= max(scores.values()) - 0.02


def test_fewer_pairs_are_ranked_in_a_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_rows(scores: Any, pairs: np.ndarray, *others: Any) -> Any:
        numbers.append(len(pairs))
        return link_ranks(scores, pairs, *others)

    numbers: list[int] = []
    link_ranks = spectral_embedding.rank_rows  # type: ignore[attr-defined]
    monkeypatch.setattr(spectral_embedding, "rank_rows", rank_rows)
    monkeypatch.setattr(spectral_embedding, "MAX_SCORES", 2 * 10)
    pairs = np.stack((np.arange(9), np.arange(1, 10)), axis=1)
    rows = dict.fromkeys(("train", "val", "test", "val_neg"), pairs)
    spectral_embedding.choose_spectral_embedding(rows | {"candidates": pairs[::-1]}, 10, 2)
    assert set(numbers) == {3}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_weights_of_neighbours_add_up_to_networkx_adamic_adar(data: st.DataObject) -> None:
    networkx = pytest.importorskip("networkx")
    node = st.integers(0, 9)
    edges = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=40))
    made = weighted_neighbours(make_graph(edges, np.zeros((10, 1)), [0] * 10), np.array(edges))
    whole = networkx.Graph(pair for pair in edges if pair[0] != pair[1])
    whole.add_nodes_from(range(10))
    every = [(u, v) for u in range(10) for v in range(10) if u != v]
    wanted = {(u, v): score for u, v, score in networkx.adamic_adar_index(whole, every)}
    mean = np.mean(
        [
            wanted.get(
                pair,
                sum(1 / np.log(whole.degree(z)) for z in whole[pair[0]] if whole.degree(z) > 1),
            )
            for pair in edges
        ]
    )
    weight, near = (
        {z: w for _, z, w in made.tolist()},
        [set(made[made[:, 0] == v, 1].tolist()) for v in range(10)],
    )
    for (u, v), score in wanted.items():
        found = sum(weight[z] for z in near[u] & near[v])
        assert found / ONE == pytest.approx(score / mean if mean else 0, abs=1e-4)


def test_users_and_items_alone_have_no_neighbours_to_send() -> None:
    """A user and an item have no common neighbour, so Adamic and Adar's score is always 0."""
    edges = [(0, 3), (1, 3), (1, 4), (2, 4)]
    assert not len(
        weighted_neighbours(make_graph(edges, np.zeros((5, 1)), [0] * 5), np.array(edges))
    )


def test_files_of_pairs_are_read_by_the_nodes_ids(tmp_path: Path) -> None:
    graph = random_graph()
    np.save(tmp_path / "test.npy", [[1001, 1000]])
    (tmp_path / "val.csv").write_text("src,dst\n1003,1002\n")
    assert read_pairs(tmp_path / "val.csv", graph, "split.val").tolist() == [[3, 2]]
    split = split_links(graph, split_settings("files", dir=str(tmp_path)))
    assert pairs_of(split.rows["test"]) == {(0, 1)}
    assert not {(0, 1), (2, 3)} & edges_of(split.graph)
    np.save(tmp_path / "test.npy", [[1001, 17]])
    with pytest.raises(InputError, match=r"row 0 has the id 17, which is no node's"):
        split_links(graph, split_settings("files", dir=str(tmp_path)))
    np.save(tmp_path / "test.npy", [[1004, 1005], [1001, 1001]])
    with pytest.raises(InputError, match="row 1, 1001 and 1001, is a node with itself"):
        split_links(graph, split_settings("files", dir=str(tmp_path)))
    half = np.arange(graph.num_nodes) < 3
    relation = {
        "edges": np.ones(graph.num_edges, bool),
        "sources": half,
        "destinations": ~half,
        "names": ["a"],
    }
    with pytest.raises(InputError, match="row 0, 1003 and 1002, is no source and destination"):
        read_pairs(tmp_path / "val.csv", replace(graph, relation=relation), "split.val")
    (tmp_path / "val.csv").write_text("src,dst\n1003.5,1002\n")
    with pytest.raises(InputError, match="ids that are no integers"):
        read_pairs(tmp_path / "val.csv", graph, "split.val")
    (tmp_path / "val.csv").write_text("src,dst\n1003,1002\n")
    np.save(tmp_path / "test.npy", [[1002, 1003]])
    with pytest.raises(InputError, match=r"in test and in val, the first is 1002, 1003"):
        split_links(graph, split_settings("files", dir=str(tmp_path)))


def test_pairs_are_named_as_the_nodes_are(tmp_path: Path) -> None:
    names = ["007", "7", "NA"]
    graph = replace(
        random_graph(3, 4),
        node_ids=hash_names(np.array(names, object)),
        node_names=Names.of(names),
    )
    (tmp_path / "val.csv").write_text("src,dst\n007,7\nNA,007\n")
    assert read_pairs(tmp_path / "val.csv", graph, "split.val").tolist() == [[0, 1], [2, 0]]


def test_ranks_and_areas_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_links(random_graph(30, 120), split_settings(edges=(0.6, 0.1, 0.3)))
    found = link_baselines.baselines(split)
    monkeypatch.setattr(score_ranks, "MAX_SCORES", 40)  # a row at a time
    assert link_baselines.baselines(split) == found
    expected = by_loops(split)
    for name, scores in expected.items():
        assert found["common neighbours"][name] == pytest.approx(scores), name


def test_scores_of_lists_are_those_by_hand() -> None:
    sources, places = np.array([0, 1, 0]), np.array([4, 30, 1])
    own, other = score_ranks.score_lists(sources, places)
    scores = dict(zip(OF_LISTS, zip(own, other, strict=True), strict=True))
    assert scores["recall@10"] == (1, 0)
    assert scores["precision@10"] == (0.2, 0)
    assert scores["map@10"] == ((1 + 2 / 4) / 2, 0)
    assert scores["ndcg@10"][0] == pytest.approx((1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3)))
    assert scores["recall@50"] == (1, 1)
    assert scores["ndcg@50"][1] == pytest.approx(1 / np.log2(31))


def lists_by_sorting(
    split: LinkSplit, matrix: np.ndarray, part: str, known: set[tuple[int, int]]
) -> dict[str, float]:
    """Recall and NDCG of 20 from dense scores without ties; only the part's own rows stay known."""
    rows = split.rows[part].tolist()
    recall, gains = [], []
    for source in sorted({u for u, _ in rows}):
        own = {v for u, v in rows if u == source}
        left_out = {v for u, v in known if u == source} - own | {source}
        order = [v for v in (-matrix[source]).argsort().tolist() if v not in left_out][:20]
        hits = [place for place, v in enumerate(order) if v in own]
        best = range(min(20, len(own)))
        recall.append(len(hits) / len(own))
        gains.append(sum(1 / np.log2(2 + p) for p in hits) / sum(1 / np.log2(2 + p) for p in best))
    return {"recall@20": float(np.mean(recall)), "ndcg@20": float(np.mean(gains))}


def test_lists_are_those_of_sorting_dense_scores() -> None:
    split = split_links(random_graph(60, 400), split_settings(edges=(0.6, 0.1, 0.3)))
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    matrix = np.random.default_rng(1).standard_normal((60, 60))
    pairs = sp.csr_array((np.ones(len(known)), np.array(sorted(known)).T), shape=(60, 60))
    rows = split.rows["test"]
    found, *_ = score_ranks.rank_rows(
        lambda nodes: matrix[nodes].copy(), rows, pairs, split.destinations
    )
    scores = score_ranks.measure_ranks(rows[:, 0], found)
    for name, value in lists_by_sorting(split, matrix, "test", known).items():
        assert scores[name] == pytest.approx(value), name


def by_loops(split: LinkSplit) -> dict[str, float]:
    near: dict[int, set[int]] = {node: set() for node in range(30)}
    for u, v in edges_of(split.graph):
        near[u].add(v)
        near[v].add(u)
    near = {node: others - {node} for node, others in near.items()}
    known = set(zip(*(ends.tolist() for ends in split.known()), strict=True))
    ranks, wins = [], []
    for u, v in split.rows["test"].tolist():
        own = len(near[u] & near[v])
        others = [len(near[u] & near[w]) for w in range(30) if w != u and (u, w) not in known]
        ranks.append(
            1 + sum(each > own for each in others) + sum(each == own for each in others) / 2
        )
        drawn = [len(near[a] & near[b]) for a, b in split.rows["test_neg"].tolist()]
        wins += [(own > other) + (own == other) / 2 for other in drawn]
    return {
        "mrr": np.mean(1 / np.array(ranks)),
        "hits@10": np.mean(np.array(ranks) <= 10),
        "auc": np.mean(wins),
    }


def test_a_directory_of_links_is_read_as_written_and_a_leak_is_refused(tmp_path: Path) -> None:
    graph = random_graph()
    save_npz(tmp_path / "g.npz", graph)
    command = (
        "app=partition_data",
        "task=link_prediction",
        "dataset_name=file",
        "num_partitions=3",
        f"dataset_file={tmp_path / 'g.npz'}",
        f"partition_dir={tmp_path}",
    )
    ended = run_main(*command, cwd=tmp_path)
    assert ended.rc == 0, ended.output
    assert "Adamic-Adar" in ended.stdout
    directory = find_partition_directory([tmp_path / "g-links-random-vol-3"], 3)
    parts = [directory.read(part) for part in range(3)]
    ids = np.concatenate([part.node_ids.numpy() for part in parts]) - 1000
    again = split_links(graph, split_settings(seed=42))
    for name, rows in again.rows.items():
        held = np.concatenate([part.links[name].numpy() for part in parts if part.links])
        assert sorted(ids[held].tolist()) == sorted(rows.tolist()), name
    assert parts[0].links is not None
    assert np.array_equal(ids[parts[0].links["pool"][:, 0].numpy()], again.pool[:, 0])
    leaking = next(part for part in parts if len(part.edges.src))
    held = leaking.edges
    source, target = int(held.src[0]), int(held.dst[0])  # type: ignore[attr-defined]
    known = np.array(directory.bounds)[held.halo_owner] + held.halo_index.numpy()  # type: ignore[attr-defined]
    first = directory.bounds[leaking.rank]
    end = source + first if source < leaking.num_inner else known[source - leaking.num_inner]
    np.save(directory.path / f"part{leaking.rank}/links_test.npy", [[target + first, end]])
    with pytest.raises(InputError, match="a held-out pair has an edge"):
        directory.read(leaking.rank)
    np.save(directory.path / f"part{leaking.rank}/links_test.npy", [[10**6, end]])
    with pytest.raises(InputError, match=r"links_test\.npy"):
        directory.read(leaking.rank)


def test_features_made_from_the_graph_do_not_know_pairs_that_are_held_out(tmp_path: Path) -> None:
    save_npz(tmp_path / "g.npz", random_graph())
    command = (
        "app=partition_data",
        "task=link_prediction",
        "dataset_name=file",
        "num_partitions=1",
        f"dataset_file={tmp_path / 'g.npz'}",
        f"partition_dir={tmp_path}",
        "features=degree",
    )
    assert run_main(*command, cwd=tmp_path).rc == 0
    part = find_partition_directory([tmp_path / "g-links-random-vol-1"], 1).read(0)
    split = split_links(random_graph(), split_settings(seed=42))
    made = with_features(split.graph, ("degree",)).features
    assert np.array_equal(part.features.numpy(), made[part.node_ids.numpy() - 1000])


def test_a_short_name_of_several_relations_is_refused() -> None:
    relations = dict.fromkeys([("user", "rates", "movie"), ("movie", "rates", "user")])
    graph = cast(HeteroGraphData, SimpleNamespace(name="g", relations=relations))
    assert find_relation(graph, "user__rates__movie") == "user__rates__movie"
    several = "task.relation=rates: g has the relations user__rates__movie, movie__rates__user"
    with pytest.raises(InputError, match=several):
        find_relation(graph, "rates")


@pytest.mark.parametrize("kind", ["integers", "names", "full"])
def test_files_of_pairs_of_a_relation_have_the_ids_of_its_tables(tmp_path: Path, kind: str) -> None:
    prefix = "" if kind == "integers" else "u"
    for folder in ("nodes", "edges"):
        (tmp_path / "g" / folder).mkdir(parents=True)
    for node_type in ("user", "item"):
        ids = "".join(f"{prefix}{row}\n" for row in range(9))
        (tmp_path / f"g/nodes/{node_type}.csv").write_text(f"id\n{ids}")
    lines = "".join(f"{prefix}{row},{prefix}{(row + 1) % 9}\n" for row in range(9))
    (tmp_path / "g/edges/user__buys__item.csv").write_text(f"src,dst\n{lines}")
    user, item = ("user:u", "item:u") if kind == "full" else (prefix, prefix)
    for split, row in (("val", 0), ("test", 1)):
        (tmp_path / f"{split}.csv").write_text(f"src,dst\n{user}{row},{item}{row + 1}\n")
    command = (
        *("app=partition_data", "task=link_prediction", "dataset_name=file", "num_partitions=1"),
        *(f"dataset_file={tmp_path / 'g'}", "task.relation=buys", "features=degree"),
        *(f"partition_dir={tmp_path}", "split=files", f"split.dir={tmp_path}"),
    )
    ended = run_main(*command, cwd=tmp_path)
    assert ended.rc == 0, ended.output
    (tmp_path / "val.csv").write_text(f"src,dst\n{user}0,{item}77\n")
    ended = run_main(*command, "overwrite=true", cwd=tmp_path)
    assert (ended.rc, f"row 0 has the id {item}77, which is no node's" in ended.output) == (2, True)


def test_links_of_one_relation_leave_all_relations_and_have_its_types_as_ends(
    tmp_path: Path,
) -> None:
    """Users and artists.

    An edge of another relation, and a reverse one, go with a pair that is held out.
    """
    rng = np.random.default_rng(0)
    users, artists = rng.integers(12, size=90), rng.integers(20, size=90)
    (tmp_path / "g/edges").mkdir(parents=True)
    (tmp_path / "g/nodes").mkdir()
    for kind, count in (("user", 12), ("artist", 20)):
        (tmp_path / f"g/nodes/{kind}.csv").write_text(
            "id\n" + "".join(f"{node}\n" for node in range(count))
        )
    for relation, kept in (("listens", 90), ("tags", 40)):
        lines = "".join(f"{u},{v}\n" for u, v in zip(users[:kept], artists[:kept], strict=True))
        (tmp_path / f"g/edges/user__{relation}__artist.csv").write_text("src,dst\n" + lines)
    data = (
        "task=link_prediction",
        "dataset_name=file",
        f"dataset_file={tmp_path / 'g'}",
        f"partition_dir={tmp_path}",
        "num_partitions=2",
        "split.by=user",
        "split.edges=[0.7,0.1,0.2]",
        "features=[given,degree]",
    )
    refused = run_main("app=partition_data", *data, "task.relation=hears", cwd=tmp_path)
    assert (refused.rc, "user__listens__artist" in refused.output) == (2, True)
    full, data = (*data, "task.relation=user__listens__artist"), (*data, "task.relation=listens")
    for named in (data, full):  # the second time the directory is there
        ended = run_main("app=partition_data", *named, cwd=tmp_path)
        assert ended.rc == 0, ended.output
        assert "note: task.relation=listens: user__listens__artist" in ended.stdout
    directory = find_partition_directory([tmp_path / "g-links-random-vol-2"], 2)
    parts, names = [directory.read(part) for part in range(2)], []
    for part in range(2):
        held = directory.node_names(part)
        assert held is not None
        names += held.tolist()
    listened = {(f"user:{u}", f"artist:{v}") for u, v in zip(users, artists, strict=True)}
    rows: dict[str, set[tuple[str, str]]] = {}
    for name in ("train", "val", "test", "test_neg", "candidates"):
        pairs = np.concatenate([part.links[name].numpy() for part in parts if part.links])
        rows[name] = {(names[u], names[v]) for u, v in pairs.tolist()}
    assert rows["train"] | rows["val"] | rows["test"] == listened
    assert all(u[0] == "u" and v[0] == "a" for u, v in rows["test_neg"])
    assert rows["candidates"] == {(f"artist:{v}", f"artist:{v}") for v in range(20)}
    edges = set()
    for part in parts:
        held_edges = part.edges  # type: ignore[attr-defined]
        halo = np.array(directory.bounds)[held_edges.halo_owner] + held_edges.halo_index.numpy()
        ids = np.concatenate((np.arange(*directory.bounds[part.rank : part.rank + 2]), halo))  # type: ignore[attr-defined]
        ends = zip(held_edges.src.tolist(), held_edges.dst.tolist(), strict=True)
        edges |= {(names[ids[u]], names[ids[v]]) for u, v in ends}
    held_out = rows["val"] | rows["test"]
    assert not edges & (held_out | {(v, u) for u, v in held_out})
    assert {(v, u) for u, v in rows["train"]} <= edges
    command = (
        "--config-name",
        "link_prediction_rgcn",
        *data,
        "device=cpu",
        "num_rounds=3",
        "hidden_dim=8",
        "task.dim=4",
    )
    trained = run_main(*command, "app=train", f"hydra.run.dir={tmp_path / 'run'}", cwd=tmp_path)
    assert trained.rc == 0, trained.output
    assert "test, item-kNN" in trained.stdout
