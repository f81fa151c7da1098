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
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import dataset_settings, dgl, split_settings

from partitioning import datasets
from partitioning.datasets import (
    dgl_source,
    download,
    ogb_links,
    ogb_source,
)
from partitioning.datasets.array_pickles import read_pickle
from partitioning.errors import InputError
from partitioning.links.link_split import split_links
from partitioning.node_split import draw
from partitioning.ogb_import import import_ogb
from partitioning.partition_settings import SyntheticSettings

PLAIN = split_settings()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No network and no terminal: whoever asks for either fails at once."""

    def refuse(*_args, **_options):
        raise OSError("offline")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on the terminal"))


def load(name, folder, symmetrize=None):
    synthetic = SyntheticSettings(4, 2, 1, 2, 0.5, 0)
    return datasets.load_graph(
        dataset_settings(name, dir=str(folder), symmetrize=symmetrize, synthetic=synthetic)
    )


def forget_checksums(folder):
    """A changed file is refused by its checksum; here its content has to be."""
    for record in folder.rglob("*.sha256"):
        record.unlink()


def pairs(graph):
    return sorted(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))


# ---- dgl.data

RING = [(a, (a + 1) % 12) for a in range(12)]
BOTH = sorted(RING + [(b, a) for a, b in RING])


def write_reddit(folder, loop=True):
    """reddit_data.npz and reddit_graph.npz: 12 posts in a ring, the first with a self loop."""
    folder.mkdir(parents=True)
    src, dst = np.array(BOTH + ([(0, 0)] if loop else [])).T
    sp.save_npz(
        folder / "reddit_graph.npz", sp.coo_matrix((np.ones(len(src)), (src, dst)), shape=(12, 12))
    )
    np.savez(
        folder / "reddit_data.npz",
        feature=np.arange(36.0).reshape(12, 3),
        node_types=np.array([1] * 6 + [2] * 2 + [3] * 4),
        node_ids=np.arange(12),
        label=np.arange(12) % 41,
    )


def write_saint(folder, multilabel):
    """GraphSAINT's four files, as Yelp and Flickr have them."""
    folder.mkdir(parents=True)
    src, dst = np.array(BOTH).T
    sp.save_npz(
        folder / "adj_full.npz", sp.csr_matrix((np.ones(len(src)), (src, dst)), shape=(12, 12))
    )
    np.save(folder / "feats.npy", np.arange(36.0).reshape(12, 3) ** 2)
    classes = {str(node): [node % 2, 1, 0] if multilabel else node % 7 for node in range(12)}
    (folder / "class_map.json").write_text(json.dumps(classes))
    roles = {"tr": list(range(6)), "va": [6, 7], "te": [8, 9, 10, 11]}
    (folder / "role.json").write_text(json.dumps(roles))


def assert_published_split(graph, name):
    split = draw(graph, PLAIN, datasets.recipe(name).split)
    assert split.describe() == {"kind": "given", "nodes": {"train": 6, "val": 2, "test": 4}}


@pytest.mark.parametrize("name", ["reddit", "yelp", "flickr", "karateclub"])
def test_the_same_as_dgls_loader(tmp_path, name, monkeypatch):
    data = dgl.data
    folder = tmp_path / name
    if name == "reddit":
        write_reddit(folder)
    elif name != "karateclub":
        write_saint(folder, multilabel=name == "yelp")
    theirs = {
        "reddit": data.RedditDataset,
        "yelp": data.YelpDataset,
        "flickr": data.FlickrDataset,
    }.get(name)
    if theirs is not None:
        monkeypatch.setattr(theirs, "raw_path", str(folder), raising=False)
        monkeypatch.setattr(theirs, "has_cache", lambda self: False)
        monkeypatch.setattr(theirs, "save", lambda self: None)
    wanted = (theirs(raw_dir=str(tmp_path)) if theirs else data.KarateClubDataset())[0]
    graph = load(name, tmp_path)
    edges = (ends.tolist() for ends in wanted.edges())
    assert pairs(graph) == sorted(
        (a, b) for a, b in zip(*edges, strict=True) if name != "reddit" or a != b
    )
    for key, tensor in wanted.ndata.items():
        if key != "feat" or name != "yelp":  # which is standardised
            attribute = {"feat": "features", "label": "labels"}.get(key, key)
            assert getattr(graph, attribute).tolist() == tensor.tolist(), key


