"""Tables as people bring them: each is read as it is meant, or refused with the remedy.

Targets of a regression from the files of users.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import dataset_settings, split_settings

import retexo
from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features.build import encode_tables
from partitioning.features.schema import describe
from partitioning.graph_data import GraphData, HeteroGraphData
from partitioning.node_split import SplitRecipe, draw
from partitioning.partition_settings import TASKS, FeatureSettings
from retexo.settings.compose import compose

NUM_NODES = 12
LABELS = np.arange(NUM_NODES) % 2
NODES = pd.DataFrame({"id": np.arange(NUM_NODES), "label": LABELS, "x": np.arange(NUM_NODES) / 4})
EDGES = pd.DataFrame({"src": np.arange(NUM_NODES), "dst": (np.arange(NUM_NODES) + 5) % NUM_NODES})
Case = Callable[[Path], Any]


def write(
    folder: Path, nodes: pd.DataFrame = NODES, edges: pd.DataFrame = EDGES, **options: Any
) -> None:
    for name, frame in (("nodes", nodes), ("edges", edges)):
        frame.to_csv(folder / f"{name}.csv", index=False, **options)


def with_ids(ids: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables with other ids."""
    ids = np.array(ids)
    return NODES.assign(id=ids), pd.DataFrame({end: ids[EDGES[end]] for end in EDGES})


def load(folder: Path, **fields: Any) -> GraphData:
    fields.setdefault("features", {"scale": "auto", "missing": "median"})
    return datasets.load_graph(dataset_settings("file", str(folder), **fields))


def describe_columns(folder: Path) -> list[str]:
    """Lines on the columns, as partitioning prints them."""
    graph: Any = datasets.read_graph(dataset_settings("file", str(folder)))
    return describe(encode_tables(graph, FeatureSettings(), None)[1])


def parquet(folder: Path, nodes: pd.DataFrame) -> None:
    nodes.to_parquet(folder / "nodes.parquet")
    EDGES.to_parquet(folder / "edges.parquet")


HASHES = np.arange(NUM_NODES, dtype=np.uint64) + np.uint64(2**64 - 100)
CHINESE = [f"李明 {row}" for row in range(NUM_NODES)]


@pytest.mark.parametrize(
    ("case", "ids"),
    [
        (lambda folder: parquet(folder, NODES.set_index("id")), None),
        (lambda folder: write(folder, *with_ids(HASHES)), str(HASHES[0])),
    ],
    ids=["named-index", "hashes"],
)
def test_ids_come_back_as_they_were_given(tmp_path: Path, case: Case, ids: str | None) -> None:
    case(tmp_path)
    graph = load(tmp_path, features={"scale": "none"})
    assert graph.shown_ids[0] == (0 if ids is None else ids)
    assert (graph.src.tolist(), graph.dst.tolist()) == (EDGES.src.tolist(), EDGES.dst.tolist())
    assert graph.labels.tolist() == LABELS.tolist()
    assert graph.features.tolist() == [[value] for value in NODES.x]


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(NUM_NODES),
        np.random.default_rng(0).permutation(NUM_NODES) + 1,
        np.random.default_rng(0).permutation(NUM_NODES) + 1.0,
        HASHES,
        CHINESE,
    ],
    ids=["rows", "permutation", "floats", "hashes", "names"],
)
def test_an_id_column_is_found_whatever_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ids: Any
) -> None:
    caplog.set_level(logging.INFO)
    nodes, edges = with_ids(ids)
    write(tmp_path, nodes.rename(columns={"id": "paper_id"}), edges)
    graph = load(tmp_path)
    assert graph.num_features == 1
    assert [str(shown) for shown in graph.shown_ids] == [
        str(each).removesuffix(".0") for each in ids
    ]
    assert graph.src.tolist() == EDGES.src.tolist()
    assert "column `paper_id` is taken as id" in caplog.text


