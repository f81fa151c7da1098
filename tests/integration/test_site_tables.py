"""Sites with tables of features: app=describe at each, then training and prediction with the
pipeline of all tables together.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from partitioning import datasets
from partitioning.errors import InputError
from partitioning.features.build import encode_tables
from partitioning.site_folders import SiteFolders
from retexo.apps import describe, partition_data, predict, train
from retexo.apps.find_partitions import open_directory
from retexo.errors import TrainingError
from retexo.results.predictions import read_table
from retexo.settings.compose import compose

NAMES = ["north", "east", "void"]
PEOPLE = 60
RANKS = np.random.default_rng(0).integers(0, 2, PEOPLE)  # void has no node
TRAIN = np.arange(PEOPLE) % 3 > 0
COMMON = (
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


def write_sites(base: Path) -> None:
    frame = people()
    everyone = frame["id"].to_numpy()
    src, dst = np.random.default_rng(2).integers(0, PEOPLE, (2, 200))
    for rank, name in enumerate(NAMES):
        folder, own = base / name, rank == RANKS
        folder.mkdir(parents=True)
        about = {"version": 1, "site": name, "sites": NAMES, "num_classes": 2}
        (folder / "site.json").write_text(json.dumps(about))
        masks = {"train_mask": TRAIN, "val_mask": ~TRAIN, "test_mask": np.zeros(PEOPLE, np.bool_)}
        arrays: dict[str, Any] = {mask: values[own] for mask, values in masks.items()}
        kept = own[dst]
        arrays |= {"src": everyone[src[kept]], "dst": everyone[dst[kept]]}
        arrays |= {"src_owner": RANKS[src[kept]], "node_id": everyone[own]}
        np.savez(folder / "part.npz", label=(frame["age"] > 50)[own].astype(int), **arrays)
        if own.any():
            shuffled = frame[own].sample(frac=1, random_state=rank)
            shuffled.to_csv(folder / "features.csv", index=False)


def write_spec(base: Path, name: str) -> str:
    settings = compose(["app=describe", "dataset_name=parts", f"dataset_file={base / name}"])
    describe.run(settings, base / f"described-{name}")
    return str(base / f"described-{name}/spec.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sites/ with their tables, and described-NAME/spec.json of the two with nodes."""
    folder = Path(tmp_path_factory.mktemp("tables"))
    write_sites(folder / "sites")
    for name in NAMES[:2]:
        write_spec(folder / "sites", name)
    return folder / "sites"


def data(place: Path, *names: str) -> list[str]:
    files = ",".join(f"{place}/described-{name}/spec.json" for name in names)
    return [*COMMON, f"dataset_file={place}", *([f"features.spec=[{files}]"] if names else [])]


def test_sites_encode_their_tables_as_one_table_is_encoded(place: Path, tmp_path: Path) -> None:
    folders = open_directory(compose(data(place, "north", "east")))
    people().assign(label=0).to_csv(tmp_path / "nodes.csv", index=False)
    (tmp_path / "edges.csv").write_text("src,dst\n")
    settings = compose(
        ["dataset_name=file", f"dataset_file={tmp_path}", "features.missing=mean"]
    ).partition.dataset
    made, _ = encode_tables(datasets.read_graph(settings), settings.features, TRAIN)
    features: Any = made.features  # type: ignore[union-attr]
    for rank in range(2):
        np.testing.assert_allclose(
            folders.read(rank).features, features.toarray()[rank == RANKS], rtol=1e-6, atol=1e-6
        )
    assert folders.read(2).num_inner == 0
    reordered = open_directory(compose(data(place, "east", "north")))
    assert isinstance(folders, SiteFolders)
    assert folders.digest() == reordered.digest()
    assert folders.digest() != open_directory(compose(data(place, "east"))).digest()


def test_a_run_keeps_the_pipeline(place: Path, tmp_path: Path) -> None:
    train.run(compose(data(place, "north", "east")), tmp_path / "run")
    asked = ["app=predict", f"checkpoint_dir={tmp_path}/run"]
    predict.run(compose([*data(place), *asked]), tmp_path / "stored")
    predict.run(compose([*data(place, "east", "north"), *asked]), tmp_path / "given")
    stored, given = (
        read_table(tmp_path / name / "predictions.npy") for name in ("stored", "given")
    )
    assert sorted(stored["id"]) == people()["id"].tolist()
    for name, column in stored.items():
        np.testing.assert_array_equal(column, given[name])
    with pytest.raises(InputError, match="encoded by another pipeline"):
        predict.run(compose([*data(place, "east"), *asked]), tmp_path / "other")


def agreed_file(place: Path, **changes: Any) -> Path:
    """columns.json of north, with changed columns, or without those that are None."""
    proposed = json.loads((place / "described-north/columns.json").read_text())["columns"]
    columns = {name: each for name, each in (proposed | changes).items() if each}
    path = place.parent / "columns.json"
    path.write_text(json.dumps({"columns": columns}))
    return path


def fit_together(place: Path, run_dir: Path, *more: str) -> Any:
    asked = [*COMMON, "app=describe", f"dataset_file={place}", *more]
    return describe.run(compose(asked), run_dir)["features"]["nodes"]


