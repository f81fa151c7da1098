"""What a task is: its seeds, its loss, counts that add up over workers, and the metric of their sum.

Each worker counts on its own nodes; the counts are summed over all workers before they are divided.

N nodes, C classes. tests/unit/rounds/test_task.py compares these with torchmetrics.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from partitioning.ogb_import import import_ogb


class Task(Protocol):
    """What rounds of any task ask of it; its loss and counts are its objective's (retexo.rounds.objective)."""

    num_classes: int
    """C, the width of a head."""

    @staticmethod
    def num_seeds(partition: Partition) -> list[int]:
        """What of a part trains, validates and is tested."""

    @staticmethod
    def metric(counts: Tensor) -> float:
        """What chooses the round, of the sum of counts over all workers, int64 [3]; more is better."""


class NodeClassification:
    """One class per node, or any number of labels per node; its seeds are nodes."""

    def __init__(self, num_classes: int, multilabel: bool) -> None:
        self.num_classes, self.multilabel = num_classes, multilabel

    @staticmethod
    def num_seeds(partition: Partition) -> list[int]:
        """Nodes in the masks."""
        return [
            int(mask.sum())
            for mask in (partition.train_mask, partition.val_mask, partition.test_mask)
        ]

    @staticmethod
    def metric(counts: Tensor) -> float:
        """Micro-F1; with one class per node the accuracy."""
        return micro_f1(counts)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sum over the nodes of the cross entropy, or of the mean binary cross entropy over the labels; [].

        logits: [N, C]. labels: int64 [N], or float [N, C] of multi-label nodes.
        """
        if self.multilabel:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, labels, reduction="none"
            )
            return losses.mean(dim=1).sum()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """The class of each node, int64 [N]; or whether it has each label, bool [N, C]."""
        return logits > 0 if self.multilabel else logits.argmax(dim=1)

    def counts(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """True positives, false positives and false negatives of each class, int64 [3, C] on the host."""
        if self.multilabel:
            actual = labels > 0.5
            hits = (predicted & actual, predicted & ~actual, ~predicted & actual)
            return torch.stack([hit.sum(dim=0) for hit in hits]).cpu()
        groups = (labels[predicted == labels], predicted, labels)
        correct, all_predicted, all_there = (
            torch.bincount(group, minlength=self.num_classes) for group in groups
        )
        return torch.stack([correct, all_predicted - correct, all_there - correct]).cpu()

    def totals(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Sums of the counts over the classes, int64 [3] on the host."""
        predicted = self.predictions(logits)
        if self.multilabel:
            return self.counts(predicted, labels).sum(dim=1)
        correct = int((predicted == labels).sum())  # in a third of the time
        return torch.tensor([correct, len(labels) - correct, len(labels) - correct])


@dataclass(frozen=True)
class Score:
    """The ratios of summed counts; NaN where there is nothing to count."""

    accuracy: float
    """Fraction of the nodes, or of the (node, label) pairs, that are correct."""
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
    return Score(
        accuracy, micro_f1(counts.sum(dim=1)), float(per_class.mean()) if len(per_class) else 0.0
    )


def ogb_correct(name: str, predicted: Tensor, labels: Tensor) -> int:
    """Correctly classified nodes by the Open Graph Benchmark's own evaluator; classes, int64 [N] each.

    Each worker evaluates its own nodes, because no label leaves its owner.
    """
    if not len(labels):
        return 0
    evaluator = import_ogb().Evaluator(name)
    answers = {"y_true": labels.cpu().numpy()[:, None], "y_pred": predicted.cpu().numpy()[:, None]}
    return round(float(evaluator.eval(answers)["acc"]) * len(labels))


def micro_f1(counts: Tensor) -> float:
    """F1 of true positives, false positives and false negatives, int64 [3]; the accuracy with one class per node."""
    tp, fp, fn = counts.tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0
