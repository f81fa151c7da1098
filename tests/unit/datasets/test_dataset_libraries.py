"""The libraries' own loaders, run offline on small raw files in exactly their formats."""

import builtins
import contextlib
import gzip
import importlib
import io
import json
import pickle
import re
import sys
import urllib.request
import zipfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from graph_files import assert_graph, write_files
from hypothesis import given
from hypothesis import strategies as st
from support import dataset_settings, dgl, refusing, split_settings

from partitioning import datasets
from partitioning.datasets import dgl_source, ogb_links, ogb_source
from partitioning.datasets.array_pickles import read_pickle
from partitioning.datasets.ogb_import import import_ogb
from partitioning.errors import InputError
from partitioning.files import download
from partitioning.links.link_split import split_links
from partitioning.node_split import draw


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No network and no terminal: whoever asks for either fails at once."""

    def refuse(*_args, **_options):
        raise OSError("offline")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on the terminal"))


def load(name, folder, **fields):
    return datasets.load_graph(dataset_settings(name, dir=str(folder), **fields))


def pairs(graph):
    return sorted(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))


def zipped(files, below=""):
    """A zip of the files, within a folder."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(f"{below}{name}", content)
    return archive.getvalue()


# ---- dgl.data

RING = [(a, (a + 1) % 12) for a in range(12)]
BOTH = sorted(RING + [(b, a) for a, b in RING])
ENDS = tuple(np.array(BOTH).T)
WITH_LOOP = tuple(np.array([*BOTH, (0, 0)]).T)
CUBE = np.arange(36.0).reshape(12, 3)
REDDIT = {
    "reddit_graph.npz": sp.coo_matrix((np.ones(25), WITH_LOOP), shape=(12, 12)),
    "reddit_data.npz": {
        "feature": CUBE,
        "node_types": np.array([1] * 6 + [2] * 2 + [3] * 4),
        "node_ids": np.arange(12),
        "label": np.arange(12) % 41,
    },
}
"""12 posts in a ring, the first with a self loop."""
SAINT = {
    "adj_full.npz": sp.csr_matrix((np.ones(24), ENDS), shape=(12, 12)),
    "feats.npy": CUBE**2,
    "role.json": json.dumps({"tr": [*range(6)], "va": [6, 7], "te": [8, 9, 10, 11]}),
}
"""GraphSAINT's files, as Yelp and Flickr have them."""
YELP = SAINT | {"class_map.json": json.dumps({str(node): [node % 2, 1, 0] for node in range(12)})}
FLICKR = SAINT | {"class_map.json": json.dumps({str(node): node % 7 for node in range(12)})}
MUSAE = {"features": CUBE, "target": np.arange(12) % 4, "edges": np.array(BOTH)}


@pytest.mark.parametrize(
    ("name", "files", "loader"),
    [
        ("reddit", REDDIT, "RedditDataset"),
        ("yelp", YELP, "YelpDataset"),
        ("flickr", FLICKR, "FlickrDataset"),
        ("karateclub", {}, "KarateClubDataset"),
    ],
)
def test_the_same_as_dgls_loader(tmp_path, name, files, loader, monkeypatch):
    theirs = getattr(dgl.data, loader)
    folder = write_files(tmp_path / name, files)
    monkeypatch.setattr(theirs, "raw_path", str(folder), raising=False)
    monkeypatch.setattr(theirs, "has_cache", lambda self: False)
    monkeypatch.setattr(theirs, "save", lambda self: None)
    expected = (theirs(raw_dir=str(tmp_path)) if files else theirs())[0]
    graph = load(name, tmp_path)
    edges = zip(*(ends.tolist() for ends in expected.edges()), strict=True)
    assert pairs(graph) == sorted((a, b) for a, b in edges if name != "reddit" or a != b)
    for key, tensor in expected.ndata.items():
        if key != "feat" or name != "yelp":  # which is standardised
            attribute = {"feat": "features", "label": "labels"}.get(key, key)
            assert getattr(graph, attribute).tolist() == tensor.tolist(), key


