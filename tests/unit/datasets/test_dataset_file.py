"""Files of arrays, and DGL's graph files: what goes in comes out, and each mistake is named."""

import gzip
import io
import logging
import pickle
import tracemalloc
import zipfile
from multiprocessing import forkserver

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from graph_files import assert_graph, load, write_files
from support import dataset_settings, dgl, split_settings

from partitioning import datasets
from partitioning.errors import InputError
from partitioning.files.file_io import UNREADABLE
from partitioning.files.unpacked_size import check_unpacked_size
from partitioning.graph.graph_data import EDGE_DATA

NAN = np.nan
# Four nodes in a path, three classes, one node without a label.
PATH = {
    "src": np.array([0, 1, 2]),
    "dst": np.array([1, 2, 3]),
    "feat": np.arange(8, dtype=np.float32).reshape(4, 2),
    "label": np.array([0, 2, -1, 1]),
    "train_mask": np.array([True, False, False, False]),
    "val_mask": np.array([False, True, False, False]),
    "test_mask": np.array([False, False, False, True]),
    "node_id": np.array([70, 10, 30, 20]),
}
MATRIX = sp.csr_array(PATH["feat"])
CSR = {name: array for name, array in PATH.items() if name != "feat"} | {
    "feat_data": MATRIX.data,
    "feat_indices": MATRIX.indices,
    "feat_indptr": MATRIX.indptr,
    "feat_shape": np.array(MATRIX.shape),
}
IS_PATH = {
    "name": "toy",
    "features": PATH["feat"],
    "labels": [0, 2, -1, 1],
    "num_classes": 3,
    "node_ids": [70, 10, 30, 20],
    **{name: PATH[name] for name in ("src", "dst", "train_mask", "val_mask", "test_mask")},
}
BARE = {"src": [0, 1, 2], "dst": [1, 2, 3], "feat": np.eye(4), "label": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("arrays", "fields", "expected", "said"),
    [
        pytest.param(PATH, {}, IS_PATH, "", id="dense features"),
        pytest.param(CSR, {}, IS_PATH, "", id="sparse features"),
        pytest.param(
            CSR
            | {"feat_data": [1.0, 2, 4], "feat_indices": [1, 0, 1], "feat_indptr": [0] + 4 * [3]},
            {},
            {"features": [[2, 5], *[[0, 0]] * 3], "features.nnz": 2},
            "",
            id="sparse entries of one place are added up",
        ),
        pytest.param(
            {**CSR, "label": None, "node_id": None},
            {"split": split_settings(kind="none")},
            {"num_nodes": 4, "labelled": [False] * 4},
            "",
            id="sparse features alone",
        ),
        pytest.param(
            {"src": [0, 1, 2], "dst": [1, 2, 3]},
            {"split": split_settings(kind="none"), "features": ("degree",)},
            {"num_nodes": 4, "node_ids": [0, 1, 2, 3]},
            "",
            id="edges alone",
        ),
        pytest.param(
            {**PATH, "label": [[0, 1], [NAN, NAN], [1, NAN], [0, 0]]},
            {},
            {
                "label_kind": "multilabel",
                "labels": [[0, 1], [NAN, NAN], [1, NAN], [0, 0]],
                "labelled": [True, False, True, True],
            },
            "",
            id="several labels, some blank",
        ),
        pytest.param(
            {**PATH, "label": np.array([2**64 - 1, 7, 2**64 - 1, 7], np.uint64)},
            {},
            {"labels": [1, 0, 1, 0], "class_names": (7, 2**64 - 1)},
            "",
            id="classes beyond int64",  # of which the last would be -1, no class
        ),
        pytest.param(
            {**BARE, "label": ["b", "b ", " a", " "]},
            {},
            {"labels": [1, 1, 0, -1], "class_names": ("a", "b")},
            "",
            id="classes with blanks around",
        ),
        pytest.param(
            {
                **BARE,
                "edge_time": np.array(["2024-01-01"] * 2 + ["2024-01-02T12"], "datetime64[h]"),
            },
            {},
            {"edge_time": [1704067200.0, 1704067200.0, 1704196800.0]},
            "",
            id="times of edges",
        ),
        pytest.param(
            {**BARE, "edge_weight": [0.5, 0, 7], "edge_feat": [[1.5, 2], [3, 4], [5, 6]]},
            {},
            {"edge_weight": [0.5, 0, 7], "edge_feat": [[1.5, 2], [3, 4], [5, 6]]},
            "",
            id="weights and features of edges",
        ),
        pytest.param(
            {**BARE, "weight": np.ones(3)},
            {},
            {"edge_weight": None},
            "weight",
            id="a word not known",
        ),
        pytest.param(
            {**BARE, "label": np.eye(2)[[0, 1, 0, 1]]},
            {},
            {"label_kind": "multilabel"},
            "read as multi-label",
            id="one 1 in every row",
        ),
        pytest.param(
            {**BARE, "label": [0, 3, -1, 3]},
            {},
            {"labels": [0, 3, -1, 3]},
            "2 of 4 classes have no node, the first is 1",
            id="classes without a node",
        ),
        pytest.param(
            {**BARE, "label": np.array([2.5, 1, NAN, -1])},
            {"task": "node_regression"},
            {"labels": [[2.5], [1], [NAN], [-1]]},
            "",
            id="targets",
        ),
    ],
)
def test_arrays_come_back_as_they_went_in(tmp_path, caplog, arrays, fields, expected, said):
    arrays = {name: array for name, array in arrays.items() if array is not None}
    np.savez_compressed(tmp_path / "toy.npz", **arrays)
    assert_graph(load(tmp_path / "toy.npz", **fields), **expected)
    assert said in caplog.text


