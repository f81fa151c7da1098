"""Counts in, ratios out: every worker counts on its own nodes, the counts are added up, and divided last.

N nodes, C classes. tests/unit/test_metrics.py holds these against torchmetrics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from partitioning.ogb_import import import_ogb

DIGIT = 4096
"""Counts travel as two digits of this base: a float32 holds integers up to 2^24 only."""


class NodeClassification:
    """Loss and counts of one task: a class a node, or any number of labels a node."""

    def __init__(self, num_classes: int, multilabel: bool) -> None:
        self.num_classes, self.multilabel = num_classes, multilabel

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum over the nodes of the cross entropy, or of the mean binary cross entropy over the labels; [] ."""
        if self.multilabel:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
            return losses.mean(dim=1).sum()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    def counts(self, logits: Tensor, labels: Tensor) -> Tensor:
        """True positives, false positives and false negatives of each class; int64 [3, C]."""
        if self.multilabel:
            predicted, actual = logits > 0, labels > 0.5
            hits = (predicted & actual, predicted & ~actual, ~predicted & actual)
            return torch.stack([hit.sum(dim=0) for hit in hits]).cpu()
        predicted = logits.argmax(dim=1)
        hit = predicted == labels
        groups = (labels[hit], predicted[~hit], labels[~hit])
        return torch.stack([torch.bincount(group, minlength=self.num_classes) for group in groups]).cpu()


@dataclass(frozen=True)
class Score:
    """The ratios of summed counts; NaN where there is nothing to count."""

    accuracy: float
    """Share of the nodes, or of the (node, label) pairs, that are right."""
    micro_f1: float
    macro_f1: float
    """Mean over the classes that occur, in the labels or in the predictions."""


def score(counts: Tensor, num_nodes: int, multilabel: bool) -> Score:
    """Ratios of the counts int64 [3, C] of `num_nodes` nodes."""
    if num_nodes == 0:
        return Score(float("nan"), float("nan"), float("nan"))
    tp, fp, fn = counts.double()
    pairs = num_nodes * counts.shape[1]
    accuracy = 1 - float(fp.sum() + fn.sum()) / pairs if multilabel else float(tp.sum()) / num_nodes
    occurs = tp + fp + fn > 0
    per_class = 2 * tp[occurs] / (2 * tp + fp + fn)[occurs]
    return Score(accuracy, micro_f1(counts.sum(dim=1)), float(per_class.mean()) if len(per_class) else 0.0)


def ogb_correct(name: str, logits: Tensor, labels: Tensor) -> int:
    """Nodes that are right by the Open Graph Benchmark's own evaluator; logits [N, C], labels [N].

    Each worker asks it about its own nodes, because no label leaves its owner.
    """
    if not len(labels):
        return 0
    evaluator = import_ogb().Evaluator(name)
    answers = {"y_true": labels.cpu().numpy()[:, None], "y_pred": logits.argmax(dim=1).cpu().numpy()[:, None]}
    return round(float(evaluator.eval(answers)["acc"]) * len(labels))


def micro_f1(totals: Tensor) -> float:
    """F1 of true positives, false positives and false negatives [3]; with a class a node it is the accuracy."""
    tp, fp, fn = totals.tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0


def to_digits(counts: Tensor, dtype: torch.dtype) -> Tensor:
    """Counts [K] as floats [2 K] that can be added up exactly over up to 4,096 workers."""
    return torch.cat((counts // DIGIT, counts % DIGIT)).to(dtype)


def from_digits(digits: Tensor) -> Tensor:
    """The sum of counts, int64 [K], from the sum of their digits [2 K]."""
    high, low = digits.double().round().to(torch.int64).cpu().chunk(2)
    return high * DIGIT + low
