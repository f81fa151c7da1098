"""Choice of a trained network's output heads, and its scores, for any task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.classification_scores import (
    Histogram,
    choose_offset_share,
    choose_threshold,
    score_classes,
    sum_histograms,
)
from retexo.tasks.node_regression import NodeRegression, score_values
from retexo.tasks.output_heads import Smoother, choose_heads
from retexo.tasks.ranking import choose_link_heads, score_links
from retexo.tasks.task_context import RunScores, TaskContext


def choose_and_score(
    context: TaskContext,
    stages: Sequence[Stage],
    logits: Sequence[Tensor],
    smoother: Smoother,
) -> tuple[OutputHeads, RunScores]:
    """Choose the output heads of a trained network by validation, and score its predictions.

    For links it moves the stages to the CPU.

    Args:
        context: of this worker; all workers call it.
        stages: of the network.
        logits: [I, C] of the last stages.
        smoother: label propagation for tasks of nodes.
    """
    if context.settings.task.links:
        heads, known = choose_link_heads(context, stages, logits)
        return heads, RunScores(score_links(context, stages, logits, heads, known))
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

    histograms: of sum_histograms; None: computed here, for classes.
    """
    if isinstance(context.task, NodeRegression):
        return score_values(context, logits)
    return score_classes(context, logits, heads, histograms)
