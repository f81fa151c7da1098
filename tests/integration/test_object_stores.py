"""Data sets, partitions and runs in an object store, and a web server.

The store is moto's S3 server on loopback, behind a proxy that cuts connections.
"""

import gzip
import hashlib
import io
import json
import logging
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_files import change_json
from hetero_support import random_hetero, write_hetero
from loopback_server import Proxy, serve
from support import Ended, random_graph, run_main, snapshot, thirds, write_partitions

from partitioning.directory import local_copies
from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.files import object_store
from partitioning.files.object_store import Entry, Place

moto_server = pytest.importorskip("moto.server", reason="the extra dev")
s3fs = pytest.importorskip("s3fs", reason="the extra remote")

BUCKET = "bucket"
GRAPH = ("dataset_name=file", "num_partitions=2", "split=fraction", "split.train=0.4")
SPLIT = ("split.val=0.3", "split.test=0.3", "hidden_dim=8", "num_rounds=[3]", "device=cpu")
TOY = (*GRAPH, *SPLIT, "cluster.threads=1", "dataset_dir=data")


@dataclass
class Store:
    """The S3 server as a test sees it, without the proxy."""

    port: int
    proxy: Proxy
    files: Any

    def put(self, path: str, content: bytes) -> str:
        self.files.pipe_file(f"{BUCKET}/{path}", content)
        return f"s3://{BUCKET}/{path}"

    def get(self, path: str) -> bytes:
        content: bytes = self.files.cat_file(f"{BUCKET}/{path}")
        return content

    def names(self, path: str) -> set[str]:
        return {
            name.removeprefix(f"{BUCKET}/{path}/") for name in self.files.find(f"{BUCKET}/{path}")
        }

    def allow(self, *, everybody: bool) -> None:
        """Whether requests need no valid signature; no key is valid here."""
        url = f"http://127.0.0.1:{self.port}/moto-api/reset-auth"
        count = b"1000000000" if everybody else b"0"
        request = urllib.request.Request(url, count, {"Content-Type": "text/plain"})
        urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    moto = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    port = moto.get_host_and_port()[1]
    proxy = Proxy(port)
    keys = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    files = s3fs.S3FileSystem(**keys, use_listings_cache=False)
    files.mkdir(BUCKET)
    try:
        yield Store(port, proxy, files)
    finally:
        proxy.close()
        moto.stop()


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.proxy.port}"),
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    yield server
    server.proxy.cuts.clear()
    server.proxy.cuts_of_requests.clear()
    server.allow(everybody=True)


def toy(seed: int = 0) -> bytes:
    rng, content = np.random.default_rng(seed), io.BytesIO()
    src, dst = rng.integers(0, 60, (2, 240))
    np.savez(content, src=src, dst=dst, feat=rng.random((60, 500)), label=np.arange(60) % 3)
    return content.getvalue()


def run(folder: Path, app: str, *arguments: str, rc: int = 0) -> Ended:
    folder.mkdir(exist_ok=True)
    return run_main(f"app={app}", *arguments, "hydra.run.dir=run", cwd=folder, rc=rc)


def copies(folder: Path) -> list[str]:
    """The files of a local cache, without records."""
    return sorted(
        path.name
        for path in (folder / "data/remote").rglob("*")
        if path.is_file() and path.name not in (local_copies.RECORD, ".lock")
    )


