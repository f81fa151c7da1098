"""dataset_name=parts: training, plan and predictions are those of the same assignment.

Sites can be on nodes of their own. Sites with tables describe them and train with the pipeline that
they fitted together.
"""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from graph_files import write_files
from support import (
    MASKS,
    Masks,
    assert_sent_as_planned,
    free_port,
    make_credentials,
    random_graph,
    save_npz,
    snapshot,
    thirds,
    with_arrays,
)

from examples.make_sites import write_sites
from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features.build import encode_tables
from partitioning.graph.graph_data import GraphData
from partitioning.sites.site_description import ARRAYS
from retexo.apps import describe, partition_data, plan, predict, train
from retexo.apps.find_partitions import find_or_make_partitions
from retexo.results.predictions import read_table
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
    """Ids up to 2^62, double edges, self loops.

    South trains and validates nothing, and east has no label at all.
    """
    graph = random_graph()
    ids = np.sort(np.random.default_rng(1).integers(2**62, size=40))
    masks = {
        name: mask & (PARTS != 1) & ((PARTS != 2) | (name == "test_mask"))
        for name, mask in thirds(40).items()
    }
    labels = np.where(PARTS == 1, -1, graph.labels)
    return replace(with_arrays(graph, node_ids=ids), labels=labels), masks


