"""Node classification: the loss, the predictions, and the scores of the whole graph.

A node has one class, or any number of labels. N nodes, C classes.
"""

from dataclasses import replace

import torch
from torch import Tensor

from partitioning.directory.partition import Partition
from retexo.comm.collectives import ReduceInput
from retexo.comm.traffic_meter import MessageTag
from retexo.rounds.graph_info import count_nodes_in_split
from retexo.tasks.metrics import Score, compute_score, count_correct_by_ogb, micro_f1
from retexo.tasks.task_context import TaskContext


class NodeClassification:
    """A Task whose seeds are nodes."""

    def __init__(self, num_classes: int, multilabel: bool) -> None:
        self.num_classes, self.multilabel = num_classes, multilabel

    @staticmethod
    def count_seeds(partition: Partition) -> list[int]:
        """Nodes in each split."""
        return count_nodes_in_split(partition)

    @staticmethod
    def metric(counts: Tensor) -> float:
        """Micro-F1; with one class per node the accuracy."""
        return micro_f1(counts)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The sum of the nodes' losses, [].

        The loss of a node is the cross-entropy, or the mean over its labels of the binary
        cross-entropy. logits: [N, C]. labels: int64 [N], or float [N, C] for multi-label nodes.
        """
        if self.multilabel:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, labels, reduction="none"
            )
            return losses.mean(dim=1).sum()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

    def predict(self, logits: Tensor) -> Tensor:
        """The class of each node, int64 [N]; or whether it has each label, bool [N, C]."""
        return logits > 0 if self.multilabel else logits.argmax(dim=1)

    def count_by_class(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """True positives, false positives and false negatives of each class, int64 [3, C] on the
        host."""
        if self.multilabel:
            actual = labels > 0.5
            hits = (predicted & actual, predicted & ~actual, ~predicted & actual)
            return torch.stack([hit.sum(dim=0) for hit in hits]).cpu()
        correct, all_predicted, all_actual = (
            torch.bincount(classes, minlength=self.num_classes)
            for classes in (labels[predicted == labels], predicted, labels)
        )
        return torch.stack([correct, all_predicted - correct, all_actual - correct]).cpu()

    def count(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The same counts summed over the classes, int64 [3] on the host."""
        predicted = self.predict(logits)
        if self.multilabel:
            return self.count_by_class(predicted, labels).sum(dim=1)
        # In a third of the time of count_by_class.
        correct = int((predicted == labels).sum())
        return torch.tensor([correct, len(labels) - correct, len(labels) - correct])


def score_splits(context: TaskContext, logits: Tensor) -> dict[str, Score]:
    """The scores of the whole graph's training, validation and test nodes; all workers call it.

    The test accuracy of an OGB graph is that of OGB's evaluator. logits: [I, C] of this worker's
    nodes.
    """
    task, partition, info = context.task, context.partition, context.graph_info
    predicted = task.predict(logits)
    masks = {"train": partition.train_mask, "val": partition.val_mask, "test": partition.test_mask}
    counts = torch.stack(
        [task.count_by_class(predicted[mask], partition.labels[mask]) for mask in masks.values()]
    )
    context.comm.all_reduce([ReduceInput(counts.view(-1))], MessageTag("metrics"))
    sizes = info.num_train, info.num_val, info.num_test
    scores = {
        name: compute_score(count, size, multilabel=task.multilabel)
        for name, count, size in zip(masks, counts, sizes, strict=True)
    }
    if info.ogb_name is not None:
        mask = partition.test_mask
        by_ogb = count_correct_by_ogb(info.ogb_name, predicted[mask], partition.labels[mask])
        correct = torch.tensor([by_ogb])
        context.comm.all_reduce([ReduceInput(correct)], MessageTag("metrics"))
        scores["test"] = replace(scores["test"], accuracy=int(correct) / max(1, info.num_test))
    return scores