@pytest.mark.parametrize("asked", [None, "acct", ("acct", "customer_id")])
@pytest.mark.parametrize("num_labels", [NUM_NODES, 4])
def test_id_columns_of_different_names_are_joined(
    tmp_path: Path, asked: Any, num_labels: int
) -> None:
    ids = np.random.default_rng(0).permutation(NUM_NODES) + 1000
    labels = pd.DataFrame({"customer_id": ids, "label": ids % 3})
    labels = labels.sort_values("customer_id")[-num_labels:]
    labels.to_csv(tmp_path / "labels.csv", index=False)
    pd.DataFrame({"acct": ids, "x": ids / 4}).to_csv(tmp_path / "features.csv", index=False)
    with_ids(ids)[1].to_csv(tmp_path / "edges.csv", index=False)
    columns = {} if asked is None else {"columns": {"id": asked}}
    graph = load(tmp_path, features={"scale": "none"}, **columns)
    assert graph.node_ids.tolist() == ids.tolist()
    assert graph.features[:, 0].tolist() == (ids / 4).tolist()
    assert graph.src.tolist() == EDGES.src.tolist()
    known = ids >= np.sort(ids)[-num_labels]
    assert graph.labels[known].tolist() == (ids[known] % 3).tolist()
    assert (graph.labels[~known] == -1).all()


def test_ends_of_relations_may_have_different_names(tmp_path: Path) -> None:
    for below in ("nodes", "edges"):
        (tmp_path / below).mkdir()
    NODES.to_csv(tmp_path / "nodes/a.csv", index=False)
    for name, start in (("knows", "from_item"), ("loves", "item_a")):
        frame = EDGES.rename(columns={"src": start})
        frame.to_csv(tmp_path / f"edges/a__{name}__a.csv", index=False)
    with pytest.raises(InputError, match="expected src and dst"):
        datasets.load_graph(dataset_settings("file", str(tmp_path)))
    columns: dict[str, Any] = {"src": ("from_item",)}
    with pytest.raises(InputError, match=r"a__loves__a.*or a list of those of all tables"):
        datasets.load_graph(dataset_settings("file", str(tmp_path), columns=columns))
    columns = {"src": ("from_item", "item_a")}
    graph = datasets.load_graph(dataset_settings("file", str(tmp_path), columns=columns))
    assert isinstance(graph, HeteroGraphData)
    for relation in graph.relations.values():
        assert {relation.num_edges} == {NUM_NODES}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_ids_that_may_be_row_numbers_are_refused(tmp_path: Path, suffix: str) -> None:
    ranks = np.random.default_rng(0).permutation(NUM_NODES)
    nodes = NODES.rename(columns={"id": "rank"}).assign(rank=ranks)
    if suffix == "csv":
        write(tmp_path, nodes)
    else:
        parquet(tmp_path, nodes)
    with pytest.raises(InputError, match=r"set columns\.id=rank, or columns\.numeric=rank"):
        load(tmp_path)
    as_id, as_feature = (
        load(tmp_path, columns={role: value})
        for role, value in (("id", "rank"), ("numeric", ["rank"]))
    )
    assert as_id.src.tolist() == np.argsort(ranks).tolist()
    assert as_feature.src.tolist() == EDGES.src.tolist()
    assert (as_id.num_features, as_feature.num_features) == (1, 2)


@pytest.mark.parametrize("npy", [False, True])
def test_all_edges_tell_ids_from_row_numbers(tmp_path: Path, npy: bool) -> None:
    nodes, edges = with_ids(np.arange(NUM_NODES) + 1)
    write(tmp_path, nodes.rename(columns={"id": "paper_id"}), edges)
    if npy:
        (tmp_path / "edges.csv").unlink()
        np.save(tmp_path / "edges.npy", edges.to_numpy())
    assert load(tmp_path).src.tolist() == EDGES.src.tolist()


def test_a_nameless_index_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    NODES.drop(columns="id").to_csv(tmp_path / "nodes.csv")
    EDGES.to_csv(tmp_path / "edges.csv", index=False)
    assert load(tmp_path).num_features == 1
    assert "left out" not in caplog.text
    said = [line for line in describe_columns(tmp_path) if "an index without a name" in line]
    assert said == ["nodes: left out: the nameless first column, an index without a name"]
    parquet(tmp_path / ".", NODES[NODES.id > 2])
    (tmp_path / "nodes.csv").unlink()
    (tmp_path / "edges.csv").unlink()
    assert load(tmp_path, unknown="drop").num_nodes == 9


