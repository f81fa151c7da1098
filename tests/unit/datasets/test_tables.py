"""Tables as people have them: names, blanks, other headers.

Each mistake with file, row and value.
"""

import datetime
import gzip
import logging
import re

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from support import dataset_settings, split_settings

from partitioning import datasets
from partitioning.datasets import csv_files
from partitioning.errors import InputError
from partitioning.node_split import SplitRecipe, draw
from partitioning.partition_settings import TASKS


def load(path, **fields):
    return datasets.load_graph(dataset_settings("file", str(path), **fields))


def write(folder, **tables):
    folder.mkdir(exist_ok=True)
    for name, content in tables.items():
        (folder / f"{name}.csv").write_text(content)
    return folder


NODES = "name,age,subject,city,height\nann,31,art,Rome,1.5\nbob,22,,Bonn,1.75\n007,44,law,Oslo,2\n"
EDGES = "source,target,weight\nann,bob,2\nbob,007,0.5\n007,ann,1\nann,bob,3\n"
NAMED = {"columns": {"id": "name", "label": "subject"}}


def test_names_classes_blanks_and_headers(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    graph = load(write(tmp_path / "toy", nodes=NODES, edges=EDGES), **NAMED)
    assert graph.node_names.tolist() == graph.shown_ids == ["ann", "bob", "007"]
    assert graph.labels.tolist() == [0, -1, 1]
    assert graph.class_names == ("art", "law")
    assert graph.features[:, [0, -1]].tolist() == [[31, 1.5], [22, 1.75], [44, 2]]
    assert graph.features[:, 1:-1].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]  # Bonn, Oslo, Rome
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0, 1, 2, 0], [1, 2, 0, 1])
    assert graph.edge_weight.tolist() == [2, 0.5, 1, 3]
    assert len(set(graph.node_ids.tolist())) == 3
    for said in ("0 art, 1 law",):
        assert said in caplog.text


def test_a_folder_of_tables_with_other_names_is_refused_by_them(tmp_path):
    (tmp_path / "payments.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(InputError, match=r"found payments\.csv: rename the table of edges"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["features.json", "Labels.csv", "train.xml", "nodes.xlsx"])
def test_a_table_in_a_format_that_is_not_read_is_named(tmp_path, caplog, name):
    folder = write(tmp_path / "toy", nodes=NODES, edges=EDGES)
    for file in (name, ".nodes.csv.swp", "README.md"):
        (folder / file).write_text("id\tx\nann\t1\n")
    load(folder, **NAMED)
    assert [line for line in caplog.messages if "left out; expected" in line] == [
        line for line in caplog.messages if f"{folder / name}: left out; expected " in line
    ]
    assert f"{folder / name}: left out; expected {name.split('.')[0].lower()}." in caplog.text


def test_one_file_of_edges_with_the_others_beside_it(tmp_path):
    folder = write(tmp_path / "toy", nodes=NODES, knows=EDGES.replace(",", "\t"))
    graph = load(folder / "knows.csv", **NAMED)
    assert graph.name == "knows"
    assert graph.num_edges == 4


def test_ids_that_become_names_later(tmp_path):
    """007 is a number for the first rows, and a name once another is none."""
    nodes = (
        "id,label,x\n007,0,1\n8,1,1\n"
        + "".join(f"{row},0,1\n" for row in range(100, 110))
        + "x9,1,1\n"
    )
    graph = load(write(tmp_path / "toy", nodes=nodes, edges="src,dst\n007,8\nx9,007\n"))
    assert graph.node_names.tolist()[:2] == ["007", "8"]
    assert graph.src.tolist() == [0, 12]


def test_integers_of_any_kind(tmp_path):
    nodes = "nodeId,class,x\n-5,30000,1\n9000000000,10,2\n7,-1,3\n"
    graph = load(
        write(
            tmp_path / "toy", nodes=nodes, edges="sourceNodeId,targetNodeId\n7,-5\n9000000000,7\n"
        )
    )
    assert graph.node_ids.tolist() == [-5, 9_000_000_000, 7]
    assert (graph.src.tolist(), graph.dst.tolist()) == ([2, 1], [0, 2])
    assert graph.labels.tolist() == [1, 0, -1]
    assert graph.class_names == (10, 30000)


def test_labels_of_some_nodes_are_joined_by_id(tmp_path):
    folder = write(
        tmp_path / "toy",
        features="id,x\na,1\nb,2\nc,3\n",
        labels="id,label\nc,u\na,v\n",
        edges="from,to\na,c\n",
    )
    graph = load(folder)
    assert graph.labels.tolist() == [1, -1, 0]
    assert graph.features[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([True, False, True], [1, -1, 0, -1, 1]),
        (np.array([2, 0, 1], np.uint8), [2, -1, 0, -1, 1]),
        (np.array([2, 0, 1], np.uint64), [2, -1, 0, -1, 1]),
        (np.array([2**64 - 1, 7, 7], np.uint64), [0, -1, 1, -1, 1]),
        ([1.0, 0.0, 1.0], [1, -1, 0, -1, 1]),
        (["yes", "no", "yes"], [1, -1, 0, -1, 1]),
    ],
    ids=["boolean", "uint8", "uint64", "hashes", "floats", "names"],
)
def test_labels_and_masks_of_some_nodes(tmp_path, labels, expected):
    folder = write(tmp_path / "toy", features="id,x\n0,1\n1,2\n2,3\n3,4\n4,5\n", edges="0,3\n")
    table = pd.DataFrame({"id": [0, 2, 4], "label": labels})
    masks = np.eye(3, dtype=np.uint8)
    table[["train_mask", "val_mask", "test_mask"]] = masks
    table.to_parquet(folder / "labels.parquet")
    graph = load(folder)
    assert graph.labels.tolist() == expected
    found = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])
    assert found[:, [0, 2, 4]].tolist() == masks.tolist()
    assert not found[:, [1, 3]].any()


