"""app=partition_data: made once, used again, and never lost without being asked.

And which directory another app uses.
"""

import errno
import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from graph_files import change_json, write_files
from support import (
    dgl,
    need_dgl,
    random_graph,
    run_main,
    save_npz,
    thirds,
)

from partitioning import datasets
from partitioning.assign import hypergraph, metis
from partitioning.directory import dgl_files
from partitioning.directory.meta import Meta
from partitioning.errors import InputError
from partitioning.files.file_io import file_checksum
from retexo.apps import partition_data
from retexo.apps.find_partitions import find_or_make_partitions, open_partitions, with_found_parts
from retexo.apps.partition_request import describe_difference, find_differences, requested_settings
from retexo.settings.compose import compose
from retexo.settings.flatten import flatten
from retexo.settings.run_settings import Settings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_npz(tmp_path / "toy.npz", random_graph(), thirds(40))
    return tmp_path


def make_partitions(folder: Path, *overrides: str) -> Meta:
    arguments = [
        "app=partition_data",
        "dataset_name=file",
        f"dataset_file={folder}/toy.npz",
        f"partition_dir={folder}/parts",
    ]
    return partition_data.run(compose([*arguments, "num_partitions=2", *overrides]))


def modified(folder: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in sorted((folder / "parts").rglob("*"))]


def test_dgls_files_are_written_where_they_are_wanted(folder: Path) -> None:
    need_dgl()
    make_partitions(folder, "partition.dgl_files=false")
    parts = folder / "parts" / "toy-random-vol-2"
    assert not [*parts.rglob("*.dgl"), *parts.glob("toy*.json")]
    before = Meta.read(parts)
    after = make_partitions(folder, "partition.dgl_files=true")
    assert len([*parts.rglob("*.dgl")]) == 6
    assert after.digest() == before.digest()
    assert dgl.distributed.load_partition(f"{parts}/{parts.name}.json", 1)[0].num_edges() > 0
    anew = make_partitions(folder, "partition.dgl_files=true", "overwrite=true")
    assert anew.digest() == after.digest()


