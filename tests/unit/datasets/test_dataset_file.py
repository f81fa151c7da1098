"""Graphs of the user's own: what goes in comes out, and each mistake is named."""

import gzip
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
from support import dataset_settings, split_settings

from partitioning import datasets
from partitioning.errors import InputError
from partitioning.file_io import UNREADABLE
from partitioning.graph_data import EDGE_DATA
from partitioning.unpacked_size import check_unpacked_size


def load(path, name="file", **fields):
    return datasets.load_graph(
        dataset_settings(name, None if path is None else str(path), **fields)
    )


def arrays():
    """Four nodes in a path, three classes, one node unlabelled."""
    return {
        "src": np.array([0, 1, 2]),
        "dst": np.array([1, 2, 3]),
        "feat": np.arange(8, dtype=np.float32).reshape(4, 2),
        "label": np.array([0, 2, -1, 1]),
        "train_mask": np.array([True, False, False, False]),
        "val_mask": np.array([False, True, False, False]),
        "test_mask": np.array([False, False, False, True]),
        "node_id": np.array([70, 10, 30, 20]),
    }


def with_csr(given):
    matrix = sp.csr_array(given.pop("feat"))
    parts = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "shape": np.array(matrix.shape),
    }
    return given | {f"feat_{name}": part for name, part in parts.items()}


def assert_is_toy(graph, ids=True):
    toy = arrays()
    assert graph.src.tolist() == [0, 1, 2]
    assert graph.dst.tolist() == [1, 2, 3]
    dense = graph.features.toarray() if sp.issparse(graph.features) else graph.features  # type: ignore[attr-defined]
    assert dense.dtype == np.float32
    assert (dense == toy["feat"]).all()
    assert graph.labels.tolist() == [0, 2, -1, 1]
    assert graph.num_classes == 3
    for name in ("train_mask", "val_mask", "test_mask"):
        assert getattr(graph, name).tolist() == toy[name].tolist()
    assert graph.node_ids.tolist() == (toy["node_id"].tolist() if ids else [0, 1, 2, 3])


@pytest.mark.parametrize("form", [lambda given: given, with_csr])
def test_npz_comes_back_as_it_went_in(tmp_path, form):
    np.savez_compressed(tmp_path / "toy.npz", **form(arrays()))
    graph = load(tmp_path / "toy.npz")
    assert_is_toy(graph)
    assert graph.name == "toy"


def test_csr_entries_of_one_place_are_added_up(tmp_path):
    parts = {
        "feat_data": [1.0, 2.0, 4.0],
        "feat_indices": [1, 0, 1],
        "feat_indptr": [0, 3, 3, 3, 3],
    }
    parts["feat_shape"] = [4, 2]
    given = arrays()
    del given["feat"]
    np.savez(
        tmp_path / "toy.npz", **given, **{name: np.array(part) for name, part in parts.items()}
    )
    features = load(tmp_path / "toy.npz").features
    assert features.toarray()[0].tolist() == [2.0, 5.0]
    assert features.nnz == 2
    assert features.has_sorted_indices


def test_edges_show_how_many_nodes_there_are(tmp_path):
    """Without labels and ids, where features are sparse."""
    given = with_csr(arrays())
    del given["label"]
    given.pop("node_id", None)
    np.savez(tmp_path / "toy.npz", **given)
    graph = load(tmp_path / "toy.npz", split=split_settings(kind="none"))
    assert graph.num_nodes == 4
    assert not graph.labelled.any()


def test_multilabel(tmp_path):
    label = np.array([[0, 1], [np.nan, np.nan], [1, np.nan], [0, 0]])
    np.savez(tmp_path / "toy.npz", **(arrays() | {"label": label}))
    graph = load(tmp_path / "toy.npz")
    assert graph.label_kind == "multilabel"
    assert graph.num_classes == 2
    assert graph.labels.dtype == np.float32
    assert graph.labelled.tolist() == [True, False, True, True]
    np.testing.assert_array_equal(graph.labels, label)