def test_sites_fit_a_pipeline_by_sums(place: Path, tmp_path: Path) -> None:
    """It is that of one table, the bytes are those of three sums, and training uses it."""
    agreed = agreed_file(place)
    proposed = json.loads(agreed.read_text())["columns"]
    assert proposed["age"] == {"role": "numeric", "range": [10.0, 90.0]}
    asked = [f"features.spec={agreed}", "features.missing=median"]
    found = fit_together(place, tmp_path / "spec", *asked)
    frame, rows = people(), TRAIN
    columns = {each["name"]: each for each in found["columns"]}
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
            each["bytes"].get("setup", {"run": 0})["run"] for each in disclosed["to"].values()
        )
    assert sent == 2 * (3 - 1) * 8 * (counts + 2 + 2)
    spec = tmp_path / "spec/spec.json"
    train.run(compose([*data(place), f"features.spec={spec}"]), tmp_path / "run")
    stored = json.loads((tmp_path / "run/checkpoint/model.json").read_text())
    assert stored["features"]["nodes"] == found
    with pytest.raises(InputError, match=r"columns\.json: .* nothing is fitted yet"):
        open_directory(compose([*data(place), f"features.spec={agreed}"]))


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
    place: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    agreed = agreed_file(place, **changes)
    with pytest.raises(InputError, match=message):
        fit_together(place, tmp_path / "spec", f"features.spec={agreed}")


def test_masks_need_three_sites_with_rows(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    asked = ["gradient.secure=true", "gradient.precision=fp32", "distributed.backend=sockets"]
    with pytest.raises(TrainingError, match="2 of 3 partitions have training nodes"):
        fit_together(place, tmp_path, f"features.spec={agreed_file(place)}", *asked)


def test_what_one_site_finds(place: Path, tmp_path: Path) -> None:
    def refuse(message: str, *names: str) -> None:
        with pytest.raises(InputError, match=message):
            open_directory(compose(data(sites, *names))).read(0)

    def refuse_to_describe(message: str, name: str) -> None:
        with pytest.raises(InputError, match=message):
            write_spec(sites, name)

    sites = tmp_path / "sites"
    shutil.copytree(place, sites)
    table = sites / "north/features.csv"
    refuse(r"features\.csv: needs features\.spec=\[FILE,\.\.\.\], the files that app=describe")
    rows = table.read_text().splitlines()
    (sites / "void/features.csv").write_text("age\n3\n")
    refuse_to_describe("there is no column `id`", "void")
    (sites / "void/features.csv").unlink()
    refuse_to_describe(r"void: has no features\.csv or", "void")
    table.write_text("\n".join([*rows, "2000,1,1,Rome"]))
    refuse(r"is 2000; expected one of the \d+ node ids", "north", "east")
    table.write_text("\n".join([rows[0] + ",label", *(f"{row},1" for row in rows[1:])]))
    refuse(r"has label, which part\.npz holds", "north", "east")
    table.write_text("\n".join([rows[0], *(f"n{row}" for row in rows[1:])]))
    refuse("its ids are names", "north", "east")
    table.write_text("\n".join(row.rpartition(",")[0] for row in rows))
    refuse("there is no column `city`", "north", "east")
    table.unlink()
    with np.load(sites / "north/part.npz") as arrays:
        np.savez(sites / "north/part.npz", feat=np.zeros((sum(RANKS == 0), 5)), **arrays)
    refuse(r"array `feat` is taken as it is", "north", "east")
    table.write_text("\n".join(rows))
    refuse(r"has array `feat`, and there is .*features\.csv", "north", "east")


def test_tables_of_several_types_are_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipeline fitted to the description of a graph is the one fitted to the graph."""
    for folder in ("nodes", "edges"):
        (tmp_path / "g" / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    films = pd.DataFrame({"id": range(30), "label": rng.integers(0, 2, 30), "year": range(30)})
    films.to_csv(tmp_path / "g/nodes/film.csv", index=False)
    actors = pd.DataFrame({"id": range(20), "age": rng.integers(18, 90, 20)})
    actors.to_csv(tmp_path / "g/nodes/actor.csv", index=False)
    plays = {"src": rng.integers(0, 20, 60), "dst": rng.integers(0, 30, 60), "pay": range(60)}
    pd.DataFrame(plays).to_csv(tmp_path / "g/edges/actor__plays__film.csv", index=False)
    common = ["dataset_name=file", f"dataset_file={tmp_path}/g", "split=fraction"]
    common += ["split.train=0.6", "split.val=0.2", "split.test=0.2", "features.missing=mean"]
    described = describe.run(compose([*common, "app=describe"]), tmp_path / "described")
    assert [*described["summaries"]] == ["nodes/actor", "nodes/film", "edges/actor__plays__film"]
    made = []
    for name, spec in (("one", []), ("other", [f"features.spec={tmp_path}/described/spec.json"])):
        asked = [*common, *spec, "num_partitions=2", f"partition_dir={tmp_path}/{name}"]
        made.append(partition_data.run(compose(asked).partition).features)
    assert made[0].keys() == made[1].keys()
    for table, state in made[0].items():
        for column, other in zip(state["columns"], made[1][table]["columns"], strict=True):
            assert column["name"] == other["name"]
            assert np.allclose(column["center"], other["center"], rtol=1e-12)
            assert np.allclose(column["scale"], other["scale"], rtol=1e-12)
    assert "no effect" not in caplog.text
    (parts,) = (tmp_path / "one").iterdir()
    asked = [*common, f"features.spec={parts}", f"partition_dir={tmp_path}/again"]
    partition_data.run(compose([*asked, "num_partitions=2"]).partition)
    assert "features.missing=mean has no effect" in caplog.text
