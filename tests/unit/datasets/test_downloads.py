"""Data sets by name, downloaded in the format of the real files, read as PyG reads them.

The server is on loopback; downloads break off, change or are refused.
"""

import dataclasses
import hashlib
import io
import json
import re
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp
from graph_files import assert_graph
from loopback_server import serve
from support import dataset_settings, split_settings

from partitioning import datasets
from partitioning.datasets import gnn_benchmark, heterophilous, hgb, wikics
from partitioning.errors import InputError
from partitioning.files import download
from partitioning.files.download import Remote, ensure
from partitioning.files.published_checksums import PUBLISHED
from retexo.apps.partition_request import requested_settings
from retexo.settings.compose import compose


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(download, "FIRST_WAIT", 0.0)


NUM_NODES = 12
EDGES = np.array([(a, (a + step) % 12) for a in range(12) for step in (1, 5)])
"""One direction of each edge; some of the formats have loops and repeated edges on top."""
REPEATED = np.concatenate([EDGES, EDGES[:3], [[2, 2]]])
rng = np.random.default_rng(0)
SPLITS = np.array([rng.permutation(np.repeat([0, 1, 2], 4)) for _ in range(3)])


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def heterophilous_file(_name):
    masks = {
        f"{part}_masks": number == SPLITS for number, part in enumerate(("train", "val", "test"))
    }
    features = rng.random((NUM_NODES, 3)).astype(np.float32)
    return npz(edges=REPEATED, node_features=features, node_labels=np.arange(12) % 2, **masks)


def csr(name, matrix):
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    return {f"{name}_{part}": array for part, array in parts.items()} | {
        f"{name}_shape": matrix.shape
    }


def gnn_benchmark_file(_name):
    ends = (np.ones(len(EDGES), np.float32), tuple(EDGES.T))
    adjacency = sp.csr_matrix(ends, shape=(NUM_NODES, NUM_NODES))
    adjacency.setdiag(1)
    words = sp.csr_matrix((rng.random((NUM_NODES, 7)) < 0.4).astype(np.float32))
    names = np.array([{"a": 1}], dtype=object)  # another array of the file, which is not read
    labels = np.arange(NUM_NODES, dtype=np.int64) % 4
    return npz(**csr("adj", adjacency), **csr("attr", words), labels=labels, class_names=names)


def wikics_file(_name):
    links = [[] for _ in range(NUM_NODES)]
    for source, destination in REPEATED.tolist():
        links[source].append(destination)
    masks = {
        f"{part}_masks": np.equal(SPLITS, number).tolist()
        for number, part in ((0, "train"), (1, "val"))
    }
    masks["stopping_masks"] = (np.roll(SPLITS, 1, axis=1) == 1).tolist()
    masks["test_mask"] = [node > 9 for node in range(NUM_NODES)]
    features, labels = rng.random((NUM_NODES, 4)).tolist(), [node % 3 for node in range(NUM_NODES)]
    fields = {"features": features, "labels": labels, "links": links, **masks}
    return json.dumps(fields).encode()