def test_partition_train_and_predict_from_a_store(store: Store, tmp_path: Path) -> None:
    """Machines without a common disk."""
    graph = store.put("checked/toy.npz", toy())
    checksum = hashlib.sha256(toy()).hexdigest()
    store.put("checked/toy.npz.sha256", f"{checksum}  toy.npz\n".encode())
    places = (f"dataset_file={graph}", f"partition_dir=s3://{BUCKET}/parts")
    run(tmp_path / "a", "partition_data", *TOY, *places)
    named = "parts/toy-random-vol-2"
    assert {"meta.json", "part0/feat.npy", "part1/feat.npy"} <= store.names(named)
    assert not [name for name in store.names(named) if "dgl" in name or name == "upload.json"]
    run(tmp_path / "b", "partition_data", *TOY, *places)
    assert copies(tmp_path / "b") == ["meta.json", "toy.npz"]

    run(tmp_path / "c", "train", *TOY, *places, f"remote.upload=s3://{BUCKET}/runs", "seed=42")
    assert "toy.npz" not in copies(tmp_path / "c")  # partitions are enough
    assert copies(tmp_path / "c").count("feat.npy") == 2
    manifest = json.loads(store.get("runs/run/upload.json"))
    assert manifest["status"] == "complete"
    summary = store.get("runs/run/summary.json")
    assert summary == (tmp_path / "c/run/summary.json").read_bytes()
    assert manifest["sha256"]["summary.json"] == hashlib.sha256(summary).hexdigest()
    assert store.names("runs/run") == {*manifest["sha256"], "upload.json"}
    assert json.loads(store.get("runs/run/config.json"))["partition_dir"] == places[1][14:]

    model = f"checkpoint_dir=s3://{BUCKET}/runs/run"
    run(tmp_path / "d", "predict", *TOY, *places, model, "predict.format=csv")
    lines = (tmp_path / "d/run/predictions.csv").read_text().splitlines()
    assert len(lines) == 61


