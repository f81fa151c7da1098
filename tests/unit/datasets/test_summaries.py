"""The pipeline fitted to summaries of several tables, or by sums over the network, is that of one
table with the rows of all.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_features import settings

from partitioning.array_checks import Array
from partitioning.errors import InputError
from partitioning.features.agreed import read_agreed
from partitioning.features.encoder import State, fit
from partitioning.features.schema import Column, Schema
from partitioning.features.spec import read_spec
from partitioning.features.summary import BIN, summarise
from partitioning.features.sums import BINS, Words, compute_share, fit_sums, share_nothing
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.thread_transport import run_threads
from retexo.comm.traffic_meter import SETUP
from retexo.sites.masks import agree_on_masks

RANGES = {
    "age": [0, 150],
    "balance": [0, 1e6],
    "time": [1.6e9, 1.8e9],
    "flag": [0, 1],
    "empty": [-1, 1],
    "constant": [0, 1],
    "pair": [-10, 10],
    "emb": [-1000, 1000],
}
NAMES = ("age", "balance", "time", "flag", "empty", "constant", "pair")
CITIES = ("Rome", "Bonn", "Oslo", "Pisa")
COLUMNS = (
    *(Column(name, "numeric", at) for at, name in enumerate(NAMES)),
    Column("emb", "embedding", len(NAMES), 2),
    Column("city", "categorical", len(NAMES) + 2, categories=CITIES),
)
SIZES = (300, 200, 401)


def table(rows: int, seed: int) -> Array:
    """[rows, W]: columns of all kinds, whose distribution depends on the seed."""
    rng = np.random.default_rng(seed)
    made = np.column_stack(
        [
            rng.integers(18, 91, rows) + 10 * seed,
            rng.lognormal(7, 1.5, rows),
            1.7e9 + rng.normal(0, 1e6, rows) * (1 + seed),
            rng.integers(0, 2, rows),
            np.full(rows, np.nan),
            np.full(rows, 0.1),
            rng.normal(seed, 1, rows),
            rng.normal(0, [1, 100], (rows, 2)),
            rng.integers(0, 2 + seed, rows),
        ]
    ).astype(np.float32)
    made[rng.random(rows) < 0.1, 0] = np.nan
    blank = rng.random(rows) < 0.1
    made[blank, 1] = made[blank, 6] = np.nan
    made[rng.random(rows) < 0.05, -1] = np.nan
    return made


TABLES = [table(rows, seed) for seed, rows in enumerate(SIZES)]
TRAIN = [np.arange(rows) % 3 > 0 for rows in SIZES]
SCHEMA = Schema("nodes.csv", COLUMNS, {"id": ["id"]}, {"note": "columns.ignore"})


def write(folder: Path, name: str, summary: Any) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"summaries": {"nodes": summary}}))
    return str(path)


def merge(folder: Path, **fields: Any) -> State:
    files = [
        write(folder, str(at), summarise(rows, SCHEMA, train))
        for at, (rows, train) in enumerate(zip(TABLES, TRAIN, strict=True))
    ]
    state = read_spec(settings(spec=tuple(files), **fields))["nodes"]
    assert state == read_spec(settings(spec=tuple(files[::-1]), **fields))["nodes"]
    return state


def agreed_file(folder: Path) -> Path:
    columns: dict[str, Any] = {
        name: {"role": "numeric", "range": ends} for name, ends in RANGES.items()
    }
    columns["emb"] |= {"role": "embedding", "width": 2}
    columns["city"] = {"role": "categorical", "categories": CITIES}
    path = folder / "columns.json"
    path.write_text(json.dumps({"columns": columns}))
    return path


def add_up(folder: Path, *, masked: bool, **fields: Any) -> State:
    """The pipeline of four sites, of which the last has no rows."""
    agreed, asked = read_agreed(agreed_file(folder)), settings(**fields)

    def work(comm: Communicator) -> State:
        def total(words: Words) -> Words:
            sums = torch.from_numpy(words.copy())
            comm.all_reduce([ReduceInput(sums)], SETUP)
            return np.asarray(sums)

        if masked:
            comm.masks = agree_on_masks(comm, "a run")
        share = share_nothing(agreed, asked)
        if comm.rank < len(TABLES):
            share = compute_share(TABLES[comm.rank], SCHEMA, TRAIN[comm.rank], agreed, asked)
        return fit_sums(share, agreed, asked, total)

    states = run_threads(len(TABLES) + 1, work)
    assert all(state == states[0] for state in states)
    return states[0]


@pytest.mark.parametrize("way", ["summaries", "sums"])
@pytest.mark.parametrize("scale", ["auto", "standard", "robust", "log", "none"])
@pytest.mark.parametrize("missing", ["median", "mean", "zero"])
def test_the_pipeline_of_all_sites_is_that_of_all_rows(
    tmp_path: Path, way: str, scale: str, missing: str
) -> None:
    asked = {"scale": scale, "missing": missing, "max_categories": 3}
    one = fit(np.concatenate(TABLES), SCHEMA, settings(**asked), np.concatenate(TRAIN))
    if way == "sums":
        merged = add_up(tmp_path, masked=False, **asked)
        assert merged == add_up(tmp_path, masked=True, **asked)
        one |= {"roles": {}, "ignored": {}}
    else:
        merged = merge(tmp_path, **asked)
    for key in ("version", "fitted_on", "num_rows", "missing", "roles", "ignored"):
        assert merged[key] == one[key]
    rows = np.concatenate(TABLES)[np.concatenate(TRAIN)]
    for column, expected, found in zip(COLUMNS, one["columns"], merged["columns"], strict=True):
        by_quantile = {
            "center": scale == "robust",
            "scale": scale == "robust",
            "fill": missing == "median",
        }
        values = rows[:, column.columns].astype(np.float64)
        for name, value in expected.items():
            if value is None or name not in by_quantile:
                assert found[name] == value, (column.name, name)
            elif by_quantile[name]:
                known = values[~np.isnan(values).any(axis=1)]
                bin_width = 3 * BIN * (known.std(axis=0) if len(known) else 0)
                if way == "sums":
                    bin_width = np.ptp(RANGES[column.name]) / BINS
                assert (np.abs(np.subtract(found[name], value)) <= 2 * bin_width + 1e-9).all()
            else:
                accuracy = 1e-8 if way == "sums" else 1e-12
                assert np.allclose(found[name], value, rtol=accuracy, atol=0), (column.name, name)
    assert [each["indicator"] for each in merged["columns"][:2]] == [True, True]
    assert not merged["columns"][6]["indicator"]  # blank where `balance` is


def test_a_summary_has_no_values_but_the_range() -> None:
    told: list[float] = []
    text = json.dumps(summarise(TABLES[1], SCHEMA, TRAIN[1]))
    json.loads(text, parse_float=lambda number: told.append(float(number)))
    balances = TABLES[1][TRAIN[1], 1].astype(np.float64)
    assert set(told) & set(balances) == {np.nanmin(balances), np.nanmax(balances)}


def test_quartiles_of_tables_far_apart(tmp_path: Path) -> None:
    schema = Schema("t", (Column("x", "numeric", 0),))
    near, far = np.array([[1], [2], [3]], np.float32), np.array([[1001], [1002]], np.float32)
    files = [
        write(tmp_path, str(at), summarise(each, schema)) for at, each in enumerate((near, far))
    ]
    found = read_spec(settings(spec=tuple(files)))["nodes"]["columns"][0]
    both = np.concatenate([near, far])
    assert np.allclose([found["center"], found["scale"]], [both.mean(axis=0), both.std(axis=0)])
    assert abs(found["fill"][0] - 3) < 0.1


@pytest.mark.parametrize(
    "damage",
    [
        {"num_rows": -1},
        {"fitted_on": "test"},
        {"columns": {}},
        {"roles": {"id": [3]}},
        {"mean": [float("nan")]},
        {"mean": ["1"]},
        {"variance": [-1.0]},
        {"count": [3]},
        {"binary": [1]},
        {"width": 0},
        {"role": "text"},
        {"blank_as": 99},
        {"histogram": [{"first": 1 << 70, "counts": []}]},
        {"histogram": [{"first": 0, "counts": [-1, 1]}]},
        {"name": "balance"},
    ],
)
def test_a_damaged_summary_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    summary = json.loads(json.dumps(summarise(TABLES[0], SCHEMA)))
    ((name, value),) = damage.items()
    (summary if name in summary else summary["columns"][0])[name] = value
    with pytest.raises(InputError, match=r"bad\.json: damaged: .*no summary"):
        read_spec(settings(spec=(write(tmp_path, "bad", summary),)))


def test_tables_that_differ_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "first", summarise(TABLES[0], SCHEMA))

    def refuse(message: str, summary: Any, **fields: Any) -> None:
        other = write(tmp_path, "other", summary)
        with pytest.raises(InputError, match=message):
            read_spec(settings(spec=(first, other), **fields))

    rows, fewer = TABLES[1], Schema("nodes.csv", COLUMNS[1:])
    refuse(r"column `age` is in .*first\.json and not in .*other\.json", summarise(rows, fewer))
    renamed = Schema("nodes.csv", (Column("age", "boolean", 0), *COLUMNS[1:]))
    refuse(r"`age` is (numeric|boolean) .* set columns\.numeric=age", summarise(rows, renamed))
    newer = summarise(rows, SCHEMA) | {"version": 2}
    refuse(r"other\.json: has pipelines of version \['2'\]; expected 1", newer)
    refuse(r"`age` has blanks", summarise(rows, SCHEMA), missing="error")
    with pytest.raises(InputError, match=r"first\.json twice"):
        read_spec(settings(spec=(first, first)))
    (tmp_path / "meta.json").write_text(json.dumps({"features": {}}))
    with pytest.raises(InputError, match="only files of app=describe can be merged"):
        read_spec(settings(spec=(first, str(tmp_path))))
    (tmp_path / "x.json").write_text("[1, 2")
    with pytest.raises(InputError, match=r"x\.json: damaged"):
        read_spec(settings(spec=(str(tmp_path / "x.json"),)))
