"""Splits: sizes in closed form, disjoint and labelled for any graph, and a message for each
mistake.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import split_settings

from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from partitioning.node_split import Split, SplitRecipe, draw
from partitioning.partition_settings import SplitSettings

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
        ("t.csv", b"0\n1.5\n", r"row 1 is '1\.5'"),
        ("t.csv", b"0\n99999999999999999999\n", "row 1 is '99999999999999999999'"),
        ("t.csv", b"\xff\xfe\x00", "not a readable csv"),
        ("t.txt", b"0\n", "expected a .npy or .csv file"),
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


def test_a_folder_with_two_candidates_or_none_is_refused(tmp_path):
    for name in ("train.npy", "val.npy", "valid.npy"):
        np.save(tmp_path / name, np.array([0]))
    asked = wanted("files", dir=str(tmp_path))
    with pytest.raises(InputError, match=r"found \['val.npy', 'valid.npy'\]"):
        draw(graph([0, 1]), asked, THIRDS)
    (tmp_path / "valid.npy").unlink()
    with pytest.raises(InputError, match=r"test.npy, test.csv there; found none"):
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
    with pytest.raises(
        InputError, match=r"split=time: toy has no times of nodes; set columns\.time"
    ):
        draw(graph(labels), asked, GIVEN)
    with pytest.raises(InputError, match="1 labelled nodes have no time, node 1 for instance"):
        draw(replace(dated, node_time=np.where(times == 1, np.nan, times)), asked, GIVEN)