nan_features = np.ones((4, 2), np.float32)
nan_features[2, 1] = np.nan
huge_features = np.ones((4, 2))
huge_features[1, 0] = 1e60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src": np.array([0, 4, 2])}, r"`src`: row 1 is 4; expected a node in \[0, 4\)"),
        ({"dst": np.array([0, 1, -1])}, "`dst`: row 2 is -1"),
        ({"src": np.array([0, 1])}, "`dst` has 3 rows, `src` has 2"),
        (
            {"src": np.array([0, 1.5, 2])},
            "`src` has dtype float64: row 1 is 1.5; expected integers",
        ),
        ({"src": np.array([0.0, 1, 2])}, "`src` has dtype float64: expected integers"),
        ({"src": np.array(["0", "1", "2"])}, "`src` has dtype <U1; expected integers"),
        ({"src": np.zeros((2, 3), int)}, r"`src` has shape \(2, 3\)"),
        ({"src": np.array([0, 2**63, 1], dtype=np.uint64)}, "row 1 is 9223372036854775808"),
        ({"feat": nan_features}, "`feat` is blank in 1 rows, the first is row 2"),
        ({"feat": huge_features}, r"`feat`: row 1, column 0 is 1e\+60"),
        ({"feat": np.ones((3, 2))}, "`feat` has 3 rows; expected 4"),
        ({"feat": np.ones(4)}, r"`feat` has shape \(4,\)"),
        ({"feat": np.ones((4, 0))}, "at least one feature"),
        ({"feat": np.ones((4, 2), complex)}, "`feat` has dtype complex128"),
        ({"label": np.array([0, 0.5, 1, 1])}, "`label`: row 1 is 0.5; expected a class"),
        ({"label": np.array([-1, -1, -1, -1])}, "no node has a label"),
        ({"label": np.zeros(0, int)}, "`label` is empty"),
        (
            {"label": np.array([[0, 1], [2, 0], [1, 1], [0, 0]])},
            "`label`: row 1, column 0 is 2; expected 0 or 1",
        ),
        (
            {"label": np.array([[0, 1], [np.nan, 0.5], [1, 1], [0, 0]])},
            r"`label`: row 1, column 1 is 0.5; expected 0 or 1, or blank \(NaN\)",
        ),
        ({"label": np.array([[0, 1], [-1, -1], [1, 1], [0, 0]])}, "row 1, column 0 is -1"),
        ({"train_mask": np.array([True])}, "`train_mask` has 1 rows; expected 4"),
        ({"train_mask": np.array([0, 3, 0, 0])}, "`train_mask`: row 1 is 3; expected a mask"),
        ({"train_mask": np.array([0.0, 1, 0, 0])}, "`train_mask` has dtype float64"),
        ({"node_id": np.array([1, 2, 3])}, "`node_id` has 3 rows"),
        (
            {"node_id": np.array([1, 2, 3, 1])},
            "`node_id`: rows 0 and 3 are both 1",
        ),
        ({"label": None}, "there is no array `label`; expected src, dst, label; found"),
        ({"feat_data": np.ones(1)}, "has both `feat` and `feat_data`"),
        ({"src": np.array([0, {}, 1], dtype=object)}, "`src`: .* holds Python objects"),
    ],
)
def test_a_wrong_array_is_named(tmp_path, change, message):
    given = {name: array for name, array in (arrays() | change).items() if array is not None}
    np.savez(tmp_path / "toy.npz", **given)
    with pytest.raises(InputError, match=rf"toy\.npz.*{message}"):
        load(tmp_path / "toy.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"feat_indices": np.array([1, 0, 1, 0, 1, 0, 2])},
            r"entry 6 \(node 3\) is 2; expected a feature in \[0, 2\)",
        ),
        ({"feat_indptr": np.array([0, 1, 3, 5])}, "`feat_indptr` has 4 entries; expected 5"),
        ({"feat_indptr": np.array([0, 1, 3, 5, 6])}, "runs from 0 to 6; expected from 0 to 7"),
        ({"feat_indptr": np.array([0, 3, 1, 5, 7])}, "entry 2 is 1, less than the one before"),
        ({"feat_shape": np.array([5, 2])}, r"`feat_shape` is \[5, 2\]; expected \[4, features\]"),
        ({"feat_data": np.ones(3)}, "`feat_data` has 3 rows"),
        (
            {"feat_data": np.array([1, 2, 3, np.inf, 5, 6, 7])},
            "`feat_data`: row 3, column 0 is inf",
        ),
        ({"feat_shape": None}, "there is no array `feat_shape`"),
    ],
)
def test_a_wrong_csr_matrix_is_named(tmp_path, change, message):
    given = {
        name: array for name, array in (with_csr(arrays()) | change).items() if array is not None
    }
    np.savez(tmp_path / "toy.npz", **given)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "toy.npz")