def hgb_file(name):
    """Three types; two relations within papers, and one with weights to a type without features."""
    title = hgb.FILES[name][0]
    types = {"0": "paper", "1": "author", "2": "term"}
    meanings = [
        "paper-cite-paper",
        "paper-ref-paper",
        "paper-author",
        "author-paper",
        "paper->term",
    ]
    ends = [(0, 0), (0, 0), (0, 1), (1, 0), (0, 2)]
    info = {
        "node.dat": {"node type": types},
        "link.dat": {
            "link type": {
                str(number): {"start": str(src), "end": str(dst), "meaning": meaning}
                for number, ((src, dst), meaning) in enumerate(zip(ends, meanings, strict=True))
            }
        },
        "label.dat": {"node type": {"0": {"0": "database", "1": "network"}}},
    }
    type_of = [0] * 10 + [1] * 4 + [2] * 3
    nodes = [
        f"{node}\tname {node}\t{number}" + (f"\t{node}.5,{node % 3}" if number < 2 else "")
        for node, number in enumerate(type_of)
    ]
    links = [f"{a}\t{(a + 1) % 10}\t0\t1.0" for a in range(10)]
    links += [f"{(a + 1) % 10}\t{a}\t1\t1.0" for a in range(10)]
    links += [f"{a}\t{10 + a % 4}\t2\t1.0" for a in range(10)]
    links += [f"{10 + a % 4}\t{a}\t3\t1.0" for a in range(10)]
    links += [f"{a}\t{14 + a % 3}\t4\t{1 + a % 2}.0" for a in range(10)]
    labels = [f"{node}\tname {node}\t0\t{node % 2}" for node in range(10)]
    texts = {
        "info.dat": json.dumps(info),
        "node.dat": "\n".join(nodes) + "\n",
        "link.dat": "\n".join(links) + "\n",
        "label.dat": "\n".join(labels[:6]) + "\n",
        "label.dat.test": "\n".join(labels[6:]) + "\n",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, text in texts.items():
            archive.writestr(f"{title}/{member}", text)
    return file.getvalue()


def of_pyg(name, folder):
    """The same files, read by torch_geometric."""
    pyg = pytest.importorskip("torch_geometric.datasets")
    if name in heterophilous.NAMES:
        return pyg.HeterophilousGraphDataset(folder, name)[0]
    if name in gnn_benchmark.FILES:
        kind, part = name.split("-")
        return (pyg.Amazon if kind == "amazon" else pyg.Coauthor)(folder, part)[0]
    return pyg.WikiCS(folder / "WikiCS", is_undirected=True)[0]


@pytest.mark.parametrize(
    ("name", "module", "make_file"),
    [
        ("minesweeper", heterophilous, heterophilous_file),
        ("roman-empire", heterophilous, heterophilous_file),
        ("amazon-photo", gnn_benchmark, gnn_benchmark_file),
        ("coauthor-physics", gnn_benchmark, gnn_benchmark_file),
        ("wikics", wikics, wikics_file),
    ],
)
def test_the_same_as_torch_geometric(tmp_path, monkeypatch, name, module, make_file):
    with serve({}) as served:
        monkeypatch.setattr(module, "URL", f"{served.url}/data")
        settings = dataset_settings(name, dir=str(tmp_path))
        (remote,) = module.remotes(name, str(tmp_path))
        served.files[remote.url.removeprefix(served.url)] = make_file(name)
        assert not datasets.is_local(settings)
        graph = datasets.load_graph(settings)
        assert datasets.is_local(settings)
        assert len(served.asked) == 1
        again = datasets.load_graph(settings)
        assert len(served.asked) == 1  # nothing is fetched twice
    published = of_pyg(name, tmp_path)
    is_loop = published.edge_index[0] == published.edge_index[1]
    edges = sorted(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))
    assert edges == sorted(map(tuple, published.edge_index[:, ~is_loop].T.tolist()))
    assert_graph(graph, features=published.x.numpy(), labels=published.y.numpy())
    assert_graph(again, labels=graph.labels)
    if module is gnn_benchmark:
        return
    val = published.val_mask | published.stopping_mask if module is wikics else published.val_mask
    for index in (0, 2):
        split = datasets.load_graph(with_index(settings, index))
        assert_graph(split, train_mask=published.train_mask[:, index], val_mask=val[:, index])
        test = published.test_mask if module is wikics else published.test_mask[:, index]
        assert_graph(split, test_mask=test)
    assert_graph(graph, train_mask=published.train_mask[:, 0])
    with pytest.raises(InputError, match=r"split.index=3: .* has 3 masks, counted from 0"):
        datasets.load_graph(with_index(settings, 3))


def with_index(settings, index):
    return dataclasses.replace(settings, split=split_settings("given", index=index))


