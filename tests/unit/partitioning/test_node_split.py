"""Splits of nodes: sizes in closed form, and a message for each mistake."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from graph_files import write_files
from hypothesis import given
from hypothesis import strategies as st
from support import make_graph, split_settings, with_arrays

from partitioning.errors import InputError
from partitioning.graph.graph_data import GraphData
from partitioning.graph.node_names import Names, hash_names
from partitioning.node_split import Split, draw
from partitioning.partition_settings import SplitSettings

PER_CLASS = SplitSettings("per_class", train=2, val=3, test=4)
THIRDS = SplitSettings("fraction", train=0.5, val=0.2, test=0.3)
GIVEN = SplitSettings("given")


def graph(labels, num_classes=None, node_ids=None, node_names=None, **fields) -> GraphData:
    """Nodes 0, 1, ... without edges; -1 is no label."""
    plain = make_graph([], np.ones((len(labels), 1)), labels, num_classes)
    ids = np.arange(len(labels)) if node_ids is None else node_ids
    return replace(with_arrays(plain, node_ids=ids, node_names=node_names), **fields)


def masked(train, val, test) -> GraphData:
    """Four nodes, of which the last has no label, with masks."""
    masks = {"train_mask": train, "val_mask": val, "test_mask": test}
    return graph([0, 1, 0, -1], **{name: np.array(mask, bool) for name, mask in masks.items()})


def members(split: Split) -> list[list[int]]:
    """The nodes that train, validate and test."""
    return [np.flatnonzero(mask).tolist() for mask in (split.train, split.val, split.test)]


def assert_sound(split: Split, toy: GraphData) -> None:
    """No node is in two sets, and none without a label in any."""
    nodes = [node for part in members(split) for node in part]
    assert len(set(nodes)) == len(nodes)
    assert toy.labelled[nodes].all()


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
    sizes = {"train": count, "val": num_val, "test": num_test}
    asked = split_settings("per_class", seed=seed, **sizes)
    left = int(toy.labelled.sum()) - 3 * count
    if num_val + num_test > left:
        with pytest.raises(InputError, match=f"split.val={num_val}.*only {left} labelled"):
            draw(toy, asked, GIVEN)
        return
    split = draw(toy, asked, GIVEN)
    assert_sound(split, toy)
    assert [len(nodes) for nodes in members(split)] == [3 * count, num_val, num_test]
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
    asked = split_settings("fraction", train=train, val=val, test=test)
    if round(train * labelled) == 0:
        with pytest.raises(InputError, match="training set is empty"):
            draw(toy, asked, GIVEN)
        return
    split = draw(toy, asked, GIVEN)
    assert_sound(split, toy)
    sizes = [len(nodes) for nodes in members(split)]
    assert np.abs(np.subtract(sizes, np.multiply([train, val, test], labelled))).max() <= 1
    assert sum(shares) < 100 or sum(sizes) == labelled


@pytest.mark.parametrize(
    ("asked", "described"),
    [
        (split_settings(), {"train": 2, "nodes": {"train": 4, "val": 3, "test": 4}}),
        (
            split_settings(train=5),
            {"train": 5, "nodes": {"train": 10, "val": 3, "test": 4}},
        ),
        (
            split_settings("per_class", test=0),
            {"test": 0, "nodes": {"train": 4, "val": 3, "test": 0}},
        ),
        (
            split_settings(val=9, seed=3),
            {"val": 9, "seed": 3, "nodes": {"train": 4, "val": 9, "test": 4}},
        ),
    ],
)
def test_published_numbers_hold_until_one_is_replaced(asked, described):
    published = {"kind": "per_class", "seed": 0, "train": 2, "val": 3, "test": 4}
    split = draw(graph([0, 1] * 50), asked, PER_CLASS)
    assert json.loads(json.dumps(split.describe())) == published | described


def test_given_masks_are_taken_as_they_are(caplog):
    toy = masked([1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0])
    split = draw(toy, split_settings(), GIVEN)
    assert members(split) == [[0], [1], [2]]
    assert split.describe() == {"kind": "given", "nodes": {"train": 1, "val": 1, "test": 1}}
    draw(toy, split_settings("fraction", train=0.5, val=0.25, test=0.25), GIVEN)
    assert "split=fraction: the split of the data is not used" in caplog.text


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        (
            masked([1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]),
            "1 nodes are in train and have no label, the first is node 3; .*drop_unlabelled=true",
        ),
        (
            masked([1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]),
            "both train and val, the first is node 1",
        ),
        (
            masked([1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0]),
            "both val and test, the first is node 2",
        ),
        (masked([0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]), "training set is empty"),
    ],
)
def test_given_masks_are_checked(toy, message):
    with pytest.raises(InputError, match=message):
        draw(toy, split_settings(), GIVEN)


def test_a_split_may_leave_out_nodes_without_a_label():
    toy = masked([1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0])
    assert members(draw(toy, split_settings(drop_unlabelled=True), GIVEN)) == [[0], [1], [2]]


def test_multilabel_graphs_split_by_fraction_only():
    labels = np.zeros((10, 3), dtype=np.float32)
    labels[4, 1:] = labels[7] = np.nan  # one cell of node 4 is known
    recipe = SplitSettings("fraction", train=1.0, val=0.0, test=0.0)
    split = draw(graph(labels), split_settings(), recipe)
    assert np.flatnonzero(~split.train).tolist() == [7]
    with pytest.raises(InputError, match="split=per_class needs one class per node"):
        draw(
            graph(labels),
            split_settings("per_class", train=1, val=1, test=1),
            GIVEN,
        )


@pytest.mark.parametrize(
    ("asked", "recipe", "message"),
    [
        (split_settings(), GIVEN, "split=given.*without train, val and test masks.*set split="),
        (
            split_settings("per_class"),
            GIVEN,
            "needs split.train, split.val, split.test",
        ),
        (split_settings("fraction", train=0.5), GIVEN, "needs split.val, split.test"),
        (split_settings("files"), GIVEN, "needs split.train=PATH"),
        (
            split_settings(train=2),
            THIRDS,
            "split.train=2: with split=fraction this is a share.*set split=per_class",
        ),
        (
            split_settings(train=0.3),
            PER_CLASS,
            "split.train=0.3: with split=per_class this is a number.*set split=fraction",
        ),
        (
            split_settings(train=51),
            PER_CLASS,
            "split.train=51: class 1 has 50 labelled nodes",
        ),
        (
            split_settings(train=0.9),
            THIRDS,
            "split.train=0.9, split.val=0.2, split.test=0.3: the shares add up to 1.4",
        ),
        (split_settings(train=1.5), THIRDS, "split.train=1.5"),
        (split_settings(train="x.npy"), THIRDS, r"split.train=x.npy.*a number in \[0, 1\]"),
        (split_settings(train=True), THIRDS, "split.train=True"),
        (split_settings(train=0.0), THIRDS, "training set is empty"),
        (
            split_settings("stratified", index=1),
            GIVEN,
            r"split\.index=1 has no meaning with split=stratified",
        ),
        (split_settings("files", train=0.5), THIRDS, "split.train=0.5.*path of an index file"),
        (
            split_settings("files", dir="/nowhere/at/all"),
            THIRDS,
            "split.dir=/nowhere/at/all: there is no such folder",
        ),
    ],
)
def test_a_setting_that_cannot_be_met_is_named_with_its_value(asked, recipe, message):
    with pytest.raises(InputError, match=message):
        draw(graph([0] * 51 + [1] * 50), asked, recipe)


def test_index_files_are_read_from_a_folder_or_one_by_one(tmp_path):
    files = {
        "train.npy": np.array([4, 0], dtype=np.int32),
        "valid.csv": "node\n2\n",
        "test.npy": np.array([0, 1, 0, 1, 0, 0], dtype=bool),
        "other.csv": "5\n",
    }
    folder, toy = str(write_files(tmp_path, files)), graph([0, 1, 0, 1, 0, 1])
    split = draw(toy, split_settings("files", dir=folder), THIRDS)
    assert members(split) == [[0, 4], [2], [1, 3]]
    assert split.describe()["val"] == f"{folder}/valid.csv"
    replaced = draw(toy, split_settings("files", dir=folder, test=f"{folder}/other.csv"), THIRDS)
    assert members(replaced) == [[0, 4], [2], [5]]
    json.dumps(replaced.describe())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.npy", np.array(["0", "1"]), "dtype <U1; expected positions of nodes, or a mask"),
        ("t.npy", np.array([0, 6]), r"row 1 is 6; expected a node position in \[0, 6\)"),
        ("t.npy", np.array([0, -1]), "row 1 is -1"),
        ("t.npy", np.array([0.0, 1.0]), "dtype float64"),
        ("t.npy", np.array([[0, 1]]), r"shape \(1, 2\), .*expected positions"),
        ("t.npy", np.array([True]), "has 1 rows; expected 6, one per node"),
        ("t.npy", np.array([0, 1, 0]), "rows 0 and 2 are both 0; expected each id once"),
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
    path = str(write_files(tmp_path, {name: content}) / name)
    asked = split_settings("files", train=path, val=path, test=path)
    with pytest.raises(InputError, match=f"split.train=.*{message}"):
        draw(graph([0, 1, 0, 1, 0, 1]), asked, THIRDS)


@pytest.mark.parametrize("names", [None, ["ann", "7", "id", "bob", "x y"]])
@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        ("csv", lambda ids: "\n".join(map(str, ids)) + "\n"),
        ("csv", lambda ids: "\n".join(map(str, ["node_id", *ids])) + "\n"),
        ("tsv", lambda ids: "\n".join(map(str, ids)) + "\n"),
        ("csv.gz", lambda ids: gzip.compress("\n".join(map(str, ["node_id", *ids])).encode())),
        ("parquet", lambda ids: pd.DataFrame({"node": ids})),
        ("npy", np.array),
    ],
    ids=["csv", "csv with a header", "tsv", "csv.gz", "parquet", "npy"],
)
def test_index_files_list_ids_where_nodes_have_some(tmp_path, suffix, write, names):
    """A first line that is no id is a header."""
    ids = names or [7, 2, 0, 4, 3]
    keys = hash_names(np.array(names, object)) if names else np.array(ids)
    toy = graph([0, 1, 0, 1, 0], node_ids=keys, node_names=Names.of(names) if names else None)
    files = {"train": [ids[2], ids[0]], "val": [ids[1]], "test": [ids[3], ids[4]]}
    write_files(tmp_path, {f"{part}.{suffix}": write(listed) for part, listed in files.items()})
    split = draw(toy, split_settings("files", dir=str(tmp_path)), THIRDS)
    assert members(split) == [[0, 2], [1], [3, 4]]


@pytest.mark.parametrize("first", [5, 4])
def test_index_files_list_positions_where_no_id_can_be_one(tmp_path, caplog, first):
    toy = graph([0, 1, 0, 1, 0], node_ids=np.arange(first, first + 5)[::-1])
    files = {"train.npy": np.array([4, 0]), "val.csv": "1\n", "test.npy": np.array([2, 3])}
    asked = split_settings("files", dir=str(write_files(tmp_path, files)))
    if first == 4:  # 4 is an id, too
        with pytest.raises(InputError, match="row 1 is 0; expected one of the 5 node ids"):
            draw(toy, asked, THIRDS)
        return
    assert members(draw(toy, asked, THIRDS)) == [[0, 4], [1], [2, 3]]
    assert "no id is below 5: its numbers are positions, from 0" in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.npy", "val.npy", "valid.npy"], r"found \['val.npy', 'valid.npy'\]"),
        (["train.npy", "val.npy"], r"test.npy, test.csv .* there; found none"),
    ],
)
def test_a_folder_with_two_candidates_or_none_is_refused(tmp_path, names, message):
    write_files(tmp_path, {name: np.array([0]) for name in names})
    with pytest.raises(InputError, match=message):
        draw(graph([0, 1]), split_settings("files", dir=str(tmp_path)), THIRDS)


@pytest.mark.parametrize("seed", range(4))
def test_a_stratified_split_has_the_shares_of_each_class(seed):
    toy = graph(np.repeat([0, 1, -1], [400, 12, 50]))
    split = draw(toy, split_settings("stratified", train=0.5, val=0.2, test=0.3, seed=seed), THIRDS)
    assert_sound(split, toy)
    of_rare_class = [int((toy.labels[nodes] == 1).sum()) for nodes in members(split)]
    assert np.abs(np.subtract(of_rare_class, [6, 2.4, 3.6])).max() <= 1


BY_TIME = split_settings("time", train=0.4, val=0.2, test=0.4)
TIMES = np.array([5.0, 1, 4, 2, np.nan, 3])


def test_a_split_by_time_trains_on_the_oldest():
    dated = graph([0, 1, 0, 1, -1, 0], node_time=TIMES)
    assert members(draw(dated, BY_TIME, GIVEN)) == [[1, 3], [5], [0, 2]]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (None, r"split=time: toy has no times; set columns\.time"),
        (np.where(TIMES == 1, np.nan, TIMES), r"columns\.time, node 1 for instance"),
    ],
)
def test_a_split_by_time_needs_the_time_of_each_labelled_node(times, message):
    with pytest.raises(InputError, match=message):
        draw(graph([0, 1, 0, 1, -1, 0], node_time=times), BY_TIME, GIVEN)
