"""Tables as people have them are read as they are meant: names, blanks, dates, other headers."""

import datetime
import gzip
import logging
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from graph_files import assert_graph, load, write_files
from support import dataset_settings, split_settings

from partitioning import datasets
from partitioning.features.build import encode_tables
from partitioning.graph.schema import describe
from partitioning.partition_settings import FeatureSettings
from partitioning.read import csv_files
from partitioning.sites.describe_tables import describe_tables

NAN = np.nan
NODES = "name,age,subject,city,height\nann,31,art,Rome,1.5\nbob,22,,Bonn,1.75\n007,44,law,Oslo,2\n"
EDGES = "source,target,weight\nann,bob,2\nbob,007,0.5\n007,ann,1\nann,bob,3\n"
PEOPLE = {"nodes.csv": NODES, "edges.csv": EDGES}
NAMED = {"columns": {"id": "name", "label": "subject"}}
DEGREE = {"features": ("degree",)}
MEDIAN = {"features": {"missing": "median"}}
# The same small graph in the form of each program.
PLAIN = "id,label,x\n0,0,1.5\n7,1,2\n14,1,-3\n"
LINKS = "src,dst\n0,7\n7,14\n"
IS_PLAIN = {
    "node_ids": [0, 7, 14],
    "labels": [0, 1, 1],
    "features": [[1.5], [2], [-3]],
    "src": [0, 1],
    "dst": [1, 2],
}
# Two nodes and an edge, for what is seen in one column.
ONE_EDGE = "src,dst\n0,1\n"
UNKNOWN_ENDS = {
    "nodes.csv": "id,label,x\na,0,1\nb,1,2\nc,1,3\n",
    "edges.csv": "src,dst,weight,since\na,c,2,2001\nc,9001,3,2002\nx9,a,4,2003\nc,a,5,2004\n",
}
THREE = pd.DataFrame({"id": [30, 10, 20], "label": [0, 1, 1], "x": [1.5, 2.5, 3.5]})
RANKED = pd.DataFrame({"rank": [2, 0, 1], "label": [0, 1, 1], "x": [1.5, 2.5, 3.5]})
RING = pd.DataFrame({"src": [0, 1, 2], "dst": [1, 2, 0]})
HASHES = np.array([2**64 - 100, 2**64 - 7, 2**64 - 50], np.uint64)
TWO_TABLES = {
    "features.csv": "acct,x\n1007,1\n1003,2\n1005,3\n",
    "labels.csv": "customer_id,label\n1003,0\n1005,1\n",
    "edges.csv": "src,dst\n1003,1005\n1005,1007\n",
}
TWO_TABLES_READ = {
    "node_ids": [1007, 1003, 1005],
    "features": [[1], [2], [3]],
    "labels": [-1, 0, 1],
    "src": [1, 2],
}
PARTS = {"train_mask": [1, 0, 0, 0], "val_mask": [0, 1, 0, 0], "test_mask": [0, 0, 1, 0]}
HOUSES = {
    "nodes.csv": "id,rooms,price,age\nh0,3,120.5,1\nh1,4,,2\nh2,2,90,-1\n",
    "edges.csv": "src,dst\nh0,h1\nh1,h2\n",
}


def masked(*cells):
    """Rows of four nodes with a mask of training nodes."""
    rows = [
        f"{at},{at % 2},{cell},{int(at == 1)},{int(at == 2)}\n" for at, cell in enumerate(cells)
    ]
    return "id,label,train_mask,val_mask,test_mask\n" + "".join(rows)