def test_the_first_published_split_is_the_default():
    """So that naming it reuses the same partitions."""
    named = "app=partition_data", "dataset_name=wikics", "split=given"
    requests = [
        requested_settings(compose([*named, *more]))
        for more in ([], ["split.index=0"], ["split.index=1"])
    ]
    assert requests[0] == requests[1]
    assert requests[1]["split.index"] == 0
    assert requests[2]["split.index"] == 1
    other = compose(["app=partition_data", "dataset_name=cora"])
    assert "split.index" not in requested_settings(other)


@pytest.mark.parametrize("name", hgb.FILES)
def test_hgb_is_read_as_torch_geometric_reads_it(tmp_path, monkeypatch, name):
    title = hgb.FILES[name][0]
    content = hgb_file(name)
    with serve({}) as served:
        monkeypatch.setattr(hgb, "URL", f"{served.url}/")
        served.files[f"/{hgb.FILES[name][1]}"] = content
        settings = dataset_settings(name, dir=str(tmp_path), reverse=False)
        graph = datasets.load_graph(settings)
    raw = tmp_path / "pyg" / title.lower() / "raw"
    zipfile.ZipFile(io.BytesIO(content)).extractall(raw)
    pyg = pytest.importorskip("torch_geometric.datasets")
    theirs = pyg.HGBDataset(tmp_path / "pyg", title.lower())[0]
    assert list(graph.relations) == theirs.edge_types
    for edge_type, relation in graph.relations.items():
        src, dst = theirs[edge_type].edge_index.numpy()
        weight = theirs[edge_type].get("edge_weight")
        assert_graph(relation, src=src, dst=dst, edge_weight=weight)
    for kind in ("paper", "author"):
        assert_graph(graph.nodes[kind], features=theirs[kind].x.numpy())
    assert graph.nodes["term"].num_nodes == theirs["term"].num_nodes
    papers = {"labels": theirs["paper"].y.numpy(), "test_mask": theirs["paper"].test_mask.numpy()}
    assert_graph(graph, target="paper", **papers)
    assert np.array_equal(graph.train_mask | graph.val_mask, theirs["paper"].train_mask)
    assert (graph.val_mask.sum(), (graph.train_mask & graph.val_mask).sum()) == (1, 0)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("node.dat", "\n3\t", "\n2\t", "rows 2 and 3 are both 2"),
        ("link.dat", "\n0\t10\t2", "\n0\t1\t2", "row 20 is 1; expected a node of type author"),
        ("link.dat", "\n0\t10\t2", "\n0\t10\t99", "row 20 is 99.*expected a relation"),
        (
            "label.dat",
            "",
            "",
            r"has shape \(0,\), .*; expected a line per labelled node; remove it",
        ),
    ],
)
def test_damaged_files_of_hgb_are_named(tmp_path, file, old, new, message):
    zipfile.ZipFile(io.BytesIO(hgb_file("hgb-acm"))).extractall(tmp_path / "HGB")
    path = tmp_path / "HGB" / "ACM" / file
    path.write_text(path.read_text().replace(old, new) if old else "")
    with pytest.raises(InputError, match=rf"{file}:? {message}"):
        datasets.load_graph(dataset_settings("hgb-acm", dir=str(tmp_path)))


# ---- downloads


CONTENT = bytes(range(256)) * 40


@pytest.fixture
def server():
    with serve({"/a.bin": CONTENT}) as served:
        yield served


def fetch(server, folder, **options):
    target = folder / "new" / "a.bin"
    download.fetch(f"{server.url}/a.bin", target, "by hand", **options)
    assert [path.name for path in target.parent.iterdir()] == ["a.bin"]
    return target.read_bytes()


