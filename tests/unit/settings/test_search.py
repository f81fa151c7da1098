"""The number that a run returns to a sweeper, and the direction of its search."""

import pytest

from partitioning.errors import InputError
from retexo.errors import TrainingError
from retexo.settings.compose import compose
from retexo.settings.search import MAX_NAME, check_direction, find_objective, shorten_name

RUN = {
    "chosen": {"metric": "roc_auc"},
    "val": {"roc_auc": 0.75, "log_loss": 0.5, "accuracy": None},
    "bytes": {"total": 12, "by_kind": {"features": 7}},
}


def test_the_objective_by_name_and_by_default() -> None:
    assert find_objective(RUN, None) == 0.75
    assert find_objective(RUN, ("bytes.by_kind.features",)) == 7
    assert find_objective(RUN, ("val.log_loss", "bytes.total")) == [0.5, 12]
    assert find_objective({**RUN, "chosen": {"metric": "loss"}}, None) == 0.5
    regression = {"chosen": {"metric": "loss"}, "targets": {}, "val": {"r2": 0.25}}
    assert find_objective(regression, None) == 0.25
    assert find_objective({**RUN, "val": {"roc_auc": {"mean": 0.5, "std": 0.1}}}, None) == 0.5
    assert find_objective("report.html", None) is None
    with pytest.raises(TrainingError, match=r"val\.accuracy: has no value .* roc_auc, log_loss"):
        find_objective(RUN, ("val.accuracy",))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("val.auc", "val.roc_auc"),
        ("accuracy", "val.accuracy"),
        ("test.acuracy", "test.accuracy"),
        ("val.loss", "val.log_loss"),
        ("value", "bytes.total"),
    ],
)
def test_a_wrong_objective_is_refused_before_training(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=meant):
        compose([f"objective={name}"])


def test_links_have_another_auc() -> None:
    assert compose(["objective=val.auc", "task=link_prediction"]).objective == ("val.auc",)


@pytest.mark.parametrize(
    ("objective", "metric", "given", "needed"),
    [
        (None, "auto", "minimize", "maximize"),
        (None, "loss", "maximize", "minimize"),
        (["seconds.train"], "auto", "maximize", "minimize"),
        (["val.accuracy", "bytes.total"], "auto", ["maximize"], r"\[maximize,minimize\]"),
    ],
)
def test_optuna_is_kept_from_looking_for_the_worst_run(
    objective: list[str] | None, metric: str, given: str | list[str], needed: str
) -> None:
    with pytest.raises(InputError, match=f"hydra.sweeper.direction={needed}"):
        check_direction(objective, metric, {"direction": given})
    check_direction(objective, metric, {})  # Hydra's own sweeper has none


def test_folders_of_trials_have_short_and_different_names() -> None:
    first, second = (f"dropout=0.123456789{digit},x=a/b" for digit in (1, 2))
    assert shorten_name(first).startswith("dropout=0.1235,x=a_b-")
    assert shorten_name(first) != shorten_name(second)
    assert shorten_name("seed=1,dropout=0.5") == "seed=1,dropout=0.5"
    assert len(shorten_name("x" * 1000)) < MAX_NAME + 10