@pytest.mark.parametrize(
    ("files", "fields", "expected", "said"),
    [
        pytest.param(
            PEOPLE,
            NAMED,
            {
                "shown_ids": ["ann", "bob", "007"],
                "labels": [0, -1, 1],
                "class_names": ("art", "law"),
                "features": [[31, 0, 0, 1, 1.5], [22, 1, 0, 0, 1.75], [44, 0, 1, 0, 2]],
                "src": [0, 1, 2, 0],
                "dst": [1, 2, 0, 1],
                "edge_weight": [2, 0.5, 1, 3],
            },
            ["0 art, 1 law"],
            id="names, classes, blanks and headers",
        ),
        # --- ids
        pytest.param(
            {
                "nodes.csv": "id,label,x\n007,0,1\n8,1,1\n"
                + "".join(f"{row},0,1\n" for row in range(100, 110))
                + "x9,1,1\n",
                "edges.csv": "src,dst\n007,8\nx9,007\n",
            },
            {},
            {"src": [0, 12], "dst": [1, 0]},
            [],
            id="ids that become names in a later row",
        ),
        pytest.param(
            {
                "nodes.csv": "nodeId,class,x\n-5,30000,1\n9000000000,10,2\n7,-1,3\n",
                "edges.csv": "sourceNodeId,targetNodeId\n7,-5\n9000000000,7\n",
            },
            {},
            {
                "node_ids": [-5, 9_000_000_000, 7],
                "src": [2, 1],
                "dst": [0, 2],
                "labels": [1, 0, -1],
                "class_names": (10, 30000),
            },
            [],
            id="integers of any kind",
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": "id,label,x\n" + "".join(f"{name},0,1\n" for name in ids),
                    "edges.csv": f"src,dst\n{ids[0]},{ids[2]}\n",
                },
                {},
                {"shown_ids": ids, "src": [0], "dst": [2]},
                [],
                id=f"ids as they are: {', '.join(ids)}",
            )
            for ids in (
                ["00007", "00014", "00021"],
                ["622188820004259028000", "622188820004259028001", "-1"],
                ["NA", "nan", "null"],
                ["7", "07", "7.5"],
                ["+7", "1e3", "1000"],
                ["李明", "7", "李 明"],
            )
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": THREE.assign(id=ids).rename(columns={"id": "paper_id"}),
                    "edges.csv": pd.DataFrame({end: ids[RING[end]] for end in RING}),
                },
                {},
                {"shown_ids": [*shown], "num_features": 1, "src": [0, 1, 2]},
                ["column `paper_id` is taken as id"],
                id=f"an id column of any name: {name}",
            )
            for name, ids, shown in (
                ("permutation", np.array([3, 1, 2]), [3, 1, 2]),
                ("floats", np.array([3.0, 1, 2]), [3, 1, 2]),
                ("hashes", HASHES, HASHES.astype(str)),
                ("names", np.array(["李明 1", "李明 2", "x"]), ["李明 1", "李明 2", "x"]),
            )
        ),
        pytest.param(
            {
                "nodes.csv": THREE.assign(id=HASHES),
                "edges.csv": f"src,dst\n{HASHES[2]},{HASHES[0]}",
            },
            {},
            {"shown_ids": [*HASHES.astype(str)], "src": [2], "dst": [0]},
            [],
            id="hashes beyond int64",
        ),
        *(
            pytest.param(
                {
                    "nodes.parquet": THREE.assign(id=[kind(base + node) for node in range(3)]),
                    "edges.parquet": RING.map(lambda node, kind=kind, base=base: kind(base + node)),
                },
                {},
                {"src": [0, 1, 2], "dst": [1, 2, 0]},
                [],
                id=f"ids of {digits} digits as {kind.__name__}",
            )
            for kind in (str, Decimal)
            for digits, base in ((19, 10**18), (22, 10**21))
        ),
        pytest.param(
            {"nodes.parquet": THREE.set_index("id"), "edges.parquet": RING * 10 + 10},
            {},
            {"node_ids": [30, 10, 20], "src": [1, 2, 0], "features": [[1.5], [2.5], [3.5]]},
            [],
            id="the named index of a data frame",
        ),
        *(
            pytest.param(
                TWO_TABLES, {"columns": {"id": asked}}, TWO_TABLES_READ, [], id=f"id={asked}"
            )
            for asked in (None, "acct", ("acct", "customer_id"))
        ),
        *(
            pytest.param(
                {nodes: RANKED, "edges.csv": RING}, {"columns": columns}, expected, [], id=name
            )
            for name, nodes, columns, expected in (
                ("as id", "nodes.csv", {"id": "rank"}, {"src": [1, 2, 0], "num_features": 1}),
                (
                    "as feature",
                    "nodes.csv",
                    {"numeric": ["rank"]},
                    {"src": [0, 1, 2], "num_features": 2},
                ),
                ("parquet", "nodes.parquet", {"id": "rank"}, {"src": [1, 2, 0], "num_features": 1}),
            )
        ),
        *(
            pytest.param(
                {"nodes.csv": RANKED.assign(rank=[3, 1, 2]), edges: content},
                {},
                {"src": [1, 2, 0], "node_ids": [3, 1, 2]},
                [],
                id=f"all edges tell ids from row numbers: {edges}",
            )
            for edges, content in (
                ("edges.csv", RING + 1),
                ("edges.npy", (RING + 1).to_numpy()),
            )
        ),
        pytest.param(
            {"labels.csv": "id,label\nb,x\na,y\n", "edges.csv": "src,dst\na,q\nq,b\nr,a\n"},
            DEGREE,
            {
                "shown_ids": ["b", "a", "q", "r"],
                "labels": [0, 1, -1, -1],
                "src": [1, 2, 3],
                "features": np.log1p([[1, 0], [1, 1], [1, 1], [0, 1]]),
            },
            [],
            id="nodes that only edges name",
        ),
        pytest.param(
            {"labels.csv": "id,label\n5,0\n3,1\n", "edges.csv": "src,dst\n5,9\n9,3\n"},
            DEGREE,
            {"node_ids": [5, 3, 9]},
            [],
            id="integers that only edges name",
        ),
        pytest.param(
            UNKNOWN_ENDS,
            {"unknown": "drop", "columns": {"time": "since"}},
            {"src": [0, 2], "dst": [2, 0], "edge_weight": [2, 5], "edge_time": [2001, 2004]},
            ["2 of 4 edges have an end that is no node, the first in row 1: left out"],
            id="edges.unknown=drop",
        ),
        pytest.param(
            {**UNKNOWN_ENDS, "nodes.csv": PLAIN, "edges.csv": "src,dst\n0,14\n14,9\n8,0\n14,0\n"},
            {"unknown": "drop"},
            {"src": [0, 2], "dst": [2, 0]},
            ["2 of 4 edges"],
            id="edges.unknown=drop with integers",
        ),
        pytest.param(
            UNKNOWN_ENDS,
            {"unknown": "add", "features": ("neighbours",)},
            {"shown_ids": ["a", "b", "c", "x9", "9001"], "src": [0, 2, 3, 2], "dst": [2, 4, 0, 0]},
            ["2 nodes that only edges name are added"],
            id="edges.unknown=add",
        ),
        pytest.param(
            {"nodes.csv": "label,x\n0,1\n1,2\n", "edges.csv": "src,dst\n0,1\n2,0\n1,-1\n"},
            {"unknown": "drop"},
            {"src": [0], "dst": [1]},
            [],
            id="edges.unknown=drop with row numbers",
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": "id,label,split,fold,x\n"
                    + "".join(
                        f"{row},{row % 2},{part},{fold},{row}\n"
                        for row, (part, fold) in enumerate(
                            [("train", one)] * 8 + [("val", other), ("test", other), ("", "")]
                        )
                    ),
                    "edges.csv": ONE_EDGE,
                },
                MEDIAN,
                {"train_mask": [1] * 8 + [0] * 3},
                ["a feature tells the split, column `fold`; columns.ignore=fold"],
                id=f"another column of the split: {one}, {other}",
            )
            for one, other in (("a", "b"), (1, 0))
        ),
        pytest.param(
            {
                "nodes.csv": "id,x,t_a,t_b\n0,1,True,False\n7,2,False,\n14,3,True,True\n",
                "edges.csv": LINKS,
            },
            {"columns": {"label": ("t_*",)}},
            {"labels": [[1, 0], [0, NAN], [1, 1]]},
            [],
            id="labels as pandas.get_dummies writes them",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,label_id,x,name\n"
                + "".join(
                    f"{row},{'abc'[row % 3]},{row % 3},{row % 2},{'ABC'[row % 3]}\n"
                    for row in range(12)
                ),
                "edges.csv": ONE_EDGE,
            },
            {},
            {"num_features": 5},
            ["a feature tells the label, column `label_id`, `name`; columns.ignore=label_id"],
            id="numbers of the classes",
        ),
        *(
            pytest.param(
                {"nodes.csv": nodes, "edges.csv": edges}, {}, {"features": features}, said, id=name
            )
            for name, nodes, edges, features, said in (
                (
                    "separators after each line, as Excel writes them",
                    PLAIN.replace("\n", ",,\n"),
                    LINKS,
                    IS_PLAIN["features"],
                    [],
                ),
                (
                    "decimal points beside decimal commas",
                    "id;label;x;y\n0;0;1.500;2,5\n7;1;2;3\n14;1;-3;4\n",
                    LINKS,
                    [[1.5, 2.5], [2, 3], [-3, 4]],
                    ["column `x`: has decimal points, `y` has decimal commas"],
                ),
                (
                    "edges that Gephi calls undirected",
                    PLAIN,
                    "Source,Target,Type\n0,7,Undirected\n7,14,Undirected\n",
                    IS_PLAIN["features"],
                    ["`Type` has Undirected edges; symmetrize=true"],
                ),
            )
        ),
        # --- labels
        pytest.param(
            {
                "features.csv": "id,x\na,1\nb,2\nc,3\n",
                "labels.csv": "id,label\nc,u\na,v\n",
                "edges.csv": "from,to\na,c\n",
            },
            {},
            {"labels": [1, -1, 0], "features": [[1], [2], [3]]},
            [],
            id="labels of some nodes are joined by id",
        ),
        pytest.param(
            {
                "labels.csv": "id,label\n3,1\n0,0\n",
                "edges.csv": "0,3\n",
                "features.npy": np.arange(4.0),
            },
            {},
            {"labels": [0, -1, -1, 1]},
            [],
            id="labels of some rows of an npy",
        ),
        *(
            pytest.param(
                {
                    "features.csv": "id,x\n0,1\n1,2\n2,3\n3,4\n4,5\n",
                    "edges.csv": "0,3\n",
                    "labels.parquet": pd.DataFrame(
                        {"id": [0, 2, 4], "label": labels, "train_mask": np.uint8([1, 0, 0])}
                    ).assign(val_mask=np.uint8([0, 1, 0]), test_mask=np.uint8([0, 0, 1])),
                },
                {},
                {
                    "labels": expected,
                    "train_mask": [1, 0, 0, 0, 0],
                    "val_mask": [0, 0, 1, 0, 0],
                    "test_mask": [0, 0, 0, 0, 1],
                },
                [],
                id=f"labels and masks of some nodes: {name}",
            )
            for name, labels, expected in (
                ("boolean", [True, False, True], [1, -1, 0, -1, 1]),
                ("uint8", np.array([2, 0, 1], np.uint8), [2, -1, 0, -1, 1]),
                ("uint64", np.array([2, 0, 1], np.uint64), [2, -1, 0, -1, 1]),
                ("hashes", np.array([2**64 - 1, 7, 7], np.uint64), [0, -1, 1, -1, 1]),
                ("floats", [1.0, 0.0, 1.0], [1, -1, 0, -1, 1]),
                ("names", ["yes", "no", "yes"], [1, -1, 0, -1, 1]),
            )
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": "id,label,x\n"
                    + "".join(f"{row},{label},1\n" for row, label in enumerate(labels)),
                    "edges.csv": ONE_EDGE,
                },
                {},
                {"class_names": names, "labels": classes},
                [f"{classes.count(-1)} of 4 rows have no label"] if -1 in classes else [],
                id=f"classes as they are: {', '.join(labels)}",
            )
            for labels, names, classes in (
                (["None", "low", "high", ""], ("None", "high", "low"), [0, 2, 1, -1]),
                (
                    ["1" + "0" * 20, "2" * 21, "", "2" * 21],
                    ("1" + "0" * 20, "2" * 21),
                    [0, 1, -1, 1],
                ),
                (["1", "\\N", "0", "#N/A"], None, [1, -1, 0, -1]),
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
                (["2", "1", "", "2"], (1, 2), [1, 0, -1, 1]),
            )
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": f"x,label\n1,{labels[0]}\n2,{labels[1]}\n3,{labels[2]}\n",
                    "edges.csv": "0,1\n",
                },
                {},
                {},
                [said],
                id=said,
            )
            for labels, said in (
                ([0, 4, 4], "3 of 5 classes have no node, the first is 1"),
                ([1, -1, 1], "all labelled nodes are of one class"),
                ([0, 1, -100], "labels.unknown=[-100] if it"),
                ([-5, -6, 0], "-6 is a class; labels.unknown=[-6]"),
                (["0", "1", "?"], "labels.unknown=[?] if it"),
                (["low", "high", "n/a"], "labels.unknown=[n/a] if it"),
                (["low", "high", r"\N"], r"labels.unknown=[\N] if it"),
                (["low", "high", "TBD"], "labels.unknown=[TBD] if it"),
                (["low", "high", "No label"], "labels.unknown=[No label] if it"),
                (["low", "high", "-100"], "labels.unknown=[-100] if it"),
                ([0, 1, 999], "labels.unknown=[999] if the largest"),
                (["Yes", "no", "yes"], "Yes and yes are two classes; write them alike"),
                (["low", "high", "low;high"], "`low;high` is one class; labels=multilabel"),
                (["low", "high", '"low, high"'], "`low, high` is one class; labels=multilabel"),
            )
        ),
        *(
            pytest.param(
                {"nodes.csv": THREE.assign(label=labels), "edges.csv": RING * 10 + 10},
                {"labels.unknown": unknown},
                {"num_classes": 2, "labels": [0, 1, -1]},
                [],
                id=f"labels.unknown={unknown}: {labels}",
            )
            for labels, unknown in (
                (["a", "b", "unknown"], "unknown"),
                (["1", "2", "unknown"], ["unknown", -100]),
                ([0, 1, -100], -100),
                ([0.0, 1.0, -100.0], ["unknown", -100]),
            )
        ),
        pytest.param(
            {
                "nodes.csv": "Id,Label,x\n" + "".join(f"{n},Person {n},1\n" for n in range(60)),
                "edges.csv": "Source,Target\n0,1\n",
            },
            {},
            {"num_classes": 60},
            ["60 classes of 60 labelled nodes; set columns.label"],
            id="names of nodes as classes are doubted",
        ),
        pytest.param(
            {"edges.csv": RING.set_axis(["user", "item"], axis=1)},
            {"columns": {"src": "user", "dst": "item"}, "task": "link_prediction", **DEGREE},
            {"num_nodes": 3},
            ["edges/user__RELATION__item.csv"],
            id="ids of two types in one table are warned of",
        ),
        pytest.param(
            {
                "features.csv": "x\n1\n2\n3\n",
                "labels.csv": "u,v\n1,0\n0,1\n1,0\n",
                "edges.csv": "0,1\n",
            },
            {},
            {"label_kind": "multilabel"},
            ["a single 1 in every row"],
            id="one-hot labels",
        ),
        pytest.param(
            {
                "features.csv": "x\n1\n2\n3\n",
                "labels.csv": "u,v\n1,0\n0,1\n1,0\n",
                "edges.csv": "0,1\n",
            },
            {"labels": "multiclass"},
            {"labels": [0, 1, 0]},
            [],
            id="one-hot labels of classes",
        ),
        pytest.param(
            {"nodes.csv": "id,t0,t1,x\n0,1,,5\n1,,,6\n2,0,1,7\n", "edges.csv": ONE_EDGE},
            {"columns": {"label": ("t*",)}},
            {
                "labels": [[1, NAN], [NAN, NAN], [0, 1]],
                "labelled": [True, False, True],
                "num_features": 1,
            },
            ["1 of 4 cells of labelled nodes are blank, unknown labels; by label: 0, 1"],
            id="several label columns with blank cells",
        ),
        *(
            pytest.param(
                {name: THREE.assign(label=cells), "edges.csv": RING * 10 + 10},
                {"labels": labels},
                {"label_kind": labels or "multiclass", **expected},
                said,
                id=f"several labels in a cell: {name}, {labels}, {cells}",
            )
            for labels, expected, said in (
                ("multilabel", {"labels": [[1, 1, 0], [NAN] * 3, [1, 0, 1]]}, []),
                (None, {}, ["labels=multilabel reads it as several labels"]),
            )
            for name, cells in (
                ("nodes.csv", ["x|y", "", "x | z"]),
                ("nodes.csv", ["[x, y]", None, "[x, z]"]),
                ("nodes.csv", ["x;y", None, "z;x;"]),
                ("nodes.parquet", ["x|y", "", "x | z"]),
                ("nodes.parquet", [["x", "y"], None, ["x", "z"]]),
            )
        ),
        pytest.param(
            HOUSES,
            {"task": "node_regression", "columns": {"label": ["price", "age"]}},
            {
                "label_kind": "regression",
                "class_names": ("price", "age"),
                "labels": [[120.5, 1], [NAN, 2], [90, -1]],
                "num_features": 1,
            },
            [],
            id="targets of a regression",
        ),
        pytest.param(
            HOUSES | {"nodes.csv": HOUSES["nodes.csv"].replace("120.5,1", "1,1")},
            {"task": "node_regression", "columns": {"label": "age", "ignore": "price"}},
            {"label_kind": "regression", "labels": [[1], [2], [-1]]},
            [],
            id="integers as targets",
        ),
        # --- splits
        *(
            pytest.param(
                {
                    "nodes.csv": masked(*cells),
                    "features.csv": "id,x\n0,1\n1,2\n2,3\n3,4\n",
                    "edges.csv": ONE_EDGE,
                },
                {},
                PARTS,
                [],
                id=f"a mask with blank cells: {', '.join(cells)}",
            )
            for cells in (
                ["1.0", "", "0.0", ""],
                ["True", "", "", "False"],
                ["1", "", "", "0"],
                ["TRUE", "0", "", ""],
            )
        ),
        pytest.param(
            {
                "labels.csv": masked("1.0", "", "0.0", ""),
                "nodes.csv": "id,x\n3,1\n2,2\n1,3\n0,4\n",
                "edges.csv": ONE_EDGE,
            },
            {},
            {name: mask[::-1] for name, mask in PARTS.items()},
            [],
            id="a mask with blank cells beside the labels",
        ),
        pytest.param(
            {
                "nodes.csv": "id,split\n2,train\n0,valid\n1,Test\n3,\n",
                "labels.csv": "id,label\n2,0\n0,1\n1,0\n3,1\n",
                "edges.csv": ONE_EDGE,
            },
            DEGREE,
            {**PARTS, "node_ids": [2, 0, 1, 3]},
            [],
            id="a table with only the split",
        ),
        pytest.param(
            {
                "nodes.csv": "split\ntrain\nvalid\nTest\n",
                "labels.csv": "label\n0\n1\n1\n",
                "edges.csv": ONE_EDGE,
            },
            DEGREE,
            {name: mask[:3] for name, mask in PARTS.items()},
            [],
            id="a column split without ids",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,x,train_mask,test_mask\n0,0,1,1,0\n1,1,2,0,1\n",
                "edges.csv": ONE_EDGE,
            },
            {},
            {"train_mask": [1, 0], "val_mask": [0, 0], "test_mask": [0, 1]},
            ["`val_mask` is missing: no node is used for validation"],
            id="masks without validation",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,x,day\n0,0,1,2024-01-02\n1,1,2,2024-01-01\n",
                "edges.csv": ONE_EDGE,
            },
            {"columns": {"time": "day"}, "split": split_settings("time")},
            {"node_time": [1704153600.0, 1704067200.0]},
            [],
            id="dates of nodes",
        ),
        pytest.param(
            {
                "edges.csv": "src,dst\na,b\nb,c\nc,a\n",
                "train.csv": "a,b\n",
                "val.csv": "b,c\n",
                "test.csv": "c,a\n",
            },
            {"task": "link_prediction", **DEGREE},
            {"num_edges": 3},
            [],
            id="files of pairs beside the tables are no masks",
        ),
        # --- features
        pytest.param(
            {
                "nodes.csv": f"id,label,{','.join(f'{number:0300}' for number in range(500))}\n"
                f"3,1{',1.5' * 500}\n4,1{',1.5' * 500}\n",
                "edges.csv": "src,dst\n3,4\n",
            },
            {},
            {"num_features": 500},
            [],
            id="a header of many long names",
        ),
        pytest.param(
            {
                "nodes.parquet": pd.DataFrame(
                    {
                        "id": [1, 0, 2],
                        "label": ["x", None, "x"],
                        "emb": [[], [1.0, 2.0], [3.0, 4.0]],  # an empty list is blank
                    }
                ),
                "edges.parquet": pd.DataFrame({"src": [1, 2], "dst": [0, 1], "id": [[5.0], [6.0]]}),
            },
            MEDIAN,
            {
                "features": [[2, 3, 1], [1, 2, 0], [3, 4, 0]],
                "labels": [0, -1, 0],
                "edge_feat": [[5], [6]],
            },
            [],
            id="a column of lists",
        ),
        pytest.param(
            {
                "nodes.parquet": pd.DataFrame(
                    {
                        "id": [0, 1],
                        "label": [0, 1],
                        "emb": pd.Series(
                            [[1.0, 2.0], [3.0, 4.0]],
                            dtype=pd.ArrowDtype(pa.large_list(pa.float32())),
                        ),
                        "x": np.array([5, 6], np.float16),
                    }
                ),
                "edges.csv": "src,dst\n1,0\n",
            },
            {},
            {"features": [[1, 2, 5], [3, 4, 6]]},
            [],
            id="lists as polars writes them, and numbers of 16 bits",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label\n1,x\n0,\n",
                "features.npz": sp.csr_array(np.array([[0, 5.0], [7, 0]])),
                "edges.csv": "src,dst\n1,0\n",
            },
            {},
            {"features": [[0, 5], [7, 0]]},
            [],
            id="a CSR matrix",
        ),
        *(
            pytest.param(
                {
                    "nodes.csv": "id,label,x,y\na,0,1,3\nb,1,,\nc,1,3,5\n",
                    "edges.csv": "src,dst\na,b\nc,b\n",
                },
                fields,
                {"features": features},
                [],
                id=f"a node without features: {fields['features']}",
            )
            for fields, features in (
                (MEDIAN, [[1, 0, 3], [2, 1, 4], [3, 0, 5]]),  # one indicator: blank together
                ({"features": ("neighbours",)}, [[1, 3], [2, 4], [3, 5]]),
                (
                    {"features": ("given", "degree")},
                    np.array([[1, 3, 0, 0], [0, 0, np.log1p(2), 0], [3, 5, 0, 0]])
                    + np.log1p([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]]),
                ),
            )
        ),
        *(
            pytest.param(
                {
                    name: pd.DataFrame(
                        {"id": range(4), "label": [0, 1, 0, 1], "town": ["a", "  ", "", "a "]}
                    ).assign(size=["1", "", " ", "3"]),
                    "edges.csv": ONE_EDGE,
                },
                {"features": {"missing": "zero"}},
                {"features": [[1, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 3]]},  # a, blank, size
                [],
                id=f"texts of blanks are blank cells: {name}",
            )
            for name in ("nodes.csv", "nodes.parquet")  # parquet keeps empty texts
        ),
        *(
            pytest.param(
                {name: THREE.drop(columns="x").assign(v=cells), "edges.csv": RING * 10 + 10},
                MEDIAN,
                {"features": values},
                [],
                id=f"numbers in texts: {name}, {cells}",
            )
            for name in ("nodes.csv", "nodes.parquet")
            for cells, values in (
                (["[0.5, -2]", "[1e-3, 4]", "[1, 2]"], [[0.5, -2], [0.001, 4], [1, 2]]),
                (["0.5,-2.0", "1,4.5", "3.0,2"], [[0.5, -2], [1, 4.5], [3, 2]]),
                (["(0.5 -2)", "(1  4)", "(3 2)"], [[0.5, -2], [1, 4], [3, 2]]),
                (["{0.5,-2}", "{1,4}", "{3,2}"], [[0.5, -2], [1, 4], [3, 2]]),
                (["0.5|-2", "1|4", "3|2"], [[0.5, -2], [1, 4], [3, 2]]),
                (
                    ["array([0.5, -2], dtype=float32)", "tensor([1., 4.])", "[[3, 2]]"],
                    [[0.5, -2], [1, 4], [3, 2]],
                ),
                (["12%", "7.5 %", "1%"], [[0.12], [0.075], [0.01]]),
                (["€0.50", "-€1.50", "€ 3"], [[0.5], [-1.5], [3]]),
                (["5 USD", "1.5 USD", "-2 USD"], [[5], [1.5], [-2]]),
            )
        ),
        *(
            pytest.param(
                {name: THREE.assign(x=cells), "edges.csv": RING * 10 + 10},
                {"columns": {"categorical": ("x",)}},
                {"features": np.eye(3)[np.argsort(np.argsort(cells))]},
                [],
                id=f"numbers in another notation as categories: {name}, {cells}",
            )
            for name, cells in (
                ("nodes.csv", ["2,5", "1,2e-05", "-0,5"]),
                ("nodes.parquet", ["1'234.50", "12'000.00", "1'500.25"]),
            )
        ),
        pytest.param(
            {
                "nodes.parquet": THREE.assign(
                    x=[1.5, NAN, 2.5],
                    city=["Rome", "Oslo", None],
                    created=pd.to_datetime([0, 1, 2]),
                ),
                "edges.csv": RING * 10 + 10,
            },
            MEDIAN,  # x, x is blank, Oslo, Rome, city is blank
            {"features": [[1.5, 0, 0, 1, 0], [2, 1, 1, 0, 0], [2.5, 0, 0, 0, 1]]},
            [],
            id="features of every kind",
        ),
        # --- edges
        pytest.param(
            {
                "nodes.csv": "id,label,x\n0,0,1\n1,1,2\n",
                "edges.csv": "src,dst,amount,kind,weight\n0,1,10,a,2\n1,0,30,b,1\n",
            },
            {"features": {"scale": "auto"}, "symmetrize": True},
            {"edge_feat": [[-1, 1, 0], [1, 0, 1]], "edge_weight": [2, 1]},
            [],
            id="columns of edges are features",
        ),
        *(
            pytest.param(
                {"nodes.csv": NODES, "edges.csv": edges},
                {"duplicates": "merge", **NAMED},
                expected,
                [],
                id=f"duplicates=merge: {name}",
            )
            for name, edges, expected in (
                (
                    "weights",
                    EDGES,
                    {"src": [0, 1, 2], "dst": [1, 2, 0], "edge_weight": [5, 0.5, 1]},
                ),
                (
                    "no weights",
                    "src,dst\nann,bob\nann,bob\n007,ann\n",
                    {"src": [0, 2], "dst": [1, 0], "edge_weight": None},
                ),
            )
        ),
        *(
            pytest.param(
                {"labels.csv": "id,label\n14,1\n0,0\n", "edges.txt": edges},
                DEGREE,
                expected,
                [],
                id=name,
            )
            for name, edges, expected in (
                (
                    "SNAP",
                    "# Nodes: 3 Edges: 2\n# FromNodeId\tToNodeId\n0\t7\n7\t14\n",
                    {"node_ids": [14, 0, 7], "src": [1, 2]},
                ),
                ("blanks between ends", "0 7\n 7  14\n", {"dst": [2, 0]}),
                ("names between blanks", "0 07\n07 14\n", {"shown_ids": ["14", "0", "07"]}),
            )
        ),
        pytest.param(
            {"nodes.csv": THREE, "edges.txt": "% sym positive\n% 3 3 3\n10 20 1 11\n20 30 1 12\n"},
            {"columns": {"src": "0", "dst": "1", "weight": "2", "ignore": ("3",)}},
            {"src": [1, 2], "dst": [2, 0]},
            [],
            id="KONECT",
        ),
        # --- files as other programs write them
        *(
            pytest.param({"nodes.csv": nodes, edges_name: edges}, {}, IS_PLAIN, [], id=name)
            for name, nodes, edges_name, edges in (
                ("blank lines at the end", PLAIN + "\n", "edges.csv", LINKS + "\n\r\n"),
                ("ends as floats", PLAIN, "edges.csv", "src,dst\n0.0,7.0\n7.0,14.0\n"),
                (
                    "ids as floats",
                    "id,label,x\n0.0,0,1.5\n7.0,1,2\n14.0,1,-3\n",
                    "edges.csv",
                    LINKS,
                ),
                ("leading zeros", "id,label,y\n0,0,1.5\n7,1,2\n14,1,-03\n", "edges.csv", LINKS),
                (
                    "comments and a byte order mark",
                    "\ufeff" + PLAIN,
                    "edges.csv",
                    "# edges of a toy\n# src,dst\n0,7\n7,14\n",
                ),
                ("comments before a header", PLAIN, "edges.csv", f"# made by\n#\n{LINKS}"),
                ("comments as in C", PLAIN, "edges.csv", f"// made by\n{LINKS}"),
                ("colons", PLAIN, "edges.csv", LINKS.replace(",", "::")),
                ("tabs", PLAIN, "edges.tsv", LINKS.replace(",", "\t")),
                (
                    "semicolons and decimal commas",
                    PLAIN.replace(",", ";").replace(".", ","),
                    "edges.csv",
                    LINKS.replace(",", ";"),
                ),
                (
                    "an index without a name",
                    ",id,label,x\n0,0,0,1.5\n1,7,1,2\n2,14,1,-3\n",
                    "edges.csv",
                    ",src,dst\n0,0,7\n1,7,14\n",
                ),
                (
                    "exponents",
                    "id;label;x\n0;0;1,5\n7;1;2e+00\n14;1;-,3E1\n",
                    "edges.csv",
                    LINKS.replace(",", ";"),
                ),
                (
                    "commas in a name",
                    "id;label;x, cm, or, in\n0;0;1,5\n7;1;2\n14;1;-3\n",
                    "edges.csv",
                    "src;dst\n0;7\n7;14\n",
                ),
                (
                    "as many commas as semicolons",
                    "id;x, cm, wide;label\n0;1,5;0,0\n7;2,0;1,0\n14;-3,0;1,0\n",
                    "edges.csv",
                    LINKS,
                ),
                (
                    "semicolons in a name",
                    'id,"x; a; b; c",label\n0,1.5,0\n7,2,1\n14,-3,1\n',
                    "edges.csv",
                    "0;7\n7;14\n",
                ),
                ("UTF-16", PLAIN.replace(",", "\t").encode("utf-16"), "edges.csv", LINKS),
            )
        ),
        pytest.param(
            {"nodes.csv.gz": gzip.compress(PLAIN.encode()), "edges.csv": LINKS},
            {},
            IS_PLAIN,
            [],
            id="gzip",
        ),
        pytest.param(
            {
                "nodes.parquet/_SUCCESS": "",
                "nodes.parquet/part-0.snappy.parquet": pd.DataFrame(
                    {"id": [0, 7], "label": [0, 1], "x": [1.5, 2]}
                ),
                "nodes.parquet/.part-0.snappy.parquet.crc": b"crc",
                "nodes.parquet/part-1.snappy.parquet": pd.DataFrame(
                    {"id": [14], "label": [1], "x": [-3.0]}
                ),
                "edges.csv": LINKS,
            },
            {},
            IS_PLAIN,
            [],
            id="part files of Spark",
        ),
        pytest.param(
            {
                "nodes.csv/part-0.csv": "id,label,x\n0,0,1.5\n",
                "nodes.csv/part-1.csv": "",
                "nodes.csv/part-2.csv": "id,label,x\n7,1,2\n14,1,-3\n",
                "edges.csv": LINKS,
            },
            {},
            IS_PLAIN,
            [],
            id="an empty part file",
        ),
        *(
            pytest.param(
                {"nodes.csv": first + PLAIN.replace(",", cell), "edges.csv": LINKS},
                {},
                IS_PLAIN,
                [],
                id=f"cells apart by {cell} {first}",
            )
            for cell, first in (("|", ""), (";", "sep=;\n"))
        ),
        pytest.param(
            {
                "nodes.csv": "id::title::label::x\n0::a\tb::0::1\n1::b::1::2\n",
                "edges.csv": ONE_EDGE,
            },
            {"columns": {"ignore": ("title",)}},
            {"labels": [0, 1], "features": [[1], [2]]},
            [],
            id="a tab in a cell between ::",
        ),
        pytest.param(
            {
                "nodes.csv": THREE.assign(x=["[np.float64(0.5), np.float64(-2.0)]"] * 3),
                "edges.csv": RING * 10 + 10,
            },
            {},
            {"features": [[0.5, -2]] * 3},
            [],
            id="a list of numbers as NumPy writes it",
        ),
        pytest.param(
            {"nodes.csv": THREE.assign(x=["007", "010", "100"]), "edges.csv": RING * 10 + 10},
            {},
            {"num_features": 1},
            ["numbers with leading zeros", "columns.categorical=x keeps them"],
            id="codes that become numbers",
        ),
        pytest.param(
            {"nodes.csv": THREE.assign(x=["7 kg", "-1.5 kg", "2 kg"]), "edges.csv": RING * 10 + 10},
            {},
            {"features": [[7], [-1.5], [2]]},
            ["without their `kg`; columns.categorical=x keeps the texts"],
            id="numbers with a unit",
        ),
        pytest.param(
            {
                "nodes.csv": THREE.assign(x=[20231231, 20240101, 20240301]),
                "edges.csv": RING * 10 + 10,
            },
            {},
            {"num_features": 1},
            ["dates such as 20231231 are read as numbers; columns.date=x reads dates"],
            id="dates that become numbers",
        ),
        pytest.param(
            {
                "nodes.csv": THREE.assign(x=[NAN, 20240101, 20240301], y=["7 °C", "1 °C", "2 °C"]),
                "edges.csv": RING * 10 + 10,
            },
            MEDIAN,
            {"num_features": 3},
            ["dates such as 20240101", "without their `°C`"],
            id="a blank date, and a unit with a sign",
        ),
        pytest.param(
            {
                "nodes.csv": THREE.assign(id=range(3), blank=NAN, one=7),
                "edges.csv": RING.assign(Type="Directed", Label="", kind=["a", "b", "a"]),
            },
            MEDIAN,
            {"num_features": 2, "edge_feat": [[1, 0], [0, 1], [1, 0]]},
            [],
            id="columns that tell nothing",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,x,train_mask,val_mask,test_mask\n"
                "0,0,1,T,no,FALSE\n1,1,2,F,Yes,\n",
                "edges.csv": ONE_EDGE,
            },
            {},
            {"train_mask": [True, False], "val_mask": [False, True]},
            [],
            id="masks of words",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,x,day,kind,is_train,isValid,is_test\n"
                "0,0,1,1-Jan-2024,train,1,0,0\n1,1,2,31-Jan-2024,test,0,1,0\n",
                "edges.csv": ONE_EDGE,
            },
            {},
            {"train_mask": [True, False], "val_mask": [False, True], "num_features": 3},
            ["column `kind`: is a feature; columns.split=kind takes it as the split"],
            id="masks by other names, a split by another, a date with the name of a month",
        ),
        pytest.param(
            {
                "nodes.csv": "id,good,x,train_mask,val_mask,test_mask,is_valid\n"
                "0,0,1,1,0,0,1\n1,1,2,0,1,0,0\n",
                "edges.csv": ONE_EDGE,
            },
            {"columns": {"label": ("good",), "ignore": ("is_valid",)}},
            {"val_mask": [False, True], "num_features": 1},
            [],
            id="a column that settings leave out is no mask",
        ),
        pytest.param(
            {
                "nodes.csv": "id,label,x,is_test\n0,0,1,1\n1,1,2,0\n",
                "edges.tsv": "% asym\n0 1 1 1082040961\n",
            },
            {"columns": {"src": "0", "dst": "1", "weight": "2", "ignore": ("3",)}},
            {"src": [0], "dst": [1], "num_features": 2, "test_mask": None},
            [],
            id="a test without a training mask is a feature; blanks in a .tsv of KONECT",
        ),
    ],
)
def test_a_folder_of_tables_is_read(tmp_path, caplog, files, fields, expected, said):
    caplog.set_level(logging.INFO)
    graph = load(write_files(tmp_path, files), **fields)
    assert_graph(graph, **expected)
    for words in said:
        assert words in caplog.text