def test_a_csr_matrix_that_is_too_wide(tmp_path):
    np.savez(tmp_path / "toy.npz", **(with_csr(arrays()) | {"feat_shape": np.array([4, 2**62])}))
    with pytest.raises(InputError, match=r"`feat_shape` is .*at most 10,000,000 features"):
        load(tmp_path / "toy.npz")


def test_a_member_that_is_there_twice(tmp_path):
    np.savez(tmp_path / "toy.npz", **arrays())
    with (
        zipfile.ZipFile(tmp_path / "toy.npz", "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("src.npy", archive.read("dst.npy"))
    with pytest.raises(InputError, match=r"toy\.npz: holds `src` more than once"):
        load(tmp_path / "toy.npz")


@pytest.mark.parametrize("place", ["toy.npz", "features.npz", "nodes/film.npz"])
def test_a_file_that_would_fill_the_memory(tmp_path, place):
    """16 MiB of zeros, which take 16 KiB.

    They may be there where the setting says so, or where they are not packed.
    """
    path = tmp_path / place
    for folder in ("nodes", "edges") if "/" in place else ():
        (tmp_path / folder).mkdir()
    (tmp_path / "edges.csv").write_text("src,dst\n")
    np.savez_compressed(path, feat=np.zeros((1 << 20, 2)))
    dataset = path if place == "toy.npz" else tmp_path
    words = (
        rf"{place}: grows by 0\.0156 GiB, to 0\.0156 GiB, when it is unpacked; if it should hold so"
        r" much, set "
        r"dataset_max_gib=1, which is 0\.01$"
    )
    with pytest.raises(InputError, match=words):
        datasets.load_graph(dataset_settings("file", str(dataset), max_gib=0.01))
    np.savez(path, feat=np.zeros((1 << 20, 2)))
    with pytest.raises(InputError, match=r"^(?!.*grows)"):  # it is no graph yet
        datasets.load_graph(dataset_settings("file", str(dataset), max_gib=0.01))


@pytest.mark.parametrize("name", ["edges.parquet", "nodes.csv.gz", "nodes.parquet/part-0.parquet"])
def test_a_table_that_would_fill_the_memory(tmp_path, name):
    """Equal cells of a parquet file are stored once, and gzip shrinks them as much."""
    path = tmp_path / "toy" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "toy" / "edges.csv").write_text("src,dst\n" if "nodes" in name else "")
    if name == "edges.parquet":
        (tmp_path / "toy" / "edges.csv").unlink()
    rows = 200_000
    cells = pd.DataFrame({"src": np.zeros(rows, np.int8), "dst": np.zeros(rows, np.int8)})
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(b"id,label\n" + b"0,0\n" * 1_000_000))
    else:
        cells.to_parquet(path)
    assert path.stat().st_size < 40_000
    words = r"grows by 0\.00.*, to 0\.00.*, set dataset_max_gib=1, which is 0\.001"
    with pytest.raises(InputError, match=words):
        load(tmp_path / "toy", max_gib=0.001)
    with pytest.raises(InputError, match=r"^(?!.*grows)"):  # it is no graph
        load(tmp_path / "toy", max_gib=0.1)


@pytest.mark.parametrize("lists", [False, True])
def test_a_long_text_in_many_rows_is_not_repeated_in_memory(tmp_path, lists):
    """A parquet file stores it once; as a table it would take 2 GB."""
    texts = pa.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["x" * 100_000])
    if lists:
        texts = pa.ListArray.from_arrays(np.arange(20_001, dtype=np.int32), texts)
    table = pa.table({"id": np.arange(20_000), "label": np.zeros(20_000, np.int8), "note": texts})
    pq.write_table(table, tmp_path / "nodes.parquet")
    (tmp_path / "edges.csv").write_text("src,dst\n")
    with pytest.raises(InputError, match=r"nodes\.parquet: grows by 0\.\d+ GiB or more"):
        load(tmp_path, max_gib=0.1)


def test_no_byte_of_a_parquet_footer_ends_the_process(tmp_path):
    """pyarrow aborts where the sizes of a column's levels do not fit."""
    path = tmp_path / "nodes.parquet"
    pq.write_table(pa.table({"age": [1.0, None], "lists": [[1], None]}), path)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    unread = 0
    for at in range(footer, len(content) - 8):
        damaged = bytearray(content)
        damaged[at] ^= 2
        path.write_bytes(damaged)
        try:
            check_unpacked_size(path, 0.1)
        except UNREADABLE:
            unread += 1
    assert unread > 100


