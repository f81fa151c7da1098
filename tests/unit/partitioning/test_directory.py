"""The partition directory: what goes in comes out, DGL reads it, and damage is named."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from graph_files import assert_graph, assert_same, change_json, change_tensors, flip_bit
from support import (
    dgl,
    provenance,
    random_graph,
    thirds,
    write_partitions,
)

from partitioning.directory import dgl_config, import_dgl, sort_edges, write_directory
from partitioning.directory.partition import Partition
from partitioning.directory.read_directory import (
    PartitionDirectory,
    find_partition_directory,
)
from partitioning.directory.replace_directory import writing
from partitioning.directory.stored_graph import read_meta
from partitioning.errors import InputError
from partitioning.graph.graph_data import PLAIN_TYPE

pytestmark = pytest.mark.usefixtures("fork_server")
PARTS = np.random.default_rng(3).integers(3, size=40)
SAME = ("features", "labels", "edges.src", "edges.dst")
SAME += ("edges.halo_owner", "edges.halo_index")
GRAPH, MASKS = random_graph(), thirds(40)


@pytest.fixture
def directory(tmp_path: Path) -> PartitionDirectory:
    return write_partitions(tmp_path, GRAPH, MASKS, PARTS, 3)


@pytest.fixture
def dgls(tmp_path: Path) -> Path:
    """Only what DGL's users have: its files, and nothing of ours."""
    directory = write_partitions(tmp_path / "dgl", GRAPH, MASKS, PARTS, 3, with_dgl_files=True).path
    for file in (directory / "meta.json", *directory.rglob("*.npy")):
        file.unlink()
    return directory


def global_ids(parts: list[Partition], part: Partition) -> list[int]:
    """The data set's node at each local id."""
    inner = part.node_ids.tolist()
    pairs = zip(part.edges.halo_owner.tolist(), part.edges.halo_index.tolist(), strict=True)
    return [*inner, *(int(parts[owner].node_ids[index]) for owner, index in pairs)]


def test_round_trip(directory: PartitionDirectory) -> None:
    parts = [directory.read_part(rank) for rank in range(3)]
    edges = []
    out, into = (
        np.bincount(ends[GRAPH.edges.src != GRAPH.edges.dst], minlength=40)
        for ends in (GRAPH.edges.src, GRAPH.edges.dst)
    )
    for rank, part in enumerate(parts):
        nodes = part.node_ids.numpy() - 1000
        assert (PARTS[nodes] == rank).all()
        masks = {name: mask[nodes] for name, mask in MASKS.items()}
        assert_graph(part, features=GRAPH.features[nodes], labels=GRAPH.labels[nodes], **masks)
        everyone = np.array(global_ids(parts, part)) - 1000
        part_edges, out_degree = part.edges, part.target_nodes.out_degree
        assert part_edges.sum_at(part_edges.dst, part.num_inner).tolist() == into[nodes].tolist()
        assert out_degree.tolist() == out[everyone].tolist()
        assert (part_edges.halo_owner != rank).all()
        edges += list(
            zip(everyone[part_edges.src].tolist(), everyone[part_edges.dst].tolist(), strict=True)
        )
    pairs = zip(GRAPH.edges.src.tolist(), GRAPH.edges.dst.tolist(), strict=True)
    assert sorted(edges) == sorted(pair for pair in pairs if pair[0] != pair[1])
    assert sum(part.self_loops for part in parts) == int((GRAPH.edges.src == GRAPH.edges.dst).sum())


def test_parts_are_mapped(directory: PartitionDirectory) -> None:
    """What a worker does not touch takes none of its memory; what it writes to stays its own."""
    part = directory.read_part(1)
    for tensor, name in (
        (part.features, "feat"),
        (part.edges.src, "src"),
        (part.edges.dst, "dst"),
    ):
        tensor[:1] += 1
        assert not np.array_equal(np.load(directory.path / "part1" / f"{name}.npy"), tensor.numpy())
    directory.verify([1])
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert {name for name in ("feat", "src", "dst") if f"part1/{name}.npy" in maps} == {
        "feat",
        "src",
        "dst",
    }