def test_what_is_as_it_should_be_is_not_told(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    labels = {**BARE, "label": [[1.0, 0], [NAN, NAN], [1, 1], [0, 0]]}
    load(write_files(tmp_path, {"g.npz": labels}) / "g.npz")
    load(
        write_files(
            tmp_path / "g", {"nodes.csv": "label,x\n0,1\n1,2\n", "edges.csv": "src,dst\n0,1\n"}
        )
    )
    assert not caplog.text


def test_a_reverse_edge_has_the_weight_and_features_of_its_edge(tmp_path):
    """1 -> 2 and back are both there, 0 and 1 too; of 3 -> 0, twice, both are added."""
    weight = np.array([5.0, 1, 2, 6, 3, 4])
    ends = {"src": [3, 0, 1, 3, 1, 2], "dst": [0, 1, 0, 0, 2, 1]}
    arrays = {**BARE, **ends, "edge_weight": weight, "edge_feat": -weight}
    graph = load(write_files(tmp_path, {"g.npz": arrays}) / "g.npz", symmetrize=True)
    added = sorted(
        zip(graph.edges.src[6:], graph.edges.dst[6:], graph.edges.edge_weight[6:], strict=True)
    )
    assert added == [(0, 3, 5), (0, 3, 6)]
    np.testing.assert_array_equal(graph.edges.edge_feat, -graph.edges.edge_weight[:, None])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"src": np.array([0, 4, 2])}, r"`src`: row 1 is 4; expected a node in \[0, 4\)"),
        ({"dst": np.array([0, 1, -1])}, "`dst`: row 2 is -1"),
        ({"src": np.array([0, 1])}, "`dst` has 3 rows, `src` has 2"),
        ({"src": np.array([0, 1.5, 2])}, "`src`: row 1 is 1.5; expected integers"),
        ({"src": np.array([0.0, 1, 2])}, "`src` has .*dtype float64; expected integers"),
        ({"src": np.array(["0", "1", "2"])}, "`src` has .*dtype <U1; expected integers"),
        ({"src": np.zeros((2, 3), int)}, r"`src` has shape \(2, 3\)"),
        ({"src": np.array([0, 2**63, 1], dtype=np.uint64)}, "row 1 is 9223372036854775808"),
        ({"src": np.array([0, {}, 1], dtype=object)}, "`src`: .* holds Python objects"),
        ({"feat": np.array([[1, 1], [1, 1], [1, NAN], [1, 1]])}, "`feat` is blank in 1 rows, .* 2"),
        (
            {"feat": np.array([[1, 1], [1e60, 1], [1, 1], [1, 1]])},
            r"`feat`: row 1, column 0 is 1e\+60",
        ),
        ({"feat": np.ones((3, 2))}, "`feat` has 3 rows; expected 4"),
        ({"feat": np.ones(4)}, r"`feat` has shape \(4,\)"),
        ({"feat": np.ones((4, 0))}, "at least one feature"),
        ({"feat": np.ones((4, 2), complex)}, "`feat` has .*dtype complex128"),
        ({"feat_data": np.ones(1)}, "has both `feat` and `feat_data`"),
        ({"label": np.array([0, 0.5, 1, 1])}, "`label`: row 1 is 0.5; expected a class"),
        ({"label": np.array([-1, -1, -1, -1])}, "no node has a label"),
        ({"label": np.zeros(0, int)}, "`label` is empty"),
        ({"label": np.array([[0, 1], [2, 0], [1, 1], [0, 0]])}, "row 1, column 0 is 2; expected 0"),
        (
            {"label": np.array([[0, 1], [NAN, 0.5], [1, 1], [0, 0]])},
            r"`label`: row 1, column 1 is 0.5; expected 0 or 1, or blank \(NaN\)",
        ),
        ({"label": np.array([[0, 1], [-1, -1], [1, 1], [0, 0]])}, "row 1, column 0 is -1"),
        ({"label": None}, "there is no array `label`; expected src, dst, label; found"),
        ({"label": np.array(["a", "b", "\ud800", "c"])}, "`label`: row 2 is .*; expected Unicode"),
        (
            {"label": np.array([b"a", b"b", b"\xff", b"c"])},
            "`label`: row 2 is .*; expected Unicode",
        ),
        ({"train_mask": np.array([True])}, "`train_mask` has 1 rows; expected 4"),
        ({"train_mask": np.array([0, 3, 0, 0])}, "`train_mask`: row 1 is 3; expected a mask"),
        ({"train_mask": np.array([0.0, 1, 0, 0])}, "`train_mask` has .*dtype float64"),
        ({"node_id": np.array([1, 2, 3])}, "`node_id` has 3 rows"),
        ({"node_id": np.array([1, 2, 3, 1])}, "`node_id`: rows 0 and 3 are both 1"),
        ({"node_id": np.array(["a", "b", "\ud800", "c"])}, "`node_id`: row 2 .*; expected Unicode"),
        (
            {"node_id": np.array([b"a", b"b", b"\xff", b"c"])},
            "`node_id`: row 2 .*; expected Unicode",
        ),
        ({"edge_weight": np.array([1, -2, 1])}, "`edge_weight`: row 1 is -2; expected 0, or"),
        ({"edge_weight": np.array([1, 1e-50, 1])}, "`edge_weight`: row 1 is 1e-50; expected 0, or"),
        ({"edge_weight": np.array([True] * 3)}, "`edge_weight`.* row 0 is True; expected 0, or"),
        ({"edge_weight": np.array([1, 1, 1e30])}, "`edge_weight`: row 2 is .*; expected 0, or"),
        ({"edge_weight": np.array([1, 1, NAN])}, "`edge_weight`: row 2, .* is nan; expected a fin"),
        (
            {"edge_weight": np.ones(4)},
            r"`edge_weight` has shape \(4,\), .* expected \[3\], a weight",
        ),
        (
            {"edge_weight": np.array(list("abc"))},
            r"`edge_weight` .*dtype <U1; expected \[3\], a weight",
        ),
        (
            {"edge_feat": np.ones((4, 2))},
            r"`edge_feat` has shape \(4, 2\), .* expected numbers \[3, features\]",
        ),
        ({"edge_feat": np.full((3, 2), np.inf)}, "`edge_feat`: row 0, column 0 is inf; expected a"),
        *(
            ({name: np.float32(1)}, rf"array `{name}` has shape \(\), .* a row for each")
            for name in ("label", "node_id", "feat", "train_mask", *EDGE_DATA, "edge_time")
        ),
        (
            dict.fromkeys(PATH) | {"x": np.eye(4), "edge_index": np.eye(2, 3), "y": PATH["label"]},
            r"retexo\.from_pyg\(data\)",
        ),
        *(
            (CSR | {"feat": None, **arrays}, message)
            for arrays, message in (
                (
                    {"feat_indices": [1, 0, 1, 0, 1, 0, 2]},
                    r"`feat_indices`: row \d is \d; expected a feature in \[0, 2\)",
                ),
                ({"feat_indptr": [0, 1, 3, 5]}, "row 3 is 5; expected 7 stored"),
                ({"feat_indptr": [0, 1, 3, 5, 6]}, "row 4 is 6; expected 7 stored"),
                ({"feat_indptr": [0, 3, 1, 5, 7]}, "indptr must be a non-decreasing"),
                ({"feat_shape": [5, 2]}, r"`feat_shape` is \[5, 2\]; expected \[4, features\]"),
                ({"feat_shape": [4, 2**62]}, r"`feat_shape` is .*at most 10,000,000 features"),
                ({"feat_data": np.ones(3)}, "data should have the same size"),
                ({"feat_data": [1, 2, 3, np.inf, 5, 6, 7]}, "`feat_data`: row 3, column 0 is inf"),
                ({"feat_shape": None}, "there is no array `feat_shape`"),
            )
        ),
    ],
)
def test_a_wrong_array_is_named(tmp_path, arrays, message):
    arrays = {name: array for name, array in (PATH | arrays).items() if array is not None}
    with pytest.raises(InputError, match=rf"toy\.npz.*{message}"):
        load(write_files(tmp_path, {"toy.npz": arrays}) / "toy.npz")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", "no such file"),
        ("toy.dat", "unknown form"),
        ("toy.gml", r"networkx\.read_gml.*from_networkx"),
        ("toy.MTX", r"scipy\.io\.mmread.*from_scipy"),
        ("toy.json", r"pandas\.read_json.*from_pandas"),
        ("toy.pt", r"a \.pt is a pickle.*retexo\.from_pyg"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, message):
    files = {f"toy.{suffix}": "0 1" for suffix in ("dat", "gml", "MTX", "json", "pt")}
    with pytest.raises(InputError, match=message):
        load(write_files(tmp_path, files) / name)