@pytest.mark.parametrize("name", ["knows.csv", "knows.csv.gz"])
def test_one_file_of_edges_is_read_with_the_tables_beside_it(tmp_path, name):
    edges = EDGES.replace(",", "\t").encode()
    files = {"nodes.csv": NODES, name: gzip.compress(edges) if name.endswith("gz") else edges}
    graph = load(write_files(tmp_path, files) / name, **NAMED)
    assert (graph.name, graph.num_edges) == ("knows", 4)


@pytest.mark.parametrize(
    "name", ["features.json", "Labels.csv", "train.xml", "nodes.xlsx", "split.csv", "emb.npy"]
)
def test_what_looks_like_a_table_and_is_not_read_is_named(tmp_path, caplog, name):
    splits = {"train.csv": "ann\n", "test.txt": "007\n"}
    others = {".nodes.csv.swp": "", "README.md": "", name: "id\tx\nann\t1\n"}
    load(write_files(tmp_path, PEOPLE | splits | others), **NAMED)
    (message,) = [line for line in caplog.messages if "left out" in line]
    assert message.startswith(f"{tmp_path}: {name}: left out; tables are called edges, nodes")


def test_a_link_to_itself_is_left_out(tmp_path, caplog):
    write_files(tmp_path, {"nodes.csv": PLAIN, "edges.csv": LINKS})
    (tmp_path / "features.csv").symlink_to("features.csv")
    assert_graph(load(tmp_path), **IS_PLAIN)
    assert "features.csv: left out" in caplog.text