@pytest.mark.parametrize(
    ("trouble", "limit", "ranges"),
    [
        ({}, len(CONTENT), [""]),
        ({"statuses": [503, 429]}, 1 << 20, ["", "", ""]),
        ({"breaks": [1000, 3000], "version": '"1"'}, 1 << 20, ["", "bytes=1000-", "bytes=4000-"]),
        ({"breaks": [1000, 3000], "version": ""}, 1 << 20, ["", "", ""]),
    ],
    ids=["the largest size", "a busy server", "resumed", "begun anew"],
)
def test_a_file_is_fetched(tmp_path, server, trouble, limit, ranges):
    vars(server).update(trouble)
    assert fetch(server, tmp_path, limit=limit) == CONTENT
    assert server.asked == [("/a.bin", byte_range) for byte_range in ranges]


def test_a_file_that_is_replaced_meanwhile_is_fetched_anew(tmp_path, server, monkeypatch):
    def replace_file(_seconds):
        server.files["/a.bin"], server.version = CONTENT[::-1], '"2"'

    monkeypatch.setattr(download.time, "sleep", replace_file)  # type: ignore[attr-defined]
    server.breaks = [1000]
    assert fetch(server, tmp_path) == CONTENT[::-1]


@pytest.mark.parametrize(
    ("trouble", "message", "requests"),
    [
        ({"breaks": [10] * 9}, r"10 of 10210 bytes arrived", download.ATTEMPTS),
        ({"statuses": [503] * 9}, "HTTP Error 503", download.ATTEMPTS),
        ({"statuses": [404]}, "HTTP Error 404", 1),
        ({"files": {"/a.bin": CONTENT * 2}}, "it has 20480 bytes; expected at most 20000", 1),
        (
            {"files": {"/a.bin": CONTENT * 2}, "announce": False},
            "more than 20000 bytes arrived",
            1,
        ),
    ],
)
def test_a_download_is_whole_or_not_there(tmp_path, server, trouble, message, requests):
    vars(server).update(trouble)
    with pytest.raises(InputError, match=rf"cannot download .*{message}.*; by hand"):
        fetch(server, tmp_path, limit=20_000)
    assert len(server.asked) == requests
    assert not list((tmp_path / "new").iterdir())


def test_a_download_that_trickles_is_given_up(tmp_path, server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    server.piece_seconds = 0.02
    with pytest.raises(InputError, match="less than 4096 bytes per second arrived"):
        fetch(server, tmp_path)


# ---- checksums


def test_a_download_is_compared_with_the_published_checksum(tmp_path, server, monkeypatch, caplog):
    url = f"{server.url}/a.bin"
    table = tmp_path / "sha256.txt"
    monkeypatch.setattr("partitioning.files.published_checksums.PUBLISHED", table)
    table.write_text(f"{'0' * 64}  {url}\n")
    with pytest.raises(InputError, match=rf"it has sha256 [0-9a-f]*, and {'0' * 64} is published"):
        fetch(server, tmp_path)
    assert not list((tmp_path / "new").iterdir())
    checksum = hashlib.sha256(CONTENT).hexdigest()
    table.write_text(f"{checksum}  {url}\n")
    remote = Remote(url, tmp_path / "new" / "a.bin")
    ensure("facebook", [remote], max_gib=4)
    record = tmp_path / "new" / "a.bin.sha256"
    assert record.read_text() == f"{checksum}  a.bin\n"
    remote.path.write_bytes(b"other")
    with pytest.raises(InputError, match=r"a\.bin: has changed since its first use"):
        ensure("facebook", [remote], max_gib=4)
    record.unlink()
    ensure("facebook", [remote], max_gib=4)
    assert "differs from the published file" in caplog.text


def test_every_published_checksum_is_of_a_data_set():
    archives = [
        remote
        for name in datasets.NAMES
        for remote in datasets.recipe(name).files(datasets.canonical_name(name), "folder")
    ]
    lines = [line for line in PUBLISHED.read_text().splitlines() if line[0] != "#"]
    for line in lines:
        checksum, url = line.split("  ")
        assert re.fullmatch("[0-9a-f]{64}", checksum)
        assert url in {remote.url for remote in archives}
    assert len(lines) == len(set(lines)) == 35
    assert all(remote.url.startswith("https://") for remote in archives)
    assert all(isinstance(remote, Remote) for remote in archives)