def test_yelp_is_multilabel_and_standardised_on_its_training_nodes(tmp_path):
    write_files(tmp_path / "yelp", YELP)
    graph = load("yelp", tmp_path)
    assert pairs(graph) == BOTH
    assert (graph.labels.dtype, graph.features.dtype) == (np.float32, np.float32)
    assert_graph(graph, num_classes=3, labels=[[node % 2, 1, 0] for node in range(12)])
    known = graph.features[graph.train_mask]
    assert known.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-6)
    assert known.std(axis=0) == pytest.approx(np.ones(3), abs=1e-6)
    split = draw(graph, split_settings(), datasets.recipe("yelp").split)
    assert split.describe() == {"kind": "given", "nodes": {"train": 6, "val": 2, "test": 4}}


@pytest.mark.parametrize(
    ("name", "file"), [("facebook", "facebook.npz"), ("lastfm", "lastfm_asia.npz")]
)
def test_musae(tmp_path, name, file):
    write_files(tmp_path / name / "raw", {file: MUSAE})
    graph = load(name, tmp_path)
    assert pairs(graph) == BOTH
    expected = {"labels": np.arange(12) % 4, "features": CUBE, "num_classes": 4}
    assert_graph(graph, train_mask=None, **expected)
    split = draw(graph, split_settings(), datasets.recipe(name).split)
    assert split.describe()["nodes"] == {"train": 2, "val": 2, "test": 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK rubbish", r"not a readable zip \(.*\); remove it and fetch https://data.dgl.ai"),
        (
            zipped({"feats.npy": bytes(1 << 24)}),
            r"grows by 0\.0156 GiB, .* set dataset_max_gib=1, which is 0\.01$",
        ),
    ],
    ids=["rubbish", "large"],
)
def test_a_wrong_zip_is_named_and_leaves_nothing(tmp_path, content, message):
    write_files(tmp_path, {"flickr.zip": content})
    with pytest.raises(InputError, match=rf"flickr\.zip: {message}"):
        load("flickr", tmp_path, max_gib=0.01)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".zip", ".sha256"}


# ---- ogb


def table(rows):
    """A csv without a header, compressed."""
    lines = [",".join(map(str, row)) + "\n" for row in rows]
    return gzip.compress("".join(lines).encode())


def ogb_split(kind):
    return {
        f"split/{kind}/train.csv.gz": table([[node] for node in range(6)]),
        f"split/{kind}/valid.csv.gz": table([[6], [7]]),
        f"split/{kind}/test.csv.gz": table([[8], [9], [10], [11]]),
        "RELEASE_v1.txt": "",
    }


# The layout inside arxiv.zip and products.zip; `processed` is there, and empty, in both.
OGB = {
    "raw/edge.csv.gz": table(RING),
    "raw/num-node-list.csv.gz": table([[12]]),
    "raw/num-edge-list.csv.gz": table([[12]]),
    "raw/node-feat.csv.gz": table([[node / 4, 1.5] for node in range(12)]),
    "raw/node-label.csv.gz": table([[node % 5] for node in range(12)]),
    "raw/node_year.csv.gz": table([[2000 + node] for node in range(12)]),
}
# Features of edges, many labels, and no features of nodes.
PROTEINS = OGB | {
    "raw/node-feat.csv.gz": None,
    "raw/edge-feat.csv.gz": table([[edge / 8] * 8 for edge in range(12)]),
    "raw/node-label.csv.gz": table(
        [[int(node % 5 == task % 5) for task in range(112)] for node in range(12)]
    ),
}
# The layout inside papers100M-bin.zip: float labels, NaN where there is none.
PAPERS = {
    "edge_index": np.array(RING).T,
    "num_nodes_list": np.array([14]),
    "num_edges_list": np.array([12]),
    "node_feat": np.arange(28, dtype=np.float32).reshape(14, 2),
    "node_year": np.full((14, 1), 2000),
}
PAPER_LABELS = np.array([*np.arange(12) % 5, np.nan, np.nan], np.float32)[:, None]
OGB_BINARY = {"raw/data.npz": PAPERS, "raw/node-label.npz": {"node_label": PAPER_LABELS}}