def test_features_of_every_kind(tmp_path: Path) -> None:
    blank = NODES.x.where(NODES.id != 3)
    dates = pd.to_datetime(NODES.id, unit="D")
    parquet(tmp_path, NODES.assign(x=blank, city=["Rome", "Oslo", None] * 4, created=dates))
    graph = load(tmp_path)
    assert graph.num_features == 1 + 1 + 2 + 1  # x, x is blank, two cities, city is blank
    assert "nodes: left out: created, a date" in "\n".join(describe_columns(tmp_path))
    with pytest.raises(
        InputError, match=r"column `x` is blank in 1 rows.*features\.missing=median"
    ):
        load(tmp_path, features={"missing": "error"})


@pytest.mark.parametrize(
    ("labels", "unknown", "classes"),
    [
        (["a", "b", "unknown"] * 4, "unknown", [0, 1, -1]),
        (["1", "2", "unknown"] * 4, ["unknown", -100], [0, 1, -1]),
        ([0, 1, -100] * 4, -100, [0, 1, -1]),
        ([0.0, 1.0, -100.0] * 4, ["unknown", -100], [0, 1, -1]),
    ],
)
def test_what_stands_for_no_label(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: Any, unknown: Any, classes: Any
) -> None:
    write(tmp_path, NODES.assign(label=labels))
    assert load(tmp_path).num_classes == 3
    assert isinstance(labels[0], str) or "labels.unknown=[-100] if it" in caplog.text
    graph = load(tmp_path, **{"labels.unknown": unknown})
    assert (graph.num_classes, graph.labels.tolist()) == (2, classes * 4)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    "cells",
    [
        ["x|y", "y", "", "x | z"] * 3,
        ["[x, y]", "[y]", None, "[x, z]"] * 3,
        ["x;y", "y;", None, "z;x"] * 3,
        [["x", "y"], ["y"], None, ["x", "z"]] * 3,
    ],
)
def test_several_labels_in_a_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cells: Any, suffix: str
) -> None:
    nodes = NODES.assign(label=cells)
    if suffix == "csv":
        write(tmp_path, nodes)
        if isinstance(cells[0], list):
            pytest.skip("a csv has texts")
    else:
        parquet(tmp_path, nodes)
    graph = load(tmp_path, labels="multilabel")
    expected = [[1, 1, 0], [0, 1, 0], [np.nan] * 3, [1, 0, 1]] * 3
    np.testing.assert_array_equal(graph.labels, expected)
    caplog.clear()
    assert load(tmp_path).label_kind == "multiclass"
    assert "labels=multilabel reads it as several labels" in caplog.text


def test_names_of_nodes_as_classes_are_doubted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = 60
    names = [f"Person {row}" for row in range(count)]
    nodes = pd.DataFrame({"Id": range(count), "Label": names, "group": np.arange(count) % 3})
    edges = pd.DataFrame({"Source": range(count), "Target": 0, "Id": range(count)})
    write(tmp_path, nodes, edges)
    load(tmp_path)
    assert "60 classes of 60 labelled nodes; set columns.label" in caplog.text
    assert "edges: left out: Id, it numbers the edges" in "\n".join(describe_columns(tmp_path))
    caplog.clear()
    graph = load(tmp_path, columns={"label": ("group",), "ignore": ("Label",)}, features="degree")
    assert graph.num_classes == 3
    assert "classes of" not in caplog.text


@pytest.mark.parametrize(("ends", "is_warned"), [(("user", "item"), True), (("from", "to"), False)])
def test_ids_of_two_types_in_one_table_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ends: Any, is_warned: bool
) -> None:
    EDGES.set_axis(list(ends), axis=1).to_csv(tmp_path / "edges.csv", index=False)
    columns = {"src": ends[0], "dst": ends[1]}
    datasets.read_graph(
        dataset_settings("file", str(tmp_path), columns=columns, task=TASKS[2], features="degree")
    )
    assert ("edges/user__RELATION__item.csv" in caplog.text) == is_warned


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["[0.5, -2]", "[1e-3, 4]", None] * 4, [[0.5, -2], [0.001, 4], [np.nan] * 2]),
        (["0.5,-2.0", "1,4.5", "3.0,2"] * 4, [[0.5, -2], [1, 4.5], [3, 2]]),
        (["(0.5 -2)", "(1  4)", "(3 2)"] * 4, [[0.5, -2], [1, 4], [3, 2]]),
        (["12%", "7.5 %", None] * 4, [[0.12], [0.075], [np.nan]]),
        (["€0.50", "-€1.50", "€ 3"] * 4, [[0.5], [-1.5], [3]]),
        (["5 USD", "1.5 USD", "-2 USD"] * 4, [[5], [1.5], [-2]]),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_numbers_in_texts_are_numbers(tmp_path: Path, cells: Any, values: Any, suffix: str) -> None:
    nodes = NODES.drop(columns="x").assign(v=cells)
    if suffix == "csv":
        write(tmp_path, nodes)
    else:
        parquet(tmp_path, nodes)
    graph = datasets.read_graph(dataset_settings("file", str(tmp_path)))
    assert isinstance(graph, GraphData)
    np.testing.assert_allclose(graph.features, np.tile(values, (4, 1)), rtol=1e-6)


