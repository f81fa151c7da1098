"""The scores that a run reports, of any task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.classification_scores import (
    Histogram,
    calibration_rows,
    choose_offset_share,
    choose_threshold,
    class_rows,
    find_warnings,
    score_baseline,
    score_splits,
    sum_histograms,
)
from retexo.tasks.node_regression import NodeRegression, score_values
from retexo.tasks.output_heads import Smoother, choose_heads
from retexo.tasks.ranking import choose_link_heads, score_links
from retexo.tasks.task_context import TaskContext

Scores = dict[str, dict[str, float]]
"""By split, then by metric; link prediction has no training scores."""


@dataclass(frozen=True)
class RunScores:
    """What a run reports of its predictions."""

    scores: Scores
    classes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By split the precision, recall, F1 and support of each class."""
    targets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By split the MAE, RMSE, R2 and support of each target."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """Test scores without a network: of the most frequent class, or the mean of each target."""
    standard_error: dict[str, float] = field(default_factory=dict)
    """Standard errors of the test scores that come from histograms."""
    confusion: list[list[int]] = field(default_factory=list)
    """Test nodes by class and predicted class; empty for labels and many classes."""
    calibration: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By split, see calibration_rows."""
    score_bins: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By split, see summarise_bins; empty for more than two classes."""
    warnings: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return scores by split, and the other fields that are not empty, as in summary.json."""
        others = [field.name for field in fields(self) if field.name != "scores"]
        return {**self.scores, **{name: value for name in others if (value := getattr(self, name))}}


def choose_and_score(
    context: TaskContext,
    stages: Sequence[Stage],
    logits: Sequence[Tensor],
    smoother: Smoother,
) -> tuple[OutputHeads, RunScores]:
    """Choose the output heads of a trained network by validation, and score its predictions.

    Args:
        context: of this worker; all workers call it.
        stages: of the network.
        logits: [I, C] of the last stages.
        smoother: label propagation for tasks of nodes.
    """
    if context.settings.task.links:
        heads = choose_link_heads(context, stages, logits)
        return heads, RunScores(score_links(context, stages, logits, heads))
    heads, predicted = choose_heads(context, logits, smoother)
    if isinstance(context.task, NodeRegression):
        return heads, score_nodes(context, predicted, heads)
    histograms = sum_histograms(context, predicted)
    threshold = choose_threshold(context, histograms)
    heads = replace(heads, threshold=threshold, positive=context.task.positive)
    heads = replace(heads, offset_share=choose_offset_share(context, predicted, heads))
    return heads, score_nodes(context, predicted, heads, histograms)


def score_nodes(
    context: TaskContext,
    logits: Tensor,
    heads: OutputHeads,
    histograms: Mapping[str, Histogram] | None = None,
) -> RunScores:
    """Return the whole graph's scores of a task of nodes; all workers call it.

    Only the scores themselves cover training nodes; the other fields leave them out.

    Args:
        histograms: of sum_histograms; None: computed here, for classes.
    """
    if isinstance(context.task, NodeRegression):
        values = score_values(context, logits)
        return RunScores(
            values.scores,
            targets=values.targets,
            baseline=values.baseline,
            warnings=values.warnings,
        )
    split_scores, task = score_splits(context, logits, heads, histograms), context.task
    names, by_accuracy = task.class_names, heads.threshold == 0.5 and not task.multilabel
    scored = {name: counts for name, counts in split_scores.counts.items() if bool(counts.any())}
    reported = {name: counts for name, counts in scored.items() if name != "train"}
    return RunScores(
        split_scores.scores,
        {name: class_rows(counts, names) for name, counts in reported.items()},
        baseline=score_baseline(task, split_scores.counts, names),
        standard_error=split_scores.errors,
        confusion=split_scores.confusion.tolist(),
        calibration={name: calibration_rows(split_scores.by_bin[name]) for name in reported},
        score_bins=split_scores.score_bins,
        warnings=find_warnings(split_scores, names, by_accuracy=by_accuracy),
    )