def test_a_header_of_many_long_names(tmp_path):
    names = [f"{number:0300}" for number in range(500)]
    nodes = f"id,label,{','.join(names)}\n" + "".join(f"{row},1{',1.5' * 500}\n" for row in (3, 4))
    folder = write(tmp_path / "toy", nodes=nodes, edges="src,dst\n3,4\n")
    assert load(folder).num_features == 500


@pytest.mark.parametrize("cell", ["x7", "1.5", "007", "", '"a\nb"'])
def test_a_column_is_what_all_blocks_of_it_are(tmp_path, cell, monkeypatch):
    """A cell far below decides what its column is, and those above lose nothing."""
    rows = [f"{row},{row % 2},{row % 3}.0" for row in range(300)] + [f"300,1,{cell}"]
    nodes = "id,label,x,y\n" + "".join(f"{row},1\n" for row in rows)
    folder = write(tmp_path / "toy", nodes=nodes, edges="src,dst\n0,1\n")
    fields = {"columns": {"categorical": ("x",)}, "features": {"missing": "median"}}
    whole = load(folder, **fields)
    monkeypatch.setattr(csv_files, "BLOCK", 64)
    graph = load(folder, **fields)
    assert graph.features.tolist() == whole.features.tolist()
    assert graph.num_features == 5


@pytest.mark.parametrize("cells", ["True,False,,1,0,", "0,1,,,,TRUE", "1.0,,,false,,"])
@pytest.mark.parametrize("parts", [1, 2])
def test_true_beside_1_is_refused(tmp_path, cells, parts):
    """They would be four classes; part files written by different programs have both."""
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n")
    rows = [f"{row},1,{cell}\n" for row, cell in enumerate(cells.split(","))]
    (folder / "nodes.csv").mkdir()
    for part in range(parts):
        some = rows[part * 3 :] if part == parts - 1 else rows[:3]
        (folder / "nodes.csv" / f"part-{part}.csv").write_text("id,x,label\n" + "".join(some))
    expected = r"column `label`: row \d is \S+, row \d is \S+; expected one spelling"
    with pytest.raises(InputError, match=expected):
        load(folder)


JANUARY = 1704067200.0  # 2024-01-01
DAY = 86400.0


def days_of(folder, cells, **columns):
    """Times in days since 2024-01-01 of a column of nodes."""
    rows = "".join(f'{row},{row % 2},1,"{cell}"\n' for row, cell in enumerate(cells))
    write(folder, nodes=f"id,label,x,day\n{rows}", edges="src,dst\n0,1\n")
    graph = load(folder, columns={"time": "day", **columns})
    return ((graph.node_time - JANUARY) / DAY).tolist()


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (["01.02.2024", "02.01.2024", "13.01.2024", "1.3.2024", ""], [31, 1, 12, 60, np.nan]),
        (["01.02.2024 12:00", "02.01.2024", "03.01.2024 06:00:00"], [31.5, 1, 2.25]),
        (["2024-01-01", "2024-01-02 12:00:00", "2024-01-02T06:00Z"], [0, 1.5, 1.25]),
        (["2024-01-01T00:00:00+02:00", "2024-01-02T12:00:00.5"], [-1 / 12, 1.5 + 0.5 / DAY]),
        (["01/02/2024", "02/01/2024", "03/01/2024", "13/01/2024"], [31, 1, 2, 12]),
        (["01/02/2024", "02/01/2024", "03/01/2024", "01/13/2024"], [1, 31, 60, 12]),
        (
            ["01/02/2024", "", "", "", "01-13-2024 6:00 PM", "1/1/2024"],
            [1, *[np.nan] * 3, 12.75, 0],
        ),
        (["01/01/2024", "02/02/2024"], [0, 32]),
        (["2024/01/02", "2024.01.03"], [1, 2]),
        (["9999-12-31", "2024-01-01", "31.12.9999", "0001-01-01"], [2913173, 0, 2913173, -738885]),
        (["2 Jan 2024", "Wed Jan 10 12:00:00 +0000 2024", "Feb 1, 2024"], [1, 9.5, 31]),
    ],
)
def test_dates_are_read_by_the_whole_column(tmp_path, cells, days):
    assert np.allclose(days_of(tmp_path / "toy", cells), days, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["01/02/2024", "02/03/2024"], "'01/02/2024' may have the day or the month first.*write 2"),
        (["13/01/2024", "01/13/2024"], "row 1 is '01/13/2024'; expected the day first, as in '13"),
        (["13/01/2024", *[""] * 6, "1/13/2024"], "row 7 is '1/13/2024'; expected the day first"),
        (["1.1.2024", "30.02.2024"], r"row 1 is '30\.02\.2024'; expected a date"),
        (["30/02/2024", "1/1/2024"], "row 0 is '30/02/2024'; expected a date"),
        (["01.02.24", "02.02.24"], r"row 0 is '01\.02\.24'; expected a date.*four digits"),
        (["2024-01-01", "now"], "row 1 is 'now'; expected a date"),
        (["2024-01-01", "", "", "", "", "17"], "row 5 is '?17.*'; expected a date"),
        (["17", "18", "19", "20", "2024-01-01"], "row 4 is '2024-01-01'; expected a number, as in"),
        (["2024-01-01 25:00", "2024-01-01"], "row 0 is '2024-01-01 25:00'; expected a date"),
    ],
)
@pytest.mark.parametrize("role", ["time", "date", "edge"])
def test_dates_that_are_not_certain_are_refused(tmp_path, cells, message, role):
    nodes = "".join(f"{row},{row % 2},{row}\n" for row in range(9))
    rows = "".join(f"{row},{row},{cell}\n" for row, cell in enumerate(cells))
    folder = write(tmp_path / "toy", nodes=f"id,label,x\n{nodes}", edges=f"src,dst,day\n{rows}")
    if role == "date":
        (folder / "nodes.csv").write_text(f"id,label,day\n{rows}")
        (folder / "edges.csv").write_text("src,dst\n0,1\n")
    role = "time" if role == "edge" else role
    with pytest.raises(InputError, match=f"column `day`.*{message}"):
        load(folder, columns={role: "day" if role == "time" else ["day"]})