def test_a_line_that_no_table_has(tmp_path):
    (tmp_path / "nodes.csv.gz").write_bytes(gzip.compress(b"a," * 9_000_000))
    (tmp_path / "edges.csv").write_text("src,dst\n")
    with pytest.raises(InputError, match=r"nodes\.csv\.gz: has a line of more than 16,777,216"):
        load(tmp_path)


def test_arrays_that_are_not_used_are_not_unpacked(tmp_path, caplog):
    """80 MB of zeros; a name in the log is shortened, and there are ten."""
    unused = dict.fromkeys([f"{'x' * 1000}{number}" for number in range(30)], np.zeros(1))
    np.savez_compressed(tmp_path / "toy.npz", **arrays(), **unused, zeros=np.zeros(10_000_000))
    tracemalloc.start()
    try:
        assert_is_toy(load(tmp_path / "toy.npz"))
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert "and 21 more" in caplog.text
    assert len(caplog.text) < 2_000


def test_a_damaged_npz_is_refused_wherever_the_damage_is(tmp_path):
    rng = np.random.default_rng(0)
    np.savez_compressed(
        tmp_path / "toy.npz", **(arrays() | {"feat": rng.random((4, 200), dtype=np.float32)})
    )
    whole = (tmp_path / "toy.npz").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"cut\.npz"):
            load(tmp_path / "cut.npz")
    features = whole.index(b"feat.npy")
    for position in rng.integers(features + 100, features + 2000, size=30):
        flipped = bytearray(whole)
        flipped[position] ^= 4
        (tmp_path / "flip.npz").write_bytes(flipped)
        with pytest.raises(InputError, match=r"flip\.npz"):
            load(tmp_path / "flip.npz")


class Trap:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(("packed", "kind"), [(b"PK\x03\x04\x00\xff", "zip"), (None, "gzip")])
def test_an_archive_named_csv_is_named(tmp_path, packed, kind):
    (tmp_path / "edges.csv").write_bytes(packed or gzip.compress(b"src,dst\n0,1\n"))
    (tmp_path / "labels.csv").write_text("label\n0\n1\n")
    with pytest.raises(InputError, match=rf"edges\.csv: is a {kind} archive; unpack it"):
        load(tmp_path)


def test_nothing_is_unpickled(tmp_path):
    (tmp_path / "trap.npz").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "trap2.npz", **(arrays() | {"src": np.array([Trap()], dtype=object)}))
    with zipfile.ZipFile(tmp_path / "trap3.npz", "w") as archive:
        archive.writestr("src.npy", pickle.dumps(Trap()))
    for name in ("trap.npz", "trap2.npz", "trap3.npz"):
        with pytest.raises(InputError, match=name):
            load(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "needs dataset_file=PATH"),
        ("none.npz", "no such file"),
        ("toy.dat", "unknown form"),
        ("toy.gml", r"networkx\.read_gml.*from_networkx"),
        ("toy.MTX", r"scipy\.io\.mmread.*from_scipy"),
        ("toy.json", r"pandas\.read_json.*from_pandas"),
    ],
)
def test_the_path_itself(tmp_path, name, message):
    if name is not None and name.startswith("toy"):
        (tmp_path / name).write_text("0 1")
    with pytest.raises(InputError, match=message):
        load(None if name is None else tmp_path / name)


@pytest.mark.parametrize(
    "name", ["label", "node_id", "feat", "train_mask", *EDGE_DATA, "edge_time"]
)
def test_an_array_without_an_axis(tmp_path, name):
    np.savez(tmp_path / "toy.npz", **{**arrays(), name: np.float32(1)})
    with pytest.raises(InputError, match=rf"toy\.npz: array `{name}` is 1\.0, a single value"):
        load(tmp_path / "toy.npz")


@pytest.mark.parametrize("name", ["label", "node_id"])
@pytest.mark.parametrize("odd", ["\ud800", b"\xff"])
def test_names_that_are_no_text(tmp_path, name, odd):
    texts = ["a", "b", odd, "c"] if isinstance(odd, str) else [b"a", b"b", odd, b"c"]
    np.savez(tmp_path / "toy.npz", **{**arrays(), name: np.array(texts)})
    with pytest.raises(InputError, match=rf"array `{name}`: row 2 is .*; expected Unicode text"):
        load(tmp_path / "toy.npz")