def test_yelp_is_multilabel_and_standardised_on_its_training_nodes(tmp_path):
    write_saint(
        tmp_path / "yelp", multilabel=True
    )  # the plain name does, as well as DGL's with its hash
    graph = load("yelp", tmp_path)
    assert pairs(graph) == BOTH
    assert graph.labels.dtype == np.float32
    assert graph.labels.tolist() == [[node % 2, 1, 0] for node in range(12)]
    assert graph.num_classes == 3
    known = graph.features[graph.train_mask]
    assert known.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-6)
    assert known.std(axis=0) == pytest.approx(np.ones(3), abs=1e-6)
    assert graph.features.dtype == np.float32
    assert_published_split(graph, "yelp")


def zip_folder(folder, path, below=""):
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.write(file, below + str(file.relative_to(folder)))


def test_a_zip_that_was_put_there_by_hand_is_unpacked(tmp_path):
    write_reddit(tmp_path / "made")
    (tmp_path / "data").mkdir()
    zip_folder(tmp_path / "made", tmp_path / "data" / "reddit.zip")
    assert load("reddit", tmp_path / "data").num_nodes == 12
    (tmp_path / "data" / "flickr.zip").write_bytes(b"PK rubbish")
    with pytest.raises(
        InputError,
        match=r"flickr.zip: cannot be unpacked .*remove it and fetch https://data.dgl.ai",
    ):
        load("flickr", tmp_path / "data")
    assert not [
        path.name
        for path in (tmp_path / "data").iterdir()
        if path.name.startswith((".", "flickr_"))
    ]


def test_a_zip_that_would_fill_the_disk(tmp_path):
    with zipfile.ZipFile(tmp_path / "flickr.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("feats.npy", bytes(1 << 24))
    words = r"flickr\.zip: grows by 0\.0156 GiB, .* set dataset_max_gib=1, which is 0\.01$"
    with pytest.raises(InputError, match=words):
        datasets.load_graph(dataset_settings("flickr", dir=str(tmp_path), max_gib=0.01))
    assert [path.name for path in tmp_path.iterdir()] == ["flickr.zip"]


# ---- ogb


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(str(cell) for cell in row) + "\n" for row in rows)


def write_ogb_split(folder, kind):
    for part, ids in (("train", range(6)), ("valid", (6, 7)), ("test", (8, 9, 10, 11))):
        write_csv(folder / "split" / kind / f"{part}.csv.gz", [[node] for node in ids])


def write_ogb_csv(folder, split):
    """The layout inside arxiv.zip and products.zip; `processed` is there, and empty, in both."""
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", RING)
    write_csv(raw / "num-node-list.csv.gz", [[12]])
    write_csv(raw / "num-edge-list.csv.gz", [[12]])
    write_csv(raw / "node-feat.csv.gz", [[node / 4, 1.5] for node in range(12)])
    write_csv(raw / "node-label.csv.gz", [[node % 5] for node in range(12)])
    write_csv(raw / "node_year.csv.gz", [[2000 + node] for node in range(12)])
    write_ogb_split(folder, split)
    (folder / "RELEASE_v1.txt").write_text("")


def write_proteins(folder, _split):
    """The layout inside proteins.zip: features of edges, many labels, none of nodes."""
    write_ogb_csv(folder, "species")
    raw = folder / "raw"
    (raw / "node-feat.csv.gz").unlink()
    write_csv(raw / "edge-feat.csv.gz", [[edge / 8] * 8 for edge in range(12)])
    write_csv(
        raw / "node-label.csv.gz",
        [[int(node % 5 == task % 5) for task in range(112)] for node in range(12)],
    )


