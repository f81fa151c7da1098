"""Choice of the best round, and early stopping."""

import math

import pytest

from retexo.rounds.best_round import EarlyStopping


def run(metrics: list[float], patience: int | None, min_delta: float = 0.0) -> tuple[int, int]:
    """The best and the last round, given the metrics after 0, 1, ... rounds."""
    stopping = EarlyStopping(patience, min_delta)
    for number, metric in enumerate(metrics):
        stopping.is_best(number, metric, math.nan)
        if stopping.out_of_patience(number):
            return stopping.best_round, number
    return stopping.best_round, len(metrics) - 1


@pytest.mark.parametrize(
    ("metrics", "patience", "min_delta", "best", "last"),
    [
        ([0.1, 0.5, 0.5, 0.5], 2, 0.0, 1, 3),  # ties go to the earlier round
        ([0.1, 0.2, 0.3, 0.2, 0.1], 2, 0.0, 2, 4),
        ([0.1, 0.2, 0.1, 0.3, 0.1, 0.1], 2, 0.0, 3, 5),  # patience begins anew
        ([0.9, 0.1, 0.1], 2, 0.0, 1, 2),  # the untrained parameters are no candidate
        ([0.0, 0.0, 0.0, 0.0], 3, 0.0, 1, 3),  # but the first round is, whatever its metric
        (
            [0.0, 0.50, 0.55, 0.59, 0.60],
            None,
            0.1,
            1,
            4,
        ),  # min_delta has to be passed, not reached in small steps
        ([0.0, 0.50, 0.55, 0.61], None, 0.1, 3, 3),
        ([0.0, 0.25, 0.5], None, 0.25, 1, 2),  # exactly min_delta is not more
        ([0.0, 0.05, 0.0], 9, 0.1, 1, 2),  # the first round needs no min_delta
        ([0.1, *[0.3] * 50], None, 0.0, 1, 50),  # no patience: never
        ([0.1, 0.2], 1, 0.0, 1, 1),
    ],
)
def test_early_stopping(
    metrics: list[float], patience: int | None, min_delta: float, best: int, last: int
) -> None:
    assert run(metrics, patience, min_delta) == (best, last)


@pytest.mark.parametrize(
    ("losses", "best", "last"),
    [
        ([9.0, 3.0, 2.0, 1.0, 1.0, 1.0], 3, 5),  # the loss decides between equal metrics
        ([9.0, 1.0, 2.0, 3.0], 1, 3),
        ([9.0, 1.0, 0.9995, 0.999, 0.9985], 3, 3),  # a fall below LEAST_DECREASE restarts nothing
    ],
)
def test_the_loss_breaks_ties_and_restarts_patience(
    losses: list[float], best: int, last: int
) -> None:
    stopping = EarlyStopping(2, 0.0)
    for number, loss in enumerate(losses):
        stopping.is_best(number, 0.5, loss)
        if stopping.out_of_patience(number):
            break
    assert (stopping.best_round, number) == (best, last)


def test_a_lower_loss_keeps_training_on_though_the_metric_falls() -> None:
    stopping = EarlyStopping(2, 0.0)
    for number, (metric, loss) in enumerate([(0.0, 9.0), (0.9, 3.0), (0.8, 2.0), (0.7, 1.0)]):
        stopping.is_best(number, metric, loss)
    assert (stopping.best_round, stopping.last_improvement) == (1, 3)
    again = EarlyStopping(2, 0.0)
    again.load_state_dict(stopping.state_dict())
    assert again.state_dict() == stopping.state_dict()
    assert not again.out_of_patience(4)
    assert again.out_of_patience(5)
