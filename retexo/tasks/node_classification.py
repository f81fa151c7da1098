"""Node classification: class weights, the loss, the predictions, and counts by class.

A node has one class, or any number of labels, of which some may be unknown (NaN). N nodes, C
classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional

from partitioning.directory.partition import Partition
from partitioning.errors import InputError
from retexo.comm.collectives import Communicator, ReduceInput
from retexo.comm.traffic_meter import METRICS
from retexo.models.stage import OutputHeads
from retexo.rounds.graph_info import GraphInfo
from retexo.scores import OF_NODES
from retexo.settings.objective_settings import TaskSettings
from retexo.settings.run_settings import TrainSettings
from retexo.tasks.round_metrics import (
    RANKING,
    CountMetric,
    NodeMetric,
    RankingMetric,
    choose_metric_name,
    needs_balancing,
)


@dataclass(frozen=True, eq=False)
class NodeClassification:
    """A Task whose seeds are nodes."""

    num_classes: int
    multilabel: bool
    metric_name: str = "accuracy"
    """What stopping looks at."""
    with_loss: bool = True
    """Whether the validation loss breaks ties and restarts patience."""
    weights: Tensor | None = None
    """[2, C] the weight of each class in the loss, where a node has it and where it does not; of
    one class per node only the first row counts. None: all 1."""
    loss_name: str = "cross_entropy"
    focal_gamma: float = 2.0
    """The exponent, which its authors found best."""
    positive: int = 1
    """The one of two classes whose ranking is scored."""
    threshold: float = 0.5
    """Probability from which on a node is predicted to have a label, or the positive class."""
    bias: Tensor | None = None
    """[C] added to the logits where the most probable of more than two classes is predicted."""
    class_names: Sequence[Any] = ()
    """[C], or empty for 0 ... C-1."""
    has_temperature = True
    """Whether logits may be divided by a temperature."""

    @classmethod
    def of(
        cls,
        settings: TrainSettings,
        partition: Partition,
        info: GraphInfo,
        comm: Communicator,
        class_names: Sequence[Any] = (),
    ) -> Self:
        """Return the task of a run; all workers call it.

        It sums the labels by class and split over all workers, unless nothing depends on them.

        Raises:
            InputError: task.class_weights or stopping.metric does not fit the classes.
        """
        task, metric_name = settings.task, settings.stopping.metric
        check_objective(settings, info.num_classes, multilabel=info.multilabel)
        task_made = cls(
            info.num_classes,
            info.multilabel,
            metric_name,
            settings.stopping.use_loss or metric_name == "loss",
            loss_name=task.loss,
            class_names=class_names,
        )
        by_fixed_rule = metric_name in ("accuracy", "micro_f1", "loss") and not task_made.is_binary
        if by_fixed_rule and task.class_weights == "none":
            return task_made
        counts = task_made.count_labels(partition)
        comm.all_reduce([ReduceInput(counts.view(-1))], METRICS)
        if metric_name == "auto":
            metric_name = choose_metric_name(counts[0], multilabel=info.multilabel)
            if metric_name in RANKING and info.num_val:
                by_value = counts[1].sum(dim=1) if info.multilabel else counts[1, 0]
                if not bool(by_value.all()):  # no positive, or no negative, to rank
                    metric_name = "loss"
        return replace(
            task_made,
            metric_name=metric_name,
            weights=_make_weights(task, counts[0], info),
            positive=_choose_positive(counts[0], class_names) if task_made.is_binary else 1,
        )

    def with_choices(self, heads: OutputHeads) -> Self:
        """Return the task with a trained model's decisions: threshold, positive class, bias."""
        bias = None
        if heads.offset_share:
            bias = torch.tensor(heads.offsets) * (heads.offset_share / heads.temperature)
        return replace(self, threshold=heads.threshold, positive=heads.positive, bias=bias)

    def make_targets(self, labels: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the labels as the loss reads them."""
        return labels.to(dtype) if self.multilabel else labels

    def choices(self, heads: OutputHeads) -> dict[str, Any]:
        """Return what summary.json says about validation: the metric, and what it chose."""
        chosen = {"metric": self.metric_name, "temperature": heads.temperature}
        if heads.slopes:
            chosen |= {"slopes": heads.slopes, "biases": heads.biases}
        chosen |= {"heads": heads.stages, "smoothing_alpha": heads.alpha}
        if self.weights is not None:
            having, lacking = self.weights.tolist()
            chosen["class_weights"] = [having, lacking] if self.multilabel else having
        if heads.offset_share:
            chosen["offset_share"] = heads.offset_share
        if self.has_ranking:
            chosen["threshold"] = heads.threshold
        if self.is_binary:
            names = self.class_names
            chosen["positive_class"] = names[heads.positive] if names else heads.positive
        return chosen

    def describe(self) -> dict[str, Any]:
        """Return the task's fields of model.json in a checkpoint."""
        return {"multilabel": self.multilabel}

    def count_labels(self, partition: Partition) -> Tensor:
        """Count this worker's labelled nodes, in and not in each class, int64 [3, 2, C] by split.

        The splits are train, val and test.
        """
        masks = (partition.train_mask, partition.val_mask, partition.test_mask)
        return torch.stack([self._count_labels(partition.labels[mask]) for mask in masks])

    def _count_labels(self, labels: Tensor) -> Tensor:
        """Count labels in and not in each class, int64 [2, C]."""
        if self.multilabel:
            return torch.stack(((labels > 0.5).sum(dim=0), (labels <= 0.5).sum(dim=0)))
        counts = torch.bincount(labels, minlength=self.num_classes)
        return torch.stack((counts, len(labels) - counts))

    @property
    def is_binary(self) -> bool:
        """Whether a node has one of two classes."""
        return self.num_classes == 2 and not self.multilabel

    @property
    def has_ranking(self) -> bool:
        """Whether there are scores for ROC AUC: of two classes, or of labels."""
        return self.is_binary or self.multilabel

    @property
    def offsets(self) -> tuple[float, ...]:
        """Return the logarithms of the class weights, [C]; empty without weights.

        A network that fits the data adds them to its logits.
        """
        if self.weights is None:
            return ()
        having, lacking = self.weights.double().log()
        return tuple((having - lacking if self.multilabel else having).tolist())

    @property
    def unweighted(self) -> Self:
        """Return the task with plain cross-entropy as loss."""
        return replace(self, weights=None, loss_name="cross_entropy")

    def make_round_metric(self) -> NodeMetric:
        """Return the metric that chooses the best round of a layer."""
        name = self.metric_name
        if name in RANKING:
            return RankingMetric(name, self.scores, self.with_loss)
        sizes = {"loss": 0, "accuracy": 2, "micro_f1": 3}
        return CountMetric(
            name,
            sizes.get(name, 3 * self.num_classes),
            partial(self.count, name),
            self.with_loss,
        )

    # --- loss ----------

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the nodes' losses, [].

        The loss of a node is the cross-entropy (or focal loss: Lin et al., ICCV 2017, equation 5)
        times the weight of its class; of a multi-label node the mean over its C labels, where the
        loss of an unknown label is 0.

        Args:
            logits: [N, C].
            labels: int64 [N], or float [N, C] for multi-label nodes, NaN where unknown.
        """
        if self.multilabel:
            return self._label_losses(logits, labels).sum() / self.num_classes
        weight = None if self.weights is None else self.weights[0].to(logits)
        if self.loss_name == "cross_entropy":
            return functional.cross_entropy(logits, labels, weight, reduction="sum")
        losses = functional.cross_entropy(logits, labels, weight, reduction="none")
        probability = logits.softmax(dim=1).gather(1, labels[:, None])[:, 0]
        return ((1 - probability) ** self.focal_gamma * losses).sum()

    def _label_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each label, [N, C]; 0 where it is unknown."""
        known = ~labels.isnan()
        actual = torch.where(known, labels, 0)
        losses = functional.binary_cross_entropy_with_logits(logits, actual, reduction="none")
        if self.loss_name == "focal":
            probability = torch.sigmoid(torch.where(actual > 0.5, logits, -logits))
            losses = (1 - probability) ** self.focal_gamma * losses
        if self.weights is not None:
            having, lacking = self.weights.to(logits)
            losses = losses * torch.where(actual > 0.5, having, lacking)
        return torch.where(known, losses, 0)

    # --- predictions and counts ----------

    def predict(self, logits: Tensor) -> Tensor:
        """Return the class of each node, int64 [N]; or whether it has each label, bool [N, C].

        A probability equal to the threshold suffices, but not for labels at 0.5.
        """
        cut = math.log(self.threshold / (1 - self.threshold))
        if self.multilabel:
            return logits >= cut if cut else logits > 0
        if not self.is_binary or not cut:
            return (logits if self.bias is None else logits + self.bias.to(logits)).argmax(dim=1)
        return torch.where(self._margin(logits) >= cut, self.positive, 1 - self.positive)

    def scores(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ROC AUC ranks: scores, float [n], and whether each is positive, bool [n].

        With two classes a score is the logit of the positive class, `self.positive`, less that of
        the other. Multi-label nodes have a score for each known label.
        """
        if self.multilabel:
            known = ~labels.isnan()
            return logits[known], labels[known] > 0.5
        return self._margin(logits), labels == self.positive

    def _margin(self, logits: Tensor) -> Tensor:
        """Return the difference of the logits of the positive and the negative class, [n]."""
        return logits[:, self.positive] - logits[:, 1 - self.positive]

    def count_by_class(self, predicted: Tensor, labels: Tensor) -> Tensor:
        """Count true and false positives and negatives of each class, int64 [4, C] on the host.

        The order is true positives, false positives, false negatives, true negatives.
        """
        if self.multilabel:
            has, lacks = labels > 0.5, labels <= 0.5
            hits = (predicted & has, predicted & lacks, ~predicted & has, ~predicted & lacks)
            return torch.stack([hit.sum(dim=0) for hit in hits]).cpu()
        correct, all_predicted, all_actual = (
            torch.bincount(classes, minlength=self.num_classes)
            for classes in (labels[predicted == labels], predicted, labels)
        )
        false, missed = all_predicted - correct, all_actual - correct
        others = len(labels) - correct - false - missed
        return torch.stack([correct, false, missed, others]).cpu()

    def count(self, name: str, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the counts of a CountMetric, int64 [K] on the host.

        accuracy: correct ones and all, [2]; micro_f1: true positives, false positives and false
        negatives, [3]; loss: none; others: these by class, [3 C].
        """
        if name == "loss":
            return torch.zeros(0, dtype=torch.int64)
        predicted = self.predict(logits)
        if not self.multilabel and name in ("accuracy", "micro_f1"):
            # In a third of the time of count_by_class.
            correct, total = int((predicted == labels).sum()), len(labels)
            return torch.tensor([correct, total] + [total - correct] * (name == "micro_f1"))
        counts = self.count_by_class(predicted, labels)
        if name == "accuracy":
            return torch.stack((counts[0].sum() + counts[3].sum(), counts.sum()))
        return counts[:3].sum(dim=1) if name == "micro_f1" else counts[:3].flatten()


def check_objective(settings: TrainSettings, num_classes: int, *, multilabel: bool) -> None:
    """Raise InputError for a metric or class weights that do not fit the number of classes."""
    metric, weights = settings.stopping.metric, settings.task.class_weights
    if metric in RANKING and not NodeClassification(num_classes, multilabel).has_ranking:
        raise InputError(
            f"stopping.metric={metric}: the graph has {num_classes} classes; it needs two"
            " classes or multi-label nodes, choose one of"
            f" {', '.join(name for name in OF_NODES if name not in RANKING)}, loss"
        )
    if not isinstance(weights, str) and len(weights) != num_classes:
        raise InputError(
            f"task.class_weights={list(weights)}: has {len(weights)} entries, the graph has"
            f" {num_classes} classes; give one weight per class, auto, none or balanced"
        )


def _make_weights(task: TaskSettings, class_counts: Tensor, info: GraphInfo) -> Tensor | None:
    """Return NodeClassification.weights by task.class_weights, float32 [2, C]; None: all are 1.

    The mean weight of the training labels is 1. `balanced` gives each class the same total, as in
    scikit-learn: all labels / (2 or C, times the labels of the class).

    Args:
        task: the settings.
        class_counts: int64 [2, C] of the training nodes.
        info: of the graph.
    """
    kind = task.class_weights
    if kind == "none" or (
        kind == "auto" and not needs_balancing(class_counts, multilabel=info.multilabel)
    ):
        return None
    # Of one class per node only the first row counts.
    counts = class_counts.double() if info.multilabel else class_counts[:1].double()
    if isinstance(kind, str):
        axis = 0 if info.multilabel else 1  # of the values of a label, or of the classes
        total = counts.sum(dim=axis, keepdim=True)
        weights = total / (counts.shape[axis] * counts.clamp(min=1))
    else:
        class_weights = torch.tensor(kind, dtype=torch.float64)
        weights = torch.stack((class_weights, torch.ones_like(class_weights)))[: len(counts)]
    weights = weights * counts.sum() / (weights * counts).sum().clamp(min=1e-12)
    return weights.expand(2, -1).float()


def _choose_positive(class_counts: Tensor, class_names: Sequence[Any]) -> int:
    """Return the positive class of two: the rarer in training (or 0) if named, else 1."""
    if class_names and all(isinstance(name, str) for name in class_names):
        return int(class_counts[0, 0] > class_counts[0, 1])
    return 1
