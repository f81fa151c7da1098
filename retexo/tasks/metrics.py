"""The ranks of scores among others, and the accuracy of OGB's evaluator.

Each worker counts on its own nodes. N nodes.
"""

import torch
from torch import Tensor

from partitioning.ogb_import import import_ogb

ROUNDING_UNITS = 64
"""Scores that differ by at most so many units in the last place are equal."""


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
