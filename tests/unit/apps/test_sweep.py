"""Sweeps without training: what is planned, what is run again, and what is said at the end."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partitioning.errors import InputError
from partitioning.file_io import exclusive
from retexo.apps import report, sweep
from retexo.errors import TrainingError
from retexo.settings.app_settings import SweepSettings
from retexo.settings.compose import compose
from retexo.settings.run_settings import Settings
from retexo.settings.schema import CONFIG_DIR

SEEDS = "sweep.axes={seed: {s0: 'seed=0', s1: 'seed=1'}}"
TOY = ("dataset_name=karateclub", "sweep.dir=runs")


def test_arguments_are_merged_into_one_choice_of_experiments_and_one_configuration() -> None:
    given = [
        "--config-name=a",
        "seed=1",
        "+experiment=[lean,seeds5]",
        "--config-name=b",
        "+experiment=lean",
        "x='a b'",
    ]
    assert sweep.merged(given) == [
        "--config-name=b",
        "+experiment=[lean,seeds5]",
        "seed=1",
        "x='a b'",
    ]
    assert sweep.merged(["--config-name=a", "seed=1"]) == ["--config-name=a", "seed=1"]


def test_every_combination_is_planned_in_order() -> None:
    axes = (
        "sweep.axes={way: {exact: '', plain: 'exchange=plain'}, seed: {s0: 'seed=0', s1: 'seed=1'}}"
    )
    planned = sweep.plan(compose([*TOY, axes, "dropout=0.1"], "node_classification_sage"))
    assert [one.name for one in planned] == ["exact/s0", "exact/s1", "plain/s0", "plain/s1"]
    assert [(one.settings.train.exchange.mode, one.settings.train.seed) for one in planned] == [
        ("exact", 0),
        ("exact", 1),
        ("plain", 0),
        ("plain", 1),
    ]
    assert all(one.settings.train.model.name == "sage" for one in planned)
    assert all(one.settings.train.model.dropout == 0.1 for one in planned)
    assert all(one.settings.sweep.axes is None for one in planned)


def test_methods_share_the_partitions_of_a_seed_and_seeds_have_their_own() -> None:
    axes = "{way: {gcn: '', gat: '--config-name=node_classification_gat'}, seed: {s0: 'seed=0', s1: 'seed=1'}}"
    planned = sweep.plan(compose([*TOY, f"sweep.axes={axes}", "partition_dir=here"]))
    found = {one.name: one.partitions for one in planned}
    assert found["gcn/s0"] == found["gat/s0"] != found["gcn/s1"] == found["gat/s1"]
    assert found["gcn/s0"].parent.parent == Path("here")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([SEEDS, "app=plan"], "app=plan"),
        ([SEEDS, "sweep.dir=null"], r"sweep\.dir=null"),
        (["sweep.axes={}"], r"sweep\.axes=\{\}"),
        (["sweep.axes={seed: {}}"], r"sweep\.axes\.seed"),
        (["sweep.axes={seed: {s0: 'sead=0'}}"], "s0: .*sead"),
        (["sweep.axes={seed: {s0: 'exchange=exakt'}}"], "s0: .*exakt"),
        (["sweep.axes={seed: {s0: 'dropout=2'}}"], "s0: dropout=2"),
    ],
)
def test_a_mistake_is_found_before_the_first_run(
    overrides: list[str], told: str, tmp_path: Path
) -> None:
    settings = compose([*TOY, f"sweep.dir={tmp_path / 'runs'}", *overrides])
    with pytest.raises(InputError, match=told):
        sweep.run(settings, tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_value_names_a_directory_below_the_sweeps(name: str) -> None:
    settings = compose([*TOY, SEEDS])
    with pytest.raises(InputError, match="name of a directory"):
        sweep.plan(replace(settings, sweep=SweepSettings("runs", {"seed": {name: "seed=0"}})))


def test_a_run_with_other_settings_is_not_taken_for_this_one(tmp_path: Path) -> None:
    (one, other) = sweep.plan(compose([*TOY, SEEDS]))
    path = tmp_path / "summary.json"
    assert not sweep.is_done(tmp_path, one)
    path.write_text('{"status": "don')
    assert not sweep.is_done(tmp_path, one)
    for status in ("done", "failed", "running"):
        path.write_text(json.dumps({"status": status, "settings": one.settings.resolved}))
        assert sweep.is_done(tmp_path, one) == (status == "done")
    with pytest.raises(
        InputError, match=r"another partition\.seed, seed, split\.seed; choose another sweep\.dir"
    ):
        sweep.is_done(tmp_path, other)


@pytest.mark.parametrize(
    "name", [path.stem for path in sorted((CONFIG_DIR / "experiment").glob("*.yaml"))]
)
def test_every_experiment_can_be_composed_and_its_values_planned(name: str) -> None:
    """Each value of each axis once, with the first of the others: all combinations take long to compose."""
    settings = compose([f"+experiment={name}"])
    first = {
        axis: dict([next(iter(values.items()))])
        for axis, values in (settings.sweep.axes or {}).items()
    }
    for axis, values in (settings.sweep.axes or {}).items():
        axes = {**first, axis: values}
        planned = sweep.plan(replace(settings, sweep=SweepSettings("runs", axes)))
        assert len(planned) == len(values)
        assert axis != "seed" or [one.settings.train.seed for one in planned] == [0, 1, 2, 3, 4]


def test_seeds5_and_lean_together() -> None:
    planned = sweep.plan(compose(["+experiment=[lean,seeds5]"]))
    assert [one.settings.train.seed for one in planned] == [0, 1, 2, 3, 4]
    assert {one.settings.train.gradient.compression for one in planned} == {"powersgd"}
    assert {one.settings.partition.dataset.split.seed for one in planned} == {0, 1, 2, 3, 4}


# --- the loop, with runs that are only pretended -----------------------------------------------------------------------


class Pretended:
    """In place of main.py: writes the summary.json of a run that is done, or fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []

    def __call__(self, arguments: Sequence[str], log: Path, _lock: int) -> int:
        app = arguments[-1].removeprefix("app=")
        self.calls.append(f"{app} {log.parent.name}")
        settings = compose(arguments[1:], "node_classification")
        if settings.partition.dataset.name == "reddit" and app == "partition_data":
            log.write_text(
                "some words\nerror: cannot download it; fetch it by hand\n", encoding="utf-8"
            )
            return 2
        if settings.train.cluster.device == "cuda" and app == "train":
            log.write_text("error: torch sees no GPU\n", encoding="utf-8")
            return 2
        if app == "train":
            assert not (log.parent / "metrics.jsonl").exists(), "what an earlier attempt left"
            (log.parent / "summary.json").write_text(json.dumps(self.summary(settings)))
        return 0

    def summary(self, settings: Settings) -> dict[str, Any]:
        scores = {"accuracy": 0.5, "micro_f1": 0.5, "macro_f1": 0.5}
        by_peer = [[1] * settings.partition.num_partitions] * settings.partition.num_partitions
        return {
            "status": "done",
            "versions": {},
            "settings": settings.resolved,
            "val": scores,
            "test": scores,
            "rounds": [1],
            "seconds": {"train": 1, "total": 2},
            "peak_memory_bytes": [1],
            "peak_private_bytes": [1],
            "bytes": {"total": 16, "by_kind": {"setup": 16}, "by_peer": by_peer},
        }