def test_times_of_objects(tmp_path):
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n")
    noon = datetime.datetime(2024, 1, 2, 12)
    for times, days in (
        ([datetime.date(9999, 12, 31), datetime.date(2024, 1, 1), None], [2913173, 0, np.nan]),
        ([noon, None, noon.replace(tzinfo=None)], [1.5, np.nan, 1.5]),
        (pd.Series([noon] * 3).dt.tz_localize("Asia/Tokyo"), [1.125] * 3),
        (pd.Series(["1.2.2024", "1.2.2024", None], dtype="category"), [31, 31, np.nan]),
        (pd.Series([noon] * 3).astype("datetime64[s]").astype("category"), [1.5] * 3),
    ):
        frame = pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 0], "x": 1.0, "when": times})
        frame.to_parquet(folder / "nodes.parquet")
        graph = load(folder, columns={"time": "when"})
        found = (graph.node_time - JANUARY) / DAY
        assert np.allclose(found, days, equal_nan=True)
    times = np.array(["2024-01-01", "2024-01-02T12"], "datetime64[h]")
    arrays = {"label": [0, 1], "feat": np.eye(2), "edge_time": times}
    np.savez(tmp_path / "g.npz", src=[0, 1], dst=[1, 0], **arrays)
    assert load(tmp_path / "g.npz").edge_time.tolist() == [JANUARY, JANUARY + 1.5 * DAY]


def test_labels_of_some_rows_of_an_npy(tmp_path):
    folder = write(tmp_path / "toy", labels="id,label\n3,1\n0,0\n", edges="0,3\n")
    np.save(folder / "features.npy", np.arange(4.0))
    graph = load(folder)
    assert graph.labels.tolist() == [0, -1, -1, 1]


def test_a_list_column_and_a_csr_file(tmp_path):
    folder = write(tmp_path / "toy", edges="src,dst\n1,0\n")
    pd.DataFrame({"id": [1, 0], "label": ["x", None], "emb": [[1.0, 2.0], [3.0, 4.0]]}).to_parquet(
        folder / "nodes.parquet"
    )
    graph = load(folder)
    assert graph.features.tolist() == [[1, 2], [3, 4]]
    assert graph.labels.tolist() == [0, -1]
    (folder / "nodes.parquet").unlink()
    write(folder, nodes="id,label\n1,x\n0,\n")
    sp.save_npz(folder / "features.npz", sp.csr_array(np.array([[0, 5.0], [7, 0]])))
    assert load(folder).features.toarray().tolist() == [[0, 5], [7, 0]]
    sp.save_npz(folder / "features.npz", sp.coo_array(np.eye(2)))
    with pytest.raises(
        InputError, match=r"features\.npz: its format is coo; expected a CSR matrix"
    ):
        load(folder)


def test_nodes_that_only_edges_name(tmp_path):
    folder = write(
        tmp_path / "toy", labels="id,label\nb,x\na,y\n", edges="src,dst\na,q\nq,b\nr,a\n"
    )
    graph = load(folder, features=("degree",))
    assert graph.node_names.tolist() == ["b", "a", "q", "r"]
    assert graph.labels.tolist() == [0, 1, -1, -1]
    assert graph.src.tolist() == [1, 2, 3]
    assert np.allclose(graph.features, np.log1p([[1, 0], [1, 1], [1, 1], [0, 1]]))
    write(folder, labels="id,label\n5,0\n3,1\n", edges="src,dst\n5,9\n9,3\n")
    graph = load(folder, features=("degree",))
    assert graph.node_ids.tolist() == [5, 3, 9]


def test_duplicates(tmp_path):
    folder = write(tmp_path / "toy", nodes=NODES, edges=EDGES)
    merged = load(folder, duplicates="merge", **NAMED)
    assert sorted(zip(merged.src, merged.dst, merged.edge_weight, strict=True)) == [
        (0, 1, 5),
        (1, 2, 0.5),
        (2, 0, 1),
    ]
    write(folder, edges="src,dst\nann,bob\nann,bob\n007,ann\n")
    merged = load(folder, duplicates="merge", **NAMED)
    assert (merged.src.tolist(), merged.dst.tolist(), merged.edge_weight) == ([0, 2], [1, 0], None)


def test_one_hot_labels(tmp_path, caplog):
    folder = write(
        tmp_path / "toy", features="x\n1\n2\n3\n", labels="u,v\n1,0\n0,1\n1,0\n", edges="0,1\n"
    )
    assert load(folder).label_kind == "multilabel"
    assert "a single 1 in every row" in caplog.text
    assert load(folder, labels="multiclass").labels.tolist() == [0, 1, 0]
    write(folder, labels="u,v\n1,0\n1,1\n1,0\n")
    with pytest.raises(
        InputError, match=r"labels\.csv: number of ones: row 1 is 2\.0; expected one"
    ):
        load(folder, labels="multiclass")
    write(folder, labels="u\n1\n1\n0\n")
    with pytest.raises(
        InputError, match=r"labels=multilabel: .*labels\.csv: column `u` has one column"
    ):
        load(folder, labels="multilabel")


def test_integers_without_a_class_0_are_numbered(tmp_path):
    """Two classes, 1 and 2, are two, not three."""
    read = load(write(tmp_path / "toy", nodes="x,label\n1,2\n2,1\n3,\n4,2\n", edges="0,1\n"))
    assert (read.labels.tolist(), read.num_classes, read.class_names) == ([1, 0, -1, 1], 2, (1, 2))