def test_a_node_copies_its_own_parts_once(store: Store, tmp_path: Path) -> None:
    places = (
        f"dataset_file={store.put('data/toy.npz', toy())}",
        f"partition_dir=s3://{BUCKET}/own",
    )
    run(tmp_path / "maker", "partition_data", *TOY, *places)
    (folder,) = (tmp_path / "maker").glob("data/remote/*/*/toy-random-vol-2")
    base = local_copies.mirror(Place("partition_dir", f"s3://{BUCKET}/own"), tmp_path / "cache")
    local_copies.find_stored(base, "toy-random-vol-4", "toy")
    directory = base / "toy-random-vol-2"  # found, although another number of partitions is named
    meta = Meta.read(directory)
    assert meta == Meta.read(folder)
    local_copies.fetch_parts(directory, meta, [1])
    assert not (directory / "part0").exists()
    assert meta.first_damaged(directory, "part1/", ".npy") is None
    file, name = directory / "part1/feat.npy", "own/toy-random-vol-2/part1/feat.npy"
    content = store.get(name)
    store.files.rm_file(f"{BUCKET}/{name}")
    local_copies.fetch_parts(directory, meta, [1])  # nothing is asked for
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"part1/feat\.npy: cannot read \(.*correct the address"):
        local_copies.fetch_parts(directory, meta, [1])
    store.put(name, content[:-1] + b"!")
    with pytest.raises(InputError, match=f"{name}: its sha256 is .* or of another version; upload"):
        local_copies.fetch_parts(directory, meta, [1])
    store.put(name, content)
    local_copies.fetch_parts(directory, meta, [1])
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"partition_dir": "s3://no-such-bucket/parts"},
            "partition_dir=s3://no-such-bucket/parts: cannot list (The specified bucket does not"
            " exist); correct the address, or make the bucket",
        ),
        (
            {"dataset_file": f"s3://{BUCKET}/data/tyo.npz"},
            "data/tyo.npz: there is no such object or folder; correct the address",
        ),
        (
            {"remote.upload": "s3://no-such-bucket/runs"},
            "remote.upload=s3://no-such-bucket/runs/run/upload.json: cannot write (The specified",
        ),
        ({"trainer": "sampled"}, "trainer=sampled reads DGL's files, which are not copied"),
        ({}, "); give these credentials the right to list, read"),
    ],
)
def test_what_a_store_refuses_ends_with_status_2(
    store: Store, tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    graph = store.put("data/toy.npz", toy())
    overrides = {"dataset_file": graph, "partition_dir": f"s3://{BUCKET}/new"} | changed
    store.allow(everybody=bool(changed))
    ended = run(
        tmp_path, "train", *TOY, *(f"{name}={value}" for name, value in overrides.items()), rc=2
    )
    assert message in ended.stderr
    assert not (tmp_path / "run/summary.json").exists()
    assert not [name for name in copies(tmp_path) if name != "toy.npz"]


def test_reading_survives_broken_connections_and_ends_if_all_break(
    store: Store, tmp_path: Path
) -> None:
    place, cache = Place("dataset_file", store.put("broken/toy.npz", toy())), tmp_path / "cache"
    store.proxy.cuts[:] = [50_000] * 50
    with pytest.raises(InputError, match=r"toy\.npz: cannot read \(.*; check the network"):
        local_copies.copy_data(place, cache)
    assert len(store.proxy.cuts) < 50
    assert not [path for path in cache.rglob("*") if path.is_file()]
    store.proxy.cuts[:] = [50_000]
    copied = local_copies.copy_data(place, cache)
    assert not store.proxy.cuts
    assert copied.read_bytes() == toy()
    assert copied.name == "toy.npz"
    store.put("broken/toy.npz", toy(seed=1))  # another version is noticed
    assert local_copies.copy_data(place, cache).read_bytes() == toy(seed=1)


def test_an_interrupted_upload_does_not_look_complete(store: Store, tmp_path: Path) -> None:
    graph = store.put("data/toy.npz", toy())
    command = (*TOY, f"dataset_file={graph}", f"partition_dir=s3://{BUCKET}/cut")
    store.proxy.cuts_of_requests[:] = [40_000] * 50  # less than a part's features
    ended = run(tmp_path, "partition_data", *command, rc=2)
    assert "cannot write" in ended.stderr
    assert "the same command uploads them" in ended.stderr
    there = store.names("cut/toy-random-vol-2")
    assert "meta.json" not in there
    assert json.loads(store.get("cut/toy-random-vol-2/upload.json"))["status"] == "running"
    store.proxy.cuts_of_requests.clear()
    run(tmp_path, "partition_data", *command)
    assert "meta.json" in store.names("cut/toy-random-vol-2")
    assert "upload.json" not in store.names("cut/toy-random-vol-2")


def test_a_folder_of_tables_and_a_run_that_is_still_uploaded(store: Store, tmp_path: Path) -> None:
    store.put("people/nodes.csv", b"id,label\n1,a\n2,b\n")
    store.put("people/edges.csv", b"src,dst\n1,2\n")
    store.put("people/", b"")  # a marker of a console is no file
    place = Place("dataset_file", f"s3://{BUCKET}/people/")
    copied = local_copies.copy_data(place, tmp_path)
    assert sorted(path.name for path in copied.iterdir()) == ["edges.csv", "nodes.csv"]
    store.files.rm_file(f"{BUCKET}/people/edges.csv")
    local_copies.copy_data(place, tmp_path)
    assert [path.name for path in copied.iterdir()] == ["nodes.csv"]
    local_copies.announce_upload(place)
    with pytest.raises(InputError, match="the upload of this run has not ended"):
        local_copies.copy_data(place, tmp_path)


def test_what_an_address_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for url, message in (
        ("ftp://host/a", "expected an address that begins with s3://, gs:// or https://, or a"),
        ("s3://", "names no bucket or host"),
    ):
        with pytest.raises(InputError, match=message):
            Place("dataset_file", url)
    with pytest.raises(InputError, match="nothing can be written over https"):
        local_copies.announce_upload(Place("remote.upload", "https://example.org/runs"))
    with pytest.raises(InputError, match=r"gs:// needs the extra `remote`: pip install .* gcsfs"):
        Place("dataset_file", "gs://bucket/a.npz").stat()
    monkeypatch.setitem(sys.modules, "fsspec", None)
    words = r"a\.npz: s3:// needs the extra `remote`: pip install -e '\.\[remote\]'"
    with pytest.raises(InputError, match=words):
        local_copies.copy_data(Place("dataset_file", "s3://bucket/a.npz"), tmp_path)


def test_training_from_a_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """http:// on loopback stands for https://, which it has no certificate for."""
    monkeypatch.setattr(object_store, "SCHEMES", (*object_store.SCHEMES, "http"))
    maker = tmp_path / "maker"
    maker.mkdir()
    (maker / "toy.npz").write_bytes(toy())
    run(maker, "partition_data", *TOY, "dataset_file=toy.npz", "partition_dir=parts")
    files = {
        f"/{path.relative_to(maker)}": path.read_bytes()
        for path in maker.rglob("*")
        if path.is_file()
    }
    with serve(files) as served:
        graph = f"dataset_file={served.url}/toy.npz"
        run(tmp_path / "b", "train", *TOY, graph, f"partition_dir={served.url}/parts")
        asked = [path for path, _ in served.asked]
        assert "/toy.npz" not in asked
        assert len([path for path in asked if path.endswith("feat.npy")]) == 2
        copied = local_copies.copy_data(Place("dataset_file", f"{served.url}/toy.npz"), tmp_path)
        assert copied.read_bytes() == toy()
        with pytest.raises(InputError, match="a folder cannot be listed over https"):
            local_copies.copy_data(Place("dataset_file", f"{served.url}/people/"), tmp_path)
        with pytest.raises(InputError, match=r"HTTP Error 404: .*; correct the address, of a file"):
            local_copies.copy_data(Place("dataset_file", f"{served.url}/people"), tmp_path)


HOSTILE_NAMES = ["part0/../../../x.npy", "/tmp/x.npy", "part0//x.npy", "./part0/x.npy", "part0/\0"]


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *(("checksums", name) for name in HOSTILE_NAMES),
        ("types", "../../../victim"),
        ("relations", "user__../../../victim__item"),
    ],
)
def test_a_name_in_meta_json_that_is_no_plain_path_is_refused(
    tmp_path: Path, field: str, name: str
) -> None:
    """Otherwise a partition directory at an address could write files elsewhere."""
    if field == "checksums":
        directory = write_partitions(tmp_path, random_graph(), thirds(40), np.arange(40) % 2, 2)
    else:
        directory = write_hetero(tmp_path, random_hetero(), 2)

    def add_name(content: Any) -> None:
        content[field][name] = next(iter(content[field].values()))
        del content["sha256"]

    change_json(directory.path / "meta.json", add_name)
    with pytest.raises(InputError, match=r"meta\.json: names the file '.*no plain path"):
        Meta.read(directory.path)  # also by those who write, or delete, what it names
    meta = replace(directory.own_meta, checksums={name: hashlib.sha256(b"evil").hexdigest()})
    base = local_copies.mirror(Place("partition_dir", "https://host/parts"), tmp_path / "cache")
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match="no plain path"):
        local_copies.fetch_parts(base, meta, [0])
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_of_a_record_or_a_store_changes_nothing_elsewhere(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store.put("many/nodes.csv", b"id,label\n1,a\n2,b\n")
    place = Place("dataset_file", f"s3://{BUCKET}/many/")
    copied = local_copies.copy_data(place, tmp_path / "cache")
    another = {name: {"size": 1, "version": ""}}
    record = copied.parent / local_copies.RECORD
    change_json(record, lambda content: content["files"].update(another))
    before = snapshot(copied)
    with pytest.raises(InputError, match=r"copy\.json: names the file '.*no plain path"):
        local_copies.copy_data(place, tmp_path / "cache")
    assert snapshot(copied) == before
    monkeypatch.setattr(Place, "objects", lambda _: {name: Entry(1, "")})
    with pytest.raises(InputError, match=r"many/: names the file '.*no plain path"):
        local_copies.copy_data(place, tmp_path / "other")
    assert not [path for path in (tmp_path / "other").rglob("*") if path.suffix == ".npy"]


PAGE = b"\n<!DOCTYPE html><html><body>Log in</body></html>"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("toy.npz", PAGE, "a web page arrived, of a login"),
        ("nodes.csv", PAGE, "a web page arrived"),
        ("toy.npz", b"PK\3\4 and nothing else", "its end is missing"),
        ("nodes.parquet", b"PAR1 and nothing else", "its end is missing"),
        ("toy.npz", b"", "what arrived is no .npz file"),
        ("nodes.csv", gzip.compress(b"id\n1\n", mtime=0), "packed by gzip"),
        ("toy.npy", b"numbers", "what arrived is no .npy file"),
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "https"])
def test_what_arrives_wrong_is_named_by_its_address(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    name: str,
    content: bytes,
    message: str,
) -> None:
    monkeypatch.setattr(object_store, "SCHEMES", (*object_store.SCHEMES, "http"))
    with serve({f"/{name}": content}) as served:
        url = f"{served.url}/{name}"
        if scheme == "s3":
            url = request.getfixturevalue("store").put(f"wrong/{name}", content)
        words = f"dataset_file={url}: cannot read .*{message}.*; look at what the address gives"
        with pytest.raises(InputError, match=words):
            local_copies.copy_data(Place("dataset_file", url), tmp_path / "cache")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", ["size", "same size", "missing", "none"])