def write_ogb_binary(folder):
    """The layout inside papers100M-bin.zip: float labels, NaN where there is none."""
    (folder / "raw").mkdir(parents=True)
    features = np.arange(28, dtype=np.float32).reshape(14, 2)
    ends = np.array(RING).T
    np.savez(
        folder / "raw" / "data.npz",
        edge_index=ends,
        num_nodes_list=np.array([14]),
        num_edges_list=np.array([12]),
        node_feat=features,
        node_year=np.full((14, 1), 2000),
    )
    labels = np.full((14, 1), np.nan, dtype=np.float32)
    labels[:12, 0] = np.arange(12) % 5
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    write_ogb_split(folder, "time")
    (folder / "RELEASE_v1.txt").write_text("")


@pytest.mark.parametrize("cells", [1 << 23, 3])
@pytest.mark.parametrize(
    "name", ["ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-proteins"]
)
def test_the_raw_files_are_read_as_ogb_reads_them(tmp_path, monkeypatch, name, cells):
    monkeypatch.setattr(ogb_source, "CHUNK", cells)
    source, folder = ogb_source.SOURCES[name], ogb_source.archive(name, str(tmp_path)).folder
    import_ogb()
    reader = importlib.import_module("ogb.io.read_graph_raw")
    if name == "ogbn-papers100M":
        write_ogb_binary(folder)
        theirs = reader.read_binary_graph_raw(str(folder / "raw"))[0]
    else:
        (write_proteins if name == "ogbn-proteins" else write_ogb_csv)(folder, source.split)
        theirs = reader.read_csv_graph_raw(
            str(folder / "raw"), add_inverse_edge=name in ("ogbn-products", "ogbn-proteins")
        )[0]
    graph = datasets.read_graph(dataset_settings(name, dir=str(tmp_path), symmetrize=False))
    assert pairs(graph) == sorted(map(tuple, theirs["edge_index"].T.tolist()))
    assert graph.features.dtype == np.float32
    if name == "ogbn-proteins":
        assert theirs["node_feat"] is None
        assert not graph.featured.any()
        features = dict(
            zip(
                map(tuple, theirs["edge_index"].T.tolist()),
                theirs["edge_feat"].tolist(),
                strict=True,
            )
        )
        assert [
            features[pair] for pair in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        ] == graph.edge_feat.tolist()
        assert graph.labels.sum(axis=1).tolist() == [23, 23, 22, 22, 22] * 2 + [23, 23]
    else:
        assert graph.features.tolist() == theirs["node_feat"].tolist()
    assert graph.num_nodes == theirs["num_nodes"]
    import pandas as pd

    master = pd.read_csv(
        Path(sys.modules["ogb.nodeproppred"].__file__).parent / "master.csv", index_col=0
    )
    assert graph.num_classes == int(
        master[name]["num tasks" if name == "ogbn-proteins" else "num classes"]
    )
    assert source.split == master[name]["split"]
    assert source.both_ways == (master[name]["add_inverse_edge"] == "True")


def write_mag(folder):
    """The layout inside mag.zip: three papers, two authors, a relation of each kind of ends."""
    raw, split = folder / "raw", folder / "split" / "time"
    write_csv(raw / "num-node-dict.csv.gz", [["author", "paper"], [2, 3]])
    relations = {
        ("author", "writes", "paper"): [(0, 1), (1, 2)],
        ("paper", "cites", "paper"): [(0, 1), (2, 1)],
    }
    write_csv(raw / "triplet-type-list.csv.gz", list(relations))
    for each, edges in relations.items():
        below = raw / "relations" / "___".join(each)
        write_csv(below / "edge.csv.gz", edges)
        write_csv(below / "num-edge-list.csv.gz", [[len(edges)]])
        write_csv(below / "edge_reltype.csv.gz", [[0]] * len(edges))
    write_csv(
        raw / "node-feat" / "paper" / "node-feat.csv.gz", [[node / 4, 1.5] for node in range(3)]
    )
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", [[2000], [2001], [2002]])
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", [[4], [348], [0]])
    write_csv(raw / "nodetype-has-label.csv.gz", [["author", "paper"], [False, True]])
    write_csv(split / "nodetype-has-split.csv.gz", [["author", "paper"], [False, True]])
    for node, part in enumerate(("train", "valid", "test")):
        write_csv(split / "paper" / f"{part}.csv.gz", [[node]])