def test_gaps_and_one_class_are_said(tmp_path, caplog):
    folder = write(tmp_path / "toy", nodes="x,label\n1,0\n2,4\n3,4\n", edges="0,1\n")
    load(folder)
    assert "3 of 5 classes have no node, the first is 1" in caplog.text
    write(folder, nodes="x,label\n1,1\n2,-1\n3,1\n")
    load(folder)
    assert "all labelled nodes are of one class" in caplog.text


def test_classes_may_be_integers_beyond_int64(tmp_path):
    """The last of them would be -1, no class, as an int64."""
    path = tmp_path / "toy.npz"
    label = np.array([2**64 - 1, 7, 2**64 - 1], np.uint64)
    np.savez(path, src=[0, 1], dst=[1, 2], feat=np.eye(3), label=label, node_id=np.arange(3))
    graph = load(path)
    assert graph.labels.tolist() == [1, 0, 1]
    assert graph.class_names == (7, 2**64 - 1)


@pytest.mark.parametrize(
    "mask",
    [["1.0", "", "0.0", ""], ["True", "", "", "False"], ["1", "", "", "0"], ["TRUE", "0", "", ""]],
)
@pytest.mark.parametrize("table", ["nodes", "labels"])
def test_blank_cells_of_a_mask_are_in_none(tmp_path, table, mask):
    """As a join leaves them, which makes whole columns floats."""
    masks = [[*mask], ["", "1.0", "", ""], ["0", "0", "1", "0"]]
    rows = "".join(f"{i},{i % 2},{','.join(cells)}\n" for i, cells in enumerate(zip(*masks)))  # noqa: B905
    nodes = "id,x\n3,1\n2,2\n1,3\n0,4\n"
    tables = {"features": nodes, table: "id,label,train_mask,val_mask,test_mask\n" + rows}
    graph = load(write(tmp_path / "toy", edges="src,dst\n0,1\n1,2\n", **tables))
    order = graph.node_ids.argsort()
    found = np.stack([graph.train_mask, graph.val_mask, graph.test_mask])[:, order]
    assert found.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


def test_another_word_in_a_mask_is_named_by_its_row(tmp_path):
    labels = "id,label,train_mask,val_mask,test_mask\n1,0,1,0,0\n0,1,{},1,0\n"
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n", nodes="id,x\n0,1\n1,2\n")
    for cell, shown in (("2", "2"), ("0.5", "0.5"), ("yes", "'yes'")):
        write(folder, labels=labels.format(cell))
        expected = rf"labels\.csv: column `train_mask`[,:] row 1 is {shown}; expected True or False"
        with pytest.raises(InputError, match=expected):
            load(folder)


def test_masks_on_unlabelled_nodes(tmp_path):
    names = "id,label,x,train_mask,val_mask,test_mask"
    nodes = f"{names}\na,u,1,1,0,0\nb,,2,1,0,0\nc,v,3,0,1,0\nd,,4,0,0,1\n"
    graph = load(write(tmp_path / "toy", nodes=nodes, edges="src,dst\na,b\n"))
    expected = (
        "1 nodes are in train and have no label, the first is node b; .*split.drop_unlabelled=true"
    )
    with pytest.raises(InputError, match=expected):
        draw(graph, split_settings(), SplitRecipe("given"))
    split = draw(graph, split_settings(drop_unlabelled=True), SplitRecipe("given"))
    assert split.describe()["nodes"] == {"train": 1, "val": 1, "test": 0}


def test_a_split_is_in_one_column_or_in_masks(tmp_path):
    nodes = "id,label,split,train_mask\na,0,train,1\nb,1,test,0\n"
    folder = write(tmp_path / "toy", nodes=nodes, edges="src,dst\na,b\n")
    with pytest.raises(InputError, match=r"both `split` and `train_mask`; .*columns.ignore=split"):
        load(folder)


@pytest.mark.parametrize("header", ["split", "train_mask,val_mask"])
def test_a_split_is_in_the_table_or_in_files(tmp_path, header):
    cells = ["train", "val"] if header == "split" else ["1,0", "0,1"]
    nodes = f"id,label,{header}\na,0,{cells[0]}\nb,1,{cells[1]}\n"
    folder = write(tmp_path / "toy", nodes=nodes, edges="src,dst\na,b\n", train="id\nb\n")
    with pytest.raises(InputError, match=r"train\.csv: .*nodes\.csv.* is the split, too; take one"):
        load(folder)


@pytest.mark.parametrize("named", [False, True])
def test_a_table_may_have_only_the_split(tmp_path, named):
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n1,2\n")
    ids, first = ("id,", ["2,", "0,", "1,"]) if named else ("", [""] * 3)
    rows = zip(first, ("train", "val", "test"), strict=True)
    (folder / "nodes.csv").write_text(f"{ids}split\n" + "".join(f"{i}{part}\n" for i, part in rows))
    table = "".join(f"{i}{label}\n" for i, label in zip(first, (0, 1, 1), strict=True))
    (folder / "labels.csv").write_text(f"{ids}label\n{table}")
    graph = load(folder, features=("degree",))
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.test_mask.tolist() == [False, False, True]
    assert graph.node_ids.tolist() == ([2, 0, 1] if named else [0, 1, 2])


def test_files_of_pairs_beside_the_tables_are_no_masks(tmp_path):
    """With task=link_prediction, split.dir may be the folder of the tables."""
    edges = "src,dst\na,b\nb,c\nc,a\n"
    folder = write(tmp_path / "toy", edges=edges, train="a,b\n", val="b,c\n", test="c,a\n")
    assert load(folder, task=TASKS[2], features=("degree",)).num_edges == 3
    with pytest.raises(InputError, match=r"train\.csv: has 2 columns"):
        load(write(folder, labels="id,label\na,0\nb,1\nc,1\n"), features=("degree",))