def test_a_file_has_to_be_named():
    with pytest.raises(InputError, match="needs dataset_file=PATH"):
        datasets.load_graph(dataset_settings("file", None))


# --- what would fill the memory


def zeros(save):
    """16 MiB of zeros, which take 16 KiB when they are compressed."""
    file = io.BytesIO()
    save(file, feat=np.zeros((1 << 20, 2)))
    return file.getvalue()


def long_texts(lists):
    """A text of 100,000 letters in 20,000 rows, which parquet stores once."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 100_000])
    if lists:
        texts = pa.ListArray.from_arrays(np.arange(20_001, dtype=np.int32), texts)
    table = {"id": np.arange(20_000), "label": np.zeros(20_000, np.int8), "note": texts}
    file = pa.BufferOutputStream()
    pq.write_table(pa.table(table), file)
    return file.getvalue().to_pybytes()


ZEROS = pd.DataFrame({"src": np.zeros(200_000, np.int8), "dst": np.zeros(200_000, np.int8)})
NO_EDGES = {"edges.csv": "src,dst\n"}


@pytest.mark.parametrize(
    ("files", "opened", "max_gib"),
    [
        ({"toy.npz": zeros(np.savez_compressed)}, "toy.npz", 0.01),
        ({"features.npz": zeros(np.savez_compressed), **NO_EDGES}, ".", 0.01),
        ({"nodes/film.npz": zeros(np.savez_compressed), "edges/film__x__film.csv": ""}, ".", 0.01),
        ({"edges.parquet": ZEROS}, ".", 0.001),
        (
            {"nodes.csv.gz": gzip.compress(b"id,label\n" + b"0,0\n" * 1_000_000), **NO_EDGES},
            ".",
            0.001,
        ),
        ({"nodes.parquet/part-0.parquet": ZEROS, **NO_EDGES}, ".", 0.001),
        ({"nodes.parquet": long_texts(lists=False), **NO_EDGES}, ".", 0.1),
        ({"nodes.parquet": long_texts(lists=True), **NO_EDGES}, ".", 0.1),
    ],
)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path, files, opened, max_gib):
    path = write_files(tmp_path, files) / opened
    message = rf"{next(iter(files))}: grows by 0\.\d+ GiB.*dataset_max_gib=1, which is {max_gib}"
    with pytest.raises(InputError, match=message):
        load(path, max_gib=max_gib)


@pytest.mark.parametrize(
    ("files", "opened", "max_gib"),
    [
        ({"toy.npz": zeros(np.savez)}, "toy.npz", 0.01),
        ({"edges.parquet": ZEROS}, ".", 0.1),
    ],
)
def test_a_large_file_may_be_there(tmp_path, files, opened, max_gib):
    """Where the setting says so, or where it is not packed."""
    with pytest.raises(InputError, match=r"^(?!.*grows)"):  # it is no graph yet
        load(write_files(tmp_path, files) / opened, max_gib=max_gib)


def test_arrays_that_are_not_used_are_not_unpacked(tmp_path, caplog):
    """80 MB of zeros; a name in the log is shortened, and there are ten."""
    unused = dict.fromkeys([f"{'x' * 1000}{number}" for number in range(30)], np.zeros(1))
    np.savez_compressed(tmp_path / "toy.npz", **PATH, **unused, zeros=np.zeros(10_000_000))
    tracemalloc.start()
    try:
        assert_graph(load(tmp_path / "toy.npz"), **IS_PATH)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert "and 21 more" in caplog.text
    assert len(caplog.text) < 2_000


# --- damage, and what would run code


def test_no_byte_of_a_parquet_footer_ends_the_process(tmp_path):
    """pyarrow aborts where the sizes of a column's levels do not fit."""
    path = tmp_path / "nodes.parquet"
    pq.write_table(pa.table({"age": [1.0, None], "lists": [[1], None]}), path)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    unread = 0
    for at in range(footer, len(content) - 8):
        path.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])
        try:
            check_unpacked_size(path, 0.1)
        except UNREADABLE:
            unread += 1
    assert unread > 100