def test_mag_is_read_as_ogb_reads_it(tmp_path):
    pytest.importorskip("ogb", reason="the extra ogb")
    folder = tmp_path / "ogbn_mag"
    write_mag(folder)
    reader = importlib.import_module("ogb.io.read_graph_raw")
    theirs = reader.read_csv_heterograph_raw(
        str(folder / "raw"), additional_edge_files=["edge_reltype"]
    )[0]
    graph = datasets.load_graph(dataset_settings("ogbn-mag", dir=str(tmp_path), reverse=False))
    assert list(graph.relations) == list(theirs["edge_index_dict"])
    for each, ends in theirs["edge_index_dict"].items():
        assert np.array_equal([graph.relations[each].src, graph.relations[each].dst], ends)
    assert {name: table.num_nodes for name, table in graph.nodes.items()} == theirs[
        "num_nodes_dict"
    ]
    assert np.array_equal(graph.nodes["paper"].features, theirs["node_feat_dict"]["paper"])
    assert np.array_equal(
        graph.labels, reader.read_node_label_hetero(str(folder / "raw"))["paper"].reshape(-1)
    )
    for masked, ids in zip(
        (graph.train_mask, graph.val_mask, graph.test_mask),
        reader.read_nodesplitidx_split_hetero(str(folder / "split/time")),
        strict=True,
    ):
        assert np.flatnonzero(masked).tolist() == ids["paper"].tolist()
    assert (graph.target, graph.num_classes) == ("paper", 349)
    both = datasets.load_graph(dataset_settings("ogbn-mag", dir=str(tmp_path)))
    assert ("paper", "rev_cites", "paper") in both.relations
    assert both.nodes["author"].features.tolist() == [
        [0.25, 1.5],
        [0.5, 1.5],
    ]  # those of their papers
    with pytest.raises(InputError, match="target=author"):
        datasets.load_graph(dataset_settings("ogbn-mag", dir=str(tmp_path), target="author"))
    write_csv(folder / "raw" / "relations" / "author___writes___paper" / "edge.csv.gz", [(0, 3)])
    with pytest.raises(InputError, match="column 1: row 0 is 3"):
        datasets.load_graph(dataset_settings("ogbn-mag", dir=str(tmp_path)))


def test_damaged_files_of_ogb_are_named(tmp_path):
    folder = tmp_path / "ogbn_papers100M"
    write_ogb_binary(folder)
    (folder / "split" / "time" / "valid.csv.gz").unlink()
    with pytest.raises(InputError, match=r"ogbn_papers100M lacks split/time/valid\.csv\.gz"):
        load("ogbn-papers100M", tmp_path)
    write_ogb_split(folder, "time")
    ends = np.array(RING).T + 2**31
    for changed, message in (
        ({"edge_index": ends}, "`edge_index` has numbers beyond int32"),
        ({"edge_index": np.array(RING)}, r"edge_index has shape \[12, 2\]"),
        ({"num_nodes_list": np.array([[None]])}, "holds Python objects"),
        ({"edge_index": np.array(RING).T.copy() + 3}, "row 11 is 14; expected a node in"),
    ):
        with np.load(folder / "raw" / "data.npz", allow_pickle=False) as kept:
            arrays = dict(kept)
        np.savez(folder / "raw" / "data.npz", **(arrays | changed))
        with pytest.raises(InputError, match=message):
            load("ogbn-papers100M", tmp_path)
        np.savez(folder / "raw" / "data.npz", **arrays)
    write_ogb_csv(tmp_path / "a" / "ogbn_arxiv", "time")
    edges = tmp_path / "a" / "ogbn_arxiv" / "raw" / "edge.csv.gz"
    edges.write_bytes(edges.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"edge\.csv\.gz|cannot be read"):
        load("ogbn-arxiv", tmp_path / "a")


