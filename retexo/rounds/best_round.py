"""Choice of a layer's best round, and early stopping: patience and min_delta on the validation
metric.
"""

import math


class EarlyStopping:
    """Tracks the best round by a metric to maximise. Ties go to the earlier round."""

    def __init__(self, patience: int | None, min_delta: float) -> None:
        """Args:
        patience: number of rounds without improvement after which a layer ends; None: no
            early end.
        min_delta: smallest increase of the metric that counts as improvement.
        """
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric = 0, -math.inf

    def is_better(self, metric: float) -> bool:
        """Return whether the metric exceeds the best one by more than min_delta."""
        return metric > self.best_metric + (
            self.min_delta if math.isfinite(self.best_metric) else 0
        )

    def is_best(self, number: int, metric: float) -> bool:
        """Record the metric after `number` rounds; return whether it is the best so far."""
        # Round 0 has untrained parameters and never counts; round 1 always does.
        if number == 0 or not self.is_better(metric):
            return False
        self.best_round, self.best_metric = number, metric
        return True

    def out_of_patience(self, number: int) -> bool:
        """Return whether the layer ends after `number` rounds, unless this round improves."""
        return self.patience is not None and number - self.best_round >= self.patience