def test_nodes_without_features(tmp_path):
    folder = write(
        tmp_path / "toy",
        nodes="id,label,x,y\na,0,1,3\nb,1,,\nc,1,3,5\n",
        edges="src,dst\na,b\nc,b\n",
    )
    with pytest.raises(InputError, match="1 of 3 nodes have no features, node b for instance"):
        load(folder)
    filled = load(folder, features={"missing": "median"}).features
    assert filled.tolist() == [[1, 0, 3], [2, 1, 4], [3, 0, 5]]  # one indicator: blank together
    assert load(folder, features=("neighbours",)).features.tolist() == [[1, 3], [2, 4], [3, 5]]
    both = load(folder, features=("given", "degree")).features
    assert both[:, :2].tolist() == [[1, 3], [0, 0], [3, 5]]
    assert np.allclose(both[:, 2], np.log1p([0, 2, 0]))
    write(folder, nodes="id,label,x,y\na,0,1,3\nb,1,,4\nc,1,3,5\n")
    with pytest.raises(InputError, match=r"nodes\.csv: column `x` is blank in 1 rows"):
        load(folder)


@pytest.mark.parametrize(
    ("tables", "fields", "message"),
    [
        (
            {"edges": "ann,bob\nbob,007\n"},
            {},
            r"edges\.csv: has the columns ann, bob; .*put the line src,dst before it",
        ),
        (
            {"edges": "from,to\nann,bob\nann,eve\n"},
            {},
            r"edges\.csv: column `to`: row 1 is eve; .* 3 node ids",
        ),
        (
            {"edges": "src,dst\nann,bob\n,bob\n"},
            {},
            r"edges\.csv: column `src`, row 1 is blank; expected a node's id",
        ),
        (
            {"nodes": NODES.replace("bob", "ann")},
            {},
            r"nodes\.csv: column `name`: rows 0 and 1 are both ann; expected each id once",
        ),
        ({"nodes": NODES.replace("bob", "")}, {}, r"nodes\.csv: column `name`, row 1 is blank"),
        (
            {"nodes": NODES.replace("22", "x")},
            {},
            r"nodes\.csv: column `age`, row 1 is 'x'; expected a number",
        ),
        (
            {},
            {"columns": {"id": "nam"}},
            r"columns\.id=nam: no table has such a column",
        ),
        (
            {},
            {"columns": {"id": "name", "label": "clas"}},
            r"columns\.label=clas: no table has such a column: .*subject",
        ),
        (
            {},
            {"columns": {**NAMED["columns"], "weight": "w"}},
            r"columns\.weight=w: .* source, target, weight; set columns",
        ),
        (
            {"labels": "name,subject\nann,x\n"},
            {},
            r"labels\.csv: has label, and so has .*nodes\.csv",
        ),
        (
            {"edges": "source,from,dst\nann,bob,bob\n"},
            {},
            r"has both columns source and from; set columns\.src",
        ),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path, tables, fields, message):
    folder = write(tmp_path / "toy", **{"nodes": NODES, "edges": EDGES} | tables)
    with pytest.raises(InputError, match=message):
        load(folder, **NAMED | fields)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "labels",
            "id,label\nann,x\nbob,y\nann,z\n",
            r"labels\.csv: column `id`: rows 0 and 2 are both ann; expected each id once",
        ),
        (
            "features",
            "id,x\nbob,1\nbob,2\n",
            r"features\.csv: column `id`: rows 0 and 1 are both bob; expected each id once",
        ),
    ],
)
def test_an_id_twice_beside_the_table_of_nodes(tmp_path, name, content, message):
    nodes = "id,label\nann,x\nbob,y\n" if name == "features" else "id,x\nann,1\nbob,2\n"
    folder = write(tmp_path / "toy", nodes=nodes, edges="src,dst\nann,bob\n", **{name: content})
    with pytest.raises(InputError, match=message):
        load(folder)


def test_names_without_a_table_that_has_them(tmp_path):
    folder = write(tmp_path / "toy", nodes="x,label\n1,0\n2,1\n", edges="src,dst\nann,bob\n")
    with pytest.raises(
        InputError, match=r"column `src`, row 0 is 'ann'; .*names need a column `id` in nodes"
    ):
        load(folder)


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": {"id": "x"}},
        {"labels": "multiclass"},
        {"duplicates": "merge"},
        {"unknown": "drop"},
    ],
)
def test_settings_of_tables_mean_nothing_elsewhere(fields):
    with pytest.raises(InputError, match="has no meaning with dataset_name=cora: remove it"):
        datasets.load_graph(dataset_settings("cora", **fields))


PLAIN = "id,label,x\n0,0,1.5\n7,1,2\n14,1,-3\n"
LINKS = "src,dst\n0,7\n7,14\n"


def same_as_plain(folder):
    """Whether a folder is read as the tables above are."""
    graph = load(folder)
    return (
        graph.node_ids.tolist() == [0, 7, 14]
        and graph.labels.tolist() == [0, 1, 1]
        and graph.features.tolist() == [[1.5], [2], [-3]]
        and (graph.src.tolist(), graph.dst.tolist()) == ([0, 1], [1, 2])
    )


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (PLAIN + "\n", LINKS + "\n\r\n"),
        (PLAIN, "src,dst\n0.0,7.0\n7.0,14.0\n"),
        (PLAIN.replace("7,", "7.0,").replace("0,0", "0.0,0").replace("14,", "14.0,"), LINKS),
        (PLAIN.replace("label,x", "label,y").replace(",-3", ",-03"), LINKS),
        ("\ufeff" + PLAIN, "# edges of a toy\n# src,dst\n0,7\n7,14\n"),
        (PLAIN.replace(",", ";").replace(".", ","), LINKS.replace(",", ";")),
        (",id,label,x\n0,0,0,1.5\n1,7,1,2\n2,14,1,-3\n", ",src,dst\n0,0,7\n1,7,14\n"),
        ("id;label;x\n0;0;1,5\n7;1;2e+00\n14;1;-,3E1\n", LINKS.replace(",", ";")),
        ("id;label;x, cm, or, in\n0;0;1,5\n7;1;2\n14;1;-3\n", "src;dst\n0;7\n7;14\n"),
        ("id;x, cm, wide;label\n0;1,5;0,0\n7;2,0;1,0\n14;-3,0;1,0\n", LINKS),
        ('id,"x; a; b; c",label\n0,1.5,0\n7,2,1\n14,-3,1\n', "0;7\n7;14\n"),
    ],
    ids=[
        *("blank-end", "floats", "float-ids", "odd", "comments", "decimal", "index", "exponents"),
        *("commas", "as-many-commas", "semicolons"),
    ],
)
def test_a_csv_as_other_programs_write_it(tmp_path, nodes, edges):
    assert same_as_plain(write(tmp_path / "toy", nodes=nodes, edges=edges))


