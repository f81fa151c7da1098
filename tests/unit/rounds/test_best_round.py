"""Choice of the best round, and early stopping."""

import pytest

from retexo.rounds.best_round import EarlyStopping


def run(metrics: list[float], patience: int | None, min_delta: float = 0.0) -> tuple[int, int]:
    """The best and the last round, given the metrics after 0, 1, ... rounds."""
    stopping = EarlyStopping(patience, min_delta)
    for number, metric in enumerate(metrics):
        stopping.is_best(number, metric)
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
