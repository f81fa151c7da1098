"""The scores that a run reports, of any task."""

from collections.abc import Sequence
from dataclasses import asdict

from torch import Tensor

from retexo.models.stage import OutputHeads, Stage
from retexo.tasks.node_classification import score_splits
from retexo.tasks.output_heads import Propagate, choose_heads
from retexo.tasks.ranking import choose_link_heads, score_links
from retexo.tasks.task_context import TaskContext

Scores = dict[str, dict[str, float]]
"""By split, then by metric; link prediction has no training scores."""


def choose_and_score(
    context: TaskContext,
    stages: Sequence[Stage],
    logits: Sequence[Tensor],
    propagate: Propagate,
) -> tuple[OutputHeads, Scores]:
    """Choose the output heads of a trained network by validation, and score its predictions.

    Args:
        context: of this worker; all workers call it.
        stages: of the network.
        logits: [I, C] of the last stages.
        propagate: label propagation for node classification.
    """
    if context.settings.task.links:
        heads = choose_link_heads(context, stages, logits)
        return heads, score_links(context, stages, logits, heads)
    heads, predicted = choose_heads(context, logits, propagate)
    return heads, score_nodes(context, predicted)


def score_nodes(context: TaskContext, logits: Tensor) -> Scores:
    """The scores of node classification; logits: [I, C]."""
    return {name: asdict(score) for name, score in score_splits(context, logits).items()}
