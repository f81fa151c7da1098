"""Choice of a layer's best round, and early stopping.

The best round has the highest validation metric, and among equals the least validation loss.
Patience starts again when the metric or the loss improves.
"""

import math

LEAST_DECREASE = 1e-3
"""Share by which the validation loss has to fall to count as an improvement."""
STATE = ("best_round", "best_metric", "best_loss", "last_improvement", "least_loss")


class EarlyStopping:
    """Tracks the best round by a metric to maximise.

    A round replaces the best one if its metric is higher by more than min_delta, or if its metric
    is not lower and its loss is lower.
    """

    def __init__(
        self, patience: int | None, min_delta: float, *, starts_trained: bool = False
    ) -> None:
        """Start before the first round.

        Args:
            patience: number of rounds without improvement after which a layer ends; None: no
                early end.
            min_delta: smallest increase of the metric that counts as improvement.
            starts_trained: whether the parameters before the first round may be the best ones;
                they count as round 0.
        """
        self.first_round = 0 if starts_trained else 1
        self.patience, self.min_delta = patience, min_delta
        self.best_round, self.best_metric, self.best_loss = 0, -math.inf, math.inf
        """Number, metric and loss of the best round."""
        self.last_improvement, self.least_loss = 0, math.inf
        """The round with the last improvement, and the least loss that counted as one."""

    def improves(self, metric: float, loss: float) -> bool:
        """Return whether patience starts again. loss: NaN where it is not used."""
        return self._is_better(metric) or self._loss_falls(loss)

    def record(self, number: int, metric: float, loss: float) -> bool:
        """Record the metric and the loss after `number` rounds; NaN is no loss.

        Return whether this round is now the best: its metric is higher by more than min_delta, or
        it is not lower and the loss is. Rounds before `first_round` are not recorded: False.
        """
        if number < self.first_round:
            return False
        if self.improves(metric, loss):
            self.last_improvement = number
        if self._loss_falls(loss):
            self.least_loss = loss
        is_best = self._is_better(metric) or (metric >= self.best_metric and loss < self.best_loss)
        if is_best:
            self.best_round, self.best_metric, self.best_loss = number, metric, loss
        return is_best

    def out_of_patience(self, number: int) -> bool:
        """Return whether the layer ends after `number` rounds, unless this round improves."""
        return self.patience is not None and number - self.last_improvement >= self.patience

    def _is_better(self, metric: float) -> bool:
        """Return whether the metric exceeds the best one by more than min_delta."""
        least = self.min_delta if math.isfinite(self.best_metric) else 0
        return metric > self.best_metric + least

    def _loss_falls(self, loss: float) -> bool:
        """Return whether a loss is below the lowest one by more than the share LEAST_DECREASE."""
        if math.isinf(self.least_loss):
            return loss < math.inf
        return loss < self.least_loss - LEAST_DECREASE * abs(self.least_loss)

    def state_dict(self) -> dict[str, float]:
        """Return the fields that rounds change."""
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        """Load `state_dict`; KeyError, TypeError or ValueError if it is none."""
        for name in STATE:
            kind = int if name in ("best_round", "last_improvement") else float
            setattr(self, name, kind(saved[name]))