def master(kind):
    """What OGB's package says of its data sets of nodes or links."""
    package = Path(sys.modules["ogb"].__file__).parent
    return pd.read_csv(package / kind / "master.csv", index_col=0)


@pytest.mark.parametrize("cells", [1 << 23, 3])
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("ogbn-arxiv", OGB),
        ("ogbn-products", OGB),
        ("ogbn-papers100M", OGB_BINARY),
        ("ogbn-proteins", PROTEINS),
    ],
)
def test_the_raw_files_are_read_as_ogb_reads_them(tmp_path, monkeypatch, name, files, cells):
    monkeypatch.setattr(ogb_source, "CHUNK", cells)
    source, folder = ogb_source.SOURCES[name], ogb_source.archive(name, str(tmp_path)).folder
    raw = str(write_files(folder, files | ogb_split(source.split)) / "raw")
    import_ogb()
    reader = importlib.import_module("ogb.io.read_graph_raw")
    if name == "ogbn-papers100M":
        theirs = reader.read_binary_graph_raw(raw)[0]
    else:
        theirs = reader.read_csv_graph_raw(raw, add_inverse_edge=source.both_ways)[0]
    graph = datasets.read_graph(dataset_settings(name, dir=str(tmp_path), symmetrize=False))
    their_pairs = list(map(tuple, theirs["edge_index"].T.tolist()))
    assert (graph.num_nodes, pairs(graph)) == (theirs["num_nodes"], sorted(their_pairs))
    assert graph.features.dtype == np.float32
    if name == "ogbn-proteins":
        assert theirs["node_feat"] is None
        assert not graph.target_nodes.featured.any()
        features = dict(zip(their_pairs, theirs["edge_feat"].tolist(), strict=True))
        ours = zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True)
        assert graph.edges.edge_feat.tolist() == [features[pair] for pair in ours]
        assert graph.labels.sum(axis=1).tolist() == [23, 23, 22, 22, 22] * 2 + [23, 23]
    else:
        assert graph.features.tolist() == theirs["node_feat"].tolist()
    published = master("nodeproppred")[name]
    classes = "num tasks" if name == "ogbn-proteins" else "num classes"
    assert graph.num_classes == int(published[classes])
    assert source.split == published["split"]
    assert source.both_ways == (published["add_inverse_edge"] == "True")


# The layout inside mag.zip: three papers, two authors, a relation of each kind of ends.
WRITES = "raw/relations/author___writes___paper"
CITES = "raw/relations/paper___cites___paper"
MAG = {
    "raw/num-node-dict.csv.gz": table([["author", "paper"], [2, 3]]),
    "raw/triplet-type-list.csv.gz": table(
        [("author", "writes", "paper"), ("paper", "cites", "paper")]
    ),
    f"{WRITES}/edge.csv.gz": table([(0, 1), (1, 2)]),
    f"{CITES}/edge.csv.gz": table([(0, 1), (2, 1)]),
    **{f"{edge_type}/num-edge-list.csv.gz": table([[2]]) for edge_type in (WRITES, CITES)},
    **{f"{edge_type}/edge_reltype.csv.gz": table([[0], [0]]) for edge_type in (WRITES, CITES)},
    "raw/node-feat/paper/node-feat.csv.gz": table([[node / 4, 1.5] for node in range(3)]),
    "raw/node-feat/paper/node_year.csv.gz": table([[2000], [2001], [2002]]),
    "raw/node-label/paper/node-label.csv.gz": table([[4], [348], [0]]),
    "raw/nodetype-has-label.csv.gz": table([["author", "paper"], [False, True]]),
    "split/time/nodetype-has-split.csv.gz": table([["author", "paper"], [False, True]]),
    "split/time/paper/train.csv.gz": table([[0]]),
    "split/time/paper/valid.csv.gz": table([[1]]),
    "split/time/paper/test.csv.gz": table([[2]]),
}


