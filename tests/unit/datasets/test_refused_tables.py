"""Folders of tables that cannot be used are refused, by file, row, value and remedy."""

import gzip
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from graph_files import load, write_files
from support import dataset_settings

from partitioning import datasets
from partitioning.errors import InputError

NODES = "id,label,x\n0,0,1.5\n7,1,2\n14,1,-3\n"
EDGES = "src,dst\n0,7\n7,14\n"
FRAME = pd.DataFrame({"id": [0, 7], "label": [0, 1], "x": [1.0, 2.0]})
MASKED = "id,label,x,train_mask,val_mask,test_mask\n0,0,1,1,0,0\n"
PEOPLE = {
    "nodes.csv": "name,age,subject\nann,31,art\nbob,22,\n007,44,law\n",
    "edges.csv": "source,target,weight\nann,bob,2\nbob,007,0.5\n",
}
NAMED = {"columns": {"id": "name", "label": "subject"}}
# Tables by row numbers, with a column or a file for everything.
ROWS = {
    "edges.csv": "src,dst\n0,1\n1,2\n2,3\n",
    "features.npy": np.arange(8, dtype=np.float32).reshape(4, 2),
    "labels.csv": "label\n0\n2\n-1\n1\n",
    "train.npy": np.array([0]),
    "val.npy": np.array([False, True, False, False]),
    "test.csv": "3\n",
}
HOUSES = {
    "edges.csv": "src,dst\nh0,h1\nh1,h2\n",
    "nodes.csv": "id,rooms,price\nh0,3,120.5\nh1,4,\nh2,2,90\n",
}


def refused(group, cases):
    """Cases of (files, fields, message), each named by its message."""
    return [pytest.param(*case, id=f"{group}: {case[-1]}") for case in cases]


def of_column(cells, sep=";"):
    """A table of nodes with a column x."""
    rows = [f"{row}{sep}{row % 2}{sep}{cell}\n" for row, cell in enumerate(cells)]
    return sep.join(["id", "label", "x\n"]) + "".join(rows)


