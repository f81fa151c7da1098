"""dataset_name=parts: training, plan and predictions are those of the same assignment; sites on
nodes of their own.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import (
    MASKS,
    Ended,
    Masks,
    finish,
    free_port,
    make_credentials,
    random_graph,
    save_npz,
    snapshot,
    start_cli,
    thirds,
)

from partitioning.errors import InputError
from partitioning.graph_data import GraphData
from partitioning.site_folders import ARRAYS, write_sites
from retexo.apps import partition_data, plan, train
from retexo.errors import TrainingError
from retexo.settings.compose import compose

NAMES = ["north", "east", "south", "void"]
COMMON = (
    "num_partitions=4",
    "hidden_dim=8",
    "heads=2",
    "num_rounds=[4]",
    "device=cpu",
    "cluster.threads=1",
    "dropout=0.5",
    "predict.format=npy",
)
PARTS = np.random.default_rng(5).integers(3, size=40)


def hard_graph() -> tuple[GraphData, Masks]:
    """Ids up to 2^62, double edges, self loops. South trains and validates nothing, and east has no
    label at all.
    """
    graph = random_graph()
    ids = np.sort(np.random.default_rng(1).integers(2**62, size=40))
    masks = {
        name: mask & (PARTS != 1) & ((PARTS != 2) | (name == "test_mask"))
        for name, mask in thirds(40).items()
    }
    labels = np.where(PARTS == 1, -1, graph.labels)
    return replace(graph, node_ids=ids, labels=labels), masks


def write_hard_sites(base: Path) -> None:
    """Four sites: east leaves out labels and masks, void holds no node, and lists nothing."""
    graph, masks = hard_graph()
    write_sites(base, graph, masks, PARTS, NAMES)
    for name, left_out in (("east", ("label", *MASKS)), ("void", ("feat", "label", *MASKS))):
        with np.load(base / name / ARRAYS) as arrays:
            kept = {key: arrays[key] for key in arrays.files if key not in left_out}
        np.savez(base / name / ARRAYS, **kept)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sites/ and, of the same graph and assignment, partitions by partition_method=file."""
    folder = Path(tmp_path_factory.mktemp("residency"))
    write_hard_sites(folder / "sites")
    save_npz(folder / "toy.npz", *hard_graph())
    np.save(folder / "parts.npy", PARTS)
    partition_data.run(compose([*COMMON, *by_file(folder)]).partition)
    return folder


def by_file(place: Path) -> tuple[str, ...]:
    return (
        "dataset_name=file",
        f"dataset_file={place}/toy.npz",
        "partition_method=file",
        f"partition_file={place}/parts.npy",
        f"partition_dir={place}/partitions",
    )


def by_sites(place: Path) -> tuple[str, ...]:
    return ("dataset_name=parts", f"dataset_file={place}/sites")


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, dict[str, Any]]:
    """Summaries of a GAT trained by_file and by_sites, in the folders of these names."""
    data = {"file": by_file(place), "sites": by_sites(place)}
    return {
        name: train.run(compose([*COMMON, "model=gat", *data[name]]), place / name) for name in data
    }


def test_training_is_that_of_the_same_assignment_bit_for_bit(place: Path, runs: Any) -> None:
    for layer in ("layer0.safetensors", "layer1.safetensors"):
        one, other = ((place / name / "checkpoint" / layer).read_bytes() for name in runs)
        assert one == other
    for key in ("train", "val", "test", "rounds"):
        assert runs["file"][key] == runs["sites"][key]
    for kind, sent in runs["file"]["bytes"]["by_kind"].items():
        assert kind == "setup" or sent == runs["sites"]["bytes"]["by_kind"][kind]
    assert runs["sites"]["bytes"]["by_kind"]["setup"] > runs["file"]["bytes"]["by_kind"]["setup"]


def test_the_plan_has_the_bytes_of_setup_and_features(
    place: Path, runs: Any, tmp_path: Path
) -> None:
    planned = plan.run(compose([*COMMON, "model=gat", *by_sites(place)]), tmp_path / "plan")
    is_smoothed = runs["sites"]["chosen"]["smoothing_alpha"] < 1
    for kind in ("setup", "features"):
        sent = sum(
            entry["num_bytes"]
            for entry in planned["entries"]
            if entry["kind"] == kind and (is_smoothed or not entry["if_smoothed"])
        )
        assert sent == runs["sites"]["bytes"]["by_kind"][kind]