@pytest.mark.parametrize(
    ("first", "command", "name"),
    [
        (None, "overwrite=false", "_write_part"),
        ("partition.dgl_files=false", "overwrite=true", "_write_part"),
        ("partition.dgl_files=false", "partition.from={parts}", "_write_part"),
        ("partition.dgl_files=false", "partition.dgl_files=true", "_write_part"),
        ("partition.dgl_files=false", "partition.dgl_files=true", "write_meta"),
    ],
)
def test_the_same_command_completes_dgls_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, command: str, name: str
) -> None:
    need_dgl()
    parts = folder / "parts" / "toy-random-vol-2"
    command = command.format(parts=parts)
    if first is not None:
        make_partitions(folder, first)
    call = getattr(dgl_files, name)

    def interrupted(path: Path, *args: Any) -> None:
        if name == "write_meta" or path.name == "part1":
            raise KeyboardInterrupt
        call(path, *args)

    with monkeypatch.context() as patched:
        patched.setattr(dgl_files, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_partitions(folder, command)
    before = Meta.read(parts)
    assert (before is None) == (first is None)
    assert before is None or not [file for file in before.checksums if file.endswith(".dgl")]
    meta = make_partitions(folder, command)
    files = sorted([*parts.glob("part*/*.dgl"), parts / f"{parts.name}.json"])
    assert len(files) == 7
    assert {file.relative_to(parts).as_posix() for file in files} <= meta.checksums.keys()
    assert Meta.read(parts) == meta
    assert meta.first_damaged(parts) is None


@pytest.mark.parametrize(("trainer", "num_files"), [("lazy", 0), ("sampled", 6)])
def test_training_writes_dgls_files_for_the_trainer_that_reads_them(
    folder: Path, trainer: str, num_files: int
) -> None:
    need_dgl()
    arguments = [f"dataset_file={folder}/toy.npz", f"partition_dir={folder}/parts"]
    arguments += ["dataset_name=file", "num_partitions=2", f"trainer={trainer}"]
    path = find_or_make_partitions(compose(arguments)).path
    assert len([*path.rglob("*.dgl")]) == num_files


def test_the_same_settings_use_what_is_there(folder: Path) -> None:
    first = make_partitions(folder)
    before = modified(folder)
    assert make_partitions(folder) == first
    assert modified(folder) == before


def test_a_damaged_directory_is_refused(folder: Path) -> None:
    make_partitions(folder)
    parts = folder / "parts" / "toy-random-vol-2"
    named = "dataset_name=file", "dataset_file=toy.npz", "num_partitions=2", "partition_dir=parts"
    commands = ("app=partition_data", *named), ("app=train", "num_rounds=[1]", *named)
    file = parts / "part1" / "label.npy"
    np.save(file, np.load(file)[::-1])
    before = modified(folder)
    for command in commands:
        damaged = run_main(*command, cwd=folder, rc=2)
        assert str(file.relative_to(folder)) in damaged.stderr
    assert modified(folder) == before
    own_checksum = {"part1/label.npy": file_checksum(file)}
    change_json(parts / "meta.json", lambda meta: meta["checksums"].update(own_checksum))
    for command in commands:
        changed = run_main(*command, cwd=folder, rc=2)
        assert "meta.json: was changed since it was written" in changed.stderr


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("8 requested and 2 written"), "8 requested and 2 written"),  # numpy's tofile
    ],
)
def test_a_full_disk_is_named_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, cause: str
) -> None:
    monkeypatch.setattr(np, "save", Mock(side_effect=error))
    named = "dataset_name=file", "dataset_file=toy.npz", "num_partitions=2", "partition_dir=parts"
    full = run_main("app=partition_data", *named, cwd=folder, rc=1)
    message = f"error: parts/toy-random-vol-2: cannot be written: {cause}; free some space\n"
    assert full.stderr.endswith(message)
    assert not list((folder / "parts").iterdir())


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [("partition.seed=5", "partition.seed", 5), ("symmetrize=true", "symmetrize", True)],
)
def test_other_settings_are_refused_and_named(
    folder: Path, override: str, name: str, value: Any
) -> None:
    make_partitions(folder)
    before = modified(folder)
    with pytest.raises(InputError, match=rf"{name}.*{value}.*overwrite=true"):
        make_partitions(folder, override)
    assert modified(folder) == before
    assert make_partitions(folder, override, "overwrite=true").request[name] == value


@pytest.mark.parametrize(
    ("overrides", "graph"),
    [
        (("task=link_prediction", "dataset_file=none.npz"), "link prediction"),
        (("dataset_name=synthetic_hetero", "dataset_file=null"), "a heterogeneous graph"),
    ],
)
def test_dgls_files_are_refused_for_graphs_that_they_cannot_hold(
    folder: Path, overrides: tuple[str, ...], graph: str
) -> None:
    need_dgl()
    with pytest.raises(InputError, match=f"not written for {graph}"):
        make_partitions(folder, "partition.dgl_files=true", *overrides)


def requested_files(folder: Path) -> Any:
    composed = compose(["dataset_name=file", f"dataset_file={folder}"])
    return requested_settings(composed)["dataset_file"]


TABLES = {
    "nodes/user.csv": "id\n0\n",
    "nodes/_N.csv": "id\n0\n",  # the name of DGL's only type
    "edges/cites.csv/part-0.csv": "src,dst\n0,0\n",
}


def test_what_is_not_read_of_a_folder_is_no_change(tmp_path: Path) -> None:
    before = requested_files(write_files(tmp_path, TABLES))
    strays = "README.md", ".DS_Store", "edges/.~lock.cites.csv#", "edges/cites.csv/_SUCCESS"
    for stray in (*strays, "nodes.csv~", "labels.md", "nodes/user.csv~", "edges/notes.docx"):
        (tmp_path / stray).touch()
    assert requested_files(tmp_path) == before


