"""Which round of a layer is the best, and when to stop early: patience and min_delta on the validation metric."""

import math


class EarlyStopping:
    """The best round so far, by a metric to maximise. Ties go to the earlier round."""

    def __init__(self, patience: int | None, min_delta: float) -> None:
        """patience: rounds without a better one after which a layer ends; None for no early end."""
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric = 0, -math.inf

    def is_better(self, metric: float) -> bool:
        """Whether the metric exceeds the best one by more than min_delta."""
        return metric > self.best_metric + (
            self.min_delta if math.isfinite(self.best_metric) else 0
        )

    def is_best(self, number: int, metric: float) -> bool:
        """Record the metric after `number` rounds; whether it is the best so far."""
        # The untrained parameters of round 0 are no candidate; the first round is, whatever its metric.
        if number == 0 or not self.is_better(metric):
            return False
        self.best_round, self.best_metric = number, metric
        return True

    def out_of_patience(self, number: int) -> bool:
        """Whether the layer ends after `number` rounds, unless these are better than all before."""
        return self.patience is not None and number - self.best_round >= self.patience
