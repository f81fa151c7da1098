"""Formulas of the metrics, from counts that are summed over workers.

F1 and balanced accuracy come from counts by class, ROC AUC and average precision from a histogram
of scores (retexo.tasks.score_histogram), MRR and Hits@K from ranks. Fawcett, "An introduction to
ROC analysis", 2006, has the definitions. MAE, RMSE and R2 are in NodeRegression.compute_rows, log
loss, Brier score and calibration error in classification_scores.compute_scores.

n scores, N nodes, C classes, B bins.
"""

import math

import torch
from torch import Tensor

from partitioning.datasets.ogb_import import import_ogb

ROUNDING_UNITS = 64
"""Scores that differ by at most so many units in the last place are equal."""


# --- classes ----------


def micro_f1(counts: Tensor) -> float:
    """Return F1 of true positives, false positives and false negatives, int64 [3].

    With one class per node it equals the accuracy.
    """
    tp, fp, fn = counts.tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


def macro_f1(tp: Tensor, fp: Tensor, fn: Tensor) -> float:
    """Mean F1 of the classes that occur in labels or predictions; float64 [C] each."""
    occurs = tp + fp + fn > 0
    by_class = 2 * tp[occurs] / (2 * tp + fp + fn)[occurs]
    return float(by_class.mean()) if len(by_class) else 0.0


def balanced_accuracy(tp: Tensor, fp: Tensor, fn: Tensor) -> float:
    """Mean recall of the classes that have nodes; false positives do not count."""
    occurs = tp + fn > 0
    by_class = tp[occurs] / (tp + fn)[occurs]
    return float(by_class.mean()) if len(by_class) else 0.0


BY_CLASS = {"macro_f1": macro_f1, "balanced_accuracy": balanced_accuracy}
"""The formulas that need nothing but counts by class, by name in retexo.scores.SCORES."""


def count_correct_by_ogb(name: str, predicted: Tensor, labels: Tensor) -> int:
    """Count correctly classified nodes by the evaluator of the Open Graph Benchmark.

    predicted, labels: classes, int64 [N] each.

    Each worker evaluates its own nodes, because no label leaves its owner.
    """
    if not len(labels):
        return 0
    evaluator = import_ogb().Evaluator(name)
    arrays = {"y_true": labels.cpu().numpy()[:, None], "y_pred": predicted.cpu().numpy()[:, None]}
    return round(float(evaluator.eval(arrays)["acc"]) * len(labels))


# --- histograms of scores ----------


def roc_auc(counts: Tensor) -> float:
    """Return the area under the ROC curve; scores in one bin are ties. NaN without both classes.

    counts: int64 [2, B] negatives and positives, bins of ascending scores.
    """
    negatives, positives = counts.double()
    total = positives.sum() * negatives.sum()
    if total == 0:
        return math.nan
    below = negatives.cumsum(dim=0) - negatives
    return float((positives * (below + negatives / 2)).sum() / total)


def average_precision(counts: Tensor) -> float:
    """Mean over the positives of the precision at their rank. NaN without positives.

    The p positives of a bin are taken to be spread evenly among its n negatives. With T positives
    and F negatives above the bin, the precision at the bin's positive number x is

        (T + x) / (T + F + x + n (x - 1/2) / p)

    and its sum over x = 1 ... p has a closed form with the digamma function.

    counts: int64 [2, B] negatives and positives, bins of ascending scores.
    """
    negatives, positives = counts.double().flip(1)
    if positives.sum() == 0:
        return math.nan
    true, false = positives.cumsum(0) - positives, negatives.cumsum(0) - negatives
    has_positives = positives > 0
    p, n, true, false = (
        positives[has_positives],
        negatives[has_positives],
        true[has_positives],
        false[has_positives],
    )
    slope = 1 + n / p
    offset = (true + false - n / (2 * p)) / slope
    harmonic = torch.digamma(p + 1 + offset) - torch.digamma(1 + offset)
    return float(((p + (true - offset) * harmonic) / slope).sum() / positives.sum())


# --- ranks ----------


def rank_among(own: Tensor, others: Tensor) -> Tensor:
    """Return the rank of each score of `own`, [n], among K competitors, `others` [n, K].

    The highest has rank 1; among scores that differ by rounding alone, it is the mean of best and
    worst rank.
    """
    lowest, highest = bounds_of_ties(own)
    # Floats: summing bools takes six times as long.
    is_above = torch.empty_like(others)
    num_above = torch.gt(others, highest[..., None], out=is_above).sum(dim=-1).int()
    num_tied = torch.ge(others, lowest[..., None], out=is_above).sum(dim=-1).int()
    return 1 + (num_above + num_tied) / 2


def bounds_of_ties(own: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest score that is equal to each of `own`, [...].

    Scores that differ only by rounding are ties, because a product of two rows and a product of
    matrices sum in different orders.
    """
    slack = own.abs() * (ROUNDING_UNITS * torch.finfo(own.dtype).eps)
    return own - slack, own + slack