@pytest.mark.parametrize("cells", [["[1, 2]", "[1]", "[2, 3]"] * 4, ["a b", "c d", "e f"] * 4])
def test_an_embedding_is_parsed_or_refused(tmp_path: Path, cells: Any) -> None:
    write(tmp_path, NODES.assign(v=cells))
    with pytest.raises(
        InputError, match=r"column `v`, row 0 is .*expected as many numbers in each"
    ):
        load(tmp_path, columns={"embedding": ("v",)})


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie", "metadata"])
def test_tables_with_a_log_are_refused(tmp_path: Path, log: str) -> None:
    write(tmp_path)
    (tmp_path / "edges.csv").unlink()
    (tmp_path / "edges.parquet" / log).mkdir(parents=True)
    EDGES.to_parquet(tmp_path / "edges.parquet/part-0.parquet")
    with pytest.raises(InputError, match=f"has {log}, .*write it as one table"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("edges.txt", "% sym positive\n% 12 12 12\n{0} {1} 1 11\n"),
        ("edges.csv", "src::dst\n{0}::{1}\n"),
        ("edges.tsv", "src\tdst\n{0}\t{1}\n"),
        ("edges.csv", "# made by\n#\nsrc,dst\n{0},{1}\n"),
    ],
)
def test_edges_as_other_programs_write_them(tmp_path: Path, name: str, text: str) -> None:
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    *head, row, _ = text.split("\n")
    rows = [row.format(*ends) for ends in zip(EDGES.src, EDGES.dst, strict=True)]
    (tmp_path / name).write_text("\n".join([*head, *rows]) + "\n")
    columns = {"src": "0", "dst": "1", "weight": "2", "ignore": ("3",)} if "%" in text else {}
    graph = load(tmp_path, columns=columns)
    assert (graph.src.tolist(), graph.dst.tolist()) == (EDGES.src.tolist(), EDGES.dst.tolist())


def test_empty_part_files_are_skipped(tmp_path: Path) -> None:
    for name, frame in (("nodes", NODES), ("edges", EDGES)):
        (tmp_path / f"{name}.csv").mkdir()
        for part, rows in enumerate((frame[:5], frame[:0], frame[5:])):
            file = tmp_path / f"{name}.csv/part-{part}.csv"
            file.write_text("" if part == 1 else rows.to_csv(index=False))
    assert load(tmp_path).src.tolist() == EDGES.src.tolist()


def test_rows_of_two_tables_that_do_not_match_are_counted(tmp_path: Path) -> None:
    nodes, edges = with_ids([f"n{row}" for row in range(NUM_NODES)])
    write(tmp_path, nodes[["id", "label"]], edges)
    np.save(tmp_path / "features.npy", np.ones((NUM_NODES + 2, 3)))
    with pytest.raises(InputError, match=r"features.npy: has 14 rows, and .*nodes.csv has 12"):
        load(tmp_path)


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-03-31T22:00:00.125+00:00", "2024-03-31T22:00:00+00:00", "2024-03-31T22:00:01Z"],
        ["20240331T220000.125Z", "20240331T220000Z", "2024-W13-7T22:00:01"],
        ["2024-03-31 22:00:00,125", "2024-04-01T00:00+02:00", "2024-03-31T22:00:01"],
    ],
)
def test_times_of_iso_8601(tmp_path: Path, cells: list[str]) -> None:
    write(tmp_path, NODES.assign(when=cells * 4))
    columns = {"date": ("when",), "ignore": ("x",)}
    graph = datasets.read_graph(dataset_settings("file", str(tmp_path), columns=columns))
    assert isinstance(graph, GraphData)
    assert graph.schema is not None
    start = 1711922400.0
    found = graph.features[:3, 0].astype(np.float64) + graph.schema.columns[0].offset
    np.testing.assert_allclose(found - start, [0.125, 0, 1], atol=1e-6)