@pytest.mark.parametrize(
    ("gone", "files", "difference"),
    [
        ([], {"nodes/_N.csv": "id\n1\n"}, "nodes/_N.csv: changed since, or new"),
        (
            ["nodes/user.csv"],
            {"nodes/a customer.csv": "id\n0\n", "edges/cites.csv/part-0.csv": "src,dst\n0,1\n"},
            "edges/cites.csv/part-0.csv, nodes/a customer.csv: changed since, or new;"
            " nodes/user.csv: gone",
        ),
    ],
)
def test_part_files_and_names_of_types_are_a_change(
    tmp_path: Path, gone: list[str], files: dict[str, str], difference: str
) -> None:
    before = requested_files(write_files(tmp_path, TABLES))
    for name in gone:
        (tmp_path / name).unlink()
    after = requested_files(write_files(tmp_path, files))
    assert describe_difference("dataset_file", before, after) == f"dataset_file ({difference})"


@pytest.mark.parametrize(
    "override",
    [
        "dataset_name=/etc/passwd",
        "dataset_file='a\0.npz'",
        "partition_dir='a\0'",
        "dataset_file={folder}/loop.npz",
        "partition_method=file partition_file={folder}/loop.npz",
    ],
)
def test_what_cannot_be_a_path(folder: Path, override: str) -> None:
    (folder / "loop.npz").symlink_to(folder / "loop.npz")
    name = override.split()[-1].split("=")[0]
    with pytest.raises(InputError, match=name):
        make_partitions(folder, *override.format(folder=folder).split())


def test_what_is_easily_overlooked_in_a_graph_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_partitions(folder)
    graph = random_graph()
    loops = int((graph.edges.src == graph.edges.dst).sum())
    pairs = set(zip(graph.edges.src.tolist(), graph.edges.dst.tolist(), strict=True))
    printed = capsys.readouterr().out
    assert f"{graph.num_edges:,} directed edges" in printed
    assert (
        f"{loops} self loops among the edges, which training leaves out;"
        f" {graph.num_edges - len(pairs)} duplicates, which count" in printed
    )


def test_a_foreign_directory_is_not_replaced(folder: Path) -> None:
    thesis = {"parts/toy-random-vol-2/thesis.txt": "years of work"}
    write_files(folder, thesis)
    with pytest.raises(InputError, match="not written by this program"):
        make_partitions(folder)
    assert [*(folder / "parts").rglob("*.txt")]


# --- partition_method=km1 ----------


def test_a_missing_extra_is_named_before_the_data_are_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mtkahypar", None)  # what makes an import fail
    monkeypatch.setattr(datasets, "load_graph", lambda _: pytest.fail("loaded"))
    remedy = r"partition_method=km1.* pip install -e '\.\[km1\]' -c constraints\.txt"
    with pytest.raises(InputError, match=remedy):
        make_partitions(folder, "partition_method=km1")


