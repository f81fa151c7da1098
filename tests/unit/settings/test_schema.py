"""What follows from the definitions of settings: page, help, defaults, comparisons, names.

Also the number that a run returns to a sweeper.
"""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from partitioning.errors import InputError
from partitioning.setting_fields import Checked, at_least, group, one_of, setting
from retexo.errors import TrainingError
from retexo.settings.aliases import ALIASES, rename_override
from retexo.settings.compose import compose
from retexo.settings.flatten import flatten
from retexo.settings.schema import DEFINED, keys, normal_form, usual_values, with_current_names
from retexo.settings.search import MAX_NAME, check_direction, find_objective, shorten_name
from retexo.settings.table import help_text


@group("example")
class Example(Checked):
    mode: str = setting("a", "a mode", one_of("a", "b"), is_group=True)
    sizes: Any = setting([1], "sizes", at_least(1), list_of=int)


def test_the_page_of_settings_is_that_of_the_definitions() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    page = runpy.run_path(str(ROOT / "scripts" / "settings_table.py"))["markdown"]()
    assert text == page, "write it anew: python scripts/settings_table.py > docs/settings.md"
    assert "|`model.aggregator`|`mean`|`mean`, `pool`|" in text


def test_help_has_every_setting_with_its_default() -> None:
    text = help_text()
    assert [
        setting_of_run.help
        for setting_of_run in DEFINED.values()
        if setting_of_run.help.split()[0] not in text
    ] == []
    for line in (
        "  num_partitions=4  ",
        "  stopping.patience=20  ",
        "  model=gcn  ",
        "  split.seed=${seed}  ",
    ):
        assert line in text


def test_a_run_has_the_defaults_of_the_definitions() -> None:
    resolved = flatten(compose().stored)
    usual = usual_values()
    assert resolved == {
        name: resolved["seed"] if value == "${seed}" else value for name, value in usual.items()
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "c"}, "example=c: choose one of a, b"),
        ({"sizes": (1, 0)}, "example.sizes=0: must be at least 1"),
        ({"sizes": [True]}, r"example.sizes=\[True\]: each entry must be an integer"),
    ],
)
def test_checks_name_the_setting_as_users_do(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Example(**fields)


def test_of_places_nothing_is_shared_between_nodes() -> None:
    shared = flatten(compose().stored, without=keys(lambda setting: setting.per_node))
    groups = {name.partition(".")[0] for name in shared}
    assert not {"cluster", "distributed", "checkpoint", "node_rank", "resume"} & groups
    assert "dataset_dir" not in groups
    assert {"model", "split", "num_rounds", "seed", "device", "predict"} <= groups
    json.dumps(shared)


def test_a_setting_that_a_stored_run_does_not_have() -> None:
    known = normal_form({"seed": 3, "num_rounds": [30, 30], "dropout": 0.5})
    assert (known["hidden_dim"], known["split.seed"], known["num_rounds"]) == (256, 3, 30)
    assert (known["model.norm"], known["model.input_dropout"]) == ("layer", None)
    assert "no.such" not in known


@pytest.mark.parametrize(
    ("stored", "current"),
    [
        ({"task.dim": 64, "model.num_bases": 8, "max_grad_norm": None}, {}),
        ({"task.dim": 32, "scheduler_rounds": 3}, {"task.dim": 32, "scheduler_rounds": 3}),
        ({"model.output": "aggregate"}, {}),
        ({"model.output": "activation"}, {"model.output": "activation"}),
        (
            {"model.output": "activation", "trainer.name": "full_graph"},
            {"trainer.name": "full_graph"},
        ),
        (
            {"model.output": "activation", "model.input_skip": False},
            {"model.input_skip": False},
        ),
        (
            {"task.name": "node_regression", "labels.of": "edges"},
            {"task.name": "edge_regression"},
        ),
        ({"task.name": "node_regression", "labels.of": "nodes"}, {"task.name": "node_regression"}),
        ({"labels.of": "edges"}, {"labels.of": "edges"}),  # of a partition directory
        (
            {"remote.cache": "data/remote", "distributed.rejoin_timeout": 9, "temperature": "auto"},
            {},
        ),
        ({"split.kind": "fraction", "split.stratify": False}, {"split.kind": "fraction"}),
        ({"split.kind": "fraction", "split.stratify": True}, {"split.kind": "stratified"}),
        ({"split": "fraction", "split.stratify": True}, {"split": "stratified"}),
    ],
)
def test_stored_settings_of_earlier_versions(
    stored: dict[str, Any], current: dict[str, Any]
) -> None:
    assert with_current_names(stored) == current


def test_every_alias_names_a_setting_and_is_none_itself() -> None:
    names = {override.partition("=")[0] for override in ALIASES.values()}
    assert names <= {*DEFINED, *(definition.name for definition in DEFINED.values())}
    assert not (ALIASES.keys() - {"model.name"}) & DEFINED.keys()


def test_aliases_on_the_command_line() -> None:
    overrides = ("lr=[0.1,0.2]", "model.own_half=false", "patience=7")
    train = compose(overrides)
    assert train.learning_rate == (0.1, 0.2)
    assert (train.model.self_weight, train.stopping.patience) == (False, 7)
    with pytest.raises(InputError, match=r"learning_rate=-1\.0: must be at least 0"):
        compose(["lr=-1.0"])


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("patience=1,2", "stopping.patience=1,2"),
        ("~lr", "~learning_rate"),
        ("exchange=exact,plain", "exchange=fp32,plain"),
        ("task._target_=retexo.metrics.LinkPrediction", "task=link_prediction"),
    ],
)
def test_former_names_and_values_are_renamed(former: str, current: str) -> None:
    assert rename_override(former) == current