def test_a_damaged_copy_is_made_again(store: Store, tmp_path: Path, damage: str) -> None:
    place = Place("dataset_file", store.put(f"same/{damage}.npz", toy()))
    copied = local_copies.copy_data(place, tmp_path)
    if damage == "missing":
        copied.unlink()
    else:
        copied.write_bytes(toy()[: -1 if damage == "size" else None])
        copied.write_bytes(b"\0" * len(toy())) if damage == "same size" else None
    before = copied.stat().st_mtime_ns if copied.exists() else 0
    assert local_copies.copy_data(place, tmp_path).read_bytes() == toy() or damage == "size"
    assert (copied.stat().st_mtime_ns == before) == (damage == "none")


@pytest.mark.parametrize(
    ("opened", "name", "content", "message"),
    [
        *(
            ("toy.npz", "toy.npz.sha256", content, message)
            for content, message in (
                (b"\xff\xfe\0", "not a readable file of sha256sum"),
                (b"see the README", "begins with 'see'; expected a sha256 in hex"),
                (PAGE, "a web page arrived"),
                (b"0" * 64, f"its sha256 is .* and {'0' * 64} is stated for it"),
            )
        ),
        *(
            ("", "upload.json", content, rf"upload\.json: {message}")
            for content, message in (
                (b"[]", r"it is \[\], not an object"),
                (b'{"status": "complete"}', "has no sha256; upload the run again"),
                (b'{"status": "complete", "sha256": [1]}', r"sha256 is \[1\], not an object"),
                (b"\xff", "not a readable list of files"),
            )
        ),
        (
            "",
            "upload.json",
            b'{"status": "complete", "sha256": {"b.json": "00"}}',
            r"b\.json: has a checksum, and is not there",
        ),
    ],
)
def test_odd_checksums_of_files_and_of_uploads_are_named(
    store: Store, tmp_path: Path, opened: str, name: str, content: bytes, message: str
) -> None:
    folder = f"odd/{tmp_path.name}"
    url = store.put(f"{folder}/toy.npz", toy()).removesuffix("toy.npz") + opened
    store.put(f"{folder}/{name}", content)
    with pytest.raises(InputError, match=rf"dataset_file={url}.*{message}"):
        local_copies.copy_data(Place("dataset_file", url), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("remote.cache=' '", "dataset_dir= : expected a folder of this machine"),
        ("dataset_dir=s3://b/cache", "dataset_dir=s3://b/cache: expected a folder of this"),
        ("remote.upload=' '", "remote.upload= : expected a folder to write to, s3://"),
        ("remote.upload=runs", "remote.upload=runs: expected a folder to write to, s3://"),
        ("remote.upload=https://host/runs", "runs: expected a folder to write to, s3://"),
        ("dataset_file='https://host/a.npz#part'", "a file has no parts; take out the `#`"),
        ("dataset_file=simplecache::s3://bucket/a.npz", "expected an address that begins with"),
        ("dataset_file=s3://bucket/a.zip::https://host/b", "expected an address that begins"),
    ],
)
def test_a_wrong_kind_of_address_is_refused(tmp_path: Path, setting: str, message: str) -> None:
    ended = run(tmp_path / "a", "train", *TOY, setting, rc=2)
    assert message in ended.stderr