@pytest.mark.parametrize(
    ("part", "nodes", "message"),
    [
        ("train", [3, -1], r"train\.csv\.gz: row 1 is -1; expected a node in \[0, 12\)"),
        ("valid", [12], r"valid\.csv\.gz: row 0 is 12; expected a node in \[0, 12\)"),
        ("test", [9, 8, 9], r"test\.csv\.gz: rows 0 and 2 are both 9; expected each id once"),
        ("test", [9, 6], r"test\.csv\.gz: row 1 is 6, which .*valid\.csv\.gz has, too"),
    ],
)
def test_a_split_of_ogb_names_each_node_once(tmp_path, part, nodes, message):
    write_ogb_csv(tmp_path / "ogbn_arxiv", "time")
    file = tmp_path / "ogbn_arxiv" / "split" / "time" / f"{part}.csv.gz"
    write_csv(file, [[node] for node in nodes])
    with pytest.raises(InputError, match=message):
        load("ogbn-arxiv", tmp_path)


def test_a_folder_of_another_release_is_said_not_asked(tmp_path):
    write_ogb_csv(tmp_path / "ogbn_arxiv", "time")
    (tmp_path / "ogbn_arxiv" / "RELEASE_v1.txt").unlink()
    with pytest.raises(InputError, match=r"ogbn_arxiv lacks RELEASE_v1\.txt"):
        load("ogbn-arxiv", tmp_path)


def test_ogbs_zip_is_unpacked_from_its_inner_folder(tmp_path):
    write_ogb_csv(tmp_path / "made", "time")
    zip_folder(tmp_path / "made", tmp_path / "arxiv.zip", below="arxiv/")
    assert load("ogbn-arxiv", tmp_path).num_nodes == 12


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


def write_planetoid(folder, name, num_nodes, protocol=2):
    """The eight files ind.NAME.*: x, y (training), allx, ally, tx, ty (test), graph, test.index.

    Node i has feature i % 4 and class i % 3. In CiteSeer node num_nodes - 2 is in no file, as 15
    nodes of the real one. The reader takes 500 validation nodes after the 6 training nodes, so
    there are more nodes than that.
    """
    folder.mkdir(parents=True)
    train, rest = 6, num_nodes - 4
    test = [num_nodes - 1, num_nodes - 4, num_nodes - 3]  # in an order of their own
    if name != "citeseer":
        test.append(num_nodes - 2)
    features, classes = np.eye(4, dtype=np.float32), np.eye(3, dtype=np.int32)
    nodes = np.arange(rest)
    ring = {node: [(node + 1) % rest, (node - 1) % rest] for node in range(rest)}
    parts = {
        "x": sp.csr_matrix(features[nodes[:train] % 4]),
        "y": classes[nodes[:train] % 3],
        "allx": sp.csr_matrix(features[nodes % 4]),
        "ally": classes[nodes % 3],
        "tx": sp.csr_matrix(features[np.array(test) % 4]),
        "ty": classes[np.array(test) % 3],
        "graph": defaultdict(
            list,  # with a self loop and a duplicate
            ring | {test[0]: [0, test[0]], 0: [*ring[0], test[0], 1]},
        ),
    }
    for part, value in parts.items():
        with (folder / f"ind.{name}.{part}").open("wb") as file:
            PickledByPython2(file, protocol).dump(value)
    (folder / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in test))
    return {(a, b) for a, many in parts["graph"].items() for b in many if a != b}


@pytest.mark.parametrize("protocol", [0, 2])
@pytest.mark.parametrize(
    ("name", "title"),
    [("citeseer_torch", "CiteSeer"), ("pubmed_torch", "PubMed"), ("planetoid-cora", "Cora")],
)
def test_planetoid_is_read_as_torch_geometric_reads_it(tmp_path, name, title, protocol):
    raw = tmp_path / title / "raw"
    expected = write_planetoid(raw, title.lower(), 600, protocol)
    graph = load(name, tmp_path)
    assert pairs(graph) == sorted(expected)
    labels, features = np.arange(600) % 3, np.eye(4)[np.arange(600) % 4]
    if title == "CiteSeer":  # the node without a row has no features, and the first class
        labels[598], features[598] = 0, 0
    assert graph.labels.tolist() == labels.tolist()
    assert (graph.features == features).all()
    assert graph.train_mask.sum() == 6
    assert [path.name for path in (tmp_path / title).iterdir()] == ["raw"]  # no cache
    theirs = pytest.importorskip("torch_geometric.io").read_planetoid_data(str(raw), title)
    assert np.array_equal(np.stack((graph.src, graph.dst)), theirs.edge_index)
    assert np.array_equal(graph.features, theirs.x)
    assert np.array_equal(graph.labels, theirs.y)
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(graph, mask), theirs[mask]), mask