def test_mag_is_read_as_ogb_reads_it(tmp_path):
    pytest.importorskip("ogb", reason="the extra ogb")
    folder = write_files(tmp_path / "ogbn_mag", MAG)
    reader = importlib.import_module("ogb.io.read_graph_raw")
    raw, extra = str(folder / "raw"), ["edge_reltype"]
    theirs = reader.read_csv_heterograph_raw(raw, additional_edge_files=extra)[0]
    graph = load("ogbn-mag", tmp_path, reverse=False)
    assert list(graph.relations) == list(theirs["edge_index_dict"])
    for edge_type, (src, dst) in theirs["edge_index_dict"].items():
        assert_graph(graph.relations[edge_type], src=src, dst=dst)
    for name, number in theirs["num_nodes_dict"].items():
        assert graph.nodes[name].num_nodes == number
    assert_graph(graph.nodes["paper"], features=theirs["node_feat_dict"]["paper"])
    labels = reader.read_node_label_hetero(raw)["paper"].reshape(-1)
    assert_graph(graph, target="paper", num_classes=349, labels=labels)
    split = reader.read_nodesplitidx_split_hetero(str(folder / "split/time"))
    for mask, ids in zip((graph.train_mask, graph.val_mask, graph.test_mask), split, strict=True):
        assert np.flatnonzero(mask).tolist() == ids["paper"].tolist()
    both = load("ogbn-mag", tmp_path)
    assert ("paper", "rev_cites", "paper") in both.relations
    of_papers = [[0.25, 1.5], [0.5, 1.5]]
    assert_graph(both.nodes["author"], features=of_papers)


@pytest.mark.parametrize(
    ("files", "fields", "message"),
    [
        (
            {"raw/num-node-dict.csv.gz": b"rubbish"},
            {"target": "author"},
            "target=author: of ogbn-mag only paper has labels",
        ),
        ({f"{WRITES}/edge.csv.gz": table([(0, 3)])}, {}, "column 1: row 0 is 3"),
    ],
)
def test_what_is_wrong_with_mag_is_named(tmp_path, files, fields, message):
    write_files(tmp_path / "ogbn_mag", MAG | files)
    with pytest.raises(InputError, match=message):
        load("ogbn-mag", tmp_path, **fields)


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        (
            "ogbn-papers100M",
            {"split/time/valid.csv.gz": None},
            r"ogbn_papers100M lacks split/time/valid\.csv\.gz",
        ),
        *(
            ("ogbn-papers100M", {"raw/data.npz": PAPERS | arrays}, message)
            for arrays, message in (
                (
                    {"edge_index": PAPERS["edge_index"] + 2**31},
                    "`edge_index` has .* beyond int32",
                ),
                ({"edge_index": np.array(RING)}, r"edge_index has shape \(12, 2\)"),
                ({"num_nodes_list": np.array([[None]])}, "holds Python objects"),
                ({"edge_index": PAPERS["edge_index"] + 3}, "row 11 is 14; expected a node in"),
            )
        ),
        (
            "ogbn-arxiv",
            {"raw/edge.csv.gz": OGB["raw/edge.csv.gz"][:-12]},
            r"edge\.csv\.gz|cannot be read",
        ),
        (
            "ogbn-arxiv",
            {"RELEASE_v1.txt": None},
            r"dataset_name=ogbn-arxiv: .*ogbn_arxiv lacks RELEASE_v1\.txt",
        ),
        *(
            (
                "ogbn-arxiv",
                {f"split/time/{file}.csv.gz": table(nodes)},
                rf"{file}\.csv\.gz: {message}",
            )
            for file, nodes, message in (
                ("train", [[3], [-1]], r"row 1 is -1; expected a node in \[0, 12\)"),
                ("valid", [[12]], r"row 0 is 12; expected a node in \[0, 12\)"),
                ("test", [[9], [8], [9]], "rows 0 and 2 are both 9; expected each id once"),
                ("test", [[9], [6]], r"row 1 is 6, which .*valid\.csv\.gz has, too"),
            )
        ),
    ],
)
def test_damaged_files_of_ogb_are_named(tmp_path, name, files, message):
    layout = OGB if name == "ogbn-arxiv" else OGB_BINARY
    write_files(tmp_path / name.replace("-", "_"), layout | ogb_split("time") | files)
    with pytest.raises(InputError, match=message):
        load(name, tmp_path)