def test_a_member_that_is_there_twice(tmp_path):
    path = write_files(tmp_path, {"toy.npz": PATH}) / "toy.npz"
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("src.npy", archive.read("dst.npy"))
    with pytest.raises(InputError, match=r"toy\.npz: holds `src` more than once"):
        load(path)


class Trap:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Trap()),
        PATH | {"src": np.array([Trap()], dtype=object)},
    ],
    ids=["file", "array"],
)
def test_nothing_is_unpickled(tmp_path, content):
    with pytest.raises(InputError, match=r"trap\.npz"):
        load(write_files(tmp_path, {"trap.npz": content}) / "trap.npz")


# --- DGL's graph files


def write_dgl(path, *, count=1, edata=(), **arrays):
    arrays = {
        name: torch.as_tensor(array) for name, array in (PATH | arrays).items() if array is not None
    }
    graph = dgl.graph((arrays.pop("src"), arrays.pop("dst")), num_nodes=4)
    graph.ndata.update(arrays)
    graph.edata.update(dict(edata))
    dgl.save_graphs(str(path), [graph] * count)
    return path


@pytest.mark.usefixtures("fork_server")
def test_a_dgl_file(tmp_path, caplog):
    edata = {"w": torch.tensor([0.5, 0, 7]), "feat": torch.eye(3), "shade": torch.ones(3)}
    graph = load(write_dgl(tmp_path / "toy.dgl", edata=edata))
    assert_graph(graph, **IS_PATH, edge_weight=[0.5, 0, 7], edge_feat=np.eye(3))
    assert "toy.dgl: edata: `shade`: left out" in caplog.text