def test_edges_come_sorted_and_chunks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsplit = write_partitions(tmp_path / "whole", GRAPH, MASKS, PARTS, 3)
    monkeypatch.setattr(sort_edges, "CHUNK", 13)
    monkeypatch.setattr(sort_edges, "BLOCK", 5)
    assert (
        write_partitions(tmp_path / "chunks", GRAPH, MASKS, PARTS, 3).digest() == unsplit.digest()
    )
    all_bounds = unsplit.own_meta.bounds[PLAIN_TYPE]
    for rank, (part, bounds) in enumerate(
        (unsplit.path / f"part{rank}", all_bounds[rank:]) for rank in range(3)
    ):
        src, dst, halo = (np.load(part / f"{name}.npy") for name in ("src", "dst", "halo"))
        ids = np.concatenate((np.arange(bounds[0], bounds[1]), halo))
        edges = list(zip(dst.tolist(), ids[src].tolist(), strict=True))
        assert edges == sorted(edges)
        assert (dst < unsplit.read_part(rank).num_inner).all()
    assert unsplit.meta.cut_edges == int((PARTS[GRAPH.edges.src] != PARTS[GRAPH.edges.dst]).sum())


# --- damage ----------


@pytest.mark.parametrize("name", ["src.npy", "feat.npy", "out_deg.npy"])
@pytest.mark.parametrize("where", [0.0, 0.99])
def test_a_flipped_bit_is_found(directory: PartitionDirectory, name: str, where: float) -> None:
    flip_bit(directory.path / "part1" / name, where)
    directory.verify([0])
    with pytest.raises(InputError, match=f"{name}: its checksum"):
        directory.verify([1])
    with contextlib.suppress(InputError):  # whatever it reads, it lives
        directory.read_part(1)


def test_an_array_of_python_objects_is_not_read(directory: PartitionDirectory) -> None:
    path = directory.path / "part1" / "label.npy"
    np.save(path, np.load(path).astype(object))
    with pytest.raises(InputError, match="Python objects"):
        directory.read_part(1)


def test_a_meta_without_its_own_checksum_is_read(directory: PartitionDirectory) -> None:
    """As this program once wrote it."""
    change_json(directory.path / "meta.json", lambda fields: fields.pop("sha256"))
    assert find_partition_directory([directory.path], 3) == directory


def test_swapped_parts_without_checksums_are_found(dgls: Path) -> None:
    (dgls / "part0").rename(dgls / "other")
    (dgls / "part1").rename(dgls / "part0")
    (dgls / "other").rename(dgls / "part1")
    with pytest.raises(InputError, match="inner nodes"):
        find_partition_directory([dgls], 3).verify([0])


OUTSIDE = {"edge_feats": "part0/edge_feat.dgl", "part_graph": "part0/graph.dgl"}


def test_json_beside_tables_is_no_partition_config(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("[1]")
    assert dgl_config.config_file(tmp_path) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"part-0": {"node_feats": file, **OUTSIDE}}, "no plain path below its folder")
            for file in ("../../../etc/passwd", "/etc/passwd")
        ),
        ({"num_parts": "three"}, "json: not a readable partition config"),
        ({"num_parts": -1}, "num_parts is -1, needs an integer from 1 on"),
        ({"node_map": {"_N": [[0, 1], [1, 40]]}}, "json: not a readable partition config"),
        ({"node_map": {"_N": [[0, 5], [6, 9], [9, 40]]}}, "json: .*node_map"),
        ({"node_map": {"a": [], "b": []}}, "json: not a readable partition config"),
        ({"part-1": None}, "json: not a readable partition config"),
    ],
)
def test_a_damaged_config_of_dgl_is_named(dgls: Path, fields: dict[str, Any], message: str) -> None:
    change_json(dgls / f"{dgls.name}.json", lambda content: content.update(fields))
    (dgls / "other.json").write_text("[")  # is not read
    with pytest.raises(InputError, match=message):
        find_partition_directory([dgls], 3).read_part(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 200_000, "not a readable"),
        ("", "not a readable"),
        ("[]", ""),
        ("{", "not a readable"),
        ('{"version": 99}', "99"),
        ('{"version": 1}', ""),
        ({"num_classes": 1}, "was changed since it was written"),
        ({"checksums": []}, "was changed"),
        ({"sha256": "0" * 64}, "was changed"),
        ({"class_names": ["\ud800", "b", "c"]}, "not a readable"),
    ],
)
def test_a_damaged_meta_is_named(directory: PartitionDirectory, content: Any, message: str) -> None:
    path = directory.path / "meta.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        change_json(path, lambda fields: fields.update(content))
    with pytest.raises(InputError, match=rf"meta\.json.*{message}"):
        find_partition_directory([directory.path], 3).read_part(0)