def test_tables_that_settings_name_are_not_left_out(tmp_path, caplog):
    splits = {f"{part}_ids.csv": f"{name}\n" for part, name in (("a", "ann"), ("b", "007"))}
    people = {"people.csv": NODES, "edges.csv": EDGES}
    folder = write_files(tmp_path, people | splits)
    ids = {"train": f"{folder}/a_ids.csv", "test": f"{folder}/b_ids.csv"}
    fields = {**NAMED, "tables.nodes": ("people.csv",), "split": split_settings("files", **ids)}
    load(folder, **fields)
    assert "left out" not in caplog.text


@pytest.mark.parametrize("cell", ["x7", "1.5", "007", "", '"a\nb"'])
def test_a_column_is_what_all_blocks_of_it_are(tmp_path, cell, monkeypatch):
    """A cell far below decides what its column is, and those above lose nothing."""
    rows = [f"{row},{row % 2},{row % 3}.0" for row in range(300)] + [f"300,1,{cell}"]
    nodes = "id,label,x,y\n" + "".join(f"{row},1\n" for row in rows)
    folder = write_files(tmp_path, {"nodes.csv": nodes, "edges.csv": ONE_EDGE})
    fields = {"columns": {"categorical": ("x",)}, **MEDIAN}
    in_one_block = load(folder, **fields).features
    monkeypatch.setattr(csv_files, "BLOCK", 64)
    assert_graph(load(folder, **fields), features=in_one_block, num_features=5)