def test_a_configuration_file_has_the_current_names(tmp_path: Path) -> None:
    text = "defaults: [node_classification, _self_]\nlr: 0.5\n"
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(InputError, match=r"^lr: no such setting; did you mean learning_rate\?"):
        compose([], "own", str(tmp_path))


RUN = {
    "chosen": {"metric": "roc_auc"},
    "val": {"roc_auc": 0.75, "log_loss": 0.5, "accuracy": None},
    "bytes": {"total": 12, "by_kind": {"features": 7}},
}


@pytest.mark.parametrize(
    ("results", "objective", "value"),
    [
        (RUN, None, 0.75),
        (RUN, ("bytes.by_kind.features",), 7),
        (RUN, ("val.log_loss", "bytes.total"), [0.5, 12]),
        ({**RUN, "chosen": {"metric": "loss"}}, None, 0.5),
        ({"chosen": {"metric": "loss"}, "targets": {}, "val": {"r2": 0.25}}, None, 0.25),
        ({**RUN, "val": {"roc_auc": {"mean": 0.5, "std": 0.1}}}, None, 0.5),
        ({"chosen": {"metric": "loss"}, "val": {"r2": {"mean": 0.5, "std": 0.1}}}, None, 0.5),
        ("report.html", None, None),
    ],
)
def test_the_objective_by_name_and_by_default(
    results: Any, objective: tuple[str, ...] | None, value: Any
) -> None:
    assert find_objective(results, objective) == value


def test_an_objective_without_a_value_is_named() -> None:
    with pytest.raises(
        TrainingError, match=r"val\.accuracy: has no value .* val.roc_auc, val.log_loss"
    ):
        find_objective(RUN, ("val.accuracy",))


def test_links_have_another_auc() -> None:
    assert compose(["objective=val.auc", "task=link_prediction"]).objective == ("val.auc",)


@pytest.mark.parametrize(
    ("objective", "metric", "regression", "direction", "needed"),
    [
        (None, "auto", False, "minimize", "maximize"),
        (None, "loss", False, "maximize", "minimize"),
        (None, "loss", True, "minimize", "maximize"),
        (["seconds.train"], "auto", False, "maximize", "minimize"),
        (["val.accuracy", "bytes.total"], "auto", False, ["maximize"], r"\[maximize,minimize\]"),
    ],
)
def test_optuna_is_kept_from_looking_for_the_worst_run(
    objective: list[str] | None,
    metric: str,
    regression: bool,
    direction: str | list[str],
    needed: str,
) -> None:
    with pytest.raises(InputError, match=f"hydra.sweeper.direction={needed}"):
        check_direction(objective, metric, {"direction": direction}, regression=regression)
    check_direction(objective, metric, {})  # Hydra's own sweeper has none


def test_folders_of_trials_have_short_and_different_names() -> None:
    first, second = (f"dropout=0.123456789{digit},x=a/b" for digit in (1, 2))
    assert shorten_name(first).startswith("dropout=0.1235,x=a_b-")
    assert shorten_name(first) != shorten_name(second)
    assert shorten_name("seed=1,dropout=0.5") == "seed=1,dropout=0.5"
    assert len(shorten_name("x" * 1000)) < MAX_NAME + 10