def test_an_interruption_keeps_what_was_there(
    directory: PartitionDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, base = directory.digest(), directory.path.parent
    with monkeypatch.context() as patch:
        patch.setattr(write_directory, "make_meta", lambda *_args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_partitions(base, GRAPH, MASKS, PARTS, 3)
    assert find_partition_directory([directory.path], 3).digest() == digest
    assert [path.name for path in base.iterdir()] == [directory.path.name]


# --- what checksums do not show ----------


def load_ids(path: Path) -> torch.Tensor:
    ids: torch.Tensor = dgl.data.utils.load_tensors(str(path))["_N/orig_id"]
    return ids


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda ids, _: ids[1:], "part 1: _N/orig_id.*expected"),
        (lambda ids, _: torch.cat((ids[:1], ids[:1], ids[2:])), "part 1: .* rows 0 and 1 are both"),
        (lambda ids, _: ids + 0.5, "part 1: _N/orig_id.*expected integers"),
        (lambda ids, others: torch.cat((others[:1], ids[1:])), "ids: rows .* are both"),
    ],
    ids=["short", "doubled", "float", "in two parts"],
)
def test_ids_that_no_prediction_can_have(dgls: Path, changed: Any, message: str) -> None:
    others, file = (dgls / f"part{part}" / "node_feat.dgl" for part in (0, 1))
    ids = {"_N/orig_id": changed(load_ids(file), load_ids(others))}
    change_tensors(file, lambda tensors: tensors.update(ids))
    with pytest.raises(InputError, match=message):
        find_partition_directory([dgls], 3).verify(range(3))


def test_missing_labels_are_named_with_what_is_there(dgls: Path) -> None:
    change_tensors(dgls / "part1" / "node_feat.dgl", lambda tensors: tensors.pop("_N/label"))
    with pytest.raises(InputError, match="part 1: _N: has no `label`; it has feat, in_deg, orig_"):
        find_partition_directory([dgls], 3)