# ---- a folder of tables


def write_folder(folder, header=True):
    toy = arrays()
    folder.mkdir()
    rows = [f"{src},{dst}" for src, dst in zip(toy["src"], toy["dst"], strict=True)]
    (folder / "edges.csv").write_text("\n".join((["src,dst"] if header else []) + rows) + "\n")
    np.save(folder / "features.npy", toy["feat"])
    (folder / "labels.csv").write_text("label\n0\n2\n-1\n1\n")
    np.save(folder / "train.npy", np.array([0]))
    np.save(folder / "val.npy", toy["val_mask"])
    (folder / "test.csv").write_text("3\n")


@pytest.mark.parametrize("header", [True, False])
def test_a_folder_of_tables(tmp_path, header):
    write_folder(tmp_path / "toy", header)
    graph = load(tmp_path / "toy")
    assert_is_toy(graph, ids=False)
    assert graph.name == "toy"


def test_a_folder_without_edges_and_a_feature_that_is_a_single_number(tmp_path):
    write_folder(tmp_path / "toy")
    (tmp_path / "toy" / "edges.csv").write_text("src,dst\n")
    assert load(tmp_path / "toy").num_edges == 0
    np.save(tmp_path / "toy" / "features.npy", np.float32(1))
    with pytest.raises(InputError, match=r"features\.npy: .*one row per node"):
        load(tmp_path / "toy")


def test_a_folder_of_parquet_with_ids_of_its_own(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    toy, folder = arrays(), tmp_path / "toy"
    folder.mkdir()
    ids = toy["node_id"]
    pd.DataFrame({"src": ids[toy["src"]], "dst": ids[toy["dst"]]}).to_parquet(
        folder / "edges.parquet"
    )
    pd.DataFrame({"id": ids, "a": toy["feat"][:, 0], "b": toy["feat"][:, 1]}).to_parquet(
        folder / "features.parquet"
    )
    shuffled = [2, 0, 3, 1]
    pd.DataFrame({"node_id": ids[shuffled], "label": toy["label"][shuffled]}).to_parquet(
        folder / "labels.parquet"
    )
    for part in ("train", "val", "test"):
        np.save(folder / f"{part}.npy", toy[f"{part}_mask"])
    assert_is_toy(load(folder))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("edges.csv", "src,dst\n0,1\n1,9\n", "edges.csv: column `dst`: row 1 is 9"),
        (
            "edges.csv",
            "src,dst\n0,1\n1,x\n",
            "edges.csv: column `dst`, row 1 is 'x'; expected a number",
        ),
        (
            "edges.csv",
            "src,dst\n0,1\n1,\n",
            "column `dst`, row 1 is blank; expected a number",
        ),
        ("edges.csv", "src,dst\n0,1\n1,1.5\n", "row 1 is 1.5"),
        ("edges.csv", "a,b\n0,1\n", "has the columns a, b; expected src and dst"),
        ("edges.csv", "0,1,5\n", "expected src and dst"),
        ("edges.csv", "src,dst\n0,1,2,3\n4\n5,6,7,8,9,1\n", "edges.csv"),
        ("edges.csv", "src,dst\n0,1,2\n1,2,3\n", "its second line has 3 cells, the first has 2"),
        ("edges.csv", "0,1\n0,1,2\n1,2,3\n", "edges.csv"),
        ("edges.csv", "", "edges.csv: not a readable csv table"),
        ("edges.parquet", "rubbish", "found edges.csv, edges.parquet; expected one of them"),
        (
            "labels.csv",
            "label\n0\n1.5\n1\n1\n",
            "labels.csv: column `label`: row 1 is 1.5; expected a class",
        ),
        (
            "labels.csv",
            "a,b\n0,x\n1,1\n1,0\n1,1\n",
            "labels.csv: column `b`, row 0 is 'x'; expected a number",
        ),
        (
            "labels.csv",
            "label\n0\n1\n1\n",
            "labels.csv: column `label` has 3 rows; expected 4, one per node",
        ),
        ("labels.csv", "id\n0\n1\n2\n3\n", "no column besides the ids"),
        (
            "labels.csv",
            "id,label\n0,0\n1,1\n1,1\n3,1\n",
            "column `id`: rows 1 and 2 are both 1",
        ),
        (
            "labels.csv",
            "id,label\n5,0\n6,1\n7,1\n8,1\n",
            "edges.csv: column `src`: row 0 is 0; expected one of the 4",
        ),
        ("train.npy", None, "train.npy or train.csv: `train_mask` is missing"),
        ("features.npy", None, "no node has features; set features=degree"),
        (
            "features.npy",
            "rubbish",
            "features.npy: (not a readable npy array|holds Python objects)",
        ),
        ("test.csv", "7\n", "test.csv: row 0 is 7"),
        ("test.csv", "node\n7\n", "test.csv: row 0 is 7"),
    ],
)
def test_a_wrong_table_is_named(tmp_path, file, content, message):
    write_folder(tmp_path / "toy")
    path = tmp_path / "toy" / file
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "toy")