def test_damaged_files_of_planetoid_are_named(tmp_path):
    raw = tmp_path / "PubMed" / "raw"
    write_planetoid(raw, "pubmed", 600)
    for part, content, message in (
        ("graph", pickle.dumps({0: [600]}, 2), r"row 0 is 600; expected a node in \[0, 600\)"),
        ("graph", pickle.dumps([1]), "holds list, expected an array"),
        ("ally", b"", "not a readable pickle"),
        ("ty", (raw / "ind.pubmed.y").read_bytes(), r"has 4 nodes; expected 6|test.index"),
        ("allx", (raw / "ind.pubmed.tx").read_bytes(), r"shape \(4, 4\); expected \(596, 4\)"),
        ("test.index", b"596\n597\n597\n599\n", "rows 1 and 2 are both 597; expected each id once"),
        ("test.index", b"596\n-1\n598\n599\n", "row 1 is -1; expected from 596 to 603"),
    ):
        forget_checksums(tmp_path)
        file = raw / f"ind.pubmed.{part}"
        good = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(InputError, match=message) as refusal:
            load("pubmed_torch", tmp_path)
        assert "ind.pubmed." in str(refusal.value)
        file.write_bytes(good)


@pytest.mark.parametrize(
    ("name", "file"), [("facebook", "facebook.npz"), ("lastfm", "lastfm_asia.npz")]
)
def test_musae(tmp_path, name, file):
    write_musae(tmp_path / name / "raw", file)
    graph = load(name, tmp_path)
    assert pairs(graph) == BOTH
    assert graph.labels.tolist() == [node % 4 for node in range(12)]
    assert (graph.features == np.arange(36.0).reshape(12, 3)).all()
    assert graph.num_classes == 4
    assert graph.train_mask is None
    assert draw(graph, PLAIN, datasets.recipe(name).split).describe()["nodes"] == {
        "train": 2,
        "val": 2,
        "test": 8,
    }


# ---- what cannot be downloaded