def test_ogbs_zip_is_unpacked_from_its_inner_folder(tmp_path):
    archive = zipped(OGB | ogb_split("time"), below="arxiv/")
    write_files(tmp_path, {"arxiv.zip": archive})
    assert load("ogbn-arxiv", tmp_path).num_nodes == 12


# ---- links of OGB

HELD_OUT = torch.tensor([[0, 5], [3, 8], [7, 2]])
FIXED = torch.tensor([[0, 4], [1, 9]])


def saved(pairs):
    """A file of torch.save."""
    file = io.BytesIO()
    torch.save(pairs, file)
    return file.getvalue()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_split_of_links_is_named(tmp_path, damage):
    folder = ogb_links.archive("ogbl-ddi", str(tmp_path)).folder
    file = io.BytesIO()
    arrays = {"edge": HELD_OUT, "edge_neg": FIXED}
    torch.save(arrays, file, _use_new_zipfile_serialization=False)
    key = str(HELD_OUT.untyped_storage()._cdata).encode()
    legacy = file.getvalue()
    damaged = legacy[:30] if damage == "cut" else legacy.replace(key, b"0" * len(key), 1)
    files = {f"split/target/{part}.pt": damaged for part in ("train", "valid", "test")}
    write_files(folder, OGB | ogb_split("target") | files)
    with pytest.raises(InputError, match=r"valid\.pt: not a readable .*; remove it, and fetch it"):
        datasets.read_graph(dataset_settings("ogbl-ddi", dir=str(tmp_path)))


@pytest.mark.parametrize("name", ogb_links.SOURCES)
def test_graphs_of_links_are_read_as_ogb_reads_them(tmp_path, name):
    source, folder = ogb_links.SOURCES[name], ogb_links.archive(name, str(tmp_path)).folder
    negatives = np.random.default_rng(0).integers(12, size=(3, 4))
    files = OGB | ogb_split(source.split)
    files["raw/edge_weight.csv.gz"] = table([[edge + 1] for edge in range(12)])
    for part in ("train", "valid", "test"):
        edges = HELD_OUT if part == "test" else torch.tensor([[1, 6], [4, 10], [9, 11]])
        arrays = {"edge": edges, "edge_neg": FIXED, "weight": np.ones(3, np.int64)}
        if name == "ogbl-citation2":
            ends = {"source_node": edges[:, 0].numpy(), "target_node": edges[:, 1].numpy()}
            arrays = {**ends, "target_node_neg": negatives}
        files[f"split/{source.split}/{part}.pt"] = saved(arrays)
    write_files(folder, files)
    import_ogb()
    reader = importlib.import_module("ogb.io.read_graph_raw")
    raw = str(folder / "raw")
    theirs = reader.read_csv_graph_raw(raw, add_inverse_edge=source.both_ways)[0]
    graph = datasets.read_graph(dataset_settings(name, dir=str(tmp_path), symmetrize=False))
    assert pairs(graph) == sorted(map(tuple, theirs["edge_index"].T.tolist()))
    if source.featured:
        assert graph.features.tolist() == theirs["node_feat"].tolist()
    else:
        assert not graph.target_nodes.featured.any()
    assert (graph.edges.edge_weight is not None) == (name == "ogbl-collab")
    split = split_links(graph, dataset_settings(name).split)
    rows, fixed = HELD_OUT.tolist(), FIXED.tolist()
    if name == "ogbl-citation2":  # in the order of the pairs
        fixed = np.stack((np.repeat([0, 3, 7], 4), negatives.flatten()), axis=1).tolist()
    else:
        rows = sorted(rows + [row[::-1] for row in rows])
    assert (split.rows["test"].tolist(), split.rows["test_neg"].tolist()) == (rows, fixed)
    published = master("linkproppred")[name]
    assert (source.evaluator, source.split) == (published["eval metric"], published["split"])
    assert source.both_ways == (published["add_inverse_edge"] == "True")
    assert source.zip == published["download_name"]
    assert f"{ogb_links.URL}/{source.zip}.zip" == published["url"].replace("http://", "https://")