JANUARY = 1704067200.0  # 2024-01-01
DAY = 86400.0
NOON = datetime.datetime(2024, 1, 2, 12)


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (["01.02.2024", "02.01.2024", "13.01.2024", "1.3.2024", ""], [31, 1, 12, 60, NAN]),
        (["01.02.2024 12:00", "02.01.2024", "03.01.2024 06:00:00"], [31.5, 1, 2.25]),
        (["2024-01-01", "2024-01-02 12:00:00", "2024-01-02T06:00Z"], [0, 1.5, 1.25]),
        (["2024-01-01T00:00:00+02:00", "2024-01-02T12:00:00.5"], [-1 / 12, 1.5 + 0.5 / DAY]),
        (["20240101T060000.125Z", "2024-W01-2T12:00:00"], [0.25 + 0.125 / DAY, 1.5]),
        (["2024-01-01 06:00:00,125", "2024-01-02T00:00+02:00"], [0.25 + 0.125 / DAY, 11 / 12]),
        (["01/02/2024", "02/01/2024", "03/01/2024", "13/01/2024"], [31, 1, 2, 12]),
        (["01/02/2024", "02/01/2024", "03/01/2024", "01/13/2024"], [1, 31, 60, 12]),
        (
            ["01/02/2024", "", "", "", "01-13-2024 6:00 PM", "1/1/2024"],
            [1, NAN, NAN, NAN, 12.75, 0],
        ),
        (["01/01/2024", "02/02/2024"], [0, 32]),
        (["2024/01/02", "2024.01.03"], [1, 2]),
        (["20240101", "", "20240301"], [0, NAN, 60]),
        (["9999-12-31", "2024-01-01", "31.12.9999", "0001-01-01"], [2913173, 0, 2913173, -738885]),
        (["2 Jan 2024", "Wed Jan 10 12:00:00 +0000 2024", "Feb 1, 2024"], [1, 9.5, 31]),
        ([datetime.date(9999, 12, 31), datetime.date(2024, 1, 1), None], [2913173, 0, NAN]),
        ([NOON, None, NOON.replace(tzinfo=None)], [1.5, NAN, 1.5]),
        (pd.Series([NOON] * 3).dt.tz_localize("Asia/Tokyo"), [1.125] * 3),
        (pd.Series(["1.2.2024", "1.2.2024", None], dtype="category"), [31, 31, NAN]),
        (pd.Series([NOON] * 3).astype("datetime64[s]").astype("category"), [1.5] * 3),
    ],
)
def test_dates_are_read_by_the_whole_column(tmp_path, cells, days):
    nodes = pd.DataFrame({"id": range(len(cells)), "x": 1, "day": cells})
    name = "nodes.csv" if isinstance(cells[0], str) else "nodes.parquet"
    nodes["label"] = nodes.id % 2
    graph = load(
        write_files(tmp_path, {name: nodes, "edges.csv": ONE_EDGE}), columns={"time": "day"}
    )
    times = (graph.node_time - JANUARY) / DAY
    np.testing.assert_allclose(times, days, atol=1e-9)