@pytest.mark.parametrize(
    "name", ["reddit", "yelp", "flickr", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M"]
)
def test_a_zip_that_cannot_be_fetched_is_named_with_its_place(tmp_path, name):
    source = ogb_source if name.startswith("ogbn") else dgl_source
    files = source.archive(name, str(tmp_path))
    with pytest.raises(InputError) as refusal:
        load(name, tmp_path)
    for part in (files.url, str(files.zip), str(files.folder), "offline"):
        assert part in str(refusal.value)
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


# ---- links of OGB


@pytest.mark.parametrize("name", ogb_links.SOURCES)
def test_graphs_of_links_are_read_as_ogb_reads_them(tmp_path, name):
    source, folder = ogb_links.SOURCES[name], ogb_links.archive(name, str(tmp_path)).folder
    write_ogb_csv(folder, source.split)
    write_csv(folder / "raw" / "edge_weight.csv.gz", [[edge + 1] for edge in range(12)])
    rng = np.random.default_rng(0)
    for part in ("train", "valid", "test"):
        edges = torch.tensor(
            [[0, 5], [3, 8], [7, 2]] if part == "test" else [[1, 6], [4, 10], [9, 11]]
        )
        held = {
            "edge": edges,
            "edge_neg": torch.tensor([[0, 4], [1, 9]]),
            "weight": np.ones(3, np.int64),
        }
        if name == "ogbl-citation2":
            held = {
                "source_node": edges[:, 0].numpy(),
                "target_node": edges[:, 1].numpy(),
                "target_node_neg": rng.integers(12, size=(3, 4)),
            }
        torch.save(held, folder / "split" / source.split / f"{part}.pt")
    import_ogb()
    reader = importlib.import_module("ogb.io.read_graph_raw")
    theirs = reader.read_csv_graph_raw(str(folder / "raw"), add_inverse_edge=source.both_ways)[0]
    graph = datasets.read_graph(dataset_settings(name, dir=str(tmp_path), symmetrize=False))
    assert pairs(graph) == sorted(map(tuple, theirs["edge_index"].T.tolist()))
    if source.featured:
        assert graph.features.tolist() == theirs["node_feat"].tolist()
    else:
        assert not graph.featured.any()
    assert (graph.edge_weight is not None) == (name == "ogbl-collab")
    split = split_links(graph, dataset_settings(name).split)
    rows = [[0, 5], [3, 8], [7, 2]]
    expected = rows if name == "ogbl-citation2" else sorted(rows + [row[::-1] for row in rows])
    assert split.rows["test"].tolist() == expected
    fixed = split.rows["test_neg"]
    if name == "ogbl-citation2":  # in the order of the pairs
        assert fixed[:, 0].tolist() == np.repeat([0, 3, 7], 4).tolist()
        assert fixed[:, 1].reshape(3, 4).tolist() == held["target_node_neg"].tolist()  # type: ignore[attr-defined]
    else:
        assert fixed.tolist() == [[0, 4], [1, 9]]
    import pandas as pd

    master = pd.read_csv(
        Path(sys.modules["ogb"].__file__).parent / "linkproppred" / "master.csv", index_col=0
    )
    assert (source.evaluator, source.split) == (master[name]["eval metric"], master[name]["split"])
    assert source.both_ways == (master[name]["add_inverse_edge"] == "True")
    assert source.zip == master[name]["download_name"]
    ours = f"{ogb_links.URL}/{source.zip}.zip"
    assert ours == master[name]["url"].replace("http://", "https://")


# ---- files that would run code


class Malicious:
    """Makes a file where it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def objects(marker):
    return np.array([Malicious(marker)], dtype=object)


def save_hidden(file, marker):
    """A file of torch.save whose array of NumPy's names the addresses of its objects itself."""

    class Dtype:
        def __reduce__(self):
            return np.dtype, ("O", False, True), (3, "|", None, None, None, -1, -1, 0)

    class Array:
        def __reduce__(self):
            make = np.empty(0).__reduce__()[0]
            return make, (np.ndarray, (0,), b"b"), (1, (2, 2), Dtype(), False, bytes(32))

    torch.save({"edge": Array(), "edge_neg": Array()}, file)


def dump(file, marker):
    file.write_bytes(pickle.dumps(Malicious(marker), 2))


def dump_within(file, marker):
    file.write_bytes(pickle.dumps({0: [1, Malicious(marker)]}, 2))


def save_torch(file, marker):
    torch.save({"edge": Malicious(marker)}, file)


def change_npz(array):
    def change(file, marker):
        with np.load(file, allow_pickle=False) as kept:
            arrays = dict(kept)
        np.savez(file, **(arrays | {array: objects(marker)}))

    return change


def write_musae(folder, file):
    folder.mkdir(parents=True)
    np.savez(
        folder / file,
        features=np.arange(36.0).reshape(12, 3),
        target=np.arange(12) % 4,
        edges=np.array(BOTH),
    )


def write_collab(folder):
    write_ogb_csv(folder, "time")
    write_csv(folder / "raw" / "edge_weight.csv.gz", [[1]] * 12)
    held = {name: np.array([[0, 5], [3, 8]]) for name in ("edge", "edge_neg")}
    for part in ("train", "valid", "test"):
        torch.save(held, folder / "split" / "time" / f"{part}.pt")


WRITERS = {
    "citeseer_torch": lambda base: write_planetoid(base / "CiteSeer" / "raw", "citeseer", 600),
    "facebook": lambda base: write_musae(base / "facebook" / "raw", "facebook.npz"),
    "lastfm": lambda base: write_musae(base / "lastfm" / "raw", "lastfm_asia.npz"),
    "reddit": lambda base: write_reddit(base / "reddit"),
    "flickr": lambda base: write_saint(base / "flickr", multilabel=False),
    "yelp": lambda base: write_saint(base / "yelp", multilabel=True),
    "ogbn-arxiv": lambda base: write_ogb_csv(base / "ogbn_arxiv", "time"),
    "ogbn-papers100M": lambda base: write_ogb_binary(base / "ogbn_papers100M"),
    "ogbl-collab": lambda base: write_collab(base / "ogbl_collab"),
}


@pytest.mark.parametrize(
    ("name", "file", "change"),
    [
        *(
            ("citeseer_torch", f"CiteSeer/raw/ind.citeseer.{part}", dump)
            for part in ("allx", "tx", "ally", "ty", "y", "graph")
        ),
        ("citeseer_torch", "CiteSeer/raw/ind.citeseer.graph", dump_within),
        ("facebook", "facebook/raw/facebook.npz", change_npz("edges")),
        ("facebook", "facebook/raw/facebook.npz", dump),
        ("lastfm", "lastfm/raw/lastfm_asia.npz", change_npz("features")),
        ("reddit", "reddit/reddit_data.npz", change_npz("label")),
        ("reddit", "reddit/reddit_graph.npz", change_npz("row")),
        ("reddit", "reddit/reddit_graph.npz", dump),
        ("flickr", "flickr/feats.npy", dump),
        ("yelp", "yelp/adj_full.npz", change_npz("indices")),
        ("ogbn-papers100M", "ogbn_papers100M/raw/data.npz", change_npz("node_feat")),
        ("ogbn-papers100M", "ogbn_papers100M/raw/node-label.npz", change_npz("node_label")),
        ("ogbl-collab", "ogbl_collab/split/time/valid.pt", dump),
        ("ogbl-collab", "ogbl_collab/split/time/test.pt", save_torch),
        ("ogbl-collab", "ogbl_collab/split/time/test.pt", save_hidden),
    ],
)
def test_no_code_in_a_file_is_run(tmp_path, name, file, change):
    marker, file = tmp_path / "marker", tmp_path / file
    WRITERS[name](tmp_path)
    assert load(name, tmp_path).num_nodes >= 12
    forget_checksums(tmp_path)
    change(file, marker)
    with pytest.raises(InputError, match=re.escape(str(file))):
        load(name, tmp_path)
    assert not marker.exists()


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
    strings = [b"\x8c" + bytes([len(each)]) + each.encode() for each in (module, name)]
    named = f"c{module}\n{name}\n".encode() if protocol == 0 else b"".join([*strings, b"\x93"])
    (tmp_path / "file").write_bytes(named + b"(tR.")
    with pytest.raises(InputError, match=rf"file: .*it names {module}\.{name}, which is not run"):
        read_pickle(tmp_path / "file")


def test_a_pickle_of_arrays_has_plain_keys(tmp_path):
    """Hashing a tuple of tuples doubles with each level, and a deep one overflows the stack."""
    twins = b"(tp0\n" + b"(g0\ng0\ntp0\n" * 100
    for content in (b"(d" + twins + b"Ns.", b"}(" + twins + b"Nu.", b"(" + twins + b"Nd."):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(InputError, match="a key that is neither a number nor text"):
            read_pickle(tmp_path / "file")
    (tmp_path / "file").write_bytes(b"(" + twins + b"\x91.")  # a set
    with pytest.raises(InputError, match="file: not a readable pickle"):
        read_pickle(tmp_path / "file")


@given(st.binary(max_size=60), st.integers(0, 400), st.booleans())
def test_a_damaged_pickle_of_arrays_is_an_input_error(tmp_path_factory, piece, place, cut):
    file = tmp_path_factory.getbasetemp() / "damaged"
    whole = io.BytesIO()
    PickledByPython2(whole, 2).dump(sp.csr_matrix(np.eye(3)))
    content = whole.getvalue()
    file.write_bytes(
        content[:place] + piece + content[len(content) if cut else place + len(piece) :]
    )
    with contextlib.suppress(InputError):
        read_pickle(file)