@pytest.mark.parametrize("method", ["metis", "km1"])
def test_a_method_that_does_not_fit_the_memory_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(metis, "partition", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(hypergraph, "partition", lambda *_: pytest.fail("started"))
    with pytest.raises(
        InputError,
        match=f"partition_method={method}: .* GiB are available; use partition_method=rand",
    ):
        make_partitions(folder, f"partition_method={method}")
    assert not (folder / "parts").exists()
    assert make_partitions(folder).num_nodes == 40  # random needs none


DATA = (
    "dataset_name=synthetic",
    "synthetic.nodes=60",
    "synthetic.edges=90",
    "synthetic.features=4",
    "split.seed=3",
)


@pytest.fixture(autouse=True)
def _fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")


def settings(*overrides: str) -> Settings:
    return with_found_parts(compose([*DATA, *overrides]))


def make(number: int, *overrides: str) -> None:
    partition_data.run(compose([*DATA, f"num_partitions={number}", *overrides]))


def test_it_is_made_where_there_is_none_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    directory = find_or_make_partitions(settings())
    assert directory.path == Path("data/partitions/synthetic-random-vol-4")
    assert f"no partition directory at {directory.path}" in caplog.text
    caplog.clear()
    assert find_or_make_partitions(settings()).digest() == directory.digest()
    assert "no partition directory" not in caplog.text
    shutil.rmtree("data")
    assert find_or_make_partitions(settings()).digest() == directory.digest(), (
        "made again it is another"
    )


@pytest.mark.parametrize("name", ["reddit", "cora", "synthetic"])
@pytest.mark.parametrize("app", ["describe", "train"])
def test_a_file_beside_another_name_is_not_ignored(app: str, name: str) -> None:
    """The first is the default, the second comes with the code; the third has partitions."""
    make(4)
    with pytest.raises(
        InputError, match=rf"dataset_file=g\.npz has no meaning with dataset_name={name}: .*=file"
    ):
        compose([*DATA, f"app={app}", f"dataset_name={name}", "dataset_file=g.npz"])


def test_the_number_of_parts_of_the_only_directory() -> None:
    make(3)
    completed = settings()
    assert (completed.num_partitions, completed.workers_per_node) == (3, 3)
    assert completed.stored["num_partitions"] == 3
    assert find_or_make_partitions(completed).num_parts == 3
    for override in ("num_partitions=2", "parts_per_node=2"):
        assert settings(override).num_partitions == (2 if override.startswith("num") else 4)
    make(2)
    assert settings().num_partitions == 4, "two fit, so neither is taken"
    make(4)
    assert settings().num_partitions == 4


def test_a_directory_of_another_layout_says_its_number() -> None:
    make(2)
    Path("data/partitions/synthetic-random-vol-2").rename("elsewhere")
    assert settings("partition_dir=elsewhere").num_partitions == 2


def test_the_published_place_is_read_unless_another_is_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make(4, "partition_dir=../retexo-datasets/partitions/")
    caplog.set_level("INFO", "retexo")
    assert find_or_make_partitions(settings()).path == Path(
        "../retexo-datasets/partitions/synthetic-random-vol-4"
    )
    assert "none in data/partitions: using ../retexo-datasets/partitions/synth" in caplog.text
    caplog.clear()
    assert find_or_make_partitions(settings("partition_dir=data/partitions")).path.parent == Path(
        "data/partitions"
    )
    assert "none in" not in caplog.text


@pytest.mark.parametrize("named", ["made", "made/tables-random-vol-4"])
def test_a_run_records_how_its_directory_was_made(named: str) -> None:
    """Also where partition_dir is the directory itself, and the command does not name the data."""
    nodes = "".join(f"{node},{node % 3},{'ab'[node % 2]},{node % 2}\n" for node in range(40))
    edges = "".join(f"{node},{(node + 1) % 40}\n" for node in range(40))
    tables = {"nodes.csv": f"id,zip,city,label\n{nodes}", "edges.csv": f"src,dst\n{edges}"}
    write_files(Path("tables"), tables)
    data = ("dataset_name=file", "dataset_file=tables")
    features_of_data = (
        "features=[given,degree]",
        "columns.categorical=zip",
        "columns.ignore=[city]",
    )
    split = ("split=fraction", "split.train=0.5", "split.val=0.25", "split.test=0.25")
    how = ("symmetrize=true", "duplicates=merge", "partition_method=random", "seed=3")
    partition_data.run(compose([*data, *features_of_data, *split, *how, "partition_dir=made"]))
    data_given = data if named == "made" else ()
    composed = with_found_parts(compose([*data_given, f"partition_dir={named}", "seed=5"]))
    recorded = flatten(open_partitions(composed)[1].stored)
    expected = {
        "features.kind": ["given", "degree"],
        "columns.categorical": ["zip"],
        "columns.ignore": ["city"],
        "columns.weight": None,
        "split.kind": "fraction",
        "split.train": 0.5,
        "split.seed": 3,
        "partition.seed": 3,
        "symmetrize": True,
        "duplicates": "merge",
        "dataset_name": "file",
        "dataset_file": "tables",
        "partition_dir": named,
        "seed": 5,
    }
    assert {name: recorded[name] for name in expected} == expected
    assert recorded.keys() == flatten(composed.stored).keys()


@pytest.mark.parametrize("is_job", [False, True])
def test_only_partition_data_makes_partitions_again(is_job: bool) -> None:
    composed = replace(settings("overwrite=true"), is_multirun_job=is_job)
    with pytest.raises(InputError, match="overwrite=true: only app=partition_data"):
        find_or_make_partitions(composed)


def test_several_nodes_and_a_download_are_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"app=partition_data .* copy it to the others"):
        find_or_make_partitions(settings("parts_per_node=2"))
    for name in ("reddit", "ogbn-arxiv", "pubmed_torch"):
        with pytest.raises(
            InputError, match=rf"app=partition_data dataset_name={name} .* dataset_name=cora"
        ):
            find_or_make_partitions(with_found_parts(compose([f"dataset_name={name}"])))
    assert not Path("data").exists()