def test_compressed_files_and_utf_16(tmp_path):
    folder = write(tmp_path / "toy", edges=LINKS.replace(",", "\t"))
    (folder / "nodes.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    assert same_as_plain(folder)
    assert load(folder / "edges.csv").name == "edges"
    (folder / "nodes.csv.gz").write_bytes(gzip.compress(PLAIN.encode())[:-9])
    with pytest.raises(InputError, match=r"nodes\.csv\.gz: not a readable csv table"):
        load(folder)
    (folder / "nodes.csv.gz").unlink()
    (folder / "nodes.csv").write_text(PLAIN.replace(",", "\t"), encoding="utf-16")
    assert same_as_plain(folder)
    (folder / "nodes.csv").write_bytes(PLAIN.replace("x", "ä").encode("latin-1"))
    with pytest.raises(
        InputError, match=r"nodes\.csv: not a readable csv table .*save it as UTF-8"
    ):
        load(folder)


def test_a_list_of_edges_as_snap_has_them(tmp_path):
    folder = write(tmp_path / "toy", labels="id,label\n14,1\n0,0\n")
    head = "# Directed graph: toy\n# Nodes: 3 Edges: 2\n"
    (folder / "edges.txt").write_text(f"{head}# FromNodeId\tToNodeId\n0\t7\n7\t14\n")
    graph = load(folder, features=("degree",))
    assert (graph.node_ids.tolist(), graph.src.tolist()) == ([14, 0, 7], [1, 2])
    (folder / "edges.txt").write_text("0 7\n 7  14\n")
    assert load(folder, features=("degree",)).dst.tolist() == [2, 0]
    (folder / "edges.txt").write_text("0 07\n07 14\n")
    assert load(folder, features=("degree",)).node_names.tolist() == ["14", "0", "07"]


def spark(folder, frame, rows=2):
    """A parquet table in the parts that Spark writes."""
    folder.mkdir(parents=True)
    (folder / "_SUCCESS").touch()
    for part in range(0, len(frame), rows):
        path = folder / f"part-0000{part}.snappy.parquet"
        frame.iloc[part : part + rows].to_parquet(path)
        (folder / f".{path.name}.crc").write_bytes(b"crc")


def test_folders_of_part_files(tmp_path):
    folder = write(tmp_path / "toy", edges=LINKS)
    frame = pd.DataFrame({"id": [0, 7, 14], "label": [0, 1, 1], "x": [1.5, 2, -3]})
    spark(folder / "nodes.parquet", frame)
    assert same_as_plain(folder)
    (folder / "nodes.parquet/part-00009.parquet").mkdir()
    with pytest.raises(
        InputError, match=r"part-00009\.parquet: expected a parquet file, a part of"
    ):
        load(folder)
    (folder / "nodes.parquet/part-00009.parquet").rmdir()
    frame.rename(columns={"x": "y"}).to_parquet(folder / "nodes.parquet/part-00009.parquet")
    with pytest.raises(InputError, match=r"has the columns id, label, y; expected id, label, x"):
        load(folder)


@pytest.mark.parametrize(
    "ids",
    [
        ["00007", "00014", "00021"],
        ["622188820004259028000", "622188820004259028001", "-1"],
        ["NA", "nan", "null"],
        ["7", "07", "7.5"],
        ["+7", "1e3", "1000"],
        ["李明", "7", "李 明"],
    ],
)
def test_ids_are_kept_as_they_are(tmp_path, ids):
    nodes = "id,label,x\n" + "".join(f"{name},{row % 2},1\n" for row, name in enumerate(ids))
    graph = load(write(tmp_path / "toy", nodes=nodes, edges=f"src,dst\n{ids[0]},{ids[2]}\n"))
    assert graph.node_names.tolist() == ids
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0], [2])


@pytest.mark.parametrize(
    ("labels", "names", "classes"),
    [
        (["None", "low", "high", ""], ("None", "high", "low"), [0, 2, 1, -1]),
        (["-1", "low", "high", "NA"], ("NA", "high", "low"), [-1, 2, 1, 0]),
        (["01", "02", "", "10"], ("01", "02", "10"), [0, 1, -1, 2]),
        (["1", "NA", "0", "nan"], None, [1, -1, 0, -1]),
        (["1.0", "", "0.0", "2.0"], None, [1, -1, 0, 2]),
        (["yes", "no", "yes ", "no\t"], ("no", "yes"), [1, 0, 1, 0]),
        (["NA ", "no", "yes ", "NA"], ("NA", "no", "yes"), [0, 1, 2, 0]),
        (["1 ", "0", "1", "NA "], None, [1, 0, 1, -1]),
        (
            ["1582218195625938945", "", "1582218195625938946", "1582218195625938945"],
            (1582218195625938945, 1582218195625938946),
            [0, -1, 1, 0],
        ),
    ],
)
def test_classes_are_kept_as_they_are(tmp_path, caplog, labels, names, classes):
    caplog.set_level(logging.INFO)
    nodes = "id,label,x\n" + "".join(f"{row},{name},1\n" for row, name in enumerate(labels))
    graph = load(write(tmp_path / "toy", nodes=nodes, edges="src,dst\n0,1\n"))
    assert (graph.class_names, graph.labels.tolist()) == (names, classes)
    blank = classes.count(-1)
    assert (f"{blank} of 4 rows have no label" in caplog.text) == bool(blank)