# ---- torch_geometric


class PickledByPython2(pickle._Pickler):
    """Bytes as strings, and the modules of NumPy and SciPy of that time, as in the real files."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_bytes(self, value):
        if self.bin:
            self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)  # type: ignore[attr-defined]
        else:
            self.write(pickle.STRING + repr(value)[1:].encode() + b"\n")  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[bytes] = save_bytes

    def save_global(self, value, name=None):
        then = {sp.csr_matrix: b"scipy.sparse.csr", np.ndarray: b"numpy", np.dtype: b"numpy"}
        module = b"numpy.core.multiarray" if name == "_reconstruct" else then.get(value)
        if module is None:
            super().save_global(value, name)
        else:
            what = getattr(value, "__name__", name).encode()
            self.write(pickle.GLOBAL + module + b"\n" + what + b"\n")  # type: ignore[attr-defined]
            self.memoize(value)  # type: ignore[attr-defined]


def planetoid(name, num_nodes, protocol=2):
    """Files ind.NAME.*: x, y (training), allx, ally, tx, ty (test), graph, test.index; the edges.

    Node i has feature i % 4 and class i % 3. In CiteSeer node num_nodes - 2 is in no file, as 15
    nodes of the real one. The reader takes 500 validation nodes after the 6 training nodes, so
    there are more nodes than that.
    """
    train, rest = 6, num_nodes - 4
    test = [num_nodes - 1, num_nodes - 4, num_nodes - 3]  # in an order of their own
    test += [] if name == "citeseer" else [num_nodes - 2]
    features, classes = np.eye(4, dtype=np.float32), np.eye(3, dtype=np.int32)
    nodes = np.arange(rest)
    ring = {node: [(node + 1) % rest, (node - 1) % rest] for node in range(rest)}
    loops_and_twice = {test[0]: [0, test[0]], 0: [*ring[0], test[0], 1]}
    parts = {
        "x": sp.csr_matrix(features[nodes[:train] % 4]),
        "y": classes[nodes[:train] % 3],
        "allx": sp.csr_matrix(features[nodes % 4]),
        "ally": classes[nodes % 3],
        "tx": sp.csr_matrix(features[np.array(test) % 4]),
        "ty": classes[np.array(test) % 3],
        "graph": defaultdict(list, ring | loops_and_twice),
    }
    files = {f"ind.{name}.test.index": "".join(f"{node}\n" for node in test)}
    for part, value in parts.items():
        file = io.BytesIO()
        PickledByPython2(file, protocol).dump(value)
        files[f"ind.{name}.{part}"] = file.getvalue()
    return files, {(a, b) for a, many in parts["graph"].items() for b in many if a != b}


@pytest.mark.parametrize("protocol", [0, 2])
@pytest.mark.parametrize(
    ("name", "title"),
    [("citeseer_torch", "CiteSeer"), ("pubmed_torch", "PubMed"), ("planetoid-cora", "Cora")],
)
def test_planetoid_is_read_as_torch_geometric_reads_it(tmp_path, name, title, protocol):
    files, expected = planetoid(title.lower(), 600, protocol)
    raw = write_files(tmp_path / title / "raw", files)
    graph = load(name, tmp_path)
    assert pairs(graph) == sorted(expected)
    labels, features = np.arange(600) % 3, np.eye(4)[np.arange(600) % 4]
    if title == "CiteSeer":  # the node without a row has no features, and the first class
        labels[598], features[598] = 0, 0
    assert_graph(graph, labels=labels, features=features)
    assert graph.train_mask.sum() == 6
    assert [path.name for path in (tmp_path / title).iterdir()] == ["raw"]  # no cache
    theirs = pytest.importorskip("torch_geometric.io").read_planetoid_data(str(raw), title)
    assert np.array_equal(np.stack((graph.edges.src, graph.edges.dst)), theirs.edge_index)
    assert_graph(graph, features=theirs.x.numpy(), labels=theirs.y.numpy())
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert_graph(graph, **{mask: theirs[mask].numpy()})


PUBMED = planetoid("pubmed", 600)[0]


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("graph", pickle.dumps({0: [600]}, 2), r"row 0 is 600; expected a node in \[0, 600\)"),
        ("graph", pickle.dumps([1]), "holds list, expected an array"),
        ("ally", b"", "not a readable file"),
        ("ty", PUBMED["ind.pubmed.y"], r"has shape \(4,\), .* expected 6 nodes"),
        ("allx", PUBMED["ind.pubmed.tx"], r"shape \(4, 4\), .*expected \(596, 4\)"),
        ("test.index", b"596\n597\n597\n599\n", "rows 1 and 2 are both 597; expected each id once"),
        ("test.index", b"596\n-1\n598\n599\n", "row 1 is -1; expected from 596 to 603"),
    ],
)
def test_damaged_files_of_planetoid_are_named(tmp_path, part, content, message):
    write_files(tmp_path / "PubMed/raw", PUBMED | {f"ind.pubmed.{part}": content})
    with pytest.raises(InputError, match=rf"ind\.pubmed\..*({message})"):
        load("pubmed_torch", tmp_path)


# ---- what cannot be downloaded


@pytest.mark.parametrize(
    "name", ["reddit", "yelp", "flickr", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M"]
)
def test_a_zip_that_cannot_be_fetched_is_named_with_its_place(tmp_path, name):
    source = ogb_source if name.startswith("ogbn") else dgl_source
    files = source.archive(name, str(tmp_path))
    with refusing(files.url, str(files.path), str(files.folder), "offline"):
        load(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["http://example.org/a", "file:///etc/passwd", "ftp://a/b"])
def test_a_redirect_from_https_to_anything_else_is_refused(place):
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(OSError, match="which is not https"):
        download.SecureRedirects().redirect_request(request, None, 302, "", {}, place)
    followed = download.SecureRedirects().redirect_request(
        request, None, 302, "", {}, "https://b.org/a"
    )
    assert followed.full_url == "https://b.org/a"


# ---- files that would run code


class Malicious:
    """Makes a file where it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def pickled(marker):
    return pickle.dumps(Malicious(marker), 2)