def test_several_label_columns_are_multi_label(tmp_path: Path) -> None:
    write(tmp_path, NODES.drop(columns="label").assign(t0=LABELS, t1=1 - LABELS))
    graph = load(tmp_path, columns={"label": ("t*",)})
    assert graph.labels.tolist() == np.column_stack((LABELS, 1 - LABELS)).tolist()
    assert graph.num_features == 1


def test_blank_cells_of_several_labels_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node with a known cell is labelled and in a split; of the others no mask has one."""
    labels = np.random.default_rng(0).choice([0, 1, np.nan], (NUM_NODES, 3))
    labels[:2] = np.nan
    labels[2] = [1, np.nan, np.nan]
    columns = {f"t{number}": labels[:, number] for number in range(3)}
    write(tmp_path, NODES.drop(columns="label").assign(**columns))
    wanted = {"columns": {"label": ("t*",)}}
    graph = load(tmp_path, **wanted)
    np.testing.assert_array_equal(graph.labels, labels)
    known = ~np.isnan(labels)
    assert graph.labelled.tolist() == known.any(axis=1).tolist()
    of_labelled = known[known.any(axis=1)]
    blank = (~of_labelled).sum(axis=0)
    assert (
        f"{blank.sum()} of {of_labelled.size} cells of labelled nodes are blank, unknown labels; by"
        f" label: {', '.join(map(str, blank))}"
    ) in caplog.text
    shares = split_settings(kind="fraction", train=0.5, val=0.25, test=0.25)
    split = draw(graph, shares, SplitRecipe("given"))
    masks = np.stack((split.train, split.val, split.test))
    assert masks.sum(axis=0).tolist() == known.any(axis=1).astype(int).tolist()
    with pytest.raises(InputError, match=r"number of ones: row 2 is nan; expected one"):
        load(tmp_path, labels="multiclass", **wanted)


def test_a_split_column_and_masks_without_validation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, NODES.assign(split=["train", "valid", "Test", None] * 3))
    graph = load(tmp_path)
    assert graph.val_mask is not None
    assert np.flatnonzero(graph.val_mask).tolist() == [1, 5, 9]
    draw(graph, split_settings("fraction", train=0.5, val=0.25, test=0.25), SplitRecipe("given"))
    assert "split=fraction: the split of the data is not used" in caplog.text
    masks = NODES.assign(train_mask=NODES.id < 6, test_mask=NODES.id > 8)
    write(tmp_path, masks)
    graph = load(tmp_path)
    assert graph.val_mask is not None
    assert not graph.val_mask.any()
    assert "`val_mask` is missing: no node is used for validation" in caplog.text
    write(tmp_path, masks.drop(columns="train_mask"))
    with pytest.raises(InputError, match="`train_mask` is missing"):
        load(tmp_path)


def test_dates_split_the_nodes(tmp_path: Path) -> None:
    write(tmp_path, NODES.assign(day=[f"2024-01-{31 - row}" for row in range(12)]))
    graph = load(tmp_path, columns={"time": "day"}, split=split_settings("time"))
    assert graph.node_time is not None
    assert (np.diff(graph.node_time) == -86400).all()


def test_an_id_column_of_a_type_is_found(tmp_path: Path) -> None:
    for folder in ("nodes", "edges"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nodes/film.csv").write_text("film_key,label,x\n7,0,1\n5,1,2\n")
    (tmp_path / "nodes/actor.csv").write_text("actor_key,x\nann,1\nbob,2\n")
    (tmp_path / "edges/actor__in__film.csv").write_text("src,dst\nbob,7\nann,5\nbob,5\n")
    graph = datasets.load_graph(dataset_settings("file", str(tmp_path)))
    assert isinstance(graph, HeteroGraphData)
    assert graph.nodes["film"].node_ids.tolist() == [7, 5]
    assert graph.nodes["actor"].features.tolist() == [[1], [2]]
    relation = graph.relations["actor", "in", "film"]
    assert (relation.src.tolist(), relation.dst.tolist()) == ([1, 0, 1], [0, 1, 1])


def test_a_folder_of_types_without_labels(tmp_path: Path) -> None:
    for folder in ("nodes", "edges"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nodes/film.csv").write_text("id,year,kind\nf0,1990,a\nf1,,b\n")
    (tmp_path / "nodes/actor.csv").write_text("id,age\na0,30\n")
    (tmp_path / "edges/actor__in__film.csv").write_text("src,dst\na0,f1\n")
    asked = dataset_settings("file", str(tmp_path), target="film", features={"missing": "median"})
    with pytest.raises(InputError, match="target=film: it has no labels"):
        datasets.load_graph(asked)
    graph = datasets.load_graph(replace(asked, split=replace(asked.split, kind="none")))
    assert isinstance(graph, HeteroGraphData)
    assert graph.nodes["film"].features.tolist() == [[1990, 0, 1, 0], [1990, 1, 0, 1]]


PRICES = [120.5, None, 90.0, 310.25, 88.0, 140.0]


def write_houses(folder: Path, **columns: object) -> Path:
    frame = pd.DataFrame({"id": [f"h{row}" for row in range(6)], "rooms": [3, 4, 2, 6, 2, 3]})
    folder.mkdir()
    frame.assign(**columns).to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text("src,dst\nh0,h1\nh1,h2\nh2,h3\n")
    return folder


def load_targets(file: Path, *overrides: str) -> GraphData:
    data = ["dataset_name=file", f"dataset_file={file}", "task=node_regression", *overrides]
    return datasets.load_graph(compose(data))


def test_columns_are_targets_and_blank_cells_unknown(tmp_path: Path) -> None:
    folder = write_houses(tmp_path / "houses", price=PRICES, age=[1, 2, 3, -1, 5, 6])
    graph = load_targets(folder, "columns.label=[price,age]")
    assert (graph.label_kind, graph.class_names) == ("regression", ("price", "age"))
    np.testing.assert_array_equal(graph.labels[:, 0], np.array(PRICES, float))
    np.testing.assert_array_equal(graph.labels[:, 1], [1, 2, 3, -1, 5, 6])
    assert graph.num_features == 1
    integers = load_targets(folder, "columns.label=age")
    assert (integers.label_kind, integers.labels.shape) == ("regression", (6, 1))


def test_pyg_data_with_float_y(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data").Data
    torch = pytest.importorskip("torch")
    y = torch.tensor([[1.5], [2.25], [torch.nan]])
    made = data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]), y=y)
    graph = load_targets(Path(retexo.from_pyg(made, tmp_path / "graph.npz")))
    np.testing.assert_array_equal(graph.labels, y.double().numpy())
    assert graph.class_names is None


@pytest.mark.parametrize(
    ("prices", "overrides", "message"),
    [
        ([*PRICES[:3], "cheap", 1, 2], [], r"column `price`, row 3 is 'cheap'; expected a number"),
        ([*PRICES[:3], 1e20, 1, 2], [], r"row 3, column price is 1e\+20; expected a number below"),
        ([None] * 6, [], "column price is blank at every node"),
        (PRICES, ["labels=multiclass"], "labels=multiclass: says how classes are given"),
        (PRICES, ["task=node_classification"], "row 0 is 120.5; .*task=node_regression"),
    ],
)
def test_what_is_no_target_is_refused(
    prices: list[object], overrides: list[str], message: str, tmp_path: Path
) -> None:
    folder = write_houses(tmp_path / "houses", price=prices)
    with pytest.raises(InputError, match=message):
        load_targets(folder, "columns.label=price", *overrides)


def test_many_numbers_as_classes_are_refused_with_the_remedy(tmp_path: Path) -> None:
    edges = {"src": np.array([0]), "dst": np.array([1])}
    np.savez(tmp_path / "graph.npz", label=np.arange(5000) * 7.0, feat=np.eye(5000, 2), **edges)
    with pytest.raises(InputError, match=r"5000 different labels .*task=node_regression"):
        load_targets(tmp_path / "graph.npz", "task=node_classification")
    assert load_targets(tmp_path / "graph.npz").labels.shape == (5000, 1)


def test_data_sets_of_classes_are_refused() -> None:
    with pytest.raises(InputError, match="task=node_regression: dataset_name=cora has classes"):
        datasets.load_graph(compose(["dataset_name=cora", "task=node_regression"]))