def test_blanks_around_a_class_of_an_array(tmp_path):
    np.savez(tmp_path / "g.npz", src=[0], dst=[1], feat=np.eye(4), label=["b", "b ", " a", " "])
    graph = load(tmp_path / "g.npz")
    assert (graph.class_names, graph.labels.tolist()) == (("a", "b"), [1, 1, 0, -1])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("01 1 2 3", "row 0 is 01, row 1 is 1, the same number in two spellings"),
        ("0 1 inf 1", "row 2 is inf; expected a class: an integer, or a name"),
        ("0 1 1e300 1", r"row 2 is 1e\+?300; expected a class"),
        ("0 1 0.5 1", r"row 2 is 0\.5; expected a class"),
    ],
)
def test_classes_that_cannot_be_told_apart(tmp_path, labels, message):
    nodes = "id,label,x\n" + "".join(f"{row},{name},1\n" for row, name in enumerate(labels.split()))
    with pytest.raises(InputError, match=rf"nodes\.csv: column `label`: {message}"):
        load(write(tmp_path / "toy", nodes=nodes, edges="src,dst\n0,1\n"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": ["1" * 400, "2"]}, r"column `x`, row 0 is '1{50,}\.\.\.; expected a number"),
        ({"x": [[[1.0]], [[2.0]]]}, r"column `x`, row 0 is .*expected a list of numbers"),
        ({"x": [["a"], ["b"]]}, r"column `x`, row 0 is .*expected a list of numbers"),
        ({"x": [[1.0], [1.0, 2.0]]}, r"column `x`, length: row 1 is 2; expected 1, as before"),
        ({"x": [{"a": 1}, {"a": 2}]}, r"column `x`, row 0 is .*; expected a number"),
        ({"x": [b"a", b"b"]}, r"column `x`, row 0 is b'a', of type binary; expected a number"),
        ({"id": [b"a", b"b"]}, r"column `id`, row 0 is b'a', of type binary; expected a number"),
        ({"id": [[1], [2]]}, r"column `id`, row 0 is \[1\], of type list"),
    ],
)
def test_columns_of_parquet_that_cannot_be_read(tmp_path, columns, message):
    folder = write(tmp_path / "toy", edges="src,dst\n")
    frame = pd.DataFrame({"id": [0, 7], "label": [0, 1], "x": [1.0, 2.0], **columns})
    frame.to_parquet(folder / "nodes.parquet")
    with pytest.raises(InputError, match=rf"nodes\.parquet: {message}"):
        load(folder)


@pytest.mark.parametrize(
    "cells",
    [
        ["a", "a", "a"],
        ["a", None, "b"],
        [1, 1, 2],
        [0.5, 0.5, 0.5],
        [True, True, True],
        ["1", "2", "1"],
    ],
)
def test_categories_of_pandas_are_read_as_their_values(tmp_path, cells):
    """A category column with one value ended in a TypeError."""
    read = []
    for kind in ("category", None):
        column = pd.Series(cells).astype(kind) if kind else pd.Series(cells)
        folder = write(tmp_path / f"toy{kind}")
        nodes = pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 1], "x": column})
        nodes.to_parquet(folder / "nodes.parquet")
        edges = pd.DataFrame({"src": [0, 1, 2], "dst": [1, 2, 0], "kind": column})
        edges.to_parquet(folder / "edges.parquet")
        graph = load(folder, features={"scale": "none", "missing": "median"})
        read.append((np.asarray(graph.features).tolist(), np.asarray(graph.edge_feat).tolist()))
    assert read[0] == read[1]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (PLAIN.replace(",", "\t").replace("1.5", "1,5"), "'1,5', a decimal comma or a list; write"),
        (PLAIN.replace(",", "\t").replace("1.5", "1,5e3"), "'1,5e3', a decimal comma or a list"),
        (PLAIN.replace(",", ";").replace("1.5", "1.234,5"), "'1.234,5', a number with a separator"),
    ],
)
def test_decimal_commas_that_may_be_something_else(tmp_path, nodes, message):
    folder = write(tmp_path / "toy", nodes=nodes, edges=LINKS)
    with pytest.raises(InputError, match=rf"nodes\.csv: column `x`, row 0 is {message}"):
        load(folder)


@pytest.mark.parametrize("cells", ["1.234 2,5 3", "3 2,5 1.25", "1.5 2 2,5", "2,5 3 1,5 1.75"])
def test_decimal_points_beside_commas_are_refused(tmp_path, cells):
    nodes = "id;label;x\n" + "".join(
        f"{row};{row % 2};{cell}\n" for row, cell in enumerate(cells.split())
    )
    with pytest.raises(InputError, match=r"nodes\.csv: column `x`.*(decimal|thousands|number)"):
        load(write(tmp_path / "toy", nodes=nodes, edges="src,dst\n0,1\n"))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_texts_of_blanks_are_blank_cells(tmp_path, suffix):
    """Parquet keeps the empty texts that a csv reads as missing."""
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n")
    table = pd.DataFrame({"id": range(4), "label": [0, 1, 0, 1], "town": ["a", "  ", "", "a "]})
    table["size"] = ["1", "", " ", "3"]
    if suffix == "csv":
        table.to_csv(folder / "nodes.csv", index=False)
    else:
        table.to_parquet(folder / "nodes.parquet")
    graph = load(folder, features={"missing": "zero"})
    assert graph.features.tolist() == [[1, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 3]]  # a, blank, size