def with_objects(arrays, name, marker):
    return arrays | {name: np.array([Malicious(marker)], dtype=object)}


def hidden_array(_marker):
    """A file of torch.save whose array of NumPy's names the addresses of its objects itself."""

    class Dtype:
        def __reduce__(self):
            return np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0)

    class Array:
        def __reduce__(self):
            make = np.empty(0).__reduce__()[0]
            return make, (np.ndarray, (0,), b"b"), (1, (2, 2), Dtype(), False, bytes(32))

    return saved({"edge": Array(), "edge_neg": Array()})


PAPER_FILES = OGB_BINARY | ogb_split("time")
CITESEER = planetoid("citeseer", 600)[0]
COLLAB = OGB | ogb_split("time") | {"raw/edge_weight.csv.gz": table([[1]] * 12)}
COLLAB |= {
    f"split/time/{part}.pt": saved(dict.fromkeys(("edge", "edge_neg"), np.array([[0, 5], [3, 8]])))
    for part in ("train", "valid", "test")
}


@pytest.mark.parametrize(
    ("name", "folder", "files", "file", "change"),
    [
        *(
            ("citeseer_torch", "CiteSeer/raw", CITESEER, f"ind.citeseer.{part}", pickled)
            for part in ("allx", "tx", "ally", "ty", "y", "graph")
        ),
        (
            "citeseer_torch",
            "CiteSeer/raw",
            CITESEER,
            "ind.citeseer.graph",
            lambda marker: pickle.dumps({0: [1, Malicious(marker)]}, 2),
        ),
        ("facebook", "facebook/raw", {"facebook.npz": MUSAE}, "facebook.npz", pickled),
        *(
            (name, folder, files, file, partial(with_objects, files[file], array))
            for name, folder, files, file, array in (
                ("facebook", "facebook/raw", {"facebook.npz": MUSAE}, "facebook.npz", "edges"),
                ("lastfm", "lastfm/raw", {"lastfm_asia.npz": MUSAE}, "lastfm_asia.npz", "features"),
                ("reddit", "reddit", REDDIT, "reddit_data.npz", "label"),
                ("ogbn-papers100M", "ogbn_papers100M", PAPER_FILES, "raw/data.npz", "node_feat"),
                (
                    *("ogbn-papers100M", "ogbn_papers100M", PAPER_FILES),
                    *("raw/node-label.npz", "node_label"),
                ),
            )
        ),
        ("reddit", "reddit", REDDIT, "reddit_graph.npz", partial(with_objects, {}, "row")),
        ("reddit", "reddit", REDDIT, "reddit_graph.npz", pickled),
        ("flickr", "flickr", FLICKR, "feats.npy", pickled),
        ("yelp", "yelp", YELP, "adj_full.npz", partial(with_objects, {}, "indices")),
        ("ogbl-collab", "ogbl_collab", COLLAB, "split/time/valid.pt", pickled),
        (
            "ogbl-collab",
            "ogbl_collab",
            COLLAB,
            "split/time/test.pt",
            lambda marker: saved({"edge": Malicious(marker)}),
        ),
        ("ogbl-collab", "ogbl_collab", COLLAB, "split/time/test.pt", hidden_array),
    ],
)
def test_no_code_in_a_file_is_run(tmp_path, name, folder, files, file, change):
    write_files(tmp_path / folder, files)
    assert load(name, tmp_path).num_nodes >= 12
    for record in tmp_path.rglob("*.sha256"):
        record.unlink()  # a changed file is refused by its checksum; here its content has to be
    write_files(tmp_path / folder, {file: change(tmp_path / "marker")})
    with pytest.raises(InputError, match=re.escape(f"{folder}/{file}")):
        load(name, tmp_path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("builtins", "eval"),
        ("sys", "modules"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "scalar"),
        ("partitioning.datasets.array_pickles", "pickle.loads"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 4])
