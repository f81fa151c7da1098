"""The metrics that choose the best round, by name, and the rule of stopping.metric=auto.

Workers send sums of counts only, once per round, in the message that carries their gradients. ROC
AUC and average precision come from histograms (retexo.tasks.score_histogram), whose edges follow
the scores from round to round.

n nodes, C classes, K counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retexo.rounds.task import RoundMetric
from retexo.tasks.metrics import BY_CLASS, average_precision, micro_f1, roc_auc
from retexo.tasks.score_histogram import count_scores, even_bin_edges, refine_edges

ROUND_BINS = 64
"""Bins of a round's histogram."""
HISTOGRAM_PASSES = 4
"""Counts after which the edges of a histogram fit scores that do not change."""
RARE_SHARE = 0.4
"""A class with a smaller share of the training nodes is rare, of two classes."""
MAJORITY_SHARE = 0.75
"""Share from which on one of several classes dominates the accuracy."""
VERY_RARE_SHARE = 0.05
"""A class with a smaller share of the training nodes needs class weights, of two classes."""
RANKING = {"roc_auc": roc_auc, "average_precision": average_precision}
Count = Callable[[Tensor, Tensor], Tensor]
"""From logits [n, C] and labels to int64 [K]."""


def choose_metric_name(class_counts: Tensor, *, multilabel: bool) -> str:
    """Return the metric of stopping.metric=auto, by the labels of the training nodes.

    Multi-label: average precision over all cells. Two classes, one below 40 %: ROC AUC. More
    classes, one from 75 % on: macro-F1. Otherwise accuracy.

    Args:
        class_counts: int64 [2, C], labelled cells with and without each class.
        multilabel: whether a node may have several classes.
    """
    if multilabel:
        return "average_precision"
    counts = class_counts[0].double()
    shares = counts / counts.sum().clamp(min=1)
    if len(shares) == 2:
        return "roc_auc" if float(shares.min()) < RARE_SHARE else "accuracy"
    return "macro_f1" if float(shares.max()) >= MAJORITY_SHARE else "accuracy"


def needs_balancing(class_counts: Tensor, *, multilabel: bool) -> bool:
    """Return whether task.class_weights=auto balances the classes.

    Two classes, one below 5 %; more classes, one from 75 % on.

    Args:
        class_counts: int64 [2, C], see choose_metric_name.
        multilabel: whether a node may have several classes.
    """
    if multilabel:
        return False
    counts = class_counts[0].double()
    shares = counts / counts.sum().clamp(min=1)
    if len(shares) == 2:
        return 0 < float(shares.min()) < VERY_RARE_SHARE
    return float(shares.max()) >= MAJORITY_SHARE


@dataclass(eq=False)
class CountMetric(RoundMetric):
    """A ratio of counts, or the negative validation loss."""

    name: str
    num_counts: int
    count: Count
    with_loss: bool
    passes: int = field(default=1, init=False)
    """How often candidates are counted to compare them."""

    def start(self) -> None:
        """Begin to count; every round counts alike."""

    def value(self, counts: Tensor, loss: float) -> float:
        """Return the metric of counts, int64 [K], summed over all workers; 0 without nodes.

        The metric `loss` is -`loss`; the others leave it out.
        """
        if self.name == "loss":
            return -loss
        if self.name == "accuracy":
            correct, total = counts.tolist()
            return float(correct / total) if total else 0.0
        if self.name == "micro_f1":
            return micro_f1(counts)
        tp, fp, fn = counts.view(3, -1).double()
        return BY_CLASS[self.name](tp, fp, fn)

    def standard_error(self, value: float, counts: Tensor, num_val: int) -> float:
        """Return about the standard error of a value over `num_val` validation nodes.

        0 for the loss.
        """
        if self.name == "loss":
            return 0.0
        size = float(num_val)
        if self.name in BY_CLASS:
            tp, _, fn = counts.view(3, -1)
            size = _effective_size(tp + fn)
        return _binomial_error(value, size)


@dataclass(eq=False)
class RankingMetric(RoundMetric):
    """ROC AUC or average precision of scores, by a histogram of 2 B counts."""

    name: str
    scores: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    """From logits and labels to scores, float [n], and whether each is positive, bool [n]."""
    with_loss: bool
    passes: int = field(default=HISTOGRAM_PASSES, init=False)
    num_counts: int = field(default=2 * ROUND_BINS, init=False)
    _edges: Tensor = field(default_factory=lambda: even_bin_edges(ROUND_BINS), init=False)
    _next_edges: Tensor = field(default_factory=lambda: even_bin_edges(ROUND_BINS), init=False)

    def start(self) -> None:
        """Begin to count, between the edges that the last value chose."""
        self._edges = self._next_edges

    def count(self, logits: Tensor, labels: Tensor) -> Tensor:
        return count_scores(*self.scores(logits, labels), self._edges).flatten()

    def value(self, counts: Tensor, loss: float) -> float:
        """Return the metric of counts, int64 [2 B], and choose the edges of the next histogram.

        0 where it is not defined, without positives for instance.
        """
        histogram = counts.view(2, -1)
        self._next_edges = refine_edges(self._edges, histogram)
        value = RANKING[self.name](histogram)
        return 0.0 if math.isnan(value) else value

    def standard_error(self, value: float, counts: Tensor, num_val: int) -> float:
        return _binomial_error(value, _effective_size(counts.view(2, -1).sum(dim=1)))

    def state(self) -> Tensor:
        return self._next_edges

    def load_state(self, saved: Tensor) -> None:
        """Load the result of `state`; ValueError if it is none."""
        if saved.shape != self._next_edges.shape or saved.dtype != torch.int64:
            raise ValueError(f"edges of a histogram: {saved.dtype} {list(saved.shape)}")
        self._next_edges = saved.clone()


NodeMetric = CountMetric | RankingMetric


def _effective_size(supports: Tensor) -> float:
    """Return the number of nodes that a mean over classes is as certain as.

    supports: int64 [C], nodes of each class; classes without any are left out. 1 without nodes.
    """
    supports = supports[supports > 0].double()
    return float(len(supports) ** 2 / (1 / supports).sum()) if len(supports) else 1.0


def _binomial_error(value: float, size: float) -> float:
    """Return the standard error of a share over `size` independent nodes."""
    return math.sqrt(max(0.0, value * (1 - value)) / size)