def test_edges_that_end_at_no_node(dgls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DGL's reader does not tell negative ends."""
    load = import_dgl._load

    def load_changed(*args: Any) -> Any:
        graph, *others = load(*args)
        src, dst = graph.edges(order="eid")
        src[0] = -1
        changed = Mock(ndata=graph.ndata, edata=graph.edata, edges=lambda order: (src, dst))
        return changed, *others

    monkeypatch.setattr(import_dgl, "_load", load_changed)
    with pytest.raises(InputError, match=r"part 0: .*ends that are none of its nodes"):
        find_partition_directory([dgls], 3)


@pytest.mark.parametrize("error", [MemoryError, IndexError])
def test_other_errors_are_no_damage_of_dgls_files(
    dgls: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setattr(import_dgl, "_check_edge_data", Mock(side_effect=error))
    with pytest.raises(error):
        find_partition_directory([dgls], 3)


def test_edges_that_the_config_gives_to_another_part(dgls: Path) -> None:

    def move_bounds(config: Any) -> None:
        (_, bound), *_ = edges = config["edge_map"]["_N:_E:_N"]
        edges[:2] = [[0, bound - 1], [bound - 1, bound]]
        edges[2][0] = bound

    change_json(dgls / f"{dgls.name}.json", move_bounds)
    with pytest.raises(InputError, match="part 0: has edges of another part"):
        find_partition_directory([dgls], 3)


def test_a_directory_of_dgl_that_cannot_be_written(
    dgls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != dgls)
    with pytest.raises(InputError, match=f"{dgls}/imported once, where nothing can be written"):
        find_partition_directory([dgls], 3)


def test_a_directory_of_dgl_is_imported_once(
    dgls: Path, directory: PartitionDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine may have some of the parts; what it gets later is imported then."""
    elsewhere = dgls.parent / "elsewhere"
    elsewhere.mkdir()
    for part in (1, 2):
        (dgls / f"part{part}").rename(elsewhere / f"part{part}")
    with caplog.at_level("INFO"):
        first = find_partition_directory([dgls], 3)
    assert f"DGL's files of parts 0: imported into {dgls}/imported" in caplog.text
    first.verify([0])
    with pytest.raises(InputError, match=f"{dgls}/part1: missing; copy the whole part"):
        first.verify([1])
    (elsewhere / "part1").rename(dgls / "part1")
    second = find_partition_directory([dgls], 3)
    assert second.digest() == first.digest()
    description = second.path / "meta.json"
    before = description.stat()
    assert find_partition_directory([dgls], 3) == second
    assert description.stat() == before
    for part in (0, 1):
        second.verify([part])
        assert_same(second.read_part(part), directory.read_part(part), *SAME)
    for path in (dgls, second.path):
        with pytest.raises(InputError, match="was not partitioned by this program"):
            read_meta(path)
    change_tensors(
        dgls / "part1" / "node_feat.dgl",
        lambda tensors: tensors.update({"_N/label": tensors["_N/label"].flip(0)}),
    )
    changed = find_partition_directory([dgls], 3)
    assert changed.content_digest(range(1)) == second.content_digest(range(1))
    assert changed.content_digest(range(1, 2)) != second.content_digest(range(1, 2))


def test_verifying_a_directory(tmp_path: Path) -> None:
    directory = write_partitions(tmp_path, GRAPH, MASKS, PARTS, 3, with_dgl_files=True)
    directory.verify(range(3))
    (directory.path / "part0" / "src.npy").write_bytes(b"rubbish")
    (directory.path / "part1" / "graph.dgl").write_bytes(b"rubbish")
    (directory.path / "part2" / "feat.npy").unlink()
    directory.verify([1])  # DGL's files are not read
    for part, says in ((0, "checksum"), (2, "missing")):
        with pytest.raises(InputError, match=says):
            directory.verify([part])
    assert directory.own_meta.first_damaged(directory.path, "part1/") is not None


# --- two writers ----------


def test_a_second_writer_is_told_who_is_the_first(tmp_path: Path) -> None:
    owner = f"made: in use by process {os.getpid()} on '{socket.gethostname()}', which began at '20"
    with writing(tmp_path / "made"), pytest.raises(InputError, match=owner):
        writing(tmp_path / "made").__enter__()


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".made.unfinished-x").mkdir()
    (tmp_path / ".made.old-x" / "old").mkdir(parents=True)
    with writing(tmp_path / "made"):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".made.lock", "made"]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_what_appeared_meanwhile_is_not_replaced(directory: PartitionDirectory) -> None:
    made_by, digest = provenance(3), directory.digest()
    with pytest.raises(InputError, match="appeared while it was made anew; set overwrite=true"):
        write_directory.write_parts(
            directory.path,
            GRAPH,
            MASKS,
            {PLAIN_TYPE: (PARTS + 1) % 3},
            num_parts=3,
            provenance=made_by,
            overwrite=False,
        )
    assert find_partition_directory([directory.path], 3).digest() == digest
    assert [path.name for path in directory.path.parent.iterdir()] == [directory.path.name]