# --- what one process finds ----------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset_file=null"], "dataset_name=parts needs dataset_file=FOLDER"),
        (["dataset_file=nowhere"], r"dataset_file=nowhere: there is no nowhere/site.json"),
        (["num_partitions=3"], "names 4 sites, num_partitions=3; set num_partitions=4"),
        (["symmetrize=true"], "symmetrize: has no meaning with dataset_name=parts"),
        (["split=per_class"], "split: has no meaning"),
        (["split.seed=3"], "split.seed: has no meaning"),
        (["partition_method=metis"], "partition_method: has no meaning"),
        (["partition.seed=1"], "partition.seed: has no meaning"),
    ],
)
def test_settings_that_do_not_fit(
    place: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train.run(compose([*COMMON, *by_sites(place), *overrides]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_there_is_nothing_to_partition(place: Path) -> None:
    with pytest.raises(InputError, match="dataset_name=parts: there is nothing to partition"):
        partition_data.run(
            compose([*COMMON, *by_sites(place), f"partition_dir={place}/other"]).partition
        )
    assert not (place / "other").exists()


# --- sites on nodes of their own ----------


def alone(base: Path) -> list[Path]:
    """Three site folders, each in a place of its own, which the others are not told."""
    graph, masks = random_graph(), thirds(40)
    folders = write_sites(base / "whole", graph, masks, PARTS, NAMES[:3])
    moved = [base / f"machine{rank}" / "data" for rank in range(3)]
    for folder, target in zip(folders, moved, strict=True):
        target.parent.mkdir()
        folder.rename(target)
    return moved


def run_sites(
    folders: list[Path], base: Path, *more: str, keys: list[Path] | None = None
) -> list[Ended]:
    """Each site's command, in a working directory of its own; what each opened below `base` is in
    its opened.txt.

    keys: folders of credentials, by rank.
    """
    port = free_port()
    common = (
        *COMMON,
        "num_partitions=3",
        "parts_per_node=1",
        "dataset_name=parts",
        "distributed.interface=lo",
        f"distributed.master_port={port}",
        *more,
    )
    watch = base / "watch"
    watch.mkdir(exist_ok=True)
    (watch / "sitecustomize.py").write_text(WATCH.format(base=str(base)))
    path = os.pathsep.join([str(watch), os.environ.get("PYTHONPATH", "")])
    processes = [
        start_cli(
            *common,
            f"node_rank={rank}",
            f"dataset_file={folder}",
            f"hydra.run.dir={folder.parent}/run",
            *([f"distributed.credentials={keys[rank]}"] if keys else []),
            cwd=folder.parent,
            env={"PYTHONPATH": path, "OPENED": str(folder.parent / "opened.txt")},
        )
        for rank, folder in enumerate(folders)
    ]
    return [finish(process) for process in processes]


WATCH = """
import os, sys
_file = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def _note(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith("{base}"):
        os.write(_file, (str(args[0]) + "\\n").encode())
sys.addaudithook(_note)
"""
"""Notes every file and folder that Python opens, in the parent and in its workers."""


def test_three_sites_that_encrypt_and_hide_their_shares(tmp_path: Path) -> None:
    """The result is that of one process by gloo, bit for bit; and each says what left it."""
    keys = make_credentials(tmp_path / "keys", *NAMES[:3])
    secure = ("gradient.secure=true", "gradient.precision=fp32", "sites.max_rows_shared=1000")
    folders = alone(tmp_path)
    for ended in run_sites(folders, tmp_path, *secure, "distributed.backend=sockets", keys=keys):
        assert ended.rc == 0, ended.output
        assert "nothing is encrypted" not in ended.output
    write_sites(tmp_path / "sites", random_graph(), thirds(40), PARTS, NAMES[:3])
    one = train.run(
        compose([*COMMON, "num_partitions=3", *by_sites(tmp_path), *secure]), tmp_path / "one"
    )
    summary = json.loads((tmp_path / "machine0" / "run" / "summary.json").read_text())
    assert (summary["test"], summary["bytes"]) == (one["test"], one["bytes"])
    for rank, folder in enumerate(folders):
        told = json.loads((folder.parent / "run" / "disclosure.json").read_text())
        assert (told["site"], told["run_id"]) == (NAMES[rank], summary["run_id"])
        assert told["encrypted"]
        assert told["sums_hide_shares"]
        for peer, name in enumerate(NAMES[:3]):
            if peer != rank:
                found = sum(sum(places.values()) for places in told["to"][name]["bytes"].values())
                assert found == summary["bytes"]["by_peer"][rank][peer]
                with np.load(folder / "asked.npz") as asked:
                    assert told["to"][name]["nodes_with_rows"] == len(
                        asked[str(asked["sites"].tolist().index(name))]
                    )


def test_aggregates_leave_a_site_only_where_it_allows_them(tmp_path: Path) -> None:
    """Each node asked for sends its own; those of fewer than five edges are counted apart."""
    graph, parts = random_graph(), np.asarray(PARTS)
    write_sites(tmp_path / "sites", graph, thirds(40), PARTS, NAMES[:3])
    ahead = (*COMMON, "num_partitions=3", *by_sites(tmp_path), "model.lookahead=1", "num_layers=3")
    with pytest.raises(InputError, match=r"set sites\.share_aggregates=true at every site"):
        train.run(compose(ahead), tmp_path / "refused")
    train.run(compose([*ahead, "sites.share_aggregates=true"]), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "disclosure-0.json").read_text())["to"]
    in_edges = np.bincount(graph.dst, minlength=40)
    for peer in (1, 2):
        asked = np.unique(graph.src[(parts[graph.dst] == peer) & (parts[graph.src] == 0)])
        found = told[NAMES[peer]]
        assert found["nodes_with_aggregates"] == len(asked)
        assert found["nodes_with_aggregates_of_fewer_than_5_rows"] == (in_edges[asked] < 5).sum()
        assert found["bytes"]["aggregates"].keys() == {"layer 0", "layer 1"}


def test_a_site_gives_no_more_rows_than_it_allows(tmp_path: Path) -> None:
    """Nothing is sent, and what was asked for is not taken down as given."""
    write_sites(tmp_path / "sites", random_graph(), thirds(40), PARTS, NAMES[:3])
    few = (*COMMON, "num_partitions=3", *by_sites(tmp_path), "sites.max_rows_shared=2")
    with pytest.raises(
        TrainingError,
        match=r"sites.max_rows_shared=2.0: a site may get at most 2 of \d+ nodes; ",
    ):
        train.run(compose(few), tmp_path / "run")
    told = [
        json.loads((tmp_path / "run" / f"disclosure-{rank}.json").read_text()) for rank in range(3)
    ]
    kinds = {kind for each in told for to in each["to"].values() for kind in to["bytes"]}
    assert kinds == {"setup"}
    assert not list(tmp_path.glob("sites/*/asked.npz"))


def test_what_would_leave_one_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an undirected graph, as many nodes as the others ask for then; nothing but its own folder
    is read.
    """
    graph = random_graph()
    ends = np.concatenate([graph.src, graph.dst]), np.concatenate([graph.dst, graph.src])
    folders = write_sites(
        tmp_path / "sites", replace(graph, src=ends[0], dst=ends[1]), thirds(40), PARTS, NAMES[:3]
    )
    whole = (*COMMON, "num_partitions=3", *by_sites(tmp_path))
    train.run(compose(whole), tmp_path / "run")
    alone = (
        *COMMON,
        "num_partitions=3",
        "app=plan",
        "dataset_name=parts",
        f"dataset_file={folders[1]}",
    )
    planned = plan.run(compose(alone), tmp_path / "plan")
    told = json.loads((tmp_path / "run" / "disclosure-1.json").read_text())
    for name, to in told["to"].items():
        assert planned["to"][name]["own_nodes_with_rows"] == to["nodes_with_rows"]
        for kind, most in planned["to"][name]["bytes_at_most"].items():
            assert sum(to["bytes"][kind].values()) <= 1.5 * most, (
                kind
            )  # with which rows, and in which form
    assert "own nodes if edges have their reverse" in capsys.readouterr().out
    before = snapshot(tmp_path / "sites")
    plan.run(compose([*whole, "app=plan", "sites.max_rows_shared=2"]), tmp_path / "dry")
    assert snapshot(tmp_path / "sites") == before  # a dry run gives nothing, and notes nothing
    limited = plan.run(compose([*alone, "sites.max_rows_shared=2"]), tmp_path / "limited")
    assert all(to["own_nodes_with_rows"] == 2 for to in limited["to"].values())


def test_the_folder_of_another_rank_is_refused_before_anything_starts(tmp_path: Path) -> None:
    folders = alone(tmp_path)
    settings = ("num_partitions=3", "parts_per_node=1", "node_rank=1", f"dataset_file={folders[0]}")
    with pytest.raises(
        InputError,
        match=r"no folder of site east \(rank 1\), only of north \(rank 0\); set node_rank",
    ):
        train.run(
            compose([*COMMON, "dataset_name=parts", *settings, "distributed.interface=lo"]),
            tmp_path / "run",
        )