@pytest.mark.parametrize("width", [0, 4])
def test_pairs_are_read_without_a_spectral_embedding(width: int) -> None:
    data = [*DATA, "synthetic.nodes=60", f"task.spectral={width}", "num_partitions=2"]
    data = [override for override in data if not override.startswith("split.")]
    directory = find_or_make_partitions(compose(data, "link_prediction_gcn"))
    links = directory.read_part(1).links
    assert links["spectral"].shape == (directory.read_part(1).num_inner, width)


def test_partitioning_chooses_the_spectral_embedding_by_stopping_metric() -> None:
    """Training may stop by another metric than the embedding was chosen by."""
    data = [override for override in DATA if not override.startswith("split.")]
    data += ["synthetic.nodes=60", "num_partitions=2", "task=link_prediction"]
    chosen = partition_data.run(compose(data)).links["spectral_metric"]
    by_auc = [*data, "stopping.metric=auc"]
    with pytest.raises(InputError, match=r"stopping.metric of task.spectral \(None there, auc now"):
        partition_data.run(compose(by_auc))
    stored = find_or_make_partitions(compose(by_auc, "link_prediction_gcn")).meta
    again = partition_data.run(compose([*by_auc, "overwrite=true"]))
    assert (chosen, stored.links["spectral_metric"], again.links["spectral_metric"]) == (
        *("mrr", "mrr"),
        "auc",
    )
    with pytest.raises(InputError, match=r"accuracy: not for task=link_prediction"):
        partition_data.run(compose([*data, "stopping.metric=accuracy"]))


def test_features_of_a_type_are_compared_with_those_of_the_directory() -> None:
    data = ("dataset_name=synthetic_hetero", "synthetic.nodes=60", "synthetic.edges=90")
    kinds = "features={type1:degree}"
    partition_data.run(compose([*data, kinds]))
    assert find_or_make_partitions(compose([*data, kinds])).num_parts == 4
    with pytest.raises(
        InputError, match=r"other settings: features \(.*degree.* there, .*random.* now\)"
    ):
        find_or_make_partitions(compose([*data, "features={type1:random}"]))


def test_the_request_of_an_older_directory_is_that_of_today() -> None:
    older = {
        "split": "per_class",
        "split.train_per_class": 4,
        "split.num_val": 8,
        "split.train": None,
    }
    meta: Any = SimpleNamespace(
        is_plain=True, request={**older, "task.paths": True, "split.num_test": 0}
    )
    now = {"split": "per_class", "split.train": 4, "split.val": 8, "split.test": 0}
    assert find_differences(meta, now) == {}
    assert find_differences(meta, {**now, "split.val": 9}) == {"split.val": (8, 9)}