def write_hard_sites(base: Path) -> None:
    """Four sites: east leaves out labels and masks, void holds no node, and lists nothing."""
    graph, masks = hard_graph()
    write_sites(base, graph, masks, PARTS, NAMES)
    for name, left_out in (("east", ("label", *MASKS)), ("void", ("feat", "label", *MASKS))):
        with np.load(base / name / ARRAYS) as arrays:
            arrays_kept = {key: arrays[key] for key in arrays.files if key not in left_out}
        np.savez(base / name / ARRAYS, **arrays_kept)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sites/ and, of the same graph and assignment, partitions by partition_method=file."""
    folder = Path(tmp_path_factory.mktemp("residency"))
    write_hard_sites(folder / "sites")
    save_npz(folder / "toy.npz", *hard_graph())
    np.save(folder / "parts.npy", PARTS)
    partition_data.run(compose([*COMMON, *by_file(folder)]))
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


def test_the_plan_has_the_bytes(place: Path, runs: Any, tmp_path: Path) -> None:
    planned = plan.run(compose([*COMMON, "model=gat", *by_sites(place)]), tmp_path / "plan")
    assert_sent_as_planned(planned, runs["sites"])


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
        (["app=partition_data"], "dataset_name=parts: there is nothing to partition"),
    ],
)
def test_settings_that_do_not_fit(
    place: Path, tmp_path: Path, overrides: list[str], message: str
) -> None:
    settings = compose([*COMMON, *by_sites(place), f"partition_dir={tmp_path}/other", *overrides])
    app: Any = partition_data if "app=partition_data" in overrides else train
    with pytest.raises(InputError, match=message):
        app.run(settings, *[tmp_path / "run"] * (app is train))
    assert not [*tmp_path.iterdir()]


# --- sites on nodes of their own ----------


def write_separate_sites(base: Path) -> list[Path]:
    """Three site folders, each in a place of its own, which the others are not told."""
    graph, masks = random_graph(), thirds(40)
    folders = write_sites(base / "whole", graph, masks, PARTS, NAMES[:3])
    moved = [base / f"machine{rank}" / "data" for rank in range(3)]
    for folder, target in zip(folders, moved, strict=True):
        target.parent.mkdir()
        folder.rename(target)
    return moved


def test_three_sites_that_encrypt_and_hide_their_shares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The result is that of one process by gloo, bit for bit; and each says what left it."""
    keys = make_credentials(tmp_path / "keys", *NAMES[:3])
    secure = ("gradient.secure=true", "gradient.precision=fp32", "sites.max_rows_shared=1000")
    folders, shared = write_separate_sites(tmp_path), (*COMMON, "num_partitions=3", *secure)
    between = ("parts_per_node=1", "distributed.backend=sockets", "distributed.interface=lo")
    common = (*shared, *between, "dataset_name=parts", f"distributed.master_port={free_port()}")
    nodes = [
        compose(
            [
                *common,
                f"node_rank={rank}",
                f"dataset_file={folder}",
                f"distributed.credentials={keys[rank]}",
            ]
        )
        for rank, folder in enumerate(folders)
    ]
    run_dirs = [folder.parent / "run" for folder in folders]
    with ThreadPoolExecutor(3) as pool:  # the parents
        summary, *_ = pool.map(train.run, nodes, run_dirs)
    assert "is not encrypted" not in caplog.text
    write_sites(tmp_path / "sites", random_graph(), thirds(40), PARTS, NAMES[:3])
    one = train.run(compose([*shared, *by_sites(tmp_path)]), tmp_path / "one")
    assert (summary["test"], summary["bytes"]) == (one["test"], one["bytes"])
    for rank, folder in enumerate(folders):
        disclosure = json.loads((folder.parent / "run" / "disclosure.json").read_text())
        assert (disclosure["site"], disclosure["run_id"]) == (NAMES[rank], summary["run_id"])
        assert disclosure["encrypted"]
        assert disclosure["sums_hide_shares"]
        for peer, name in enumerate(NAMES[:3]):
            if peer != rank:
                bytes_disclosed = sum(
                    sum(places.values()) for places in disclosure["to"][name]["bytes"].values()
                )
                assert bytes_disclosed == summary["bytes"]["by_peer"][rank][peer]
                with np.load(folder / "asked.npz") as asked:
                    assert disclosure["to"][name]["nodes_with_rows"] == len(
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
    disclosed = json.loads((tmp_path / "run" / "disclosure-0.json").read_text())["to"]
    in_edges = np.bincount(graph.edges.dst, minlength=40)
    for peer in (1, 2):
        asked = np.unique(
            graph.edges.src[(parts[graph.edges.dst] == peer) & (parts[graph.edges.src] == 0)]
        )
        to_peer = disclosed[NAMES[peer]]
        assert to_peer["nodes_with_aggregates"] == len(asked)
        assert to_peer["nodes_with_aggregates_of_fewer_than_5_rows"] == (in_edges[asked] < 5).sum()
        assert to_peer["bytes"]["aggregates"].keys() == {"layer 0", "layer 1"}


def test_what_would_leave_one_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For an undirected graph, the plan of one site names as many nodes as the others then ask for.

    Nothing but its own folder is read.
    """
    graph = random_graph()
    ends = (
        np.concatenate([graph.edges.src, graph.edges.dst]),
        np.concatenate([graph.edges.dst, graph.edges.src]),
    )
    folders = write_sites(
        tmp_path / "sites",
        with_arrays(graph, src=ends[0], dst=ends[1]),
        thirds(40),
        PARTS,
        NAMES[:3],
    )
    all_sites = (*COMMON, "num_partitions=3", *by_sites(tmp_path))
    train.run(compose(all_sites), tmp_path / "run")
    one_site = (
        *COMMON,
        "num_partitions=3",
        "app=plan",
        "dataset_name=parts",
        f"dataset_file={folders[1]}",
    )
    planned = plan.run(compose(one_site), tmp_path / "plan")
    disclosure = json.loads((tmp_path / "run" / "disclosure-1.json").read_text())
    for name, to in disclosure["to"].items():
        assert planned["to"][name]["own_nodes_with_rows"] == to["nodes_with_rows"]
    assert "own nodes if edges have their reverse" in capsys.readouterr().out
    before = snapshot(tmp_path / "sites")
    plan.run(compose([*all_sites, "app=plan", "sites.max_rows_shared=2"]), tmp_path / "dry")
    assert snapshot(tmp_path / "sites") == before  # a dry run gives nothing, and notes nothing
    limited = plan.run(compose([*one_site, "sites.max_rows_shared=2"]), tmp_path / "limited")
    assert all(to["own_nodes_with_rows"] == 2 for to in limited["to"].values())


TABLE_SITES = ["north", "east", "void"]
PEOPLE = 60
RANKS = np.random.default_rng(0).integers(0, 2, PEOPLE)  # void has no node
TRAIN = np.arange(PEOPLE) % 3 > 0
TABLE_SETTINGS = (
    "dataset_name=parts",
    "num_partitions=3",
    "hidden_dim=8",
    "num_rounds=[4]",
    "device=cpu",
    "cluster.threads=1",
    "features.missing=mean",
    "predict.format=npy",
)


def people() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    ids = np.sort(rng.choice(1000, PEOPLE, replace=False))
    frame = pd.DataFrame({"id": ids, "age": rng.integers(18, 90, PEOPLE)})
    frame["height"] = np.where(rng.random(PEOPLE) < 0.2, np.nan, rng.normal(1.7, 0.1, PEOPLE))
    return frame.assign(city=rng.choice(["Rome", "Bonn", "Oslo"], PEOPLE))


def write_tables(base: Path) -> None:
    frame = people()
    everyone = frame["id"].to_numpy()
    src, dst = np.random.default_rng(2).integers(0, PEOPLE, (2, 200))
    for rank, name in enumerate(TABLE_SITES):
        own = rank == RANKS
        about = {"version": 1, "site": name, "sites": TABLE_SITES, "num_classes": 2}
        masks = {"train_mask": TRAIN, "val_mask": ~TRAIN, "test_mask": np.zeros(PEOPLE, np.bool_)}
        arrays: dict[str, Any] = {mask: values[own] for mask, values in masks.items()}
        into_own = own[dst]
        arrays |= {"src": everyone[src[into_own]], "dst": everyone[dst[into_own]]}
        arrays |= {"src_owner": RANKS[src[into_own]], "node_id": everyone[own]}
        arrays["label"] = (frame["age"] > 50)[own].astype(int)  # type: ignore[attr-defined]
        files: dict[str, Any] = {"site.json": json.dumps(about), "part.npz": arrays}
        if own.any():  # type: ignore[attr-defined]
            files["features.csv"] = frame[own].sample(frac=1, random_state=rank)
        write_files(base / name, files)


def write_columns(base: Path, name: str) -> None:
    settings = compose(["app=describe", "dataset_name=parts", f"dataset_file={base / name}"])
    describe.run(settings, base / f"described-{name}")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sites/ with their tables, described-north/columns.json, and fitted/spec.json of all."""
    sites = Path(tmp_path_factory.mktemp("tables")) / "sites"
    write_tables(sites)
    write_columns(sites, "north")
    fit_together(sites, sites / "fitted", f"features.spec={agreed_file(sites)}")
    return sites


def data(tables: Path, *, spec: bool = True) -> list[str]:
    pipeline = [f"features.spec={tables}/fitted/spec.json"] if spec else []
    return [*TABLE_SETTINGS, f"dataset_file={tables}", *pipeline]


def test_sites_encode_their_tables_as_one_table_is_encoded(tables: Path, tmp_path: Path) -> None:
    folders = find_or_make_partitions(compose(data(tables)))
    people().assign(label=0).to_csv(tmp_path / "nodes.csv", index=False)
    (tmp_path / "edges.csv").write_text("src,dst\n")
    settings = compose(["dataset_name=file", f"dataset_file={tmp_path}", "features.missing=mean"])
    encoded, _ = encode_tables(datasets.read_graph(settings), settings.features, TRAIN)
    features: Any = encoded.features  # type: ignore[union-attr]
    for rank in range(2):
        np.testing.assert_allclose(
            folders.read_part(rank).features,
            features.toarray()[rank == RANKS],
            rtol=1e-6,
            atol=1e-6,
        )
    assert folders.read_part(2).num_inner == 0


def test_a_run_keeps_the_pipeline(tables: Path, tmp_path: Path) -> None:
    train.run(compose(data(tables)), tmp_path / "run")
    asked = ["app=predict", f"checkpoint_dir={tmp_path}/run"]
    predict.run(compose([*data(tables, spec=False), *asked]), tmp_path / "stored")
    predict.run(compose([*data(tables), *asked]), tmp_path / "given")
    stored, given = (
        read_table(tmp_path / name / "predictions.npy") for name in ("stored", "given")
    )
    assert sorted(stored["id"]) == people()["id"].tolist()
    for name, column in stored.items():
        np.testing.assert_array_equal(column, given[name])
    ignored = "columns.ignore=height"
    for columns, other, message in (
        ({"height": None}, ignored, "lacks `height` in nodes"),
        ({}, "features.scale=none", "encoded by another pipeline"),
    ):
        agreed = agreed_file(tables, **columns)
        fit_together(tables, tmp_path / "other", f"features.spec={agreed}", other)
        given_other = [*data(tables, spec=False), f"features.spec={tmp_path}/other/spec.json"]
        given_other += [ignored] if columns else []
        with pytest.raises(InputError, match=message):
            predict.run(compose([*given_other, *asked]), tmp_path / "wrong")
        shutil.rmtree(tmp_path / "other")


def agreed_file(tables: Path, **changes: Any) -> Path:
    """columns.json of north, with changed columns, or without those that are None."""
    proposed = json.loads((tables / "described-north/columns.json").read_text())["columns"]
    columns = {name: column for name, column in (proposed | changes).items() if column}
    path = tables.parent / "columns.json"
    path.write_text(json.dumps({"columns": columns}))
    return path


def fit_together(tables: Path, run_dir: Path, *more: str) -> Any:
    asked = [*TABLE_SETTINGS, "app=describe", f"dataset_file={tables}", *more]
    return describe.run(compose(asked), run_dir)["features"]["nodes"]


def test_sites_fit_a_pipeline_by_sums(tables: Path, tmp_path: Path) -> None:
    """It is that of one table, the bytes are those of three sums, and training uses it."""
    agreed = agreed_file(tables)
    proposed = json.loads(agreed.read_text())["columns"]
    assert proposed["age"] == {"role": "numeric", "range": [10.0, 90.0]}
    asked = [f"features.spec={agreed}", "features.missing=median"]
    fitted = fit_together(tables, tmp_path / "spec", *asked)
    frame, rows = people(), TRAIN
    columns = {column["name"]: column for column in fitted["columns"]}
    assert [*columns] == ["age", "height", "city"]
    assert columns["city"]["categories"] == sorted(set(frame["city"][rows]))
    for name in ("age", "height"):
        values = frame[name][rows]
        assert np.allclose(columns[name]["center"], values.mean(), rtol=1e-6)
        assert np.allclose(columns[name]["scale"], values.std(ddof=0), rtol=1e-6)
        bin_width = np.ptp(proposed[name]["range"]) / 1024
        assert abs(columns[name]["fill"][0] - values.median()) <= bin_width
    assert columns["height"]["num_blank"] == frame["height"][rows].isna().sum()
    counts = 1 + 2 * (4 + 1024) + 2 * 3 + (3 + 2)
    sent = 0
    for rank in range(3):
        disclosed = json.loads((tmp_path / f"spec/disclosure-{rank}.json").read_text())
        assert disclosed["summed_columns"] == ["age", "height", "city"]
        sent += sum(
            peer["bytes"].get("setup", {"run": 0})["run"] for peer in disclosed["to"].values()
        )
    assert sent == 2 * (3 - 1) * 8 * (counts + 2 + 2)
    spec = tmp_path / "spec/spec.json"
    train.run(compose([*data(tables, spec=False), f"features.spec={spec}"]), tmp_path / "run")
    stored = json.loads((tmp_path / "run/checkpoint/model.json").read_text())
    assert stored["features"]["nodes"] == fitted
    with pytest.raises(InputError, match=r"columns\.json: .* nothing is fitted yet"):
        find_or_make_partitions(compose([*data(tables, spec=False), f"features.spec={agreed}"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"city": None},
            r"column `city` \(categorical\) is not in .* names of its categories stay",
        ),
        ({"pay": {"role": "numeric", "range": [0, 1]}}, r"features\.csv: there is no column `pay`"),
        ({"age": {"role": "numeric"}}, r"column `age` is .* expected \"range\": \[LOW, HIGH\]"),
        (
            {"age": {"role": "numeric", "range": [0, 40]}},
            r"`age` has \d+, outside the range \[0, 40",
        ),
        ({"city": {"role": "numeric", "range": [0, 1]}}, r"column `city`.*(Rome|Bonn|Oslo)"),
        ({"city": {"role": "categorical"}}, r"\"categories\": \[NAME, \.\.\.\]"),
    ],
)
def test_sites_that_have_not_agreed(
    tables: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    agreed = agreed_file(tables, **changes)
    with pytest.raises(InputError, match=message):
        fit_together(tables, tmp_path / "spec", f"features.spec={agreed}")


def test_what_one_site_finds(tables: Path, tmp_path: Path) -> None:
    sites = Path(shutil.copytree(tables, tmp_path / "sites"))
    table = sites / "north/features.csv"
    rows = table.read_text().splitlines()

    def refuse(message: str, lines: list[str] | None = None, *, spec: bool = True) -> None:
        """Expect a refusal with these lines as north's table, or without the table."""
        table.write_text("\n".join(lines)) if lines else table.unlink(missing_ok=True)
        with pytest.raises(InputError, match=message):
            find_or_make_partitions(compose(data(sites, spec=spec))).read_part(0)

    refuse(r"features\.csv: needs features\.spec=FILE, the spec\.json that", rows, spec=False)
    refuse(r"is 2000; expected one of the \d+ node ids", [*rows, "2000,1,1,Rome"])
    labels = [rows[0] + ",label", *(f"{row},1" for row in rows[1:])]
    refuse(r"has label, which part\.npz holds", labels)
    refuse("its ids are names", [rows[0], *(f"n{row}" for row in rows[1:])])
    refuse("there is no column `city`", [row.rpartition(",")[0] for row in rows])
    with np.load(sites / "north/part.npz") as arrays:
        np.savez(sites / "north/part.npz", feat=np.zeros((sum(RANKS == 0), 5)), **arrays)
    refuse(r"array `feat` is taken as it is")
    refuse(r"has array `feat`, and there is .*features\.csv", rows)
    with pytest.raises(InputError, match=r"void: has no features\.csv or"):
        write_columns(sites, "void")
    (sites / "void/features.csv").write_text("age\n3\n")
    with pytest.raises(InputError, match="there is no column `id`"):
        write_columns(sites, "void")


def test_tables_of_several_types_are_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """What reading decides is printed, and settings that a stored pipeline overrides are named."""
    rng = np.random.default_rng(0)
    films = pd.DataFrame({"id": range(30), "label": rng.integers(0, 2, 30), "year": range(30)})
    films["shown"] = [f"2024-01-{1 + day:02d}" for day in range(30)]
    actors = pd.DataFrame({"id": range(20), "age": rng.integers(18, 90, 20)})
    plays = {"src": rng.integers(0, 20, 60), "dst": rng.integers(0, 30, 60), "pay": range(60)}
    files = {"nodes/film.csv": films, "nodes/actor.csv": actors}
    write_files(tmp_path / "g", {**files, "edges/actor__plays__film.csv": pd.DataFrame(plays)})
    common = ["dataset_name=file", f"dataset_file={tmp_path}/g", "split=fraction"]
    common += ["split.train=0.6", "split.val=0.2", "split.test=0.2", "features.missing=mean"]
    proposed = describe.run(compose([*common, "app=describe"]), tmp_path / "described")
    assert [*proposed] == ["nodes/actor", "nodes/film", "edges/actor__plays__film"]
    decided = [
        "label: multiclass, 2 classes, of 30 of 30 nodes; split: 18 train, 6 val, 6 test",
        "nodes/film: id id; label label",
        "nodes/film: numeric (standardised): year",
        "nodes/film: left out: shown, a date: columns.date=shown makes it a feature, in seconds",
        "edges/actor__plays__film: src src; dst dst",
    ]
    printed = capsys.readouterr().out
    assert [printed.count(line) for line in decided] == [1] * 5
    assert proposed["edges/actor__plays__film"]["columns"]["pay"]["range"] == [0.0, 60.0]
    asked = [*common, "num_partitions=2", f"partition_dir={tmp_path}/one"]
    partition_data.run(compose(asked))
    assert "no effect" not in caplog.text
    (parts,) = (tmp_path / "one").iterdir()
    asked = [*common, f"features.spec={parts}", f"partition_dir={tmp_path}/again"]
    partition_data.run(compose([*asked, "num_partitions=2"]))
    assert "features.missing=mean has no effect" in caplog.text