def cut(path):
    path.write_bytes(path.read_bytes()[:200])


def crash(path):
    """A byte that ends DGL's process."""
    content = bytearray(path.read_bytes())
    content[29] = 255
    path.write_bytes(content)


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: write_dgl(path, feat=np.where(np.eye(4) > 0, NAN, 1)[:, :2]),
            "`feat` is blank in 2 rows, the first is row 0",
        ),
        (lambda path: write_dgl(path, label=None), "there is no array `label`"),
        (lambda path: write_dgl(path, count=2), "holds 2 graphs"),
        (lambda path: cut(write_dgl(path)), "not a readable DGL graph file"),
        (lambda path: path.write_bytes(b"rubbish" * 100), "not a readable DGL graph file"),
        (lambda path: crash(write_dgl(path)), "DGL's reader crashes"),
    ],
    ids=["blank", "unlabelled", "two", "cut", "rubbish", "crash"],
)
def test_a_wrong_dgl_file_is_named(tmp_path, write, message):
    write(tmp_path / "toy.bin")
    with pytest.raises(InputError, match=rf"toy\.bin.*{message}"):
        load(tmp_path / "toy.bin")


def test_a_dgl_file_that_ends_dgls_process_is_refused_without_a_fork_server(tmp_path, monkeypatch):
    monkeypatch.setattr(forkserver._forkserver, "_forkserver_pid", None)
    crash(write_dgl(tmp_path / "toy.bin"))
    with pytest.raises(InputError, match=r"toy\.bin: DGL's reader crashes"):
        load(tmp_path / "toy.bin")