# ---- a DGL graph file


def write_dgl(path, change=(), count=1):
    import torch
    from support import dgl

    toy = arrays() | dict(change)
    graph = dgl.graph((torch.as_tensor(toy["src"]), torch.as_tensor(toy["dst"])), num_nodes=4)
    for name in ("feat", "label", "train_mask", "val_mask", "test_mask", "node_id"):
        if toy[name] is not None:
            graph.ndata[name] = torch.as_tensor(toy[name])
    dgl.save_graphs(str(path), [graph] * count)


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("suffix", ["bin", "dgl"])
def test_a_dgl_file(tmp_path, suffix):
    write_dgl(tmp_path / f"toy.{suffix}")
    assert_is_toy(load(tmp_path / f"toy.{suffix}"))


@pytest.mark.usefixtures("fork_server")
def test_a_wrong_dgl_file_is_named(tmp_path):
    write_dgl(tmp_path / "toy.bin", {"feat": nan_features})
    with pytest.raises(
        InputError, match=r"toy.bin: .*`feat` is blank in 1 rows, the first is row 2"
    ):
        load(tmp_path / "toy.bin")
    write_dgl(tmp_path / "toy.bin", {"label": None})
    with pytest.raises(InputError, match="there is no array `label`"):
        load(tmp_path / "toy.bin")
    write_dgl(tmp_path / "toy.bin", count=2)
    with pytest.raises(InputError, match="holds 2 graphs"):
        load(tmp_path / "toy.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "toy.bin").read_bytes()[:200])
    with pytest.raises(InputError, match=r"cut\.bin: not a readable DGL graph file"):
        load(tmp_path / "cut.bin")
    (tmp_path / "toy.bin").write_bytes(b"rubbish" * 100)
    with pytest.raises(InputError, match="not a DGL graph file"):
        load(tmp_path / "toy.bin")


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("program", [False, True], ids=["child", "program"])
def test_a_dgl_file_that_ends_dgls_process_is_refused(tmp_path, monkeypatch, program):
    if program:  # as where no fork server runs
        monkeypatch.setattr(forkserver._forkserver, "_forkserver_pid", None)
    write_dgl(tmp_path / "toy.bin")
    content = bytearray((tmp_path / "toy.bin").read_bytes())
    content[29] = 255
    (tmp_path / "toy.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"toy\.bin: DGL's reader crashes"):
        load(tmp_path / "toy.bin")


def test_dates_are_features_on_request(tmp_path):
    tables = {
        "features": {"a": pd.to_datetime([0, 1.5], unit="D")},
        "labels": {"label": [0, 1]},
        "edges": {"src": [0], "dst": [1]},
    }
    for name, columns in tables.items():
        pd.DataFrame(columns).to_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(
        InputError, match=r"`a` is left out, a date: columns\.date=a makes it a feature"
    ):
        load(tmp_path)
    assert load(tmp_path, columns={"date": ("a",)}).features.tolist() == [[0], [129600]]
    pd.DataFrame({"id": [0, 1]} | tables.pop("features")).to_parquet(tmp_path / "nodes.parquet")
    (tmp_path / "features.parquet").unlink()
    with pytest.raises(InputError, match=r"no node has features: `a` is left out, a date: columns"):
        load(tmp_path)


def test_an_npy_whose_header_ends_too_early(tmp_path):
    np.save(tmp_path / "features.npy", np.ones((2, 2)))
    content = (tmp_path / "features.npy").read_bytes()
    (tmp_path / "features.npy").write_bytes(content.replace(b"}", b" "))
    np.save(tmp_path / "labels.npy", np.arange(2))
    np.save(tmp_path / "edges.npy", np.zeros((1, 2), int))
    with pytest.raises(InputError, match=r"features\.npy: not a readable npy array"):
        load(tmp_path)