def test_a_pickle_of_arrays_names_nothing_else(tmp_path, module, name, protocol):
    strings = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    named = f"c{module}\n{name}\n".encode() if protocol == 0 else b"".join([*strings, b"\x93"])
    (tmp_path / "file").write_bytes(named + b"(tR.")
    with pytest.raises(InputError, match=rf"file: .*it names {module}\.{name}, which is not run"):
        read_pickle(tmp_path / "file")


def test_a_pickle_of_arrays_has_plain_keys(tmp_path):
    """Hashing a tuple of tuples doubles with each level, and a deep one overflows the stack."""
    twins = b"(tp0\n" + b"(g0\ng0\ntp0\n" * 100
    for content in (b"(d" + twins + b"Ns.", b"}(" + twins + b"Nu.", b"(" + twins + b"Nd."):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(InputError, match="a key that is neither an integer nor text"):
            read_pickle(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"(" + twins + b"\x91.")  # a set
    with pytest.raises(InputError, match="file: not a readable file"):
        read_pickle(tmp_path / "file")


@given(st.binary(max_size=60), st.integers(0, 400), st.booleans())
def test_a_damaged_pickle_of_arrays_is_an_input_error(tmp_path_factory, piece, place, cut):
    file = tmp_path_factory.getbasetemp() / "damaged"
    undamaged = io.BytesIO()
    PickledByPython2(undamaged, 2).dump(sp.csr_matrix(np.eye(3)))
    content = undamaged.getvalue()
    file.write_bytes(
        content[:place] + piece + content[len(content) if cut else place + len(piece) :]
    )
    with contextlib.suppress(InputError):
        read_pickle(file)