def test_a_date_as_a_feature_keeps_its_milliseconds(tmp_path):
    nodes = "id,label,when\n0,0,2024-01-01T00:00:00.125\n1,1,2024-01-01\n2,0,2024-01-01T00:00:01\n"
    folder = write_files(tmp_path, {"nodes.csv": nodes, "edges.csv": ONE_EDGE})
    graph = datasets.read_graph(dataset_settings("file", str(folder), columns={"date": ("when",)}))
    times = graph.features[:, 0].astype(np.float64) + graph.target_nodes.schema.columns[0].offset
    np.testing.assert_allclose(times - JANUARY, [0.125, 0, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("files", "lines"),
    [
        (
            {
                "nodes.csv": THREE.drop(columns="id")
                .set_index(pd.Index([0, 1, 2]))
                .reset_index(names="")
            },
            ["nodes: left out: a column, it has no name, as an index of pandas"],
        ),
        (
            {
                "nodes.parquet": THREE.assign(
                    id=range(3), city=["Rome", "Oslo", None], created=pd.to_datetime([0, 1, 2])
                )
            },
            ["nodes: left out: created, a date"],
        ),
        (
            {
                "nodes.parquet": THREE.assign(
                    id=range(3), month=pd.PeriodIndex(["2024-01", "NaT", "2024-03"], freq="M")
                )
            },
            ["nodes: left out: month, a date"],
        ),
        (
            {"nodes.csv": THREE.assign(id=range(3), day=["1/31/24", "2/1/24", "2/1/24"])},
            ["nodes: left out: day, a date"],
        ),
        (
            {"nodes.csv": THREE.assign(id=range(3)), "edges.csv": RING.assign(Id=range(3))},
            ["edges: left out: Id, it numbers the rows"],
        ),
        (
            {"nodes.csv": THREE.assign(id=range(3)).loc[::-1].reset_index().reset_index()},
            ["nodes: left out: level_0, it numbers", "nodes: left out: index, it numbers"],
        ),
    ],
)
def test_what_columns_are_taken_for_is_described(tmp_path, caplog, files, lines):
    write_files(tmp_path, {"edges.csv": RING, **files})
    graph = datasets.read_graph(dataset_settings("file", str(tmp_path)))
    described = "\n".join(describe(encode_tables(graph, FeatureSettings(), None)[1]))
    for line in lines:
        assert line in described
    assert "left out" not in caplog.text


def test_a_table_is_described_before_a_split_is_chosen(tmp_path):
    """With the columns that are left out because they tell nothing in training."""
    nodes, edges = THREE.assign(id=range(3), blank=NAN), RING.assign(Type="Directed")
    folder = write_files(tmp_path, {"nodes.csv": nodes, "edges.csv": edges})
    proposed, lines = describe_tables(dataset_settings("file", str(folder), **MEDIAN))
    assert lines[0].endswith("none in the data: training needs split=fraction, per_class or files")
    assert "nodes: left out: blank, blank in every row" in lines
    assert "edges: left out: Type, the same in every row" in lines
    assert [*proposed] == ["nodes"]
    assert [*proposed["nodes"]["columns"]] == ["x"]


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
    graphs = []
    for column in (pd.Series(cells), pd.Series(cells).astype("category")):
        nodes = pd.DataFrame({"id": [0, 1, 2], "label": [0, 1, 1], "x": column})
        tables = {"nodes.parquet": nodes, "edges.parquet": RING.assign(kind=column)}
        graph = load(write_files(tmp_path, tables), **MEDIAN)
        read = (graph.features, graph.edges.edge_feat)
        graphs.append([np.asarray(rows).tolist() for rows in read])
    assert graphs[0] == graphs[1]