def dated(*cells):
    rows = [f"{row},{row % 2},1,{cell}\n" for row, cell in enumerate(cells)]
    return {"nodes.csv": "id,label,x,day\n" + "".join(rows), "edges.csv": "src,dst\n0,1\n"}


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        *refused(
            "files",
            [
                ({"payments.csv": "src,dst\n0,1\n"}, {}, r"found payments\.csv: rename"),
                (
                    {"nodes.csv": MASKED.replace("x", "is_train"), "edges.csv": EDGES},
                    {},
                    "has both columns train_mask and is_train, the same mask",
                ),
                (
                    {"nodes.csv": NODES.replace("label", "x"), "edges.csv": EDGES},
                    {},
                    "has the column `x` more than once; rename one",
                ),
                (
                    ROWS | {"edges.parquet": "rubbish"},
                    {},
                    "found edges.csv, edges.parquet; expected one of them",
                ),
                (ROWS | {"edges.csv": ""}, {}, "edges.csv: not a readable csv table"),
                (
                    {"nodes.csv": NODES.replace("x", "ä").encode("latin-1"), "edges.csv": EDGES},
                    {},
                    r"nodes\.csv: not a readable csv table .*save it as UTF-8",
                ),
                (
                    {"nodes.csv.gz": gzip.compress(NODES.encode())[:-9], "edges.csv": EDGES},
                    {},
                    r"nodes\.csv\.gz: not a readable csv table",
                ),
                (
                    ROWS | {"edges.csv": b"PK\x03\x04\x00\xff"},
                    {},
                    r"edges\.csv: is a zip archive; unpack",
                ),
                (
                    ROWS | {"edges.csv": gzip.compress(EDGES.encode())},
                    {},
                    r"edges\.csv: is a gzip archive; unpack it",
                ),
                (
                    {"nodes.csv.gz": gzip.compress(b"a," * 9_000_000), "edges.csv": EDGES},
                    {},
                    r"nodes\.csv\.gz: has a line of more than 16,777,216",
                ),
                (
                    {"edges.parquet/part-0.parquet": FRAME, "edges.parquet/part-1.parquet/x": ""},
                    {},
                    r"part-1\.parquet: expected a parquet file, a part of",
                ),
                (
                    {
                        "edges.csv": EDGES,
                        "nodes.parquet/part-0.parquet": FRAME,
                        "nodes.parquet/part-1.parquet": FRAME.rename(columns={"x": "y"}),
                    },
                    {},
                    r"has the columns id, label, y; expected id, label, x",
                ),
                *(
                    (
                        {
                            "nodes.csv": NODES,
                            f"edges.parquet/{log}/x": "",
                            "edges.parquet/part-0.parquet": FRAME,
                        },
                        {},
                        f"has {log}, .*write it as one table",
                    )
                    for log in ("_delta_log", ".hoodie", "metadata")
                ),
                (
                    {
                        "nodes.csv": NODES,
                        "features.npz": sp.coo_array(np.eye(3)),
                        "edges.csv": EDGES,
                    },
                    {},
                    r"features\.npz: its format is coo; expected a CSR matrix",
                ),
                (
                    ROWS | {"features.npy": "rubbish"},
                    {},
                    "features.npy: (not a readable npy array|holds Python objects)",
                ),
                (ROWS | {"features.npy": np.float32(1)}, {}, r"features\.npy: .*one row per node"),
                (
                    {
                        "nodes.csv": "id,label\na,0\nb,1\n",
                        "features.npy": np.ones((3, 3)),
                        "edges.csv": "src,dst\na,b\n",
                    },
                    {},
                    r"features.npy: has 3 rows, and .*nodes.csv has 2",
                ),
            ],
        ),
        *refused(
            "edges",
            [
                (
                    ROWS | {"edges.csv": "src,dst\n0,1\n1,9\n"},
                    {},
                    "edges.csv: column `dst`: row 1 is 9",
                ),
                (
                    ROWS | {"edges.csv": "src,dst\n0,1\n1,x\n"},
                    {},
                    "column `dst`, row 1 is 'x'; expected a number",
                ),
                (
                    ROWS | {"edges.csv": "src,dst\n0,1\n1,\n"},
                    {},
                    "column `dst`, row 1 is blank; expected a number",
                ),
                (ROWS | {"edges.csv": "src,dst\n0,1\n1,1.5\n"}, {}, "row 1 is 1.5"),
                (
                    ROWS | {"edges.csv": "a,dst\n0,1\n"},
                    {},
                    "has the columns a, dst; expected src and dst",
                ),
                (
                    ROWS | {"edges.csv": "a,b\n0,1\n"},
                    {},
                    "has the columns a, b; expected src and dst",
                ),
                (ROWS | {"edges.csv": "0,1,5\n"}, {}, "expected src and dst"),
                (
                    ROWS | {"edges.csv": "0;7;1,5\n7;14;2,5\n"},  # decimal commas are no header
                    {},
                    "has the columns 0, 1, 2; expected src and dst",
                ),
                (ROWS | {"edges.csv": "src,dst\n0,1,2,3\n4\n5,6,7,8,9,1\n"}, {}, "edges.csv"),
                (
                    ROWS | {"edges.csv": "src,dst\n0,1,2\n1,2,3\n"},
                    {},
                    "second line has 3 cells, the first has 2",
                ),
                (ROWS | {"edges.csv": "0,1\n0,1,2\n1,2,3\n"}, {}, "edges.csv.*cells"),
                (
                    PEOPLE | {"edges.csv": "ann,bob\nbob,007\n"},
                    NAMED,
                    r"edges\.csv: has the columns ann, bob; .*put the line src,dst before it",
                ),
                (
                    PEOPLE | {"edges.csv": "from,to\nann,bob\nann,eve\n"},
                    NAMED,
                    r"edges\.csv: column `to`: row 1 is eve; .* 3 node ids; edges\.unknown=drop",
                ),
                (
                    PEOPLE | {"edges.csv": "from,to\nann,bob\nann,bob \n"},
                    NAMED,
                    r"row 1 is bob ; .* 3 node ids; 'bob' is another one: write it in the same way",
                ),
                (
                    {
                        "nodes.csv": "id,x,label\n007,1,0\n012,2,1\nB,0,1\n",
                        "edges.csv": "src,dst\n7,12\nb,007\n",
                    },
                    {},
                    r"row 0 is 7; .* 3 node ids; '007' is another one: write it in the same way",
                ),
                (
                    {
                        "nodes.csv": "id,x,label\n1,1,0\n2,2,1\n",
                        "edges.csv": "src,dst\n1,2\n2,0001\n",
                    },
                    {},
                    r"edges\.csv: column `dst`, row 1 is '0001', .* leading zeros; .* 2 node ids",
                ),
                (
                    {
                        "nodes.csv": "id,x,label\n1E+05,1,0\n2E+05,2,1\n",
                        "edges.csv": "src,dst\n100000,200000\n",
                    },
                    {},
                    r"row 0 is 100000; .*'1E\+05' is another one: write it in the same way",
                ),
                *(
                    (
                        {
                            "nodes.csv": f"id,x,label\n{known},1,0\nB,2,1\n",
                            "edges.csv": f"src,dst\n{unknown},B\n",
                        },
                        {},
                        f"row 0 is {unknown}; expected one of the 2 node ids; edges.unknown=drop",
                    )
                    for known, unknown in (
                        ("1e999999999999999999999", "1e9999999"),
                        ("12345678901234567891", "12345678901234567892"),
                    )
                ),
                (
                    PEOPLE | {"edges.csv": "src,dst\nann,bob\n,bob\n"},
                    NAMED,
                    r"edges\.csv: column `src`, row 1 is blank; expected a node's id",
                ),
                (
                    PEOPLE | {"edges.csv": "source,from,dst\nann,bob,bob\n"},
                    NAMED,
                    r"has both columns source and from; set columns\.src",
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": "src,dst\n0,7\n7,9\n"},
                    {},
                    r"row 1 is 9; expected one of the 3 node ids; edges\.unknown=drop",
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": "src,dst\n0,7\n7,9\n"},
                    {"split.kind": "none"},
                    r"row 1 is 9; .* old ones as well.* model\.predict\(new=.*; edges\.unknown",
                ),
                (
                    {"nodes.csv": "label,x\n0,1\n1,2\n", "edges.csv": "src,dst\n0,1\n2,0\n"},
                    {},
                    r"row 1 is 2; expected a node in \[0, 2\)",
                ),
                (
                    {"nodes.csv": "x,label\n1,0\n2,1\n", "edges.csv": "src,dst\nann,bob\n"},
                    {},
                    r"column `src`, row 0 is 'ann'; .*names need a column `id` in nodes",
                ),
            ],
        ),
        *refused(
            "weights",
            [
                *(
                    (
                        {"nodes.csv": NODES, "edges.csv": f"src,dst,weight\n0,7,2\n7,0,{weight}\n"},
                        {},
                        rf"weight`.* row 1 is {shown}; expected 0, or a weight",
                    )
                    for weight, shown in (
                        ("1e-50", "1e-50"),  # 0 in float32
                        ("1e-19", "1e-19"),
                        ("1e30", r"1e\+30"),
                        ("-1e-50", "-1e-50"),
                        ("1e-400", "5e-324"),  # 0 in float64
                    )
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": "src,dst,weight\n0,7, 2\n7,0,1e-400\n"},
                    {},
                    "`weight`: row 1 is 5e-324; expected 0, or a weight",
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": "src,dst,weight\n0,7,true\n7,0,true\n"},
                    {},
                    "`weight`, row 0 is 'true'; expected a num",
                ),
                *(
                    (
                        {
                            "nodes.csv": NODES,
                            "edges.parquet": pd.DataFrame(
                                {"src": [0], "dst": [7], "weight": weight}
                            ),
                        },
                        {},
                        message,
                    )
                    for weight, message in (
                        ([True], "`weight`: row 0 is True; expected 0, or a weight"),
                        ([1e-50], "`weight`: row 0 is 1e-50; expected 0, or a weight"),
                        (
                            np.array([2**53], "datetime64[s]"),  # which Python cannot show
                            "`weight`, row 0 is 9007199254740992",
                        ),
                    )
                ),
            ],
        ),
        *refused(
            "ids",
            [
                (
                    PEOPLE | {"nodes.csv": PEOPLE["nodes.csv"].replace("bob", "ann")},
                    NAMED,
                    r"nodes\.csv: column `name`: rows 0 and 1 are both ann; expected each id once",
                ),
                (
                    PEOPLE | {"nodes.csv": PEOPLE["nodes.csv"].replace("bob", "")},
                    NAMED,
                    r"nodes\.csv: column `name`, row 1 is blank",
                ),
                (
                    {
                        "labels.csv": "id,label\n0,0\n7,1\n",
                        "features.csv": "id,x\n7,1\n7,2\n",
                        "edges.csv": "src,dst\n0,7\n",
                    },
                    {},
                    r"features\.csv: column `id`: rows 0 and 1 are both 7; expected each id once",
                ),
                (
                    {
                        "nodes.csv": "id,x\nann,1\nbob,2\n",
                        "labels.csv": "id,label\nann,x\nbob,y\nann,z\n",
                        "edges.csv": "src,dst\nann,bob\n",
                    },
                    {},
                    r"labels\.csv: column `id`: rows 0 and 2 are both ann; expected each id once",
                ),
                (
                    ROWS | {"labels.csv": "id,label\n0,0\n1,1\n1,1\n3,1\n"},
                    {},
                    "column `id`: rows 1 and 2 are both 1",
                ),
                (
                    ROWS | {"labels.csv": "id,label\n5,0\n6,1\n7,1\n8,1\n"},
                    {},
                    "edges.csv: column `src`: row 0 is 0; expected one of the 4",
                ),
                *(
                    (
                        {
                            name: pd.DataFrame(
                                {"rank": [2, 0, 1], "label": [0, 1, 1], "x": [1, 2, 3]}
                            ),
                            "edges.csv": "src,dst\n0,1\n1,2\n",
                        },
                        {},
                        r"set columns\.id=rank, or columns\.numeric=rank",
                    )
                    for name in ("nodes.csv", "nodes.parquet")
                ),
                *(
                    (
                        {
                            "nodes.parquet": FRAME.assign(id=np.array([limit, limit + 2], kind)),
                            "edges.parquet": pd.DataFrame(
                                {"src": np.array([limit + 1], dtype), "dst": [limit]}
                            ),
                        },
                        {},
                        rf"{table}\.parquet: .*row 0 is {limit}.*a {dtype} that several integers",
                    )
                    for table, kind, dtype, limit in (
                        ("edges", "int64", "float32", 2**24),
                        ("edges", "int64", "float64", 2**53),
                        ("nodes", "float64", "float64", 2**53),
                    )
                ),
                (
                    {
                        "nodes.csv": "key,uid,label,x\n1,2,0,1\n0,1,0,2\n2,0,0,3\n",
                        "edges.csv": "src,dst\n0,1\n",
                    },
                    {},
                    r"the edges may refer to `key` or to `uid`; set columns\.id",
                ),
            ],
        ),
        *refused(
            "labels",
            [
                (
                    PEOPLE | {"labels.csv": "name,subject\nann,x\n"},
                    NAMED,
                    r"labels\.csv: has label, and so has .*nodes\.csv",
                ),
                (
                    ROWS | {"labels.csv": "a,b\n0,x\n1,1\n1,0\n1,1\n"},
                    {},
                    "labels.csv: column `b`, row 0 is 'x'; expected a number",
                ),
                (
                    ROWS | {"labels.csv": "label\n0\n1\n1\n"},
                    {},
                    r"labels\.csv: has 3 rows, and .*features\.\w+ has 4; expected as many",
                ),
                (ROWS | {"labels.csv": "id\n0\n1\n2\n3\n"}, {}, "no column besides the ids"),
                *(
                    (
                        ROWS | {"labels.csv": "label\n" + "\n".join(labels.split())},
                        {},
                        rf"labels\.csv: column `label`: {message}",
                    )
                    for labels, message in (
                        ("01 1 2 3", "row 0 is 01, row 1 is 1, the same number in two spellings"),
                        ("0 1 inf 1", "row 2 is inf; expected a class"),
                        ("0 1 1e300 1", r"row 2 is 1e\+?300; expected a class"),
                        ("0 1 0.5 1", r"row 2 is 0\.5; expected a class"),
                    )
                ),
                *(
                    (
                        {
                            "edges.csv": "src,dst\n0,1\n",
                            "nodes.csv": of_column(cells).replace("label;x", "x;label"),
                        },
                        {},
                        r"column `label`: row \d is \S+, row \d is \S+; expected one spelling",
                    )
                    for cells in (["True", "False", "", "1", "0"], ["1.0", "", "false", ""])
                ),
                (
                    {
                        "nodes.csv/part-0.csv": "id,x,label\n0,1,0\n1,1,1\n",
                        "nodes.csv/part-1.csv": "id,x,label\n2,1,\n3,1,TRUE\n",
                        "edges.csv": "src,dst\n0,1\n",
                    },
                    {},
                    r"column `label`: row \d is \S+, row \d is \S+; expected one spelling of",
                ),
                (
                    {
                        "nodes.parquet": FRAME.assign(label=[[[1]], [[2]]]),
                        "edges.csv": EDGES,
                    },
                    {},
                    "`label`, row 0 is .*of type list",
                ),
                (
                    {"nodes.parquet": FRAME.assign(label=[0, np.inf]), "edges.csv": EDGES},
                    {"unknown": "drop"},
                    "`label`: row 1 is inf; expected a class",
                ),
                (
                    {
                        "nodes.parquet": FRAME.assign(label=[["a"], ["b, c", "a"]]),
                        "edges.csv": "src,dst\n0,7\n",
                    },
                    {"labels": "multilabel"},
                    "`label`, row 1 is .*write labels without",
                ),
                (
                    {
                        "features.csv": "x\n1\n2\n3\n",
                        "labels.csv": "u,v\n1,0\n1,1\n1,0\n",
                        "edges.csv": "0,1\n",
                    },
                    {"labels": "multiclass"},
                    r"labels\.csv: number of ones: row 1 is 2\.0; expected one",
                ),
                (
                    {
                        "features.csv": "x\n1\n2\n",
                        "labels.csv": "t_a,t_b\n1,0\n1,2\n",
                        "edges.csv": "0,1\n",
                    },
                    {"columns": {"label": ("t_*",)}},
                    r"labels\.csv: row 1, column t_b is 2.*expected 0 or 1",
                ),
                *(
                    (
                        {"nodes.parquet": FRAME.assign(label=cells), "edges.csv": "src,dst\n0,7\n"},
                        {"labels": kind},
                        r"column `label`: .*label.* 0 .*columns\.label=\[NAME,NAME\]",
                    )
                    for kind, cells in (
                        ("auto", [[0, 1, 0], [1, 0, 0]]),
                        ("multilabel", [[0, 1, 0], [1, 0, 0]]),
                        ("auto", ["[0, 1, 0]", "[1, 0, 0]"]),
                        ("multilabel", ["0;1;0", "1;0;0"]),
                        ("multilabel", [[0, 1], [1, 0]]),
                    )
                ),
                (
                    {
                        "features.csv": "x\n1\n2\n",
                        "labels.csv": "u,v\n1,0\n1,\n",
                        "edges.csv": "0,1\n",
                    },
                    {"labels": "multiclass"},
                    r"number of ones: row 1 is nan; expected one",
                ),
                (
                    {
                        "features.csv": "x\n1\n2\n3\n",
                        "labels.csv": "u\n1\n1\n0\n",
                        "edges.csv": "0,1\n",
                    },
                    {"labels": "multilabel"},
                    r"labels=multilabel: .*labels\.csv: column `u` has one column",
                ),
            ],
        ),
        *refused(
            "targets",
            [
                *(
                    (
                        {
                            **HOUSES,
                            "nodes.csv": f"id,price,x\nh0,{prices[0]},3\nh1,{prices[1]},4\nh2,,2\n",
                        },
                        {"task": "node_regression", "columns": {"label": "price"}, **fields},
                        message,
                    )
                    for prices, fields, message in (
                        (("1", "cheap"), {}, "column `price`, row 1 is 'cheap'; expected a number"),
                        (
                            ("1", "1e20"),
                            {},
                            r"row 1, column price is 1e\+20; expected a number below",
                        ),
                        (("", ""), {}, "column price is blank at every node"),
                        (("1", "2"), {"labels": "multiclass"}, "labels=multiclass"),
                        (
                            ("120.5", "2"),
                            {"task": "node_classification"},
                            "row 0 is 120.5; .*task=node_regression",
                        ),
                    )
                ),
                (
                    {
                        "features.npy": np.ones((5000, 1)),
                        "labels.npy": np.arange(5000) * 7.0,
                        "edges.csv": "0,1\n",
                    },
                    {},
                    r"5000 different labels .*task=node_regression",
                ),
            ],
        ),
        *refused(
            "splits",
            [
                *(
                    (
                        {
                            "nodes.csv": f"{MASKED}7,1,2,{cell},1,0\n",
                            "edges.csv": EDGES.replace("14", "0"),
                        },
                        {},
                        rf"column `train_mask`[,:] row 1 is {shown}; expected True or False",
                    )
                    for cell, shown in (("2", "2"), ("0.5", "0.5"), ("maybe", "'maybe'"))
                ),
                (
                    {
                        "nodes.csv": "id,label,split,train_mask\na,0,train,1\nb,1,test,0\n",
                        "edges.csv": "src,dst\na,b\n",
                    },
                    {},
                    r"both `split` and `train_mask`; .*columns.ignore=split",
                ),
                *(
                    (
                        {"nodes.csv": nodes, "edges.csv": "src,dst\na,b\n", "train.csv": "id\nb\n"},
                        {},
                        r"train\.csv: .*nodes\.csv.* is the split, too; take one",
                    )
                    for nodes in (
                        "id,label,split\na,0,train\nb,1,val\n",
                        "id,label,train_mask,val_mask\na,0,1,0\nb,1,0,1\n",
                    )
                ),
                (
                    {
                        "edges.csv": "src,dst\na,b\n",
                        "train.csv": "a,b\n",
                        "labels.csv": "id,label\na,0\nb,1\n",
                    },
                    {"features": ("degree",)},
                    r"train\.csv: has 2 columns",
                ),
                (ROWS | {"train.npy": None}, {}, "train.npy or train.csv: `train_mask` is missing"),
                (
                    {
                        "nodes.csv": "id,label,x,test_mask\n0,0,1,1\n7,1,2,0\n14,1,3,0\n",
                        "edges.csv": EDGES,
                    },
                    {},
                    "`train_mask` is missing",
                ),
                (ROWS | {"test.csv": "7\n"}, {}, "test.csv: row 0 is 7"),
                (ROWS | {"test.csv": "node\n7\n"}, {}, "test.csv: row 0 is 7;"),
            ],
        ),
        *refused(
            "features",
            [
                (ROWS | {"features.npy": None}, {}, "no node has features; set features=degree"),
                (
                    {
                        "nodes.csv": "id,label,x,y\na,0,1,3\nb,1,,\nc,1,3,5\n",
                        "edges.csv": "src,dst\na,b\n",
                    },
                    {},
                    "1 of 3 nodes have no features, node b for instance",
                ),
                (
                    {
                        "nodes.csv": "id,label,x,y\na,0,1,3\nb,1,,4\nc,1,3,5\n",
                        "edges.csv": "src,dst\na,b\n",
                    },
                    {},
                    r"nodes\.csv: column `x` is blank in 1 rows.*features\.missing=median",
                ),
                (
                    {
                        "nodes.parquet": FRAME.assign(x=pd.to_datetime([0, 1])),
                        "edges.csv": "src,dst\n0,7\n",
                    },
                    {},
                    "no node has features: `x` is left out, a date: columns.date=x",
                ),
                (
                    {
                        "nodes.parquet": FRAME.assign(x=pd.interval_range(0, 2)),
                        "edges.csv": "src,dst\n0,7\n",
                    },
                    {},
                    "column `x`, row 0 is .* of type struct.*columns.ignore=x leaves it out",
                ),
                (
                    {
                        "nodes.parquet": FRAME.assign(
                            x=pd.Series([[], []], dtype=pd.ArrowDtype(pa.list_(pa.int64())))
                        ),
                        "edges.csv": "src,dst\n0,7\n",
                    },
                    {"features.missing": "median"},
                    "no node has features: `x` is left out, blank in every row",
                ),
                (
                    {"nodes.csv": of_column(["", ""], ","), "edges.csv": "src,dst\n0,1\n"},
                    {"features.missing": "median"},
                    "no node has features: `x` is left out, blank in every row",
                ),
                (
                    {"nodes.csv": of_column(["1", "?"], ","), "edges.csv": "src,dst\n0,1\n"},
                    {},
                    r"column `x`, row 1 is '\?'.*columns\.categorical=x",
                ),
                (
                    {"nodes.csv": of_column(["inf", "2"], ","), "edges.csv": "src,dst\n0,1\n"},
                    {},
                    "column `x`, row 0 is inf; expected a finite",
                ),
                (
                    {
                        "nodes.csv": of_column([f"text {row}" for row in range(12)], ","),
                        "edges.csv": "src,dst\n0,1\n",
                    },
                    {},
                    r"`x`: 12 different texts in 12 rows(?!.*columns\.id=).*columns\.ignore=x",
                ),
                (
                    {
                        "nodes.csv": "label,x\n"
                        + "".join(f"0,no {n // 2 * 2}\n" for n in range(21)),
                        "edges.csv": "src,dst\n0,1\n",
                    },
                    {},
                    r"`x`: 11 different texts in 21 rows.*columns\.ignore=x .*columns\.id=x",
                ),
                *(
                    (
                        {"nodes.parquet": FRAME.assign(**{name: cells}), "edges.csv": "src,dst\n"},
                        {},
                        rf"nodes\.parquet: column `{name}`, {message}",
                    )
                    for name, cells, message in (
                        ("x", ["1" * 400, "2"], r"row 0 is '1{50,}\.\.\.; expected a number"),
                        ("x", [[[1.0]], [[2.0]]], "row 0 is .*expected a list of numbers"),
                        ("x", [["a"], ["b"]], "row 0 is .*expected a list of number"),
                        ("x", [[1.0], [1.0, 2.0]], "length: row 1 is 2; .*columns.ignore=x"),
                        ("x", [[], []], r"row 0 is \[\]; .*columns.ignore=x"),
                        ("x", [{"a": 1}, {"a": 2}], "row 0 is .* or columns.ignore=x"),
                        ("x", [b"a", b"b"], "row 0 is b'a', of type binary; .*columns.ignore=x"),
                        ("id", [b"a", b"b"], "row 0 is b'a', of type binary; expected a number"),
                        ("id", [[1], [2]], r"row 0 is \[1\], of type list"),
                    )
                ),
                *(
                    (
                        {"nodes.csv": of_column(cells), "edges.csv": "src,dst\n0,1\n"},
                        {"columns": {"embedding": ("x",)}},
                        "column `x`, row 0 is .*expected as many numbers in each",
                    )
                    for cells in (["[1, 2]", "[1]", "[2, 3]"], ["a b", "c d", "e f"])
                ),
                *(
                    (
                        {"nodes.csv": of_column(cells, sep), "edges.csv": "src,dst\n0,1\n"},
                        {},
                        rf"nodes\.csv: column `x`, row 0 is {message}",
                    )
                    for cells, sep, message in (
                        (["1,5", "2", "-3"], "\t", "'1,5', a decimal comma or a list; write"),
                        (["1,5e3", "2", "-3"], "\t", "'1,5e3', a decimal comma or a list"),
                        (["1.234,5", "2", "-3"], ";", "'1.234,5', a number with a separator"),
                    )
                ),
                *(
                    (
                        {"nodes.csv": of_column(cells.split()), "edges.csv": "src,dst\n0,1\n"},
                        {},
                        r"nodes\.csv: column `x`.*(decimal|thousands|number)",
                    )
                    for cells in ("1.234 2,5 3", "3 2,5 1.25", "1.5 2 2,5", "2,5 3 1,5 1.75")
                ),
                *(
                    (
                        {
                            name: pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 0], "x": cells}),
                            "edges.csv": "src,dst\n0,1\n",
                        },
                        {},
                        re.escape(f"{name}: column `x`, row 0 is {cells[0]!r}, a "),
                    )
                    for name in ("nodes.csv", "nodes.parquet")
                    for cells in (
                        ["2,5", "1,2e-05", "-0,5"],
                        ["1 234,5", "12 000", "1 500,25"],
                        ["1'234.50", "12'000.00", "1'500.25"],
                        ["1,234.5", "12,000", "1,500.25"],
                        ["1\u202f234", "12\u202f000", "1\u202f500"],
                    )
                ),
            ],
        ),
        *refused(
            "dates",
            [
                *(
                    (dated(*cells), {"columns": {"time": "day"}}, f"column `day`.*{message}")
                    for cells, message in (
                        (
                            ["01/02/2024", "02/03/2024"],
                            "'01/02/2024' may have the day or the month first.*write 2",
                        ),
                        (
                            ["13/01/2024", "01/13/2024"],
                            "row 1 is '01/13/2024'; expected the day first, as in '13",
                        ),
                        (
                            ["13/01/2024", *[""] * 6, "1/13/2024"],
                            "row 7 is '1/13/2024'; expected the day first",
                        ),
                        (["1.1.2024", "30.02.2024"], r"row 1 is '30\.02\.2024'; expected a date"),
                        (["30/02/2024", "1/1/2024"], "row 0 is '30/02/2024'; expected a date"),
                        (
                            ["01.02.24", "02.02.24"],
                            r"row 0 is '01\.02\.24'; expected a date.*four digits",
                        ),
                        (["2024-01-01", "now"], "row 1 is 'now'; expected a date"),
                        (["2024-01-01", "", "", "", "", "17"], "row 5 is '?17.*'; expected a date"),
                        (
                            ["17", "18", "19", "20", "2024-01-01"],
                            "row 4 is '2024-01-01'; expected a number, as in",
                        ),
                        (
                            ["2024-01-01 25:00", "2024-01-01"],
                            "row 0 is '2024-01-01 25:00'; expected a date",
                        ),
                    )
                ),
                (
                    dated("1.1.2024", "30.02.2024"),
                    {"columns": {"date": ["day"]}},
                    r"column `day`.* row 1 is '30\.02\.2024'; expected a date",
                ),
                (
                    {
                        "nodes.csv": NODES,
                        "edges.csv": "src,dst,day\n0,7,1.1.2024\n7,0,30.02.2024\n",
                    },
                    {"columns": {"time": "day"}},
                    r"edges\.csv: column `day`.* row 1 is '30\.02\.2024'; expected a date",
                ),
            ],
        ),
        *refused(
            "columns",
            [
                (
                    PEOPLE,
                    {"columns": {"id": "nam"}},
                    r"columns\.id=nam: no table has such a column",
                ),
                (
                    {"nodes.csv": "id,label,x\n", "edges.csv": EDGES},
                    {},
                    r"nodes\.csv: has no rows; expected one per node",
                ),
                (
                    PEOPLE,
                    {"columns": {"id": "name", "label": "clas"}},
                    r"columns\.label=clas: no table has such a column: .*subject",
                ),
                (
                    PEOPLE,
                    {"columns": {**NAMED["columns"], "weight": "w"}},
                    r"columns\.weight=w: .* source, target, weight; set columns",
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": EDGES},
                    {"columns": {"ignore": ("y*",)}},
                    r"columns\.ignore=y\*: no table has such",
                ),
                (
                    {"nodes.csv": NODES, "edges.csv": EDGES},
                    {"columns": {"numeric": ("x",), "ignore": ("x",)}},
                    "`x` is in both columns.numeric and columns.ignore",
                ),
            ],
        ),
    ],
)
def test_a_folder_of_tables_is_refused(tmp_path, caplog, files, fields, message):
    with pytest.raises(InputError, match=message):
        load(write_files(tmp_path, files), **fields)
    assert "theirs are filled" not in caplog.text


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


def test_targets_of_a_data_set_with_classes_are_refused():
    with pytest.raises(InputError, match="task=node_regression: dataset_name=cora has classes"):
        datasets.load_graph(dataset_settings("cora", task="node_regression"))