AXES = "sweep.axes={case: {s0: 'seed=0', absent: 'dataset_name=reddit', broken: 'device=cuda', s1: 'seed=1'}}"


def test_a_sweep_goes_on_after_what_fails_and_runs_only_that_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended = Pretended(tmp_path)
    monkeypatch.setattr(sweep, "_call", pretended)
    monkeypatch.setattr(report, "_pictures", lambda *_: [])  # two seconds a page
    settings = compose(
        [*TOY[:1], AXES, f"sweep.dir={tmp_path / 'runs'}", f"partition_dir={tmp_path / 'parts'}"]
    )
    left = tmp_path / "runs" / "s1"
    left.mkdir(parents=True)
    (left / "metrics.jsonl").write_text("{}")
    (left / "mine.txt").write_text("kept")
    with pytest.raises(TrainingError, match="1 of 4 runs failed"):
        sweep.run(settings, tmp_path / "first")
    told = capsys.readouterr().out
    assert "[3/4] broken: failed, torch sees no GPU | elapsed" in told
    assert (
        "missing: absent: cannot download it; fetch it by hand\nfailed: broken: torch sees no GPU\n"
        in told
    )
    assert (left / "mine.txt").exists()
    assert "2 runs: 2 done" in (tmp_path / "first" / "report.md").read_text()
    assert [call for call in pretended.calls if call.startswith("train")] == [
        "train s0",
        "train broken",
        "train s1",
    ]
    assert [call for call in pretended.calls if call.endswith("absent")] == [
        "partition_data absent"
    ]

    pretended.calls.clear()
    with pytest.raises(TrainingError, match="1 of 4 runs failed"):
        sweep.run(settings, tmp_path / "second")
    assert pretended.calls == ["partition_data absent", "partition_data broken", "train broken"]
    assert "4 runs, 2 of them done before" in capsys.readouterr().out


def test_two_sweeps_in_one_folder_are_refused(tmp_path: Path) -> None:
    settings = compose([*TOY[:1], SEEDS, f"sweep.dir={tmp_path}"])
    with (
        exclusive(tmp_path / ".lock", "here"),
        pytest.raises(InputError, match=r"sweep.dir=.*in use by process \d+"),
    ):
        sweep.run(settings, tmp_path / "out")
    with exclusive(tmp_path / ".lock", "here"):  # free again
        pass


def test_a_name_with_a_quote_or_a_space_reaches_hydra_whole(tmp_path: Path) -> None:
    place = tmp_path / "it's a place, {here}=$1"
    settings = compose([f"partition_dir={sweep._quoted(place)}"])
    assert settings.partition.dir == str(place)