@pytest.mark.parametrize(
    "cells",
    [
        ["2,5", "1,2e-05", "-0,5"],
        ["1 234,5", "12 000", "1 500,25"],
        ["1'234.50", "12'000.00", "1'500.25"],
        ["1,234.5", "12,000", "1,500.25"],
        ["1\u202f234", "12\u202f000", "1\u202f500"],
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_numbers_in_another_notation_are_no_categories(tmp_path, cells, suffix):
    folder = write(tmp_path / "toy", edges="src,dst\n0,1\n")
    table = pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 0], "x": cells})
    if suffix == "csv":
        table.to_csv(folder / "nodes.csv", index=False)
    else:
        table.to_parquet(folder / "nodes.parquet")
    expected = re.escape(f"nodes.{suffix}: column `x`, row 0 is {cells[0]!r}, a ")
    with pytest.raises(InputError, match=expected):
        load(folder)
    graph = load(folder, columns={"categorical": ("x",)})
    assert graph.features.tolist() == np.eye(3)[np.argsort(np.argsort(cells))].tolist()


def test_a_row_of_decimal_commas_is_no_header(tmp_path):
    folder = write(tmp_path / "toy", nodes=PLAIN, edges="0;7;1,5\n7;14;2,5\n")
    with pytest.raises(InputError, match="has the columns 0, 1, 2; expected src and dst"):
        load(folder)


@pytest.mark.parametrize(
    "nodes", ["id,label,x\n0,0,1\n7,1,2\n14,1,3\n", "id,label,x\na,0,1\nb,1,2\nc,1,3\n"]
)
def test_edges_of_unknown_nodes_are_dropped_on_request(tmp_path, caplog, nodes):
    first, _, last = (line.split(",")[0] for line in nodes.splitlines()[1:])
    edges = (
        f"src,dst,weight,since\n{first},{last},2,2001\n{last},9001,3,2002\n"
        f"x9,{first},4,2003\n{last},{first},5,2004\n"
    )
    if first == "0":
        edges = edges.replace("x9", "9002")
    folder = write(tmp_path / "toy", nodes=nodes, edges=edges)
    with pytest.raises(
        InputError, match=r"row . is \w+; expected one of the 3 node ids; edges\.unknown=drop"
    ):
        load(folder)
    graph = load(folder, unknown="drop", columns={"time": "since"})
    assert (graph.src.tolist(), graph.dst.tolist()) == ([0, 2], [2, 0])
    assert (graph.edge_weight.tolist(), graph.edge_time.tolist()) == ([2, 5], [2001, 2004])
    assert "2 of 4 edges have an end that is no node, the first in row 1: left out" in caplog.text
    graph = load(folder, unknown="add", features=("neighbours",))
    assert graph.num_nodes == 5
    assert graph.src.tolist() == [0, 2, 3, 2]
    assert "2 nodes that only edges name are added" in caplog.text


def test_edges_of_unknown_rows_are_dropped_on_request(tmp_path):
    folder = write(tmp_path / "toy", nodes="label,x\n0,1\n1,2\n", edges="src,dst\n0,1\n2,0\n1,-1\n")
    with pytest.raises(InputError, match=r"row 1 is 2; expected a node in \[0, 2\)"):
        load(folder)
    assert load(folder, unknown="drop").src.tolist() == [0]


@pytest.mark.parametrize("weight", ["1e-50", "1e-19", "true", "1e30", "-1e-50"])
@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_weights_are_tested_before_they_are_rounded(tmp_path, form, weight):
    """1e-50 would become 0 in float32, and true 1."""
    (tmp_path / "nodes.csv").write_text("id,label,x\n0,0,1\n1,1,2\n")
    values = [True, True] if weight == "true" else [2.0, float(weight)]
    edges = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "weight": values})
    if form == "csv":
        edges.to_csv(tmp_path / "edges.csv", index=False)
    elif form == "parquet":
        edges.to_parquet(tmp_path / "edges.parquet")
    else:
        ends = edges.src.to_numpy(), edges.dst.to_numpy()
        arrays = {"feat": np.eye(2), "label": np.arange(2), "edge_weight": edges.weight}
        np.savez(tmp_path / "graph.npz", src=ends[0], dst=ends[1], **arrays)
    row, shown = (0, "True") if weight == "true" else (1, repr(float(weight)))
    message = (
        rf"weight`.* row {row} is '?{shown.replace('+', '.')}'?; expected (0, or a weight|a num)"
    )
    with pytest.raises(InputError, match=message):
        load(tmp_path / "graph.npz" if form == "npz" else tmp_path)


@pytest.mark.parametrize("other", ["2", " 2"])
def test_a_weight_too_small_for_float64_is_not_0(tmp_path, other):
    edges = f"src,dst,weight\n0,1,{other}\n1,0,1e-400\n"
    folder = write(tmp_path / "toy", nodes="id,label,x\n0,0,1\n1,1,2\n", edges=edges)
    with pytest.raises(InputError, match=r"`weight`.* row 1 is 5e-324; expected 0, or a weight"):
        load(folder)


def test_a_time_that_python_cannot_show_is_named(tmp_path):
    folder = write(tmp_path / "toy", nodes=NODES)
    edges = pd.DataFrame({"source": ["ann"], "target": ["bob"]})
    far = np.array([2**53], "datetime64[s]")
    edges.assign(weight=far).to_parquet(folder / "edges.parquet")
    with pytest.raises(InputError, match="`weight`, row 0 is 9007199254740992"):
        load(folder, **NAMED)


def test_lists_of_lists_are_no_classes(tmp_path):
    folder = write(tmp_path / "toy", edges=EDGES)
    nodes = pd.DataFrame({"name": ["ann", "bob", "007"], "subject": [[[1]], [[2]], [[1]]]})
    nodes.to_parquet(folder / "nodes.parquet")
    with pytest.raises(InputError, match=r"`subject`, row 0 is .*of type list"):
        load(folder, **NAMED)
