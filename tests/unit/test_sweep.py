"""The runs that a sweep plans: every combination, checked before the first starts, on shared partitions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from partitioning.errors import InputError
from retexo.apps import sweep
from retexo.config import CONFIG_DIR, SweepSettings, compose

SEEDS = "sweep.axes={seed: {s0: 'seed=0', s1: 'seed=1'}}"
TOY = ("dataset_name=karateclub", "sweep.dir=runs")


def test_arguments_are_merged_into_one_choice_of_experiments_and_one_configuration() -> None:
    given = ["--config-name=a", "seed=1", "+experiment=[lean,seeds5]", "--config-name=b", "+experiment=lean", "x='a b'"]
    assert sweep.merged(given) == ["--config-name=b", "+experiment=[lean,seeds5]", "seed=1", "x='a b'"]
    assert sweep.merged(["--config-name=a", "seed=1"]) == ["--config-name=a", "seed=1"]


def test_every_combination_is_planned_in_order() -> None:
    axes = "sweep.axes={way: {exact: '', plain: 'exchange=plain'}, seed: {s0: 'seed=0', s1: 'seed=1'}}"
    planned = sweep.plan(compose([*TOY, axes, "dropout=0.1"], "node_classification_sage"))
    assert [one.name for one in planned] == ["exact/s0", "exact/s1", "plain/s0", "plain/s1"]
    assert [(one.settings.train.exchange.mode, one.settings.train.seed) for one in planned] == [
        ("exact", 0), ("exact", 1), ("plain", 0), ("plain", 1),
    ]  # fmt: skip
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
def test_a_mistake_is_found_before_the_first_run(overrides: list[str], told: str, tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match=r"another partition\.seed, seed, split\.seed; choose another sweep\.dir"):
        sweep.is_done(tmp_path, other)


@pytest.mark.parametrize("name", [path.stem for path in sorted((CONFIG_DIR / "experiment").glob("*.yaml"))])
def test_every_experiment_can_be_composed_and_its_values_planned(name: str) -> None:
    """Each value of each axis once, with the first of the others: all combinations take long to compose."""
    settings = compose([f"+experiment={name}"])
    first = {axis: dict([next(iter(values.items()))]) for axis, values in (settings.sweep.axes or {}).items()}
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
