"""Metrics from counts that are summed over workers before they are divided.

Each worker counts on its own nodes. N nodes, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from partitioning.ogb_import import import_ogb

ROUNDING_UNITS = 64
"""Scores that differ by at most so many units in the last place are equal."""


@dataclass(frozen=True)
class Score:
    """Ratios of summed counts; NaN where there is nothing to count."""

    accuracy: float
    """Fraction of the nodes, or of the (node, label) pairs, that are correct."""
    micro_f1: float
    macro_f1: float
    """Mean over the classes that occur in the labels or in the predictions."""


def compute_score(counts: Tensor, num_nodes: int, *, multilabel: bool) -> Score:
    """The ratios of counts of `num_nodes` nodes.

    counts: int64 [3, C] true positives, false positives and false negatives of each class.
    """
    if num_nodes == 0:
        return Score(float("nan"), float("nan"), float("nan"))
    tp, fp, fn = counts.double()
    accuracy = float(tp.sum()) / num_nodes
    if multilabel:
        accuracy = 1 - float(fp.sum() + fn.sum()) / (num_nodes * counts.shape[1])
    occurs = tp + fp + fn > 0
    f1_by_class = 2 * tp[occurs] / (2 * tp + fp + fn)[occurs]
    macro_f1 = float(f1_by_class.mean()) if len(f1_by_class) else 0.0
    return Score(accuracy, micro_f1(counts.sum(dim=1)), macro_f1)


def micro_f1(counts: Tensor) -> float:
    """F1 of true positives, false positives and false negatives, int64 [3].

    With one class per node it equals the accuracy.
    """
    tp, fp, fn = counts.tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


def count_correct_by_ogb(name: str, predicted: Tensor, labels: Tensor) -> int:
    """Correctly classified nodes by the evaluator of the Open Graph Benchmark; classes, int64 [N]
    each.

    Each worker evaluates its own nodes, because no label leaves its owner.
    """
    if not len(labels):
        return 0
    evaluator = import_ogb().Evaluator(name)
    arrays = {"y_true": labels.cpu().numpy()[:, None], "y_pred": predicted.cpu().numpy()[:, None]}
    return round(float(evaluator.eval(arrays)["acc"]) * len(labels))


def rank_among(own: Tensor, others: Tensor) -> Tensor:
    """The rank of scores [n] among others [n, K], from 1: the mean of best and worst rank under
    ties."""
    return 1 + (count_above(own, others) + count_above(own, others, ties=True)) / 2


def count_above(own: Tensor, others: Tensor, *, ties: bool = False) -> Tensor:
    """How many of others [..., n, K] are above own [..., n], int32; K below 2^24.

    Scores that differ only by rounding are ties, because a product of two rows and a product of
    matrices sum in different orders. ties: whether they count.
    """
    # Floats: summing bools takes six times as long.
    is_above = torch.empty_like(others)
    slack = own.abs() * (ROUNDING_UNITS * torch.finfo(own.dtype).eps)
    if ties:
        torch.ge(others, (own - slack)[..., None], out=is_above)
    else:
        torch.gt(others, (own + slack)[..., None], out=is_above)
    return is_above.sum(dim=-1).int()
