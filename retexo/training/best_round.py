"""The best round of a layer, and when the layer ends."""

import math


class Convergence:
    """The best round so far, and whether it is long ago. Ties go to the earlier round."""

    def __init__(self, patience: int | None, min_delta: float) -> None:
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric = 0, -math.inf

    def is_better(self, metric: float) -> bool:
        return metric > self.best_metric + (self.min_delta if math.isfinite(self.best_metric) else 0)

    def improved(self, number: int, metric: float) -> bool:
        """Take note of the metric after `number` rounds; whether it is the best."""
        # The untrained parameters of round 0 are no candidate, but the first that comes is.
        if number == 0 or not self.is_better(metric):
            return False
        self.best_round, self.best_metric = number, metric
        return True

    def exhausted(self, number: int) -> bool:
        """Whether the layer ends after `number` rounds, unless these are better than all before."""
        return self.patience is not None and number - self.best_round >= self.patience
